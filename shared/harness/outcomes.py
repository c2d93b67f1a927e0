"""Verdicts on disk: one line a claim in `verdicts.csv`, one a combination of conditions in `verdict_cells.csv`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.harness.claims import Claim
from shared.harness.jobs import write_atomic
from shared.harness.measurements import MEASUREMENTS, TIMINGS, load_measurements
from shared.harness.papers import Paper
from shared.harness.verdicts import HOLDS, NOT_RUN, VERDICTS, Verdict, command_for, evaluate
from shared.statistics.estimates import Estimate

VERDICTS_FILE, CELLS_FILE = "verdicts.csv", "verdict_cells.csv"
VERDICT_COLUMNS = [
    *("id", "verdict", "kind", "value_paper", "value", "low", "high", "n"),
    *("conditions", "reason", "criterion", "command"),
]
CELL_COLUMNS = [
    *("id", "conditions", "state", "metric", "value", "low", "high", "n", "seeds"),
    *("probability", "probability_low", "probability_high", "reason"),
]


@dataclass(frozen=True)
class CellLine:
    """One line of `verdict_cells.csv`."""

    conditions: str
    state: str
    estimate: Estimate
    seeds: str
    probability: Estimate | None
    reason: str


@dataclass(frozen=True)
class ClaimLine:
    """A claim with its line of `verdicts.csv` and the lines of its cells."""

    claim: Claim
    verdict: str
    estimate: Estimate
    conditions: str
    reason: str
    command: str
    cells: tuple[CellLine, ...]

    @property
    def ours(self) -> str:
        """Our number with its interval, or in how many combinations the claim holds."""
        if self.verdict == NOT_RUN:
            return ""
        if len(self.cells) != 1:
            holds = sum(cell.state == HOLDS for cell in self.cells)
            return f"holds in {holds} of {len(self.cells)} settings"
        if self.claim.kind == "exact":
            if self.claim.target:
                return number(self.estimate.value)
            return f"{'at least' if self.claim.expect == 'violation' else 'at most'} {number(self.estimate.value)}"
        text = number_with_interval(self.estimate)
        probability = self.cells[0].probability
        if probability is not None and self.estimate.n:
            text += f"; P(improvement) {number_with_interval(probability, n=False)}"
        return text

    @property
    def paper(self) -> str:
        """The paper's number, if it gives one."""
        return "" if self.claim.value is None or self.claim.source == "ours" else number(self.claim.value)


def evaluate_profile(paper: Paper, profile: str, directory: Path) -> list[Verdict]:
    """Verdicts on every claim of a paper from one profile's files; no training, no job files."""
    measurements = load_measurements(directory / MEASUREMENTS)
    has_timings = (directory / TIMINGS).exists()
    timings = load_measurements(directory / TIMINGS) if has_timings else measurements.iloc[:0]
    return [evaluate(claim, paper.slug, profile, measurements, timings) for claim in paper.claims]


def write_verdicts(verdicts: Sequence[Verdict], directory: Path) -> None:
    """Write both files; the same verdicts give the same bytes."""
    lines, cells = [], []
    for verdict in verdicts:
        claim, estimate = verdict.claim, verdict.estimate
        head = (claim.id, verdict.verdict, claim.kind, plain(claim.value), *_columns(estimate), verdict.n or "")
        lines.append([*head, verdict.conditions, verdict.reason, claim.criterion, verdict.command])
        for cell in verdict.cells:
            probability = _columns(cell.probability) if cell.probability else ["", "", ""]
            head = (claim.id, cell.label, cell.state, claim.metric, *_columns(cell.estimate), cell.estimate.n)
            cells.append([*head, cell.seeds, *probability, cell.reason])
    write_csv(directory / VERDICTS_FILE, VERDICT_COLUMNS, lines)
    write_csv(directory / CELLS_FILE, CELL_COLUMNS, cells)


def read_verdicts(paper: Paper, profile: str, directory: Path) -> list[ClaimLine]:
    """Every claim of the paper with what the files say about it; a claim they do not know is `not run`."""
    verdicts = {line["id"]: line for line in read_csv(directory / VERDICTS_FILE)}
    cells: dict[str, list[CellLine]] = {}
    for line in read_csv(directory / CELLS_FILE):
        probability = None
        if line["probability"]:
            probability = _estimate(line, "probability", "probability_low", "probability_high")
        cells.setdefault(line["id"], []).append(
            CellLine(line["conditions"], line["state"], _estimate(line), line["seeds"], probability, line["reason"])
        )
    lines = []
    for claim in paper.claims:
        line = verdicts.get(claim.id)
        if line is None or line["verdict"] not in VERDICTS:
            reason = "added after this profile was last judged"
            unknown = Estimate(math.nan, math.nan, math.nan, 0)
            command = command_for(paper.slug, claim.profiles[0], claim.experiment)
            lines.append(ClaimLine(claim, NOT_RUN, unknown, "", reason, command, ()))
            continue
        own = tuple(cells.get(claim.id, ()))
        words = (line["conditions"], line["reason"], line["command"])
        lines.append(ClaimLine(claim, line["verdict"], _estimate(line), *words, own))
    return lines


def count_verdicts(verdicts: Iterable[str]) -> str:
    """`3 reproduced, 1 not reproduced`, in the order of `VERDICTS`, empty kinds left out."""
    present = list(verdicts)
    return ", ".join(f"{present.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in present)


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a table atomically."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    write_atomic(path, stream.getvalue())


def read_csv(path: Path) -> list[dict[str, str]]:
    """A table's lines by column name; nothing where there is no file."""
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except FileNotFoundError:
        return []


def plain(value: float | None) -> str:
    """A number for a table that programs read: nine digits, empty where unknown."""
    return "" if value is None or math.isnan(value) else f"{value + 0.0:.9g}"


def number(value: float) -> str:
    """A number for people: four digits."""
    return f"{value + 0.0:.4g}"


def number_with_interval(estimate: Estimate, n: bool = True) -> str:
    """`0.167 [0.151, 0.183], n = 1000`; an infinite interval says that it is unknown."""
    if math.isnan(estimate.value):
        return "unknown"
    text = number(estimate.value)
    if math.isinf(estimate.low) or math.isinf(estimate.high):
        text += " [interval unknown]"
    elif not math.isnan(estimate.low):
        text += f" [{number(estimate.low)}, {number(estimate.high)}]"
    return text + (f", n = {estimate.n}" if n else "")


def _columns(estimate: Estimate) -> list[str]:
    return [plain(estimate.value), plain(estimate.low), plain(estimate.high)]


def _estimate(line: dict[str, str], value: str = "value", low: str = "low", high: str = "high") -> Estimate:
    numbers = (float(line[name]) if line[name] else math.nan for name in (value, low, high))
    return Estimate(*numbers, n=int(line["n"] or 0))
