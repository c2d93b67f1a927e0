"""Diagnose a run from its log: silent groups against a prediction, a group size to use, and signs of trouble.

Silent: all rewards of a group are equal; its advantages are zero and it teaches nothing. Predictions are in terms of
*right* completions (reward >= `success`). Where rewards have more than two values, silent shares are of the rewards as
they are, also in subsets for smaller groups; predictions make them binary at the threshold, and the report says so. No
size is suggested then unless the threshold was given, nor where nothing is right or nothing wrong.

What stands against the observed silent share (see `shared.planning.difficulty_fit` for why there is no more to be had):

- Prompts sampled in several groups within `window` steps: the share that chance would give if the right completions
  of each prompt were divided at random among its groups. This can fail, and then completions of a group depend on each
  other or solve rates moved within the window.
- All groups: a Beta distribution of solve rates fitted to the counts, for all of training and for each part. The fit
  has seen what it predicts: agreement says that the family describes the difficulties, not that completions are
  independent. (A mixture of any shape would agree with every log, and say nothing.) Two tests go with it: whether the
  family fits, and whether the counts can come from independent completions at all.
- Group sizes up to the run's own: counted in subsets of its groups, without any model.
- Larger ones: from the mixture of solve rates that fits best, up to four times the run's own, where the study of
  forecasts found that its intervals hold; beyond, and where a log is too small for it, from the Beta fit
  (`rate_forecast`).

Intervals of shares are Wilson's with a group as the unit; those from the fit cover the finite number of groups. None of
them covers what another run would give. Drifts and gradient norms: `shared.planning.run_drift`.

Where silent groups were redrawn, the log has only what was kept. Silence before redraws is then: drawn more than once,
or kept silent; only first draws enter the fit, and prompts that recur are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from grpo_replications.shared.planning.difficulty_fit import (
    Counts,
    MixtureTest,
    RecurrenceTest,
    fit_beta,
    log_subset,
    misfit,
    mixture_test,
    recurrence_test,
    usual_gap,
)
from grpo_replications.shared.planning.findings import findings
from grpo_replications.shared.planning.rate_forecast import RateForecast
from grpo_replications.shared.planning.run_drift import (
    Drift,
    GradientNorms,
    entropy_drift,
    gradient_norms,
    length_drift,
    parts_of_training,
)
from grpo_replications.shared.planning.run_log import RunLog
from grpo_replications.shared.planning.size_choice import USUAL_SIZES, SizeChoice, choose_size
from grpo_replications.shared.statistics.estimates import Estimate, wilson_interval

SIZES = (2, 4, 8, 16, 32, 64, 128)
ENOUGH_FOR_SIZE = 30  # groups in the last part, below which no size is suggested from it alone


@dataclass(frozen=True)
class SilentShares:
    """Shares of groups, with Wilson intervals: silent, and by the reward that all completions have."""

    silent: Estimate
    all_right: Estimate
    all_wrong: Estimate
    other: Estimate


@dataclass(frozen=True)
class Part:
    """A part of training: steps, groups, mean solve rate, silent shares, and the Beta fit's silent rate for it.

    `observed` is what `predicted` stands against: silent in terms of right and wrong, before any redraw.
    """

    first_step: int
    last_step: int
    groups: int
    solve_rate: float
    shares: SilentShares
    observed: float
    predicted: Estimate


@dataclass(frozen=True)
class SizeLine:
    """One group size: silent rate (`counted` in subsets, or from the fit), fidelity of the set, nonzero advantages.

    `method`: which fit answers for this size. `nonzero`: completions of a group with nonzero advantage, G x (1 -
    silent rate).
    """

    group_size: int
    silent: Estimate
    counted: bool
    method: str
    fidelity: Estimate
    nonzero: float


@dataclass(frozen=True)
class Suggestion:
    """Smallest group size that meets a target for the groups `over` which it is judged, and the fit it comes from."""

    target: str
    over: str
    group_size: Estimate
    method: str


@dataclass(frozen=True)
class Redraws:
    """Share of groups drawn more than once, share still silent when the bound was reached, mean number of draws."""

    redrawn: Estimate
    exhausted: Estimate
    mean_draws: float


@dataclass(frozen=True)
class Diagnosis:
    """All that `diagnose` found; the fields are explained at their types and in the module's docstring.

    `effective_group_size`: G x (1 - share of groups kept silent), the completions of a group that on average get an
    advantage. `silent_trend`: change of the silent share over 100 steps, None for fewer than three steps. `choice`:
    sizes for the same completions a step, on the solve rates of `choice_over`; None where no size is suggested.
    `reach`: largest size that the mixture of `choice_over` answers for, 0 for none, and then `why_beta` says why.
    """

    source: str
    kind: str
    groups: int
    group_size: int
    first_step: int
    last_step: int
    distinct_prompts: int
    distinct_completions: float | None
    binary: bool
    success: float
    success_given: bool
    nothing_right: bool
    nothing_wrong: bool
    largest_reward: float
    shares: SilentShares
    silent_trend: Estimate | None
    completions_per_step: int
    choice: SizeChoice | None
    choice_over: str
    reach: int
    why_beta: str | None
    effective_group_size: Estimate
    parts: list[Part]
    observed: float
    predicted: Estimate
    family_p_value: float
    mixture: MixtureTest | None
    recurrence: RecurrenceTest | None
    sizes: list[SizeLine]
    suggestions: list[Suggestion]
    length: Drift | None
    entropy: Drift | None
    gradient_norms: GradientNorms | None
    redraws: Redraws | None
    findings: list[str]
    notes: list[str]


def diagnose(
    log: RunLog,
    success: float | None = None,
    fidelity: float = 0.95,
    silent_share: float | None = None,
    window: float | None = None,
    noise_ratio: float | None = None,
) -> Diagnosis:
    """Diagnose a run from its groups.

    `success`: reward from which a completion is right; by default the larger of two rewards, else 1. `noise_ratio`: r
    of the gain (`size_choice`). `fidelity`: target of the suggested group size;
    `silent_share`: a second target. `window`: steps within which groups of one prompt are compared, by default the
    median distance from one to the next. ValueError for targets outside (0, 1) and a negative window. Time: about a
    second, plus 2,000 draws for each group whose prompt recurs.
    """
    for name, target in (("fidelity", fidelity), ("silent_share", silent_share)):
        if target is not None and not 0 < target < 1:
            raise ValueError(f"{name} must lie above 0 and below 1, not {target}")
    if window is not None and not window >= 0:
        raise ValueError(f"window must not be negative, not {window}")
    values = np.unique(log.rewards)
    success_given = success is not None
    if success is None:
        success = float(values[1]) if len(values) == 2 else 1.0
    right = log.rewards >= success
    k = right.sum(axis=1)
    redrawn = log.draws is not None and bool((log.draws > 1).any())
    first_draw = np.ones(len(k), dtype=bool) if not redrawn else log.draws == 1
    window = usual_gap(log.steps, log.prompts) if window is None else window

    def counts(rows: np.ndarray) -> Counts:
        known = k[rows][first_draw[rows]]
        return Counts(np.bincount(known, minlength=log.group_size + 1).astype(float), int((~first_draw[rows]).sum()))

    everything = counts(np.arange(len(k)))
    fit = RateForecast.of(everything)
    blocks = parts_of_training(log.steps)
    parts = [_part(log, rows, counts(rows), k, success) for rows in blocks]
    shares = silent_shares(log.rewards, success)
    binary = len(values) <= 2
    open_ended = bool(right.any() and not right.all()) and (binary or success_given)
    last = counts(blocks[-1])
    recent = len(blocks) > 1 and last.groups >= ENOUGH_FOR_SIZE
    recent_fit = RateForecast.of(last) if recent else fit
    diagnosis = Diagnosis(
        source=log.source,
        kind=log.kind,
        groups=len(k),
        group_size=log.group_size,
        first_step=int(log.steps[0]),
        last_step=int(log.steps[-1]),
        distinct_prompts=len(np.unique(log.prompts)),
        distinct_completions=None if log.distinct is None else float(log.distinct.mean()),
        binary=binary,
        success=success,
        success_given=success_given,
        nothing_right=not right.any(),
        nothing_wrong=bool(right.all()),
        largest_reward=float(log.rewards.max()),
        shares=shares,
        silent_trend=_trend(log.steps, np.ptp(log.rewards, axis=1) == 0),
        completions_per_step=int(np.median(np.unique(log.steps, return_counts=True)[1])) * log.group_size,
        choice=_choice(recent_fit, log, noise_ratio) if open_ended else None,
        choice_over="the last part" if recent else "all groups",
        reach=recent_fit.reach,
        why_beta=recent_fit.why_beta,
        effective_group_size=_complement(shares.silent, log.group_size),
        parts=parts,
        observed=everything.silent_share(log.group_size),
        predicted=fit.beta.silent_rate(log.group_size),
        family_p_value=misfit(everything, fit.beta),
        mixture=None if redrawn else mixture_test(everything),
        recurrence=None if redrawn else recurrence_test(log.steps, log.prompts, k, log.group_size, window),
        sizes=_size_lines(log, everything, fit, binary),
        suggestions=_suggestions(fit, recent_fit, recent, fidelity, silent_share) if open_ended else [],
        length=length_drift(log),
        entropy=entropy_drift(log),
        gradient_norms=gradient_norms(log.history),
        redraws=_redraws(log) if redrawn or (log.exhausted is not None and log.exhausted.any()) else None,
        findings=[],
        notes=list(log.notes),
    )
    return replace(diagnosis, findings=findings(diagnosis, everything))


def silent_shares(rewards: np.ndarray, success: float) -> SilentShares:
    """Shares of silent groups of rewards (n, G), by kind.

    All right: all at one reward of at least `success`. All wrong: all at one reward below it that is 0 or less, or
    the lowest of several in the log. Other: any other constant, such as partial credit that all completions share.
    """
    lowest, highest = rewards.min(axis=1), rewards.max(axis=1)
    silent = lowest == highest
    right = silent & (lowest >= success)
    bottom = rewards.min()
    wrong = silent & ~right & ((lowest <= 0) | ((lowest == bottom) & (bottom < rewards.max())))
    n = len(rewards)
    return SilentShares(
        *(wilson_interval(float(kind.sum()), n) for kind in (silent, right, wrong, silent & ~right & ~wrong))
    )


def _part(log: RunLog, rows: np.ndarray, counts: Counts, k: np.ndarray, success: float) -> Part:
    return Part(
        first_step=int(log.steps[rows[0]]),
        last_step=int(log.steps[rows[-1]]),
        groups=len(rows),
        solve_rate=float(k[rows].mean() / log.group_size),
        shares=silent_shares(log.rewards[rows], success),
        observed=counts.silent_share(log.group_size),
        predicted=fit_beta(counts).silent_rate(log.group_size),
    )


def _size_lines(log: RunLog, counts: Counts, fit: RateForecast, binary: bool) -> list[SizeLine]:
    """Sizes up to the run's own counted in subsets of its groups, of the rewards as they are; larger from the fit."""
    lines = []
    for size in sorted({*SIZES, log.group_size}):
        counted = size <= counts.group_size
        silent = fit.silent_rate(size)
        if counted:
            # Subsets of one group are not independent: the interval is of as many groups, not of all subsets.
            share = counts.silent_share(size) if binary else equal_subsets(log.rewards, size)
            silent = wilson_interval(share * counts.groups, counts.groups)
        lines.append(
            SizeLine(size, silent, counted, fit.method(size), fit.fidelity(size), size * (1 - float(silent.value)))
        )
    return lines


