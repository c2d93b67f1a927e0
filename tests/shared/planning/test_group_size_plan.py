"""Group sizes from solve rates: the paper's numbers, honest noise, and a budget's criterion checked by sampling."""

from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.planning.group_size_budget import allocate, gain, plan_budget, set_fidelity
from grpo_replications.shared.planning.group_size_plan import (
    join_rates,
    plan_group_sizes,
    rate_interval,
    smallest_single_size,
    with_rollouts,
)
from grpo_replications.shared.planning.solve_rates import BIG_MATH, SolveRates, load_solve_rates
from grpo_replications.shared.theory.closed_forms import expected_update, fidelity, smallest_group_size


def rates_of(p: list[float], counts: list[float] | None = None, samples: int | None = None) -> SolveRates:
    return SolveRates(np.array(p), np.array(counts or [1.0] * len(p)), samples, "made")


@pytest.fixture(scope="module")
def big_math() -> SolveRates:
    return load_solve_rates(BIG_MATH)


@pytest.mark.parametrize(
    ("target", "sizes"), [(0.90, [42, 22, 9, 7]), (0.95, [69, 36, 14, 11]), (0.99, [273, 144, 61, 51])]
)
def test_sizes_are_those_of_the_papers_table(target: float, sizes: list[int]) -> None:
    plan = plan_group_sizes(rates_of([0.05, 0.10, 0.30, 0.50]), target)
    assert [(line.smallest, line.largest) for line in plan.bins] == [(size, size) for size in sizes]
    law = [1 / (8 * (1 - target) * p * (1 - p)) for p in (0.05, 0.10, 0.30, 0.50)]
    assert [line.law[0] for line in plan.bins] == pytest.approx(law)
    assert plan.completions == sum(sizes)


def test_big_math_as_the_paper_has_it(big_math: SolveRates) -> None:
    plan = plan_group_sizes(big_math)
    assert plan.problems == 215_608 == sum(line.problems for line in plan.bins) + sum(e.problems for e in plan.ends)
    assert [round(100 * line.closed_form) for line in plan.silent] == [59, 44, 32, 23, 17]
    assert [round(100 * line.without_replacement) for line in plan.silent[:3]] == [59, 43, 30]
    assert [round(100 * end.problems / plan.problems, 1) for end in plan.ends] == [4.0, 7.2]
    for line in plan.bins:
        p, counts = big_math.rates, big_math.counts
        inside = (p >= line.low) & (p < line.high) & (p > 0) & (p < 1)
        sizes = smallest_group_size(p[inside], 0.95)
        assert line.completions == sizes @ counts[inside] and line.problems == counts[inside].sum()
        assert line.silent == pytest.approx(
            (p[inside] ** sizes + (1 - p[inside]) ** sizes) @ counts[inside] / line.problems
        )
        assert line.with_rate_error[0] <= line.smallest <= line.largest <= line.with_rate_error[1]


def test_observed_at_zero_is_not_known_to_be_zero(big_math: SolveRates) -> None:
    never, always = plan_group_sizes(big_math).ends
    assert never.bound == pytest.approx(1 - 0.025 ** (1 / 64)) and always.bound == pytest.approx(0.025 ** (1 / 64))
    assert never.helped_from == always.helped_from == smallest_group_size(never.bound, 0.95)
    unknown = plan_group_sizes(rates_of([0.0, 0.5]))
    assert unknown.ends[0].bound is None and unknown.bins[0].with_rate_error is None
    assert any("taken as exact" in note for note in unknown.notes)


def test_rate_intervals_cover_at_every_rate() -> None:
    n = 16
    low, high = rate_interval(np.arange(n + 1), n)
    assert low[0] == 0 and high[-1] == 1 and np.all(low[1:] > 0) and np.all(high[:-1] < 1)
    for p in np.linspace(0.01, 0.99, 25):
        chance = np.array([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])
        assert chance[(low <= p) & (p <= high)].sum() >= 0.95


