"""Finished jobs -> one tidy table on disk -> one frame in memory.

`measurements.csv.bz2` has the columns experiment, settings, seed, step, metric, value and holds nothing that depends on
time or order: the same results always give the same bytes.  Timings, which never repeat exactly, have their own file
with the same columns.  `pandas.read_csv` and `bzcat` read both as they are.

Why bzip2: its encoder has not changed in years and its format holds no date, so equal text gives equal files on any
machine; zlib and liblzma may compress differently from one version to the next.  It makes this text 20 times smaller.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import Job, write_atomic
from grpo_replications.shared.harness.profiles import parse_value

CSV_COLUMNS = ["experiment", "settings", "seed", "step", "metric", "value"]
MEASUREMENTS, TIMINGS = "measurements.csv.bz2", "timings.csv.bz2"


def tidy(finished: Iterable[tuple[Job, dict[str, Any]]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measurements and timings of finished jobs `(job, content of its file)`, in `CSV_COLUMNS` and row order.

    Rows are sorted by experiment (in the order of first appearance), settings, metric, step, seed.  Cost: linear in the
    rows, plus the sort.
    """
    columns: dict[str, list[Any]] = {name: [] for name in [*CSV_COLUMNS, "timing"]}
    for job, content in finished:
        rows = content["rows"]
        count = len(rows["value"])
        columns["experiment"].extend([job.experiment] * count)
        columns["settings"].extend([job.label] * count)
        for name in ("seed", "step", "metric", "value", "timing"):
            columns[name].extend(rows[name])
    frame = pd.DataFrame(columns)
    order = {name: position for position, name in enumerate(dict.fromkeys(columns["experiment"]))}
    frame["order"] = frame["experiment"].map(order)
    frame[["seed", "step"]] = frame[["seed", "step"]].astype("Int64")
    keys = ["order", "settings", "metric", "step", "seed"]
    frame = frame.sort_values(keys, kind="stable", na_position="first", ignore_index=True)
    timing = frame["timing"].astype(bool)
    return frame.loc[~timing, CSV_COLUMNS], frame.loc[timing, CSV_COLUMNS]


def with_kept_rows(frame: pd.DataFrame, path: Path, kept: list[str], order: list[str]) -> pd.DataFrame:
    """`frame` plus the rows of the experiments `kept` in the file at `path`; experiments in `order`."""
    if not kept or not path.exists():
        return frame
    rows = load_measurements(path)[CSV_COLUMNS]
    both = pd.concat([frame, rows[rows["experiment"].isin(kept)].astype({"step": "Int64"})], ignore_index=True)
    return both.sort_values("experiment", key=lambda names: names.map(order.index), kind="stable", ignore_index=True)


def write_measurements(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame of `tidy` with values as `%.9g`, compressed; the file appears whole or not at all."""
    # Adding zero turns -0.0, which some machines produce where others give 0.0, into 0.0.
    text = frame.assign(value=[f"{value + 0.0:.9g}" for value in frame["value"]])
    write_atomic(path, bz2.compress(text.to_csv(index=False, lineterminator="\n").encode()))


def read_rows(path: Path | str) -> pd.DataFrame:
    """The rows of measurements or timings as they are written, in `CSV_COLUMNS`.

    Raises `ReplicationError` if the file is absent or damaged.
    """
    try:
        frame = pd.read_csv(
            path,
            compression="bz2",
            dtype={
                "seed": "Int64",
                "experiment": "object",
                "settings": "object",
                "metric": "object",
                "value": "float64",
            },
            keep_default_na=False,
            na_values={"step": [""], "seed": [""], "value": ["nan"]},
        )
    except FileNotFoundError:
        raise ReplicationError(f"{path} does not exist; run the profile first.") from None
    except (ValueError, EOFError, OSError) as error:  # of the table, of a cut-off file, of the compression
        raise _unreadable(path, error) from None
    if list(frame.columns) != CSV_COLUMNS:
        raise ReplicationError(f"{path} has the columns {', '.join(frame.columns)}, not {', '.join(CSV_COLUMNS)}.")
    return frame


def load_measurements(path: Path | str) -> pd.DataFrame:
    """Read measurements or timings with every varying setting as a column of its own.

    Columns: those of `read_rows`, then the settings (numbers parsed; missing where an experiment does not have them).
    Raises as `read_rows`.  Cost: linear in the rows; each distinct `settings` text is parsed once.
    """
    frame = read_rows(path)
    labels = pd.unique(frame["settings"])
    parsed = [_parse_label(label) for label in labels]
    names = list(dict.fromkeys(name for settings in parsed for name in settings))
    codes = pd.Categorical(frame["settings"], categories=labels).codes
    expanded = {}
    for name in names:
        column = pd.Series([settings.get(name) for settings in parsed], dtype="object")
        expanded[name] = _narrow(column.take(codes).reset_index(drop=True))
    return pd.concat([frame, pd.DataFrame(expanded)], axis=1) if expanded else frame


def metrics_measured(path: Path) -> dict[str, set[str]]:
    """Names of the metrics that a file of measurements holds, by experiment; nothing where there is no file.

    Raises `ReplicationError` if the file is damaged.
    """
    if not path.exists():
        return {}
    columns = {"experiment": "category", "metric": "category"}
    try:
        frame = pd.read_csv(path, usecols=list(columns), dtype=columns, compression="bz2").drop_duplicates()
    except (ValueError, EOFError, OSError) as error:
        raise _unreadable(path, error) from None
    return {str(name): set(metrics) for name, metrics in frame.groupby("experiment", observed=True)["metric"]}


def _unreadable(path: Path | str, error: Exception) -> ReplicationError:
    return ReplicationError(f"{path} cannot be read ({error}); if it is damaged, run the profile again.")


def _parse_label(label: str) -> dict[str, Any]:
    return {name: parse_value(text) for name, _, text in (part.partition("=") for part in label.split(";") if part)}


def _narrow(column: pd.Series) -> pd.Series:
    """Numbers as a numeric column, anything else as objects."""
    present = column.dropna()
    if len(present) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present):
        return pd.to_numeric(column)
    return column
