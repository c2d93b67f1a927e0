"""How often the rules of judging are wrong on simulated data: `results/calibration.csv`, a section of the report."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.rendering import Block, Details, Heading, Paragraph, Table
from grpo_replications.shared.statistics.calibration import COLUMNS, calibrate

CALIBRATION = "calibration.csv"
SAMPLES = 2000


def write_calibration(results: Path, samples: int = SAMPLES, seed: int = 0) -> Path:
    """Measure every kind of decision on simulated studies and write the table; the same arguments give the same bytes.

    Raises ReplicationError if `samples` is below 100: rates of a few studies say nothing.  About 15 seconds for 2,000
    samples on one core; linear in `samples`.
    """
    if samples < 100:
        raise ReplicationError(f"{samples} simulated studies say little about a rate of 5 %; ask for 100 or more.")
    table = calibrate(samples, seed=seed)
    path = results / CALIBRATION
    results.mkdir(parents=True, exist_ok=True)
    write_atomic(path, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    return path


def calibration_blocks(results: Path) -> list[Block]:
    """The section of the report; nothing where the table has not been made."""
    path = results / CALIBRATION
    if not path.exists():
        return []
    table = pd.read_csv(path)
    if list(table.columns) != list(COLUMNS):
        raise ReplicationError(f"{path} has other columns than this version writes; run: replicate calibrate")
    studies, level = int(table["samples"].max()), float(table["nominal"].iloc[0])
    text = (
        "How often the rules of judging are wrong, measured by `replicate calibrate` on simulated studies whose answer "
        f"is known (up to {studies:,} a row; [calibration.csv](calibration.csv) has every row). Wrong: a direction "
        "called although the true effect is not beyond the margin, equivalence called although it is not inside, and "
        "so on. A row gives the worst case over numbers of seeds and true effects, beside the rate that the rule "
        f"allows in that case, and the lowest coverage of the interval that decides (wanted: {level:.0%})."
    )
    header = ["decision", "data", "wrong at worst", "allowed there", "at n seeds", "lowest coverage", "at n seeds"]
    rows = [
        [kind, data, *_wrong(own), *_coverage(own)] for (kind, data), own in table.groupby(["kind", "data"], sort=False)
    ]
    summary = f"Error rates and coverage of {table['kind'].nunique()} kinds of decisions and intervals"
    return [Heading("Calibration", 2), Paragraph(text), Details(summary, [Table(header, rows)])]


def _wrong(rows: pd.DataFrame) -> list[str]:
    """The row whose rate of wrong decisions exceeds the allowed one most."""
    known = rows.dropna(subset=["wrong"])
    if known.empty:
        return ["", "", ""]
    worst = known.loc[(known["wrong"] - known["allowed"]).idxmax()]
    return [f"{worst['wrong']:.1%}", f"{worst['allowed']:.1%}", f"{worst['n']:g}"]


def _coverage(rows: pd.DataFrame) -> list[str]:
    known = rows.dropna(subset=["coverage"])
    if known.empty:
        return ["", ""]
    lowest = known.loc[known["coverage"].idxmin()]
    return [f"{lowest['coverage']:.1%}", f"{lowest['n']:g}"]
