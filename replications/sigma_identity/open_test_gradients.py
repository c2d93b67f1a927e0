"""Experiment `open-test-gradients`: what the closed forms leave open, measured on a language model's own scores.

For any policy with independent completions, given k right ones the class means have the expectations E[s | right] and
E[s | wrong]. With Delta(x) their difference, exactly:

    E[g_GRPO] = E[sigma(k, G)] Delta,    E[g_Dr.GRPO] = p (1-p) (1 - 1/G) Delta,    grad p = p (1-p) Delta.

The Bernoulli-logit model puts ||Delta|| = 1, so that gradient mass by difficulty is E[sigma | p] alone. A language
model has a ||Delta(x)|| that may depend on the prompt, and on its difficulty. That is the open question:

- is ||Delta|| flat in p? `delta_exponent` a and `delta_tilt` b of ||Delta|| ~ (4 p (1-p))^a exp(b (2p - 1)): 0 if so;
- how is the mass of *expected updates* shared out over difficulties, against the closed forms' shares?
- what is the norm of *one sampled group's* gradient? If scores within a class are orthogonal with equal norm n, then
  ||sbar+ - sbar-|| = n sqrt(G / (k (G-k))), and the norm of the GRPO gradient is n / sqrt(G) for every mixed group:
  sigma then says nothing about single groups, only about what is left of them on average. Measured by k, against the
  signal sigma ||Delta||, the noise n / sqrt(G), and the root of the sum of their squares. These come from the class
  means that the measured norm comes from, so that their agreement shows no more than equal scatter in both classes.
  The formula without that assumption (`shared.theory.group_norms`) is therefore estimated on one half of a prompt's
  completions and compared with groups of the other half.

Delta is no free quantity: since E[s] = 0, E[s | right] = (1-p) Delta and E[s | wrong] = -p Delta, and Delta is the
gradient of logit p. That the few right completions of a hard prompt resemble each other is this identity, no finding.

A score is grad log pi of the whole completion (the sum over its tokens), the score that TRL's losses "dapo" and
"dr_grpo" imply up to a factor common to the batch, with respect to the linear layers, as a sketch
(`replications.sigma_identity.score_sketch`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from grpo_replications.replications.sigma_identity.open_estimates import (
    Classes,
    Measured,
    by_count,
    classes,
    difficulty_bin,
    difficulty_trend,
    finite_spread,
    group_norm_squared,
    over_prompts,
    root_share_gaps,
    root_shares,
    signal_squared,
    without_replacement,
)
from grpo_replications.replications.sigma_identity.open_test import BIN_NAMES, METHODS, open_problems, solve
from grpo_replications.replications.sigma_identity.score_sketch import ScoreSketch, exact_gram
from grpo_replications.replications.sigma_identity.settings import OpenTestGradientsSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.sampling import Sample
from grpo_replications.shared.theory.closed_forms import sigma
from grpo_replications.shared.theory.group_norms import expected_squared_norm
from grpo_replications.shared.training.run import run_training

SPLITS = 64
"""Random divisions into halves per prompt; their number only averages out which half a completion falls in."""
CHECKED = 6
"""Completions of one prompt whose inner products are also computed without a sketch."""


@dataclass(frozen=True)
class Unit:
    """One prompt at one checkpoint.

    `gram` (n, n) and `rewards` (n,) of the n scored completions, `gram` None where all rewards are equal: no group of
    theirs has a gradient, so their scores are not computed. Three independent blocks of `block` other completions
    give the counts `binning`, and `first` and `second` for the product of two independent predictions.
    """

    prompt: int
    step: int
    gram: np.ndarray | None
    rewards: np.ndarray
    binning: int
    first: int
    second: int
    block: int

    @property
    def rate(self) -> float:
        """Solve rate from the three blocks, independent of the scored completions."""
        return (self.binning + self.first + self.second) / (3 * self.block)

    @cached_property
    def means(self) -> Classes | None:
        return None if self.gram is None else classes(self.gram, self.rewards)

    @cached_property
    def halves(self) -> tuple[Classes, Classes] | None:
        """Class means of the completions at even and at odd places, independent of each other; None where one lacks
        two completions of each class."""
        if self.gram is None:
            return None
        both = tuple(classes(self.gram[i::2, i::2], self.rewards[i::2]) for i in range(2))
        return both if all(np.isfinite(one.delta_squared) for one in both) else None

    def group_norm_squared(self, size: int) -> np.ndarray:
        """Mean squared norm of a GRPO group's gradient by its k, (size + 1,); 0 where it is silent or not known."""
        return np.zeros(size + 1) if self.means is None else np.nan_to_num(group_norm_squared(self.means, size))


