"""Measurements of the profile `paper` -> the paper's averages on Knights & Knaves and its gains on mathematics.

Only what the paper's models measured has a table: rows are told apart by `model`, which varies in no other profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from grpo_replications.shared.harness.paper_tables import over_problems, over_runs, shown_interval

KK, KK_PRINTED = "training-kk", "grpo-sg/paper/kk/qwen2.5-{size}/{method}"
SIZES = {"Qwen2.5-3B-Instruct": "3b", "Qwen2.5-7B-Instruct-1M": "7b"}
MATHS, GAIN_PRINTED = "training-maths", {("Qwen2.5-7B", "sharpness"): "grpo-sg/paper/maths/qwen2.5-7b-dsr"}
MEAN, GAIN, BASELINE = "mean", "gain over GRPO", "grpo"


def knights_and_knaves(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Rows model, method and people (or their mean): strict accuracy, its interval over runs, and the printed mean."""
    lines = []
    for model, own in _by_model(frame, KK):
        for method, rows in sorted(own.groupby("method"), key=lambda one: one[0] != BASELINE):
            people = sorted(name for name in set(rows["metric"]) if name.startswith("final_people_"))
            printed = _printed(frame, KK_PRINTED.format(size=SIZES.get(model, ""), method=method))
            for metric in [*people, "kk_accuracy"]:
                count = metric.removeprefix("final_people_").partition("_")[0]
                mean = metric == "kk_accuracy"
                found = over_runs(rows, metric)
                lines.append(
                    {
                        "model": model,
                        "method": method,
                        "people": MEAN if mean else count,
                        "accuracy": f"{found.value:.4f}",
                        "95% over runs": shown_interval(found.low, found.high),
                        "runs": found.n,
                        "paper": printed if mean else "",
                    }
                )
    return pd.DataFrame(lines) if lines else None


def mathematics(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Rows model, method and benchmark, in points of 100: accuracy or gain, both intervals, and the printed gain."""
    lines = []
    for model, rows in _by_model(frame, MATHS):
        methods = [name.removeprefix("mean/") for name in dict.fromkeys(rows["metric"]) if name.startswith("mean/")]
        for method in sorted(methods, key=lambda method: method != BASELINE):
            lines += _maths_lines(frame, model, method, rows)
    return pd.DataFrame(lines) if lines else None


def _maths_lines(frame: pd.DataFrame, model: str, method: str, rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    ending = f"/{method}"
    names = [name for name in dict.fromkeys(rows["metric"]) if name.startswith("accuracy/") and name.endswith(ending)]
    metrics = {name.removeprefix("accuracy/").removesuffix(ending): name for name in names}
    metrics[MEAN] = f"mean{ending}"
    if method != BASELINE:
        metrics[GAIN] = f"gain{ending}"
    for name, metric in metrics.items():
        found = over_runs(rows, metric)
        yield {
            "model": model,
            "method": method,
            "benchmark": name,
            "points": f"{found.value:.2f}",
            "95% over problems": shown_interval(*over_problems(rows, f"{name}{ending}"), 2),
            "95% over runs": shown_interval(found.low, found.high, 2),
            "runs": found.n,
            "paper": _printed(frame, GAIN_PRINTED.get((model, method), "")) if name == GAIN else "",
        }


def _by_model(frame: pd.DataFrame, experiment: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows without a step of each model, which is named without its owner."""
    rows = frame[(frame["experiment"] == experiment) & frame["step"].isna()]
    if "model" in rows:
        for model, own in rows.groupby("model", sort=False):
            yield str(model).rpartition("/")[2], own


def _printed(frame: pd.DataFrame, check: str) -> str:
    """The number that the paper prints for a check; nothing where it prints none."""
    value = frame.attrs["paper"].get(check)
    return "" if value is None else f"{value:g}"


TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame | None]] = {
    "knights_and_knaves": knights_and_knaves,
    "mathematics": mathematics,
}
