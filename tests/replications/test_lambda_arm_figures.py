"""The figures that compare arms draw what the measurements say, and nothing where measurements are missing."""

from __future__ import annotations

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from grpo_replications.replications.lambda_grpo.arm_figures import ARMS, prefix, process_sets, speed, sums, table1_lm
from grpo_replications.shared.harness.plots import look

LEVELS = dict(zip(ARMS, (0.2, 0.6, 0.4, 0.5), strict=True))
ROWS = [(1, -0.5), (1, -1.0), (2, -0.5)]


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def measurements() -> pd.DataFrame:
    rows = []
    for (n, r_neg), (arm, level), seed in itertools.product(ROWS, LEVELS.items(), range(12)):
        cell = {"n": n, "r_neg": r_neg, "method": arm, "seed": seed, "step": None}
        for lr in (1e-4, 1e-3):
            for experiment in ("many-table1", "many-table1-leaning"):
                own = {**cell, "experiment": experiment, "lr": lr}
                if experiment == "many-table1-leaning":
                    if r_neg != -1.0 and n == 1:
                        continue
                    own["r_neg"] = None
                rows.append({**own, "metric": "target_frequency", "value": level + 0.01 * (seed % 2)})
                rows.append({**own, "metric": "success", "value": float(level + 0.05 * (seed % 3) > 0.5)})
                for step in (0, 50):
                    rows.append({**own, "metric": "prefix_probability", "step": step, "value": level})
                    rows.append({**own, "metric": "target_probability", "step": step, "value": level / 2})
        for optimizer in ("sgd", "adam"):
            own = {**cell, "experiment": "tabular-speed", "optimizer": optimizer, "metric": "steps_to_threshold"}
            rows.append({**own, "value": 250.0 if seed == 0 else 100 * level + seed})
    for arm, lr, reward, seed in itertools.product(LEVELS, (1e-4, 1e-3), ("right", "trap"), range(6)):
        own = {"experiment": "many-sums", "method": arm, "lr": lr, "reward": reward, "seed": seed, "step": None}
        rows.append({**own, "metric": "steps_to_threshold", "value": 200.0 if seed else 100.0})
        rows.append({**own, "metric": "mean_rate", "value": LEVELS[arm]})
    return pd.DataFrame(rows)


def test_a_line_per_arm_over_the_rates_in_the_order_of_table1() -> None:
    figure = table1_lm(measurements())
    first = figure.axes[0]
    assert [axis.get_title(loc="left") for axis in figure.axes[:3]] == [
        "n=1, r_neg=−0.5",
        "n=1, r_neg=−1",
        "n=2, r_neg=−0.5",
    ]
    drawn = {line.get_label(): line.get_ydata() for line in first.lines}
    assert drawn.keys() >= {look(arm).label for arm in ARMS}
    for arm in ARMS:
        assert drawn[look(arm).label] == pytest.approx([LEVELS[arm] + 0.005] * 2)


def test_ratios_are_to_grpo() -> None:
    frame = measurements()
    figure = speed(frame)
    own = frame[(frame["experiment"] == "tabular-speed") & (frame["optimizer"] == "sgd") & (frame["n"] == 2)]
    means = own.groupby("method")["value"].mean()
    points = [container.lines[0].get_ydata() for container in figure.axes[2].containers]
    assert [p[-1] for p in points] == pytest.approx([means[arm] / means["grpo"] for arm in ARMS[1:]])


@pytest.mark.parametrize("draw", [process_sets, prefix, sums])
def test_every_arm_is_drawn(draw) -> None:
    labels = draw(measurements()).axes[0].get_legend_handles_labels()[1]
    assert labels == [look(arm).label for arm in ARMS]


@pytest.mark.parametrize("draw", [table1_lm, process_sets, prefix, speed, sums])
def test_missing_measurements_make_no_figure(draw) -> None:
    frame = measurements()
    assert draw(frame[frame["experiment"] == "none"]) is None
    assert np.isfinite(frame["value"]).all()