def open_test_gradients(settings: OpenTestGradientsSettings, seed: int, context: JobContext) -> list[Row]:
    """One training run with scores at its checkpoints: rows by step, and over all checkpoints without a step."""
    model, tokenizer = catalog.load(settings.pinned(settings.model))
    problems, reward = open_problems(settings, seed)
    generator = torch.Generator().manual_seed(2_607_500 + seed)
    sketch = ScoreSketch(model, settings.sketch_rank, seed, settings.precision)
    temperature = settings.temperature
    units: list[Unit] = []
    errors: list[tuple[int, float]] = []

    def evaluate(policy: Any, step: int) -> dict[str, float]:
        block = settings.reference_samples // 3
        count = 3 * block + settings.scored_samples
        solved = solve(policy, tokenizer, problems, reward, count, settings, generator)
        for i, (sample, right) in enumerate(solved):
            blocks = right[: 3 * block].reshape(3, block).sum(axis=1)
            draws, rewards = sample.draws[3 * block :], right[3 * block :]
            gram = None
            if 0 < rewards.sum() < len(rewards):
                gram = _gram(sketch, policy, sample, draws, temperature, settings.score_batch)
            units.append(Unit(i, step, gram, rewards, *map(int, blocks), block))
        errors.append((step, sketch_error(sketch, policy, solved[0][0], temperature)))
        return {}

    run_training(
        settings,
        seed,
        problems,
        [reward],
        directory=context.directory,
        model=model,
        tokenizer=tokenizer,
        observe=evaluate,
        observe_every=settings.eval_every,
        progress=context.progress,
    )
    rows = [row("sketch_error", error, step) for step, error in errors]
    units = in_units_of_scores(units)
    for step, _ in errors:
        now = [unit for unit in units if unit.step == step]
        rows += _prompt_rows(now, step) + _summary(now, settings.group_sizes, step)
    return rows + _summary(units, settings.group_sizes)


def in_units_of_scores(units: list[Unit]) -> list[Unit]:
    """All inner products of a checkpoint divided by its mean squared norm of a score.

    Scores grow or shrink as the policy trains; without this, one checkpoint would outweigh the others where they are
    summed up together, and a difficulty that is common at one of them would seem to have long scores.
    """
    scale = {
        step: np.mean([np.diag(unit.gram).mean() for unit in units if unit.gram is not None and unit.step == step])
        for step in {unit.step for unit in units if unit.gram is not None}
    }
    return [unit if unit.gram is None else replace(unit, gram=unit.gram / scale[unit.step]) for unit in units]


def _gram(
    sketch: ScoreSketch, policy: Any, sample: Sample, draws: np.ndarray, temperature: float, batch_size: int
) -> np.ndarray:
    """Inner products (n, n) of the scores of the drawn completions; each distinct one is differentiated once."""
    distinct, index = np.unique(draws, return_inverse=True)
    chosen = [sample.completions[i] for i in distinct]
    sketches, _ = sketch(policy, sample.prompt_ids, chosen, temperature, batch_size)
    gram = (sketches @ sketches.T).double().cpu().numpy()
    return gram[np.ix_(index, index)]


def sketch_error(sketch: ScoreSketch, policy: Any, sample: Sample, temperature: float) -> float:
    """|sketched - exact| / |exact| of the Gram matrix of a few completions, in the Frobenius norm."""
    chosen = sample.completions[:CHECKED]
    sketches, _ = sketch(policy, sample.prompt_ids, chosen, temperature)
    exact = exact_gram(policy, sample.prompt_ids, chosen, temperature, sketch.precision)
    return float(((sketches @ sketches.T).double().cpu() - exact).norm() / exact.norm())