def equal_subsets(rewards: np.ndarray, size: int) -> float:
    """Share of subsets of `size` completions of a group with equal rewards: rewards (n, G), any number of values."""
    n, group_size = rewards.shape
    ordered = np.sort(rewards, axis=1)
    starts = np.flatnonzero(np.diff(ordered, axis=1, prepend=np.nan).ravel() != 0)
    runs = np.diff(starts, append=n * group_size)
    return float(np.exp(log_subset(runs, group_size, size)).sum() / n)


def _choice(fit: RateForecast, log: RunLog, noise_ratio: float | None) -> SizeChoice:
    sizes = sorted(size for size in {*USUAL_SIZES, log.group_size} if size <= fit.largest)
    return choose_size(fit.rates(log.source), sizes, noise_ratio)


def _trend(steps: np.ndarray, silent: np.ndarray) -> Estimate | None:
    """Slope of the silent share over 100 steps, with a normal interval over groups; None for fewer than three steps."""
    if len(np.unique(steps)) < 3:
        return None
    x = (steps - steps.mean()) / 100
    slope = float(x @ silent / (x @ x))
    rest = silent - silent.mean() - slope * x
    error = 1.96 * float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))
    return Estimate(slope, slope - error, slope + error, len(x))


def _suggestions(
    fit: RateForecast, recent_fit: RateForecast, recent: bool, fidelity: float, silent_share: float | None
) -> list[Suggestion]:
    found = []
    for name, one in [("all groups", fit), *([("the last part", recent_fit)] if recent else [])]:
        targets = {f"fidelity of at least {fidelity:g}": one.smallest_group_size(fidelity)}
        if silent_share is not None:
            targets[f"at most {silent_share:.0%} silent"] = one.smallest_group_size_for_silence(silent_share)
        found += [Suggestion(target, name, size, one.method_of_size(size)) for target, size in targets.items()]
    return found


def _redraws(log: RunLog) -> Redraws:
    n = len(log.draws)
    exhausted = 0.0 if log.exhausted is None else float(log.exhausted.sum())
    return Redraws(
        wilson_interval(float((log.draws > 1).sum()), n), wilson_interval(exhausted, n), float(log.draws.mean())
    )


def _complement(share: Estimate, size: int) -> Estimate:
    return Estimate(size * (1 - share.value), size * (1 - share.high), size * (1 - share.low), share.n)
