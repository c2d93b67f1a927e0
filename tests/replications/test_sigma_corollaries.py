"""Numbers around the closed forms, the mixture behind Big-Math's counts, and the authors' reading of DAPO's log."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from grpo_replications.replications.sigma_identity import dapo_log_authors as authors
from grpo_replications.replications.sigma_identity.corollaries import arcsine_variance, corollaries, outer_masses
from grpo_replications.replications.sigma_identity.dapo_log import all_correct_share, log_temperature_at, read_log
from grpo_replications.replications.sigma_identity.rate_mixture import counts_by_k, rate_mixture
from grpo_replications.replications.sigma_identity.settings import (
    CorollariesSettings,
    DapoLogAuthorsSettings,
    RateMixtureSettings,
)
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.planning.solve_rates import SolveRates, load_solve_rates

STEPS, SHARES = read_log()


def measured(function, settings, tmp_path: Path, seed: int = 0) -> dict[str, float]:
    rows = function(settings, seed, JobContext(tmp_path))
    return {row["metric"]: row["value"] for row in rows if "step" not in row}


def test_numbers_of_the_paper(tmp_path: Path) -> None:
    hard, extreme = (
        measured(corollaries, CorollariesSettings(solve_rates="big-math", group_size=8, p=p), tmp_path)
        for p in (0.1, 0.05)
    )
    assert round(hard["penalty"], 1) == 2.8 and round(extreme["penalty"], 1) == 5.3
    assert extreme["penalty_exact"] == pytest.approx(69 / 11)
    assert 0.012 < extreme["pool_gap"] < 0.0122
    assert extreme["outer_mass/grpo"] < extreme["outer_mass/grpo_infinite"] < extreme["outer_mass/dapo_same_prompt"]


def test_no_gap_where_no_group_can_be_drawn_from_the_rollouts(tmp_path: Path) -> None:
    found = measured(corollaries, CorollariesSettings(solve_rates="big-math", group_size=65, p=0.05), tmp_path)
    assert "pool_gap" not in found


def test_arcsine_variance_by_hand_and_in_the_limit() -> None:
    # G = 2: k = 0, 1, 2 with angles 0, pi/2, pi.
    p = 0.3
    chance = np.array([0.49, 0.42, 0.09])
    angles = np.array([0, math.pi / 2, math.pi])
    assert arcsine_variance(p, 2) == pytest.approx(2 * (chance @ angles**2 - (chance @ angles) ** 2))
    assert arcsine_variance(0.05, 10_000) == pytest.approx(1, abs=2e-3)


def test_redraws_of_the_same_prompt_by_hand() -> None:
    rates = SolveRates(np.array([0.05, 0.5]), np.array([1.0, 1.0]), 64, "two")
    found = outer_masses(rates, 2)
    # G = 2: E[sigma] = p (1-p); the chance of a mixed group is 2 p (1-p), and four draws are allowed.
    mass = {p: p * (1 - p) * sum((1 - 2 * p * (1 - p)) ** i for i in range(4)) for p in (0.05, 0.5)}
    assert found["outer_mass/dapo_same_prompt"] == pytest.approx(mass[0.05] / (mass[0.05] + mass[0.5]))
    assert found["outer_mass/grpo"] == pytest.approx(0.0475 / (0.0475 + 0.25))
    still = ((0.05**2 + 0.95**2) ** 4 + 0.5**4) / 2
    assert found["silent_after_redraws"] == pytest.approx(still)


def test_big_math_is_silent_far_less_often_in_larger_groups(tmp_path: Path) -> None:
    settings = RateMixtureSettings(solve_rates="big-math", grid_points=201, group_sizes=[8, 64, 128], draws=30)
    found = measured(rate_mixture, settings, tmp_path)
    assert found["silent/8"] == pytest.approx(0.4307, abs=1e-3), "the share among groups drawn from the rollouts"
    assert 0.05 < found["silent/128"] < 0.065 < 0.11 < found["silent/64"]
    for size in (8, 64, 128):
        assert found[f"silent_low/{size}"] < found[f"silent/{size}"] < found[f"silent_high/{size}"]
    assert found["bound_never"] == 0 and found["bound_ends"] == found["bound_always"] < 0.05
    assert found["end_inequality_wrong"] == pytest.approx(0.798, abs=1e-3) and found["end_shortfall_wrong"] > 10
    assert found["end_shortfall_right"] == 0


def test_counts_are_those_of_the_source_and_need_rollouts() -> None:
    counts = counts_by_k(load_solve_rates("big-math"))
    assert len(counts) == 65 and counts.sum() == 215_608
    with pytest.raises(ReplicationError, match="rollouts"):
        counts_by_k(SolveRates(np.array([0.5]), np.array([1.0]), None, "a file"))


def test_the_authors_reading_gives_the_paper_s_numbers(tmp_path: Path) -> None:
    found = measured(authors.dapo_log_authors, DapoLogAuthorsSettings(draws=200), tmp_path)
    assert found["r2"] == pytest.approx(0.9225, abs=5e-4)
    assert abs(found["r2_low"] - 0.91) < 0.01 and abs(found["r2_high"] - 0.96) < 0.015
    assert round(found["r2_generic"], 2) == 0.98 and round(found["plateau"], 2) == 0.57


def test_curves_are_tied_to_both_ends() -> None:
    log_end = float(log_temperature_at("all", np.array(0.55)))
    curves = authors.anchored_curves(STEPS, log_end)
    np.testing.assert_allclose(curves[:, 0], all_correct_share("all", np.zeros(1))[0])
    np.testing.assert_allclose(curves[:, -1], 0.55, atol=1e-6)
    assert np.all(np.diff(curves, axis=1) >= 0)


def test_the_fit_finds_the_timescale_that_made_the_data(tmp_path: Path) -> None:
    log_end = float(log_temperature_at("all", np.array(0.55)))
    curves = authors.anchored_curves(STEPS, log_end)
    chosen, r_squared = authors.closest(curves, curves[123])
    assert chosen == 123 and r_squared == pytest.approx(1)
    assert authors.closest(curves, SHARES[::-1])[1] < 0.1
    made = 0.6 * -np.expm1(-(STEPS - STEPS[0]) / authors.TIMESCALES[200])
    assert authors.generic_r_squared(STEPS, made) == pytest.approx(1)
