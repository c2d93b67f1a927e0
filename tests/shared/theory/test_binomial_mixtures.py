"""Mixtures of binomials: fits against known mixtures and against EM, the inequality at the end, and its bound."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import betabinom, binom

from grpo_replications.shared.theory.binomial_mixtures import (
    end_inequality,
    fit_rates,
    fit_rates_of_each,
    most_at_the_end,
    rate_grid,
)

N = 16
GRID = rate_grid(101)


def expected_counts(rates: list[float], weights: list[float], problems: float = 1e6) -> np.ndarray:
    return problems * (binom.pmf(np.arange(N + 1)[:, None], N, np.array(rates)) @ np.array(weights))


def test_the_grid_holds_both_ends_and_is_dense_there() -> None:
    assert GRID[0] == 0 and GRID[-1] == pytest.approx(1)
    assert np.all(np.diff(GRID) > 0) and np.diff(GRID)[0] < np.diff(GRID)[50] / 10


def test_a_known_mixture_is_found_with_its_silent_share_at_sizes_beyond_the_rollouts() -> None:
    rates, weights = [float(GRID[0]), float(GRID[30]), float(GRID[70])], [0.1, 0.5, 0.4]
    found = fit_rates(expected_counts(rates, weights), GRID)
    assert found.weights.sum() == pytest.approx(1) and np.all(found.weights >= 0)
    for size in (4, N, 4 * N):
        exact = sum(w * (p**size + (1 - p) ** size) for p, w in zip(rates, weights, strict=True))
        assert found.silent_share(size) == pytest.approx(exact, abs=2e-4)
    assert found.weights[0] == pytest.approx(0.1, abs=2e-3), "the problems that are never right are found as such"


def test_no_end_mass_is_invented_where_hard_problems_are_only_nearly_unsolvable() -> None:
    k = np.arange(N + 1)
    found = fit_rates(1e6 * betabinom.pmf(k, N, 0.8, 0.8), GRID)
    at_the_end = betabinom.pmf(0, N, 0.8, 0.8) * 2
    assert found.silent_share(N) == pytest.approx(at_the_end, rel=1e-3)
    assert found.silent_share(8 * N) < at_the_end / 2


def test_the_fit_is_no_worse_than_many_steps_of_em() -> None:
    counts = np.random.default_rng(0).integers(1, 200, N + 1).astype(float)
    found = fit_rates(counts, GRID)
    share, chance = counts / counts.sum(), binom.pmf(np.arange(N + 1)[:, None], N, GRID)
    weights = np.full(len(GRID), 1 / len(GRID))
    for _ in range(5000):
        weights = weights * (chance.T @ (share / (chance @ weights)))
    assert share @ np.log(chance @ found.weights) >= share @ np.log(chance @ weights) - 1e-12
    assert found.gap <= 1e-9


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="no problems"):
        fit_rates(np.zeros(N + 1), GRID)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_every_mixture_keeps_the_inequality_at_both_ends(alpha: float) -> None:
    counts = 1e5 * betabinom.pmf(np.arange(N + 1), N, alpha, 2.0)
    for ordered in (counts, counts[::-1]):
        assert end_inequality(ordered)[0] >= 1
    assert end_inequality(expected_counts([0.2], [1.0]))[0] == pytest.approx(1), "one rate: equality"


def test_counts_of_no_mixture_break_it_by_many_errors() -> None:
    counts = expected_counts([0.1], [1.0])
    counts[0] /= 2
    ratio, error = end_inequality(counts)
    assert ratio == pytest.approx(0.5) and (1 - ratio) / error > 5
    assert most_at_the_end(counts) == 0


def test_the_error_of_the_ratio_is_its_spread_over_samples() -> None:
    chance = betabinom.pmf(np.arange(N + 1), N, 1.0, 2.0)
    generator = np.random.default_rng(1)
    drawn = np.array([end_inequality(generator.multinomial(20_000, chance)) for _ in range(2000)])
    assert drawn[:, 1].mean() == pytest.approx(drawn[:, 0].std(), rel=0.1)


def test_the_bound_holds_what_was_put_at_the_end_and_is_sharp_for_one_other_rate() -> None:
    assert most_at_the_end(expected_counts([0.0, 0.2], [0.25, 0.75])) == pytest.approx(0.25)
    assert most_at_the_end(expected_counts([0.0, 0.05, 0.4], [0.25, 0.5, 0.25])) > 0.25


def test_many_fits_are_the_fits_one_by_one() -> None:
    drawn = np.random.default_rng(3).multinomial(400, binom.pmf(np.arange(9), 8, 0.4), size=5)
    drawn[0] = [7, 0, 0, 3, 0, 0, 0, 0, 2]
    together = fit_rates_of_each(drawn, GRID)
    for counts, weights in zip(drawn, together, strict=True):
        alone = fit_rates(counts, GRID).weights
        k = np.flatnonzero(counts)[:, np.newaxis]
        assert binom.pmf(k, 8, GRID) @ weights == pytest.approx(binom.pmf(k, 8, GRID) @ alone, abs=1e-4)
    with pytest.raises(ValueError, match="no problems"):
        fit_rates_of_each(np.zeros((2, 9)), GRID)