# --- rows -------------------------------------------------------------------------------------------------------------


def _prompt_rows(units: list[Unit], step: int) -> list[Row]:
    """What figures draw: solve rate, ||Delta||^2, within-class variance and squared norms of each prompt."""
    rows = []
    for unit in units:
        values = {"rate": unit.rate, "right": float(unit.rewards.sum())}
        if unit.means is not None:
            values["delta_squared"], values["spread"] = unit.means.delta_squared, unit.means.spread
            values["norm_squared"] = float(np.diag(unit.gram).mean())
        rows += [row(f"{name}/{unit.prompt}", value, step) for name, value in values.items() if np.isfinite(value)]
    return rows


def _summary(units: list[Unit], sizes: list[int], step: int | None = None) -> list[Row]:
    """Everything that is said of several prompts together. Names without a step begin with `run_`."""
    metrics = _structure(units)
    for size in sizes:
        metrics |= _norms(units, size) | _held_out_norms(units, size)
        for method in METHODS:
            metrics |= _mass(units, size, method)
    prefix = "run_" if step is None else ""
    return [row(prefix + name, value, step) for name, value in metrics.items() if np.isfinite(value)]


def _structure(units: list[Unit]) -> dict[str, float]:
    """||Delta|| against difficulty, signal against noise, cosines within classes; the mean score, which must vanish."""
    metrics: dict[str, float] = {"units": float(len(units))}
    units = [unit for unit in units if unit.gram is not None]
    metrics["units_mixed"] = float(len(units))
    if not units:
        return metrics
    prompts = np.array([unit.prompt for unit in units])
    means = [unit.means for unit in units]
    delta = np.array([one.delta_squared for one in means])
    rates = np.array([unit.rate for unit in units])
    known = np.isfinite(delta) & (rates > 0) & (rates < 1)
    metrics["units_with_delta"] = float(known.sum())
    pair = np.array([_off_diagonal(unit.gram) for unit in units])
    norm = np.array([np.diag(unit.gram).mean() for unit in units])
    _add(metrics, "score_mean_ratio", _ratio(pair, norm, prompts))
    right = np.array([[one.pair_right, one.norm_right] for one in means])
    wrong = np.array([[one.pair_wrong, one.norm_wrong] for one in means])
    for name, values in (("cosine_right", right), ("cosine_wrong", wrong)):
        rows = np.isfinite(values).all(axis=1)
        if rows.any():
            metrics[name] = float(values[rows, 0].sum() / values[rows, 1].sum())
    if known.sum() > 3:
        spread = np.array([one.spread for one in means])
        _add(metrics, "signal_to_noise", _ratio(delta[known], spread[known], prompts[known]))
        apart = np.array([[one.spread_right, one.spread_wrong] for one in means])[known]
        _add(metrics, "spread_ratio", _ratio(apart[:, 0], apart[:, 1], prompts[known]))
        steps = np.array([unit.step for unit in units])
        trend = _trend(delta[known], rates[known], steps[known], prompts[known])
        for i, name in enumerate(("delta_exponent", "delta_tilt")):
            metrics[name], metrics[f"{name}_error"] = trend.value[i], trend.error[i]
        within = difficulty_trend(delta[known], rates[known], np.stack([steps[known], prompts[known]], axis=1))
        metrics["delta_exponent_within"], metrics["delta_tilt_within"] = within
    return metrics