def test_a_largest_size_is_kept_and_said() -> None:
    plan = plan_group_sizes(rates_of([0.01, 0.5], [3.0, 2.0]), 0.95, max_group_size=100)
    assert plan.beyond == 3 == plan.bins[0].beyond and plan.bins[0].smallest > 100
    assert plan.completions == 3 * 100 + 2 * 11
    assert all(line.group_size <= 100 for line in plan.silent)
    assert plan_group_sizes(rates_of([0.001]), 0.99, max_group_size=8).single is None


def test_the_single_size_is_the_smallest_that_reaches_the_target(big_math: SolveRates) -> None:
    size = smallest_single_size(big_math, 0.95, 1024)
    assert set_fidelity(big_math, size) >= 0.95 > set_fidelity(big_math, size - 1)
    assert set_fidelity(rates_of([0.3]), 9) == pytest.approx(fidelity(0.3, 9))


# --- budget -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "scatter"), [(2, 0.0), (4, 3.0), (8, 30.0), (16, 1.0)])
def test_the_gain_is_what_sampled_steps_give(size: int, scatter: float) -> None:
    """Steps sampled completion by completion: one direction a problem, scores scattered around their means."""
    p, steps, problems, dimensions = np.array([0.1, 0.3, 0.5, 0.8]), 40_000, 3, 5
    rng = np.random.default_rng(1)
    chosen = rng.integers(len(p), size=(steps, problems))
    rewards = (rng.random((steps, problems, size)) < p[chosen][..., None]).astype(float)
    spread = rewards.std(axis=-1, keepdims=True)
    advantages = (rewards - rewards.mean(axis=-1, keepdims=True)) / np.where(spread == 0, 1, spread)
    along = (advantages * (rewards - p[chosen][..., None])).mean(axis=-1)  # right minus wrong score is 1 along it
    noise = rng.normal(0, np.sqrt(scatter / dimensions), (steps, problems, size, dimensions))
    across = (advantages[..., None] * noise).mean(axis=2)
    # The objective's gradient at a problem is sqrt(p (1-p)); problems' directions are at right angles.
    rise = (np.sqrt(p * (1 - p))[chosen] * along).mean()
    square = (along**2 + (across**2).sum(axis=-1)).mean() / problems
    assert rise**2 / square / (problems * size) == pytest.approx(gain(rates_of(list(p)), size, scatter), rel=0.04)


def test_summed_updates_per_completion_would_always_choose_two() -> None:
    p, sizes = np.linspace(0.001, 0.999, 99)[:, None], np.arange(2, 200)
    assert np.all(np.argmax(expected_update(p, sizes, "grpo") / sizes, axis=1) == 0)
    assert np.all(np.diff(expected_update(p, sizes, "grpo"), axis=1) > 0)


def test_the_best_size_of_a_budget(big_math: SolveRates) -> None:
    budget = plan_budget(big_math, 360, max_group_size=100, noise_ratio=100.0)
    divisors = [n for n in range(2, 101) if 360 % n == 0]
    assert set(divisors) <= {line.group_size for line in budget.candidates}
    assert budget.best.group_size == max(divisors, key=lambda size: gain(big_math, size, 100.0))
    assert budget.best.unused == 0 and budget.best.group_size in budget.as_good
    assert all(line.problems_per_step * line.group_size + line.unused == 360 for line in budget.candidates)
    assert [size for _, size in budget.by_noise] == sorted(size for _, size in budget.by_noise)
    both = plan_budget(big_math, 512)
    assert both.noise_ratios == (3.0, 100.0) and both.best.group_size == 8 and len(both.best.gains) == 2
    assert plan_budget(big_math, 65_536).best.gains == pytest.approx(both.best.gains, abs=0.01)  # N does not matter
    hard = SolveRates(np.array([0.01]), np.array([1.0]), None, "hard")
    assert plan_budget(hard, 360).best.group_size > plan_budget(rates_of([0.5]), 360).best.group_size
    prime = plan_budget(big_math, 509).best
    assert prime.group_size == 6 and prime.problems_per_step == 84 and prime.unused == 5


