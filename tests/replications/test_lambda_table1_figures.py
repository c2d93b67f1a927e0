"""The figures of Table 1 draw what the measurements say, and say nothing where measurements are missing."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from grpo_replications.replications.lambda_grpo.table1_figures import table1_map, table1_matched, table1_paper


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def measurements(effect: float = 0.2, seeds: int = 30) -> pd.DataFrame:
    """Two rows of Table 1, two optimizers, three rates; every method's frequency is known up to a little noise."""
    generator = np.random.default_rng(0)
    level = {"grpo": 0.4, "lambda-grpo": 0.4 + effect, "lambda-grpo-matched": 0.4 + effect / 2}
    rows = []
    for n in (1, 2):
        for optimizer, lrs in (("sgd", (0.1, 1.0, 10.0)), ("adam", (0.01, 0.1, 1.0))):
            for method, mean in level.items():
                shared = {"n": n, "r_neg": -0.5, "optimizer": optimizer, "method": method, "step": None}
                for lr in (*lrs, None):
                    experiment = "table1-best" if lr is None else "table1-tabular"
                    for seed, noise in enumerate(generator.normal(0, 0.01, seeds)):
                        cell = {"experiment": experiment, **shared, "lr": lr, "seed": seed}
                        rows.append({**cell, "metric": "target_frequency", "value": mean + noise})
                    rows.append({**cell, "seed": None, "metric": "update_norm", "value": 1.0})
    return pd.DataFrame(rows)


def test_map_shows_the_difference_in_every_cell():
    figure = table1_map(measurements())
    cells = [text.get_text() for text in figure.axes[0].texts]
    assert len(cells) == 6 and all(abs(float(cell) - 0.2) < 0.011 for cell in cells)
    assert not figure.axes[0].patches


def test_map_hatches_what_is_undecided():
    frame = measurements(effect=0.0)
    assert table1_map(frame).axes[0].patches


def test_paper_panels_hold_the_papers_numbers():
    panel = table1_paper(measurements()).axes[0]
    lines = [line.get_ydata()[0] for line in panel.lines if line.get_linestyle() == "--"]
    marks = [line.get_ydata()[0] for line in panel.lines if line.get_marker() == "D"]
    assert lines == marks == [0.3995, 0.5663]
    labels = [label.get_text() for label in table1_paper(measurements()).axes[-1].get_xticklabels()]
    assert labels == [".1", "1", "10", "best", ".01", ".1", "1", "best"]


def test_paper_panels_do_without_the_best_rates():
    frame = measurements()
    panel = table1_paper(frame[frame["experiment"] == "table1-tabular"]).axes[-1]
    assert "best" not in [label.get_text() for label in panel.get_xticklabels()]


def test_matched_lines_are_the_two_differences():
    panel = table1_matched(measurements()).axes[0]
    by_label = {line.get_label(): line.get_ydata() for line in panel.lines}
    assert by_label["λ-GRPO"] == pytest.approx([0.2] * 3, abs=0.011)
    assert by_label["λ-GRPO, GRPO's step length"] == pytest.approx([0.1] * 3, abs=0.011)


def test_missing_measurements_make_no_figure():
    frame = measurements()
    for draw in (table1_map, table1_paper, table1_matched):
        assert draw(frame.drop(columns="lr")) is None
        assert draw(frame[frame["method"] == "grpo"]) is None
        assert draw(frame[frame["experiment"] == "table1-best"]) is None
    assert table1_matched(frame[frame["method"] != "lambda-grpo-matched"]) is None
    assert table1_map(frame[frame["optimizer"] == "sgd"]) is not None