def _norms(units: list[Unit], size: int) -> dict[str, float]:
    """Root mean square gradient norm of one GRPO group by its k, against signal, noise and both; its slope on sigma.

    Prompts enter with the probability that a group of theirs has k right, the same in all four. `norm_exponent/G`:
    slope of log ||g|| on log sigma(k, G) within prompts, 1 where signal rules and 0 where noise does. `norm_error_*`:
    mean |log(predicted / measured)| over groups. Only prompts with at least two completions of each class.
    """
    metrics: dict[str, float] = {}
    k = np.arange(size + 1)
    kept = [unit for unit in units if unit.means is not None and np.isfinite(unit.means.delta_squared)]
    if not kept:
        return metrics
    weights = np.array([_probabilities(unit, size) for unit in kept])
    means = [unit.means for unit in kept]
    measured = np.array([unit.group_norm_squared(size) for unit in kept])
    signal = sigma(k, size) ** 2 * np.array([[one.delta_squared] for one in means])
    noise = np.array([[one.spread] for one in means]) / size * np.ones(size + 1)
    total = weights.sum(axis=0)
    curves = {}
    for name, squared in (("measured", measured), ("signal", signal), ("noise", noise), ("both", signal + noise)):
        with np.errstate(divide="ignore", invalid="ignore"):
            curves[name] = np.sqrt(np.maximum((weights * squared).sum(axis=0) / total, 0.0))
        metrics |= {f"norm_{name}/{size}/{i}": curves[name][i] for i in range(1, size) if total[i] > 0}
    inner = slice(1, size)
    for name in ("signal", "noise", "both"):
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.abs(np.log(curves[name] / curves["measured"]))[inner]
        usable = np.isfinite(off) & (total[inner] > 0)
        if usable.any():
            metrics[f"norm_error_{name}/{size}"] = float(np.average(off[usable], weights=total[inner][usable]))
    if size > 2:
        metrics[f"norm_exponent/{size}"] = within_prompts_slope(
            np.log(sigma(k[inner], size)), measured[:, inner], weights[:, inner]
        )
    return metrics


def _held_out_norms(units: list[Unit], size: int) -> dict[str, float]:
    """`norm_held_out/G/k`, measured on one half of a prompt's completions, against `norm_formula/G/k` from the other.

    Each half predicts the other, and both predictions count. Prompts enter as in `_norms`; only those with two
    completions of each class in both halves. `norm_error_formula/G`: mean |log(predicted / measured)| over groups.
    """
    kept = [unit for unit in units if unit.halves is not None]
    k = np.arange(1, size)
    weights = np.array([_probabilities(unit, size)[k] for unit in kept])
    if not kept or not weights.sum() > 0:
        return {}
    squared = {"formula": np.zeros(size - 1), "held_out": np.zeros(size - 1)}
    for unit, weight in zip(kept, weights, strict=True):
        for fitted, other in (unit.halves, unit.halves[::-1]):
            predicted = expected_squared_norm(k, size, fitted.delta_squared, fitted.spread_right, fitted.spread_wrong)
            squared["formula"] += weight * predicted
            squared["held_out"] += weight * group_norm_squared(other, size)[k]
    total = weights.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        curves = {name: np.sqrt(np.maximum(sums / (2 * total), 0.0)) for name, sums in squared.items()}
        off = np.abs(np.log(curves["formula"] / curves["held_out"]))
    metrics = {f"norm_{name}/{size}/{i}": curve[i - 1] for name, curve in curves.items() for i in k if total[i - 1] > 0}
    usable = np.isfinite(off) & (total > 0)
    if usable.any():
        metrics[f"norm_error_formula/{size}"] = float(np.average(off[usable], weights=total[usable]))
    return metrics


