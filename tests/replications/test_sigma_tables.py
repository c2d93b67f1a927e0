"""The tables of the sigma identity: printed numbers, checks that can fail, Big-Math, and figures from few rows."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grpo_replications.replications.sigma_identity import tables
from grpo_replications.replications.sigma_identity.settings import BigMathSettings, ClosedFormsSettings
from grpo_replications.replications.sigma_identity.tables import (
    big_math,
    closed_forms,
    exact_errors,
    expansion_order,
    monte_carlo,
)
from grpo_replications.replications.sigma_identity.tables_figures import FIGURES
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.planning.solve_rates import SolveRates

SETTINGS = {"group_size": 8, "groups": 4000, "exact_group_sizes": [2, 8, 100]}
BIG_MATH = {
    "problems": (215_608, 0),
    "never_solved": (0.040, 0.0005),
    "always_solved": (0.072, 0.0005),
    "silent_at_every_group_size": (0.112, 0.0005),
    "mass_extreme_dr_grpo": (0.139, 0.0005),
    "mass_extreme_grpo": (0.247, 0.0005),
    "mass_extreme_ratio": (1.78, 0.005),
    "mass_medium_dr_grpo": (0.228, 0.0005),
    "mass_medium_grpo": (0.175, 0.0005),
}
SILENT = {4: (0.59, 0.59), 8: (0.44, 0.43), 16: (0.32, 0.30), 32: (0.23, None), 64: (0.17, None)}


def values(rows: list[Row]) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in rows if "step" not in row and "seed" not in row}


def context(tmp_path: Path) -> JobContext:
    return JobContext(tmp_path)


def test_closed_forms_of_one_rate(tmp_path: Path) -> None:
    rows = closed_forms(ClosedFormsSettings(**SETTINGS, p=0.05), range(2), context(tmp_path))
    found = values(rows)
    assert max(found[name] for name in found if name.endswith("_error")) < 1e-12
    assert [found[f"group_size_{percent}"] for percent in (90, 95, 99)] == [42, 69, 273]
    assert [round(found[f"group_size_law_{percent}"]) for percent in (90, 95, 99)] == [26, 53, 263]
    assert round(found["fidelity"], 4) == 0.5390 and round(found["attenuation"], 2) == 0.67
    assert round(found["difficulty_weight"], 1) == 4.6
    drawn = [row for row in rows if "seed" in row]
    assert {row["seed"] for row in drawn} == {0, 1}
    assert all(abs(row["value"]) < 5 for row in drawn if row["metric"].startswith("monte_carlo"))
    assert drawn[0]["value"] != drawn[len(drawn) // 2]["value"]  # the seed does something


def test_rates_at_the_ends_are_checked_but_not_drawn(tmp_path: Path) -> None:
    rows = closed_forms(ClosedFormsSettings(**SETTINGS, p=1 - 1e-6), range(2), context(tmp_path))
    assert not [row for row in rows if "seed" in row]
    assert values(rows)["expected_update_error"] < 1e-12


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_draws_notice_wrong_formulas(p: float) -> None:
    found = monte_carlo(p, 8, 40_000, np.random.default_rng(3))
    assert all(abs(value) < 5 for name, value in found.items() if name.startswith("monte_carlo"))
    assert all(abs(value) > 5 for name, value in found.items() if name.startswith("control"))


def test_exact_check_notices_a_relative_error_of_1e_11(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exact_errors(0.3, [8])["fidelity_error"] < 1e-12
    right = tables.fidelity
    monkeypatch.setattr(tables, "fidelity", lambda p, size: right(p, size) * (1 + 1e-11))
    assert exact_errors(0.3, [8])["fidelity_error"] > 1e-12


def test_the_reference_sum_is_the_binomial_sum() -> None:
    """The 60-digit sum against fractions and integer square roots."""
    import decimal

    size, p = 7, Fraction(3, 10)
    exact = sum(
        math.comb(size, k) * p**k * (1 - p) ** (size - k) * Fraction(math.isqrt(k * (size - k) * 10**60), 10**30)
        for k in range(1, size)
    )
    with decimal.localcontext(decimal.Context(prec=60)):
        found = tables._decimal_update(decimal.Decimal(3) / 10, size)
    assert abs(float(Fraction(found) / (exact / size) - 1)) < 1e-28


def test_expansion_order_is_two() -> None:
    for p in (0.05, 0.5, 0.9):
        assert expansion_order(p) == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("size", SILENT)
def test_big_math(tmp_path: Path, size: int) -> None:
    rows = big_math(BigMathSettings(solve_rates="big-math", group_size=size), 0, context(tmp_path))
    found = values(rows)
    for name, (printed, tolerance) in BIG_MATH.items():
        assert abs(found[name] - printed) <= tolerance, name
    expected, drawn = SILENT[size]
    assert abs(found["silent_fraction"] - expected) <= 0.005
    assert found["silent_fraction_without_replacement"] < found["silent_fraction"]
    assert drawn is None or abs(found["silent_fraction_without_replacement"] - drawn) <= 0.005
    for metric in ("gradient_mass_grpo", "gradient_mass_dr_grpo", "gradient_mass_grpo_finite"):
        tenths = [row["value"] for row in rows if row["metric"] == metric]
        assert len(tenths) == 10 and sum(tenths) == pytest.approx(1)
    assert found["mass_extreme_dr_grpo"] < found["mass_extreme_grpo_finite"] < found["mass_extreme_grpo"]


def test_mass_shares_by_hand() -> None:
    rates = SolveRates(np.array([0.05, 0.5, 0.95]), np.array([2.0, 1.0, 2.0]), None, "three")
    shares = tables.mass_shares(rates, 8)
    assert shares["mass_extreme_dr_grpo"] == pytest.approx(4 * 0.0475 / (4 * 0.0475 + 0.25))
    assert shares["mass_medium_grpo"] == pytest.approx(0.5 / (0.5 + 4 * math.sqrt(0.0475)))


def test_big_math_of_another_source(tmp_path: Path) -> None:
    """A file without a number of rollouts has no draws without replacement; a wrong name stops."""
    file = tmp_path / "rates.csv"
    file.write_text("p\n0\n0.5\n0.5\n1\n")
    found = values(big_math(BigMathSettings(solve_rates=str(file), group_size=2), 0, context(tmp_path)))
    assert found["silent_at_every_group_size"] == 0.5 and found["silent_fraction"] == 0.75
    assert "silent_fraction_without_replacement" not in found
    with pytest.raises(ReplicationError):
        big_math(BigMathSettings(solve_rates="nothing", group_size=2), 0, context(tmp_path))


def frame_of(experiment: str, rows: list[Row], **settings: object) -> pd.DataFrame:
    frame = pd.DataFrame(rows).assign(experiment=experiment, **settings)
    return frame if "step" in frame else frame.assign(step=math.nan)


def test_figures_are_drawn_with_and_without_the_papers_numbers(tmp_path: Path) -> None:
    parts = [
        frame_of(
            "big-math",
            big_math(BigMathSettings(solve_rates="big-math", group_size=size), 0, context(tmp_path)),
            group_size=size,
        )
        for size in (4, 64)
    ]
    parts += [
        frame_of("closed-forms", closed_forms(ClosedFormsSettings(**SETTINGS, p=p), range(1), context(tmp_path)), p=p)
        for p in (0.05, 0.5)
    ]
    frame = pd.concat(parts, ignore_index=True)
    names = ("big_math", "group_size_law", "silent_fraction")
    counts = {}
    for printed in ({}, {"sigma-identity/cor2/p0.05/90": 42.0, "sigma-identity/big-math/silent-fraction/g4": 0.59}):
        frame.attrs = {"paper": printed}
        for name in names:
            figure = FIGURES[name](frame)
            assert figure is not None
            counts[name, bool(printed)] = sum(line.get_marker() == "D" for axis in figure.axes for line in axis.lines)
    assert [counts[name, False] for name in names] == [0, 0, 0]
    assert counts["group_size_law", True] == counts["silent_fraction", True] == 1
    empty = frame[frame["experiment"] == "other"]
    assert all(draw(empty) is None for draw in FIGURES.values())
