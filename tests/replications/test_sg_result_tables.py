"""The paper's tables from measurements of its profile: numbers in their places, both intervals, beside the print."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from grpo_replications.replications.grpo_sg.result_tables import TABLES
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.statistics.estimates import mean_interval

SMALL, LARGE = "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-7B"


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rows = []

    def add(experiment: str, model: str, method: str | None, values: dict[str, tuple[float, ...]]) -> None:
        for metric, seeds in values.items():
            for seed, value in enumerate(seeds):
                own = {"experiment": experiment, "model": model, "method": method, "metric": metric}
                rows.append({**own, "seed": seed, "step": pd.NA, "value": value})

    for method, shift in (("sharpness", 0.2), ("grpo", 0.0)):
        solved = {f"final_people_{n}_accuracy": (0.1 * n + shift, 0.1 * n) for n in (3, 4)}
        add("training-kk", SMALL, method, {**solved, "kk_accuracy": (0.35 + shift, 0.35)})
    maths = {
        "mean/grpo": (40.0, 42.0),
        "mean/80/20": (43.0, 43.0),
        "gain/80/20": (3.0, 1.0),
        "mean/sharpness": (46.0, 48.0),
    }
    maths |= {"gain/sharpness": (6.0, 6.0)}
    for method in ("grpo", "80/20", "sharpness"):
        ends = {"accuracy": (40.0, 42.0), "low": (30.0, 34.0), "high": (50.0, 52.0)}
        maths |= {f"{kind}/Minerva/{method}": value for kind, value in ends.items()}
    add("training-maths", LARGE, None, maths)
    found = pd.DataFrame(rows)
    found.attrs["paper"] = Paper.load(Path(__file__).parents[2] / "replications" / "grpo_sg").printed
    return found


def test_puzzles_by_people_with_the_printed_mean(frame: pd.DataFrame) -> None:
    table = TABLES["knights_and_knaves"](frame)
    assert list(table["method"]) == 3 * ["grpo"] + 3 * ["sharpness"] and list(table["people"])[:3] == ["3", "4", "mean"]
    means = table[table["people"] == "mean"]
    assert list(means["accuracy"]) == ["0.3500", "0.4500"] and list(means["paper"]) == ["0.42", "0.63"]
    low, high = mean_interval([0.55, 0.35])[1:3]
    assert means.iloc[1]["95% over runs"] == f"{low:.4f} to {high:.4f}" and set(table["runs"]) == {2}


def test_mathematics_with_gains_and_both_intervals(frame: pd.DataFrame) -> None:
    table = TABLES["mathematics"](frame).set_index(["method", "benchmark"])
    assert table.index[0][0] == "grpo" and ("grpo", "gain over GRPO") not in table.index
    assert table.loc[("80/20", "Minerva"), "95% over problems"] == "32.00 to 51.00"
    gain = table.loc[("sharpness", "gain over GRPO")]
    assert (gain["points"], gain["paper"], gain["95% over problems"]) == ("6.00", "6", "")
    assert table.loc[("80/20", "gain over GRPO"), "paper"] == ""


def test_other_profiles_have_no_table_of_the_papers_models(frame: pd.DataFrame) -> None:
    other = frame.drop(columns="model")
    other.attrs = frame.attrs
    assert [function(other) for function in TABLES.values()] == [None, None]