def _mass(units: list[Unit], size: int, method: str) -> dict[str, float]:
    """Shares of gradient mass by difficulty, of expected updates and of single groups, against their closed forms.

    `expected_*`: ||E g|| from independent halves, predicted E[sigma] or p (1-p) (1 - 1/G). `single_*`: root mean
    square norm of one group's gradient (silent ones count 0), predicted by the signal alone (root of E[sigma^2], for
    Dr. GRPO of E[sigma^4]) and by the noise alone (`noise`: root of the probability of a mixed group, for Dr. GRPO of
    E[sigma^2]).
    """
    factor = by_count(method, size)
    generator = np.random.default_rng(size)
    prompts = np.array([unit.prompt for unit in units])
    bins = difficulty_bin(np.array([unit.binning / unit.block for unit in units]))
    expected = np.array(
        [
            0.0 if unit.gram is None else signal_squared(unit.gram, unit.rewards, factor, SPLITS, generator)
            for unit in units
        ]
    )
    # GRPO's norms times the ratio of the two methods' factors, which is 1 for GRPO itself.
    scale = np.divide(factor, by_count("grpo", size), out=np.zeros(size + 1), where=factor > 0)
    single = np.array([_probabilities(unit, size) @ (scale**2 * unit.group_norm_squared(size)) for unit in units])
    halves = [np.array([getattr(unit, name) for unit in units]) for name in ("first", "second")]
    block = units[0].block
    closed = np.prod([without_replacement(factor, half, block) for half in halves], axis=0)
    signal = np.mean([without_replacement(factor**2, half, block) for half in halves], axis=0)
    noise = np.mean([without_replacement(scale**2 * by_count("noise", size), half, block) for half in halves], axis=0)
    metrics: dict[str, float] = {}
    pairs = (
        ("expected", expected, closed, "gap"),
        ("single", single, signal, "gap"),
        ("single", single, noise, "noise_gap"),
    )
    for kind, measured, predicted, gap_name in pairs:
        if not (measured.sum() > 0 and predicted.sum() > 0):
            continue
        gap = root_share_gaps(measured, predicted, bins, prompts)
        parts = {"share": root_shares(measured, bins), gap_name: gap.value, f"{gap_name}_error": gap.error}
        parts["noise" if gap_name == "noise_gap" else "closed"] = root_shares(predicted, bins)
        for part, values in parts.items():
            metrics |= {f"{kind}_{part}/{method}/{size}/{where}": v for where, v in zip(BIN_NAMES, values, strict=True)}
    return metrics


# --- small statistics -------------------------------------------------------------------------------------------------


def _probabilities(unit: Unit, size: int) -> np.ndarray:
    """Probability of each k for a group within the scored completions, (size + 1,)."""
    right, drawn = int(unit.rewards.sum()), len(unit.rewards)
    return np.array([without_replacement(row, np.array(right), drawn) for row in np.eye(size + 1)])


def within_prompts_slope(x: np.ndarray, squared: np.ndarray, weights: np.ndarray) -> float:
    """Slope of log sqrt(squared) (prompts, k) on x (k,), each prompt with a level of its own, weighted (prompts, k)."""
    usable = (squared > 0) & (weights > 0)
    w = np.where(usable, weights, 0.0)
    y = np.log(np.where(usable, squared, 1.0)) / 2
    rows = w.sum(axis=1) > 0
    w, y = w[rows], y[rows]
    if not len(w):
        return np.nan
    total = w.sum(axis=1, keepdims=True)
    dx = x - (w * x).sum(axis=1, keepdims=True) / total
    dy = y - (w * y).sum(axis=1, keepdims=True) / total
    variance = (w * dx**2).sum()
    return float((w * dx * dy).sum() / variance) if variance > 0 else np.nan


def _trend(delta: np.ndarray, rates: np.ndarray, steps: np.ndarray, prompts: np.ndarray, draws: int = 300) -> Measured:
    """Exponent and tilt of ||Delta|| in difficulty, a level for each checkpoint; bootstrap errors over prompts."""
    generator = np.random.default_rng(20_260_630)
    names = np.unique(prompts)
    rows_of = {name: np.flatnonzero(prompts == name) for name in names}
    resampled = []
    for _ in range(draws):
        rows = np.concatenate([rows_of[name] for name in generator.choice(names, len(names))])
        resampled.append(difficulty_trend(delta[rows], rates[rows], steps[rows]))
    return Measured(difficulty_trend(delta, rates, steps), finite_spread(np.array(resampled)))


def _ratio(above: np.ndarray, below: np.ndarray, prompts: np.ndarray) -> Measured:
    return over_prompts(np.stack([above, below], axis=1), prompts, lambda sums: sums[..., :1] / sums[..., 1:])


def _off_diagonal(gram: np.ndarray) -> float:
    n = len(gram)
    return float((gram.sum() - np.trace(gram)) / (n * (n - 1)))


def _add(metrics: dict[str, float], name: str, measured: Measured) -> None:
    metrics[name], metrics[f"{name}_error"] = float(measured.value[0]), float(measured.error[0])
