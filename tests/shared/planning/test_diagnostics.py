"""Diagnosis of a run: known difficulties are recovered, and dependence is flagged where it can be seen."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import betabinom

from grpo_replications.shared.planning.diagnostics import diagnose, silent_shares
from grpo_replications.shared.planning.difficulty_fit import (
    Counts,
    fit_beta,
    log_beta_binomial,
    misfit,
    mixture_test,
    recurrence_test,
    usual_gap,
)
from grpo_replications.shared.planning.run_drift import drift, gradient_norms, parts_of_training
from grpo_replications.shared.planning.run_log import RunLog
from grpo_replications.shared.theory.closed_forms import expected_update, silent_rate

STEPS, PER_STEP = 50, 8
GROUPS = STEPS * PER_STEP


def run_log(p: np.ndarray, size: int, seed: int, prompts: np.ndarray | None = None, **more: object) -> RunLog:
    """Groups of independent completions with solve rates p (n,), one prompt each unless `prompts` says otherwise."""
    rewards = (np.random.default_rng(seed).random((len(p), size)) < p[:, None]).astype(float)
    return log_of(rewards, prompts, **more)


def log_of(rewards: np.ndarray, prompts: np.ndarray | None = None, **more: object) -> RunLog:
    steps = more.pop("steps", np.arange(len(rewards)) // PER_STEP)
    return RunLog("made", "group log", steps, np.arange(len(rewards)) if prompts is None else prompts, rewards, **more)


def counts_of(k: np.ndarray, size: int) -> Counts:
    return Counts(np.bincount(k, minlength=size + 1).astype(float))


# --- the fit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta", "size"), [(0.5, 0.8, 8), (2.0, 5.0, 4), (0.2, 0.3, 16), (30.0, 60.0, 8)])
def test_intervals_of_the_fit_cover_the_truth(alpha: float, beta: float, size: int) -> None:
    grid = np.random.default_rng(0).beta(alpha, beta, 200_000)
    truth = {n: float(silent_rate(grid, n).mean()) for n in (size, 2 * size, 4 * size)}
    fidelity = float(expected_update(grid[:5000], 16, "grpo").mean() / np.sqrt(grid * (1 - grid))[:5000].mean())
    covered = []
    for seed in range(30):
        p = np.random.default_rng(1000 + seed).beta(alpha, beta, GROUPS)
        fit = fit_beta(counts_of(np.random.default_rng(seed).binomial(size, p), size))
        estimates = [(fit.silent_rate(n), value) for n, value in truth.items()] + [(fit.fidelity(16), fidelity)]
        covered.append([one.low - 1e-3 <= value <= one.high + 1e-3 for one, value in estimates])
    assert np.all(np.mean(covered, axis=0) >= 0.8)  # 95 % nominal; 24 of 30 has a chance below 1 in 1000


def test_the_interval_narrows_with_groups_and_never_claims_certainty() -> None:
    widths = []
    for n in (10, 100, 1000, 100_000):
        p = np.random.default_rng(1).beta(1, 2, n)
        one = fit_beta(counts_of(np.random.default_rng(2).binomial(8, p), 8)).silent_rate(8)
        widths.append(one.high - one.low)
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.01
    for k in (0, 8):
        one = fit_beta(counts_of(np.full(12, k), 8)).silent_rate(8)
        assert 0 < one.low < one.value < 1 and one.low < 0.9


def test_silent_rate_and_fidelity_agree_with_integration_over_the_beta_distribution() -> None:
    from scipy.stats import beta as distribution

    fit = fit_beta(counts_of(np.random.default_rng(3).binomial(8, np.random.default_rng(4).beta(2, 3, 300)), 8))
    grid = (np.arange(4000) + 0.5) / 4000
    density = distribution.pdf(grid, fit.alpha[:, None], fit.beta[:, None])
    density /= density.sum(axis=1, keepdims=True)
    for size in (2, 8, 40):
        assert fit.silent_rate(size).value == pytest.approx(
            float(fit.weight @ density @ silent_rate(grid, size)), abs=1e-4
        )
        ratio = (density @ expected_update(grid, size, "grpo")) / (density @ np.sqrt(grid * (1 - grid)))
        assert fit.fidelity(size).value == pytest.approx(float(fit.weight @ ratio), abs=1e-4)


def test_chances_of_a_beta_binomial_are_scipys() -> None:
    alpha, beta = np.array([1e-6, 0.3, 2.0, 400.0]), np.array([0.7, 1e-4, 1.0, 9e3])
    for size in (1, 8, 700):
        expected = betabinom.logpmf(np.arange(size + 1), size, alpha[:, None], beta[:, None])
        assert log_beta_binomial(size, alpha, beta) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_suggested_size_is_the_smallest_that_reaches_the_target() -> None:
    fit = fit_beta(counts_of(np.random.default_rng(5).binomial(8, np.random.default_rng(6).beta(1, 1, 2000)), 8))
    for target in (0.5, 0.9, 0.99):
        size = fit.smallest_group_size(target)
        assert size.low <= size.value <= size.high
        assert fit.fidelity(int(size.value)).value >= target - 2e-3 > fit.fidelity(int(size.value) - 1).value - 4e-3
    quiet = fit.smallest_group_size_for_silence(0.1)
    assert fit.silent_rate(int(quiet.value)).value == pytest.approx(0.1, abs=0.02)
    assert fit.smallest_group_size(0.999999).value == math.inf


def test_smaller_sizes_are_counted_in_all_subsets() -> None:
    rewards = np.random.default_rng(7).random((20, 6)) < 0.6
    counts = counts_of(rewards.sum(axis=1), 6)
    for size in range(1, 7):
        subsets = [row[list(chosen)] for row in rewards for chosen in itertools.combinations(range(6), size)]
        assert counts.silent_share(size) == pytest.approx(np.mean([len(set(s)) == 1 for s in subsets]), abs=1e-12)
    with pytest.raises(ValueError, match=r"1\.\.6"):
        counts.silent_share(7)


# --- independence -----------------------------------------------------------------------------------------------------


def recurring(seed: int, per_prompt: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Solve rates and prompts of groups where each of 80 prompts is sampled several times."""
    prompts = np.tile(np.arange(GROUPS // per_prompt), per_prompt)
    return np.random.default_rng(seed).beta(1, 1, GROUPS // per_prompt)[prompts], prompts


def test_independent_completions_of_recurring_prompts_are_predicted() -> None:
    p_values, inside = [], []
    for seed in range(40):
        p, prompts = recurring(seed)
        k = np.random.default_rng(seed).binomial(8, p)
        test = recurrence_test(np.arange(GROUPS) // PER_STEP, prompts, k, 8, window=STEPS, draws=500)
        assert test.groups == GROUPS and test.clusters == 80
        p_values += [test.silent_p_value, test.spread_p_value]
        inside.append(test.predicted.low <= test.silent <= test.predicted.high)
        assert abs(test.predicted.value - silent_rate(p, 8).mean()) < 0.05
    assert np.mean(np.array(p_values) < 0.05) < 0.15 and np.median(p_values) > 0.3
    assert np.mean(inside) > 0.85
    d = diagnose(run_log(p, 8, seed, prompts), window=STEPS)
    assert d.recurrence.clusters == 80 and not any("OFF" in finding for finding in d.findings)


@pytest.mark.parametrize("copies", [2, 4, 8])
def test_dependent_completions_of_recurring_prompts_are_flagged(copies: int) -> None:
    p, prompts = recurring(1)
    drawn = run_log(p, 8 // copies, 2, prompts).rewards
    d = diagnose(log_of(np.repeat(drawn, copies, axis=1), prompts), window=STEPS)
    assert d.recurrence.silent > d.recurrence.predicted.high and d.recurrence.spread > 1.5
    assert any("identical copies of" in f or "groups of the same prompt differ more" in f for f in d.findings)


def test_copies_in_pairs_are_called_copies_even_if_no_prompt_recurs() -> None:
    pairs = np.repeat(run_log(np.random.default_rng(1).beta(1, 1, GROUPS), 4, 2).rewards, 2, axis=1)
    found = diagnose(log_of(pairs)).findings
    assert any(f.startswith("OFF") and "identical copies of 2" in f for f in found)
    assert not any("avoid or balance" in f for f in found)


@pytest.mark.parametrize(("copied", "refuted"), [(1, 0), (2, 8)])
def test_fast_learning_is_not_taken_for_dependence(copied: int, refuted: int) -> None:
    """Logits rise by 4 over three passes; copies, mixed with independent groups, are still found."""
    off = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        order = np.concatenate([rng.permutation(160) for _ in range(3)])
        steps = np.arange(480) // PER_STEP
        p = 1 / (1 + np.exp(-(rng.normal(-2, 2, 160)[order] + 4 * steps / 60)))
        rewards = np.repeat(run_log(p, 8 // copied, seed).rewards, copied, axis=1)
        rewards[::40] = run_log(p[::40], 8, seed).rewards  # so that not every count is even
        found = diagnose(log_of(rewards, order, steps=steps)).findings
        off += any("groups of the same prompt differ" in f for f in found if f.startswith("OFF"))
    assert abs(off - refuted) <= 1


def test_a_solve_rate_that_moves_is_named_and_a_smaller_window_clears_it() -> None:
    prompts = np.tile(np.arange(40), 10)
    p = np.clip(0.05 + 0.9 * np.arange(GROUPS) / GROUPS, 0, 1)
    log = run_log(p, 8, 3, prompts)
    d = diagnose(log, window=STEPS)
    assert d.recurrence.moved.low > 0.5
    assert any("Solve rates moved by" in finding and "window of 50 steps" in finding for finding in d.findings)
    assert not any("OFF" in finding for finding in diagnose(log, window=5).findings)
    assert diagnose(log, window=2).recurrence is None


def test_the_usual_window_spans_neighboring_visits() -> None:
    steps = np.array([0, 0, 3, 3, 6, 9, 9, 9])
    assert usual_gap(steps, np.array([0, 1, 0, 1, 1, 0, 2, 3])) == 3
    assert usual_gap(steps, np.arange(8)) == 0
    log = run_log(np.clip(0.05 + 0.9 * np.arange(GROUPS) / GROUPS, 0, 1), 8, 3, np.tile(np.arange(40), 10))
    assert diagnose(log).recurrence.window == 5 and diagnose(run_log(np.full(99, 0.5), 8, 1)).recurrence is None


def test_balanced_completions_are_flagged_even_if_no_prompt_recurs() -> None:
    rewards = np.zeros((GROUPS, 8))
    rewards[:, :4] = 1.0
    d = diagnose(log_of(rewards))
    assert d.recurrence is None and d.mixture.p_value < 1e-10
    assert any("vary less between groups than independent ones can" in finding for finding in d.findings)


def test_copies_of_prompts_met_once_look_like_difficulty_and_no_test_claims_otherwise() -> None:
    rewards = np.repeat(np.random.default_rng(4).integers(0, 2, (GROUPS, 1)), 8, axis=1).astype(float)
    d = diagnose(log_of(rewards))
    assert d.mixture.p_value > 0.5 and d.recurrence is None and not any("OFF" in f for f in d.findings)


@pytest.mark.parametrize("p", [np.full(2000, 0.3), np.random.default_rng(0).beta(0.3, 0.4, 2000), np.zeros(2000)])
def test_mixtures_of_binomials_pass_the_mixture_test(p: np.ndarray) -> None:
    for seed in range(5):
        assert mixture_test(counts_of(np.random.default_rng(seed).binomial(8, p), 8)).p_value > 0.05


def test_a_family_that_does_not_fit_is_said() -> None:
    rng = np.random.default_rng(5)
    three = rng.binomial(16, rng.choice([0.1, 0.5, 0.9], 2000))
    assert misfit(counts_of(three, 16), fit_beta(counts_of(three, 16))) < 1e-6
    fitting = rng.binomial(16, rng.beta(1, 2, 2000))
    assert misfit(counts_of(fitting, 16), fit_beta(counts_of(fitting, 16))) > 0.01
    assert math.isnan(misfit(counts_of(fitting[:4], 16), fit_beta(counts_of(fitting[:4], 16))))


def test_the_prediction_from_recurrence_is_the_exact_expectation() -> None:
    """One prompt, two groups of two, three of four right: wherever the wrong one falls, the other group is silent."""
    test = recurrence_test(np.array([0, 1]), np.array([0, 0]), np.array([2, 1]), 2, window=1)
    assert test.predicted.value == pytest.approx(0.5) and test.silent == 0.5
    assert recurrence_test(np.array([0, 1]), np.array([0, 1]), np.array([2, 1]), 2, window=1) is None


# --- the whole diagnosis ----------------------------------------------------------------------------------------------


def test_known_difficulties_are_recovered_over_training() -> None:
    alpha = np.repeat(np.linspace(0.5, 3.0, 5), GROUPS)
    p = np.random.default_rng(8).beta(alpha, 1.5)
    d = diagnose(run_log(p, 8, 9), silent_share=0.05)
    assert [part.groups for part in d.parts] == [GROUPS] * 5
    for i, part in enumerate(d.parts):
        truth = silent_rate(np.random.default_rng(i).beta(alpha[i * GROUPS], 1.5, 50_000), 8).mean()
        assert part.predicted.low - 0.02 < truth < part.predicted.high + 0.02
    assert d.parts[0].solve_rate < d.parts[-1].solve_rate
    assert d.effective_group_size.value == pytest.approx(8 * (1 - d.shares.silent.value))
    assert [s.over for s in d.suggestions] == ["all groups", "all groups", "the last part", "the last part"]
    sizes = {line.group_size: line for line in d.sizes}
    assert sizes[8].counted and not sizes[16].counted
    assert all(a.silent.value >= b.silent.value for a, b in itertools.pairwise(d.sizes))
    assert all(a.fidelity.value < b.fidelity.value for a, b in itertools.pairwise(d.sizes))
    assert sizes[8].silent.value == d.shares.silent.value == d.observed


def test_kinds_of_silence() -> None:
    rewards = np.array([[1.0] * 3, [2.0] * 3, [0.0] * 3, [-1.0] * 3, [0.5] * 3, [0.5, 1.0, 0.0]])
    s = silent_shares(rewards, 1.0)
    assert [round(6 * one.value) for one in (s.silent, s.all_right, s.all_wrong, s.other)] == [5, 2, 2, 1]
    s = silent_shares(np.array([[0.1] * 2, [1.1] * 2, [0.1, 1.1]]), 1.0)  # a format bonus: 0.1 is the reward of wrong
    assert round(3 * s.all_wrong.value) == 1 and s.other.value == 0
    s = silent_shares(np.full((2, 4), 0.35), 1.0)
    assert s.silent.value == 1 and s.other.value == 1  # one constant in all the log: nothing says what is wrong


def test_partial_credit_and_a_threshold_that_nothing_reaches_are_said() -> None:
    rewards = np.random.default_rng(1).integers(0, 3, (GROUPS, 4)) / 2
    d = diagnose(log_of(rewards))
    assert not d.binary and any("more than two values" in finding for finding in d.findings)
    assert d.shares.silent.value == np.mean(np.ptp(rewards, axis=1) == 0) < d.observed
    assert d.observed == np.mean(np.ptp((rewards >= 1) * 1, axis=1) == 0)
    counted = {line.group_size: line.silent.value for line in d.sizes if line.counted}
    assert counted[4] == d.shares.silent.value and d.choice is None and not d.suggestions
    pairs = [len({*row[list(two)]}) == 1 for row in rewards for two in itertools.combinations(range(4), 2)]
    assert counted[2] == pytest.approx(np.mean(pairs), abs=1e-12)
    assert diagnose(log_of(rewards), success=1.0).choice is not None
    low = diagnose(log_of(rewards), success=3.0)
    assert low.choice is None and not low.suggestions  # nothing right: no size follows
    assert any("No reward reaches 3 (the largest is 1)" in finding for finding in low.findings)
    assert diagnose(log_of(rewards), success=0.5).observed != d.observed


@pytest.mark.parametrize("bound", [1, 5])
def test_redraws_do_not_hide_the_silence_before_them(bound: int) -> None:
    rng = np.random.default_rng(11)
    p = rng.beta(0.6, 1.0, 2000)
    draws = np.ones(len(p), dtype=int)
    k = rng.binomial(8, p)
    first = k.copy()
    for _ in range(bound):
        again = (k == 0) | (k == 8)
        draws += again
        k = np.where(again, rng.binomial(8, p), k)
    silent = (k == 0) | (k == 8)
    rewards = (np.arange(8) < k[:, None]).astype(float)
    d = diagnose(log_of(rewards, draws=draws, exhausted=silent & (draws > bound)))
    assert d.observed == np.mean((first == 0) | (first == 8)) > d.shares.silent.value == silent.mean()
    truth = silent_rate(rng.beta(0.6, 1.0, 50_000), 8).mean()
    assert d.predicted.low - 0.01 < truth < d.predicted.high + 0.01
    assert d.redraws.redrawn.value == np.mean(draws > 1) and d.redraws.exhausted.value == silent.mean()
    assert d.redraws.mean_draws == draws.mean() and d.recurrence is None and d.mixture is None


def test_drift_of_entropy_and_length() -> None:
    rng = np.random.default_rng(2)
    fall = np.linspace(2.0, 1.0, GROUPS) + rng.normal(0, 0.05, GROUPS)
    log = run_log(np.full(GROUPS, 0.5), 4, 1, entropy=fall, lengths=rng.normal(50, 2, (GROUPS, 4)))
    d = diagnose(log)
    assert d.entropy.unit == "steps" and d.entropy.change.n == 10
    assert d.entropy.change.high < -0.7 and d.entropy.change.value == pytest.approx(-0.8, abs=0.05)
    assert d.length.change.low < 0 < d.length.change.high and d.length.of == "tokens"
    fall[::3] = np.nan
    assert drift(log.steps, fall, "nats").change.high < -0.7
    assert drift(log.steps, np.full(GROUPS, np.nan), "nats") is None
    assert drift(np.zeros(4), np.ones(4), "nats") is None
    few = drift(np.repeat([0, 1], 30), np.repeat([1.0, 2.0], 30) + rng.normal(0, 0.1, 60), "nats")
    assert few.unit == "groups" and few.change.low > 0.9


def test_the_history_speaks_where_the_groups_do_not() -> None:
    history = [{"step": i, "entropy": 3 - i / 50, "completions/mean_length": 10.0 + i} for i in range(1, 51)]
    log = run_log(np.full(GROUPS, 0.5), 4, 1, lengths=np.full((GROUPS, 4), 99.0), length_unit="characters")
    d = diagnose(RunLog(**{**log.__dict__, "history": history}))
    assert d.entropy.change.value == pytest.approx(-0.8) and d.entropy.unit == "steps"
    assert d.length.of == "tokens" and d.length.change.value == pytest.approx(40)
    assert diagnose(log).entropy is None and diagnose(log).length.of == "characters"


def test_spikes_of_the_gradient_norm() -> None:
    norms = list(np.random.default_rng(3).normal(1.0, 0.1, 100))
    norms[20] = 5.0
    norms[70] = math.nan
    g = gradient_norms([{"step": i, "grad_norm": norm} for i, norm in enumerate(norms)] + [{"step": 100, "loss": 1.0}])
    assert g.steps == 100 and 20 in g.spike_steps and g.spikes <= 3 and g.not_finite == 1 and g.largest == 5.0
    assert g.robust_deviation == pytest.approx(0.1, rel=0.3)
    assert gradient_norms([{"step": 1, "loss": 0.0}]) is None
    log = run_log(
        np.full(GROUPS, 0.5), 4, 1, history=[{"step": 1, "grad_norm": math.inf}, {"step": 2, "grad_norm": 1.0}]
    )
    assert any("1 gradient norms are not finite" in finding for finding in diagnose(log).findings)


def test_parts_keep_steps_whole() -> None:
    steps = np.repeat([3, 4, 9, 10], [7, 2, 5, 6])
    blocks = parts_of_training(steps)
    assert np.array_equal(np.concatenate(blocks), np.arange(20)) and 2 <= len(blocks) <= 4
    assert all(set(steps[a]).isdisjoint(steps[b]) for a, b in itertools.combinations(blocks, 2))
    assert len(parts_of_training(np.zeros(9))) == 1 and len(parts_of_training(np.arange(1000))) == 5


def test_a_log_of_one_group_or_one_kind_is_no_accident() -> None:
    for rewards in (np.zeros((1, 2)), np.ones((3, 4)), np.zeros((40, 8)), np.eye(2)):
        d = diagnose(log_of(rewards))
        assert d.groups == len(rewards) and 0 < d.predicted.value < 1 and d.findings


@pytest.mark.parametrize(("name", "value"), [("fidelity", 1.0), ("silent_share", 0.0), ("window", -1.0)])
def test_wrong_targets(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        diagnose(run_log(np.full(8, 0.5), 4, 1), **{name: value})
