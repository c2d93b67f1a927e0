"""Forecasts of silent shares: unbiased where they can be, covering where they say so, against exact truths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from grpo_replications.replications.sigma_identity.forecasts import at_other_sizes, later
from grpo_replications.replications.sigma_identity.settings import SilentForecastSettings
from grpo_replications.replications.sigma_identity.silent_forecast import History, closed_form_rows, silent_forecast
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.theory.closed_forms import silent_rate

RATES = np.array([0.02, 0.3, 0.5, 0.9])
EXPECTED = 4e6 * np.mean([binom.pmf(np.arange(9), 8, p) for p in RATES], axis=0)  # counts without sampling noise


@pytest.mark.parametrize("size", [4, 16, 32])
def test_the_mixture_recovers_the_truth_where_counts_have_no_noise_and_the_plug_in_is_biased(size: int) -> None:
    truth = float(np.mean(silent_rate(RATES, size)))
    generator = np.random.default_rng(0)
    # Four rates and nine counts: the mixture behind these is known from its moments.
    mixture = at_other_sizes("mixture", EXPECTED, [size], 10, generator)[size]
    assert mixture.value == pytest.approx(truth, abs=5e-3)
    assert at_other_sizes("plug-in", EXPECTED, [size], 0, generator)[size].value > truth + 0.01
    subsets = at_other_sizes("subsets", EXPECTED, [size], 0, generator)
    assert (size in subsets) == (size <= 8)
    if size <= 8:
        assert subsets[size].value == pytest.approx(truth, abs=1e-9)


def test_intervals_of_the_mixture_and_the_subsets_hold_the_truth() -> None:
    generator = np.random.default_rng(1)
    held = {("subsets", 4): 0, ("mixture", 16): 0}
    for _ in range(16):
        p = generator.choice(RATES, 300)
        counts = np.bincount(generator.binomial(8, p), minlength=9)
        for method, size in held:
            made = at_other_sizes(method, counts, [size], 24, generator)[size]
            held[method, size] += made.covers(float(np.mean(silent_rate(RATES, size))))
    assert min(held.values()) >= 12  # of 16: 95 % would be 15


def test_a_line_goes_on_and_persistence_does_not() -> None:
    before, now = (np.array([share, 0, 100 - share, 0, 0]) for share in (20, 30))
    assert later("persist", before, now, 10, 40).value == pytest.approx(0.3)
    # From the middle of the second window it is 5 steps to its end and 10 more: 1.5 windows of .1 each.
    trend = later("trend", before, now, 10, 10)
    assert trend.value == pytest.approx(0.45) and trend.low < 0.3 < 0.6 < trend.high
    assert later("trend", now * 3, now, 10, 40).high <= 1
    with pytest.raises(ValueError, match="persist or trend"):
        later("guess", before, now, 10, 10)


def test_unusable_counts_and_methods_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one group"):
        at_other_sizes("beta", np.zeros(9), [4], 10, np.random.default_rng(0))
    with pytest.raises(ValueError, match="method must be one of"):
        at_other_sizes("guess", EXPECTED, [4], 10, np.random.default_rng(0))


def test_the_closed_form_is_compared_group_by_group() -> None:
    counts, rates = np.array([[0, 4], [2, 1]]), np.array([[0.5, 1.0], [0.5, 0.25]])
    values = closed_form_rows({4: History(4, counts, rates, np.zeros((3, 1)))})
    expected = silent_rate(rates, 4)
    assert values["silent_gap/4"] == pytest.approx(0.5 - expected.mean())
    assert values["silent_z/4"] == pytest.approx((2 - expected.sum()) / np.sqrt((expected * (1 - expected)).sum()))


SMALL: dict[str, Any] = {
    "logged_size": 8,
    "group_sizes": [4, 8],
    "steps": 6,
    "window": 2,
    "ahead": [2],
    "draws": 10,
}
LOGITS: dict[str, Any] = {"engine": "bernoulli-logit", "lr": 0.1, "prompts": 32, "groups_logged": 8}
TREE: dict[str, Any] = {"engine": "tree", "lr": 1e-3, "depth": 2, "width": 8}


@pytest.mark.parametrize("engine", [LOGITS, TREE], ids=["logits", "tree"])
def test_a_seed_is_the_same_whatever_runs_beside_it_and_sizes_share_no_random_numbers(
    tmp_path: Path, engine: dict[str, Any]
) -> None:
    def rows(seeds: range, **changed: Any) -> dict[tuple[str, int | None], float]:
        made = silent_forecast(SilentForecastSettings(**{**SMALL, **engine, **changed}), seeds, JobContext(tmp_path))
        return {(row["metric"], row.get("step")): row["value"] for row in made if row["seed"] == seeds[-1]}

    both = rows(range(2))
    assert both == pytest.approx(rows(range(1, 2)), abs=1e-6)
    other = rows(range(1, 2), group_sizes=[8, 16])
    assert other["silent_gap/8", None] == pytest.approx(both["silent_gap/8", None], abs=1e-6)
    assert {("coverage/mixture/4", None), ("ahead_coverage/trend/2", None), ("solve_rate/8", 6)} <= set(both)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"group_sizes": [4, 16]}, "logged_size must be one of"),
        ({"ahead": [3]}, "multiples of window"),
        ({"engine": "tree"}, "a tree has depth and width"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SilentForecastSettings(**{**SMALL, **LOGITS, **changed})


def test_the_tree_starts_at_known_rates_and_learns(tmp_path: Path) -> None:
    settings = SilentForecastSettings(**{**SMALL, **TREE, "steps": 20, "lr": 1e-2, "draws": 10})
    rows = silent_forecast(settings, range(1), JobContext(tmp_path))
    curve = {row["step"]: row["value"] for row in rows if row["metric"] == "solve_rate/8"}
    assert curve[0] == pytest.approx(0.5) and curve[20] > 0.6  # p is 1/4, 2/4, 3/4
