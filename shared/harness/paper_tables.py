"""Measurements on disk -> a paper's tables, filled with our numbers beside the printed ones."""

from __future__ import annotations

from pathlib import Path

from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.measurements import MEASUREMENTS, load_measurements
from grpo_replications.shared.harness.papers import Paper

FOLDER = "tables"


def write_tables(paper: Paper, directory: Path, mark: str = "") -> dict[str, str]:
    """Write every table of the paper as `directory/tables/<name>.csv` and `.txt`; returns the texts by name.

    A table function gets the frame of `load_measurements` and returns a frame of words and numbers, or None where
    nothing of it was measured; a file of an earlier run is then removed. `mark` is the first line of both files.
    """
    texts: dict[str, str] = {}
    frame = load_measurements(directory / MEASUREMENTS) if paper.tables else None
    for name, function in paper.tables.items():
        table = function(frame)
        target = directory / FOLDER / name
        if table is None:
            for ending in (".csv", ".txt"):
                target.with_suffix(ending).unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        head = f"# {mark}\n" if mark else ""
        texts[name] = head + table.to_string(index=False) + "\n"
        write_atomic(target.with_suffix(".txt"), texts[name])
        write_atomic(target.with_suffix(".csv"), head + table.to_csv(index=False))
    return texts
