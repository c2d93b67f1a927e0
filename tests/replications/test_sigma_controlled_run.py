"""The controlled run: prompts, readings of "hardest quartile", measurements, and figures drawn from them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from grpo_replications.replications.sigma_identity import controlled_figures, controlled_run
from grpo_replications.replications.sigma_identity.controlled_run import (
    GROUP_SIZE_METRICS,
    RUN_METRICS,
    draw_initial_rates,
    first_reach,
    hardest_sets,
    r_squared,
)
from grpo_replications.replications.sigma_identity.settings import ControlledRunSettings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.planning.solve_rates import load_solve_rates
from grpo_replications.shared.theory.groups import grpo_advantages
from grpo_replications.synthetic.bernoulli_logit import METHODS, Method

SETTINGS: dict[str, Any] = {
    "method": "grpo",
    "group_size": 8,
    "clip": 0.02,
    "rates": "big-math",
    "prompts": 400,
    "steps": 40,
    "lr": 0.5,
    "max_redraws": 3,
    "target_p": 0.7,
    "equal_steps": 10,
    "equal_samples": 100,
    "curve_every": 10,
}


def rows(tmp_path: Path, seeds: int = 3, function: Any = controlled_run.controlled_run, **changes: Any) -> list[dict]:
    return function(
        ControlledRunSettings.parse({**SETTINGS, **changes}, "controlled-run"),
        range(seeds),
        JobContext(tmp_path / "job"),
    )


def per_seed(found: list[dict]) -> pd.DataFrame:
    frame = pd.DataFrame(found)
    return frame[frame["seed"].notna()].pivot(index="seed", columns="metric", values="value")


# --- prompts and their hardest quarter --------------------------------------------------------------------------------


def test_initial_rates_follow_the_histogram() -> None:
    rates = load_solve_rates("big-math").within()
    drawn = draw_initial_rates(rates, 100_000, 0)
    assert drawn.min() == 1 / 64 and drawn.max() == 63 / 64
    share = np.array([(drawn == rate).mean() for rate in rates.rates])
    assert share == pytest.approx(rates.counts / rates.counts.sum(), abs=0.004)
    assert not np.array_equal(drawn, draw_initial_rates(rates, 100_000, 1))


def test_readings_of_the_quartile() -> None:
    rates = np.array([1, 1, 2, 2, 2, 3, 5, 6, 7, 8, 8, 9]) / 64
    sets = hardest_sets(rates, 0)
    assert sets["hardest_final"].sum() == 5 and sets["hardest_final_below"].sum() == 2
    assert sets["hardest_final_quarter"].sum() == 3 and np.all(rates[sets["hardest_final_quarter"]] <= 2 / 64)
    quarters = {tuple(np.flatnonzero(hardest_sets(rates, seed)["hardest_final_quarter"])) for seed in range(30)}
    assert quarters == {(0, 1, 2), (0, 1, 3), (0, 1, 4)}, "ties are broken at random, by the seed"
    assert "hardest_final_below" not in hardest_sets(np.full(8, 0.5), 0), "no prompt lies below"


def test_the_quartile_of_the_papers_run_jumps_between_lattice_points() -> None:
    rates = load_solve_rates("big-math").within()
    draws = [draw_initial_rates(rates, 6000, seed) for seed in range(100)]
    largest = [round(64 * rates[hardest_sets(rates, 0)["hardest_final"]].max()) for rates in draws]
    assert set(largest) <= {6, 7, 8} and {6, 7} <= set(largest)
    for drawn in draws[:20]:  # whether rates are clipped before or after the quantile is taken changes nothing
        clipped = hardest_sets(np.clip(drawn, 0.02, 0.98), 0)
        assert all(np.array_equal(chosen, clipped[name]) for name, chosen in hardest_sets(drawn, 0).items())


# --- small pieces -----------------------------------------------------------------------------------------------------


def test_r_squared_measures_against_the_prediction_itself() -> None:
    values = np.array([0.0, 1.0, 2.0])
    assert r_squared(values, values) == 1 and r_squared(values, values[::-1]) == -3
    assert r_squared(values, values + 1) == pytest.approx(-0.5), "no line is fitted"
    assert math.isnan(r_squared(np.ones(3), np.ones(3)))


def test_first_reach() -> None:
    x, y = np.array([0.0, 10.0, 20.0]), np.array([0.1, 0.5, 0.4])
    assert first_reach(x, y, 0.3) == pytest.approx(5.0)
    assert first_reach(x, y, 0.05) == 0 and math.isnan(first_reach(x, y, 0.6))


# --- measurements -----------------------------------------------------------------------------------------------------


def test_one_paper_sized_seed_is_near_the_paper(tmp_path: Path) -> None:
    paper = {"prompts": 6000, "steps": 150, "target_p": 0.9, "curve_every": 150}
    found = {m: per_seed(rows(tmp_path, 1, method=m, **paper)).loc[0] for m in ("grpo", "dr-grpo", "dapo")}
    assert round(found["grpo"]["hardest_final"], 2) == 0.99
    assert 0.87 < found["dr-grpo"]["hardest_final"] < 0.92
    assert found["grpo"]["outer_mass"] == pytest.approx(0.17, abs=0.02)
    assert found["dr-grpo"]["outer_mass"] == pytest.approx(0.143, abs=0.02)
    assert found["dapo"]["samples_ratio"] == pytest.approx(3.5, abs=0.05)
    assert all(row["silent_r2"] > 0.998 and row["identity_error"] < 1e-14 for row in found.values())
    assert found["dapo"]["steps_to_target"] < found["grpo"]["steps_to_target"] < found["dr-grpo"]["steps_to_target"]


def test_a_seed_has_the_same_rows_whichever_run_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, more = per_seed(rows(tmp_path, 2)), per_seed(rows(tmp_path, 5))
    pd.testing.assert_frame_equal(few, more.loc[:1])
    monkeypatch.setattr(controlled_run, "SEEDS_AT_ONCE", 2)
    pd.testing.assert_frame_equal(more, per_seed(rows(tmp_path, 5)))


def test_settings_are_connected(tmp_path: Path) -> None:
    base = per_seed(rows(tmp_path, 1)).loc[0]
    for changes in (
        {"method": "rloo"},
        {"group_size": 4},
        {"clip": 0.1},
        {"prompts": 300},
        {"steps": 20},
        {"lr": 0.3},
        {"target_p": 0.6},
        {"equal_steps": 5},
        {"equal_samples": 50},
    ):
        assert not base.equals(per_seed(rows(tmp_path, 1, **changes)).loc[0]), changes
    bounded = [per_seed(rows(tmp_path, 1, method="dapo", max_redraws=n)).loc[0, "samples_ratio"] for n in (1, 3)]
    assert 1 < bounded[0] < bounded[1] < 4


def test_metrics_are_what_they_are_called(tmp_path: Path) -> None:
    found = rows(tmp_path)
    table = per_seed(found)
    assert set(table.columns) <= set(RUN_METRICS)
    assert (table["hardest_final_below"] < table["hardest_final"]).all()
    assert table["outer_mass_error"].to_numpy() == pytest.approx(
        (table["outer_mass"] - table["outer_mass_expected"]).abs().to_numpy(), abs=2e-6
    )
    assert table["samples_to_target"].to_numpy() == pytest.approx(8 * table["steps_to_target"].to_numpy(), abs=1e-5)
    summary = {row["metric"]: row["value"] for row in found if "seed" not in row and "step" not in row}
    assert summary["mean_field_final_mean_p"] == pytest.approx(table["final_mean_p"].mean(), abs=0.03)
    shares = [row["value"] for row in found if row["metric"] == "mass_share_expected"]
    assert len(shares) == 10 and sum(shares) == pytest.approx(1)
    assert {row["step"] for row in found if row["metric"] == "curve_mean_p"} == {0, 10, 20, 30, 40}
    assert {row["step"] for row in found if row["metric"] == "curve_silent"} == {0, 10, 20, 30}


def test_group_sizes_report_little(tmp_path: Path) -> None:
    found = rows(tmp_path, function=controlled_run.controlled_group_size, prompts=4000, steps=2)
    table = per_seed(found)
    assert set(table.columns) <= set(GROUP_SIZE_METRICS) and all("seed" in row for row in found)
    assert table["fidelity"].to_numpy() == pytest.approx(table["fidelity_expected"].to_numpy(), abs=0.03)
    larger = per_seed(
        rows(tmp_path, function=controlled_run.controlled_group_size, prompts=4000, steps=2, group_size=64)
    )
    assert (larger["fidelity_expected"] > table["fidelity_expected"]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rewards: grpo_advantages(rewards, ddof=1, eps=0.0),
        lambda rewards: np.where(np.ptp(rewards, axis=-1, keepdims=True) > 0, rewards, 0.0),
        lambda rewards: grpo_advantages(rewards, ddof=0, eps=0.0) / np.sqrt(rewards.shape[-1]),
    ],
)
def test_a_wrong_advantage_shows(wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "grpo", Method(wrong, METHODS["grpo"].gain, "grpo"))
    table = per_seed(rows(tmp_path, prompts=3000, steps=5))
    assert (table["identity_error"] > 1e-2).all()


def test_a_wrong_prediction_of_silent_groups_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_replications.synthetic import bernoulli_logit

    right = per_seed(rows(tmp_path, prompts=3000))["silent_r2"]
    monkeypatch.setattr(bernoulli_logit, "_silent_rate", lambda p, G: p**G)
    assert (right > 0.99).all() and (per_seed(rows(tmp_path, prompts=3000))["silent_r2"] < 0.5).all()


def test_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="method = 'reinforce'"):
        rows(tmp_path, method="reinforce")
    with pytest.raises(ReplicationError, match=r"group_size.*profiles.toml"):
        rows(tmp_path, group_size=1000)
    with pytest.raises(ReplicationError, match="big-maths"):
        rows(tmp_path, rates="big-maths")
    only_silent = tmp_path / "rates.csv"
    only_silent.write_text("solve_rate\n0\n1\n")
    with pytest.raises(ReplicationError, match="strictly between"):
        rows(tmp_path, rates=str(only_silent))


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    tmp_path, parts = tmp_path_factory.mktemp("run"), []
    for method, clip in (("grpo", 0.02), ("dr-grpo", 0.02), ("dapo", 0.02), ("dr-grpo", 0.0)):
        part = pd.DataFrame(rows(tmp_path, 4, method=method, clip=clip))
        parts.append(part.assign(experiment="controlled-run", method=method, clip=clip))
    for size in (4, 16):
        part = pd.DataFrame(rows(tmp_path, 4, controlled_run.controlled_group_size, group_size=size))
        parts.append(part.assign(experiment="controlled-group-size", method="grpo", group_size=size))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize("name", list(controlled_figures.FIGURES))
def test_figures_are_drawn_or_left_out(name: str, frame: pd.DataFrame) -> None:
    draw = controlled_figures.FIGURES[name]
    figure = draw(frame)
    assert figure is not None and all(axes.has_data() for axes in figure.axes)
    assert draw(frame.iloc[:0]) is None
    assert draw(frame[["experiment", "metric", "value", "seed", "step"]]) is None


def test_the_histogram_holds_every_seed_and_the_papers_number(frame: pd.DataFrame) -> None:
    axes = controlled_figures.hardest_quartile(frame).axes[0]
    dashed = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed == [0.88]
    bars = [patch for patch in axes.patches if patch.get_width() == pytest.approx(1 / 400)]
    assert sum(bar.get_height() for bar in bars) == 4


def test_silent_points_lie_on_their_line(frame: pd.DataFrame) -> None:
    axes = controlled_figures.trajectories(frame).axes[1]
    points = [line for line in axes.lines if line.get_marker() != "None"]
    assert len(points) == 3
    for line in points:
        predicted = axes.lines[axes.lines.index(line) + 1]
        at = np.interp(line.get_xdata(), predicted.get_xdata(), predicted.get_ydata())
        assert line.get_ydata() == pytest.approx(at, abs=0.06)
