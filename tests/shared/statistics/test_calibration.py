"""The measured error rates of the decisions: within what their level allows, and bounded where the data are skewed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from grpo_replications.shared.statistics.calibration import COLUMNS, calibrate
from grpo_replications.shared.statistics.states import EQUIVALENT, FAILS, HOLDS, UNDECIDED

SAMPLES = 1000
DIRECTIONS = ("direction", "direction beyond zero", "equivalence", "non-inferiority")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return calibrate(SAMPLES, sizes=(5, 6, 12, 20), seed=1)


def noise(rate: pd.Series, samples: int = SAMPLES) -> pd.Series:
    """Four standard errors of a rate measured on so many samples: no row of hundreds exceeds it by luck."""
    return 4 * np.sqrt(rate * (1 - rate) / samples)


def test_table_is_complete_and_its_outcomes_add_up(table: pd.DataFrame) -> None:
    assert list(table.columns) == list(COLUMNS)
    outcomes = table[[HOLDS, FAILS, EQUIVALENT, UNDECIDED]]
    decided = table["kind"].isin((*DIRECTIONS, "sign test"))
    np.testing.assert_allclose(outcomes[decided].sum(axis=1), 1)
    assert outcomes[~decided].isna().all(axis=None)
    pd.testing.assert_frame_equal(calibrate(20, (6,), seed=3), calibrate(20, (6,), seed=3))


def test_wrong_decisions_stay_below_their_rate_unless_the_differences_are_skewed(table: pd.DataFrame) -> None:
    rows = table[table["wrong"].notna() & ~table["data"].str.startswith("skewed")]
    assert len(rows) > 100
    excess = rows[rows["wrong"] > rows["allowed"] + noise(rows["allowed"])]
    assert excess.empty, excess.to_string()


def test_skewed_differences_are_called_wrongly_less_than_with_student_t(table: pd.DataFrame) -> None:
    skewed = table[table["data"].str.startswith("skewed") & (table["n"] >= 6)]
    assert skewed.loc[skewed["kind"].isin(DIRECTIONS), "wrong"].max() < 0.1
    miss = 1 - skewed.groupby(["kind", "n"])["coverage"].mean()
    for n in (6, 12, 20):
        assert miss["direction", n] < 0.75 * miss["plain mean", n]


def test_five_seeds_never_decide(table: pd.DataFrame) -> None:
    five = table[(table["n"] == 5) & table["kind"].isin((*DIRECTIONS, "sign test"))]
    assert len(five) and (five[UNDECIDED] == 1).all()


def test_power_rises_with_the_number_of_seeds(table: pd.DataFrame) -> None:
    for data in ("normal", "heavy tails", "binary"):
        rows = table[(table["data"] == data) & (table["n"] >= 6)].sort_values("n")
        for kind, outcome, effect in (("direction", HOLDS, "max"), ("equivalence", EQUIVALENT, "min")):
            chosen = rows[rows["kind"] == kind]
            power = chosen[chosen["effect"] == getattr(chosen["effect"], effect)()][outcome].to_numpy()
            assert (np.diff(power) > -0.02).all() and power[-1] > power[0] + 0.2


def test_intervals_of_yes_or_no_outcomes_and_shares_cover_where_the_plain_mean_does_not(table: pd.DataFrame) -> None:
    binary = table[(table["data"] == "binary") & (table["effect"] == 0.8) & (table["n"] == 6)].set_index("kind")
    assert binary.loc["direction", "coverage"] > 0.95 > 0.85 > binary.loc["plain mean", "coverage"]
    shares = table[(table["kind"] == "clustered share") & (table["effect"] <= 0.9) & (table["n"] >= 6)]
    assert (shares["coverage"] > 0.95 - noise(shares["nominal"])).all()


def test_peaks_and_ratios_cover(table: pd.DataFrame) -> None:
    rows = table[table["kind"].isin(("peak of curves", "ratio of times")) & (table["n"] >= 6)]
    assert (rows["coverage"] > rows["nominal"] - noise(rows["nominal"], SAMPLES // 5)).all()