@pytest.mark.parametrize("rollouts", [64, 8, 4])
def test_the_plan_for_the_set_does_not_move_with_the_number_of_rollouts(big_math: SolveRates, rollouts: int) -> None:
    rng = np.random.default_rng(0)
    right = np.rint(big_math.rates * 64).astype(int)
    thinned = np.zeros(rollouts + 1)
    for k, problems in zip(right, big_math.counts):
        thinned += np.bincount(rng.hypergeometric(k, 64 - k, rollouts, int(problems)), minlength=rollouts + 1)
    plan = plan_group_sizes(
        SolveRates(np.arange(rollouts + 1) / rollouts, thinned, rollouts, "thinned"), 0.95, budget=512
    )
    assert 42 <= plan.fitted.single.value <= 50 and plan.budget.best.group_size == 8
    assert plan.single == {64: 40, 8: 20, 4: 15}[rollouts]  # the rates taken as they are


def test_an_allocation_costs_as_much_and_gives_more(big_math: SolveRates) -> None:
    for size in (2, 8, 32):
        a = allocate(big_math, size, 1024, bins=64)
        assert a.fidelity > a.single_fidelity == set_fidelity(big_math, size)
        assert a.silent < a.single_silent
    same = allocate(rates_of([0.5]), 8, 1024)
    assert same.sizes == [(0.5, 0.6, 8, 8)] and same.fidelity == pytest.approx(fidelity(0.5, 8))


def test_an_allocation_is_the_best_there_is() -> None:
    rates, size = rates_of([0.05, 0.3, 0.6]), 4
    found = allocate(rates, size, 1024)
    limit = np.sqrt(rates.rates * (1 - rates.rates)).sum()
    best = max(
        sum(expected_update(p, max(n, 1), "grpo") for p, n in zip(rates.rates, sizes))
        for sizes in itertools.product([0, *range(2, 13)], repeat=3)
        if sum(sizes) <= 3 * size
    )
    assert found.fidelity == pytest.approx(best / limit, abs=0.01)
    assert sum(sizes[2] for sizes in found.sizes) <= 3 * size


# --- input ------------------------------------------------------------------------------------------------------------


def test_many_distinct_rates_are_joined_without_moving_the_answer() -> None:
    rng = np.random.default_rng(2)
    p, counts = np.unique(np.concatenate([rng.beta(0.5, 0.8, 20_000), np.zeros(500), np.ones(300)]), return_counts=True)
    full = SolveRates(p, counts.astype(float), None, "many")
    joined = join_rates(full)
    assert len(joined.rates) <= 512 and joined.problems == full.problems and np.all(np.diff(joined.rates) > 0)
    assert joined.counts[0] == 500 and joined.counts[-1] == 300
    assert joined.rates @ joined.counts == pytest.approx(full.rates @ full.counts)
    assert set_fidelity(joined, 8) == pytest.approx(set_fidelity(full, 8), rel=1e-3)
    assert any("were joined into" in note for note in plan_group_sizes(full).notes)
    assert join_rates(joined) is joined


def test_rates_become_counts_of_rollouts() -> None:
    rates = with_rollouts(rates_of([0.0, 0.333, 0.3333, 1.0], [1, 2, 3, 4]), 3)
    assert rates.samples == 3 and rates.rates.tolist() == [0, 1 / 3, 1] and rates.counts.tolist() == [1, 5, 4]
    with pytest.raises(ReplicationError, match=r"a rate of 0\.333 is no share of 4 rollouts"):
        with_rollouts(rates_of([0.333]), 4)
    with pytest.raises(ReplicationError, match="has 3 rollouts a problem, not 6"):
        with_rollouts(rates, 6)


@pytest.mark.parametrize(
    "wrong",
    [{"fidelity": 1.0}, {"fidelity": 0.0}, {"budget": 1}, {"max_group_size": 1}, {"noise_ratio": -1.0}, {"bins": 0}],
)
def test_wrong_arguments(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        plan_group_sizes(rates_of([0.5]), **wrong)


def test_a_set_without_any_open_problem_is_refused() -> None:
    with pytest.raises(ReplicationError, match="every rate is 0 or 1"):
        plan_group_sizes(rates_of([0.0, 1.0]))
