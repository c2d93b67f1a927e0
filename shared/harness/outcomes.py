"""Outcomes on disk: one line a check in `verdicts.csv`, one a combination of conditions in `verdict_cells.csv`, one a
claim in `claims.csv`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.answers import Answer, answer
from grpo_replications.shared.harness.checks import Check, ExactCheck
from grpo_replications.shared.harness.claims import Claim
from grpo_replications.shared.harness.criteria import WORDS, criterion_newer
from grpo_replications.shared.harness.entries import HERE, PUBLISHED
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.measurements import MEASUREMENTS, TIMINGS, load_measurements
from grpo_replications.shared.harness.number_format import in_digits
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.records import read_record
from grpo_replications.shared.harness.verdicts import HOLDS, NOT_RUN, VERDICTS, Verdict, command_for, evaluate
from grpo_replications.shared.statistics.estimates import Estimate

VERDICTS_FILE, CELLS_FILE, CLAIMS_CSV = "verdicts.csv", "verdict_cells.csv", "claims.csv"
VERDICT_COLUMNS = [
    *("id", "claim", "source", "answers", "verdict", "kind", "unit", "paper_value", "threshold", "margin"),
    *("value", "low", "high", "n", "conditions", "reason", "criterion", "criterion_newer", "command"),
]
CELL_COLUMNS = [
    *("id", "conditions", "state", "metric", "value", "low", "high", "interval", "n", "seeds"),
    *("wins", "losses", "ties", "p_value", "reason"),
]
CLAIM_COLUMNS = [
    *("id", "source", "statement", "where", "reports"),
    *("published", "published_checks", "published_run", "published_reason", "published_setting", "published_command"),
    *("here", "here_checks", "here_run", "here_reason", "here_setting", "here_command"),
]


@dataclass(frozen=True)
class CellLine:
    """One line of `verdict_cells.csv`; `won`: seeds that the side called better won, lost and tied.

    The estimate's `kind` is how its interval was made, empty where there is none.
    """

    conditions: str
    state: str
    estimate: Estimate
    seeds: str
    won: tuple[int, int, int] | None
    p_value: float
    reason: str


@dataclass(frozen=True)
class CheckLine:
    """A check with its line of `verdicts.csv` and the lines of its cells; `criterion_newer` as in `criteria.py`."""

    check: Check
    profile: str
    verdict: str
    estimate: Estimate
    conditions: str
    reason: str
    command: str
    cells: tuple[CellLine, ...]
    criterion_newer: str = ""

    @property
    def ours(self) -> str:
        """Our number with its interval and unit, or in how many combinations the check holds."""
        if self.verdict == NOT_RUN:
            return ""
        if len(self.cells) != 1:
            holds = sum(cell.state == HOLDS for cell in self.cells)
            return f"holds in {holds} of {len(self.cells)} settings"
        if isinstance(self.check, ExactCheck) and not self.check.target:
            end = "smallest" if self.check.expect == "violation" else "largest"
            return f"{end} {number(abs(self.estimate.value))} ({self.check.unit})"
        if isinstance(self.check, ExactCheck):
            return f"{number(self.estimate.value)} ({self.check.unit})"
        text = f"{number_with_interval(self.estimate)} ({self.check.unit})"
        won = self.cells[0].won
        if won is not None:
            tied = f", {won[2]} tied" if won[2] else ""
            text += f"; better in {won[0]} of {sum(won)} seeds{tied}"
        return text

    @property
    def newer(self) -> str:
        """That the criterion is newer than the measurements, in words; empty if it is not, or nobody knows."""
        return WORDS.get(self.criterion_newer, "")

    @property
    def paper(self) -> str:
        """The number that the paper prints, if it prints one."""
        return "" if self.check.paper_value is None else number(self.check.paper_value)


@dataclass(frozen=True)
class ClaimOutcome:
    """A claim with what its checks say, and the two answers that follow; None where nothing asks for one."""

    claim: Claim
    lines: tuple[CheckLine, ...]
    published: Answer | None
    here: Answer | None


def evaluate_profile(paper: Paper, profile: str, directory: Path) -> list[Verdict]:
    """Verdicts on every check of a paper from one profile's files; no training, no job files."""
    measurements = load_measurements(directory / MEASUREMENTS)
    has_timings = (directory / TIMINGS).exists()
    timings = load_measurements(directory / TIMINGS) if has_timings else measurements.iloc[:0]
    record = read_record(directory)
    verdicts = [evaluate(check, paper.slug, profile, measurements, timings) for check in paper.checks]
    return [
        replace(verdict, criterion_newer=criterion_newer(verdict.check, record)) if verdict.cells else verdict
        for verdict in verdicts
    ]


def write_verdicts(paper: Paper, verdicts: Sequence[Verdict], directory: Path) -> None:
    """Write the three files; the same verdicts give the same bytes."""
    lines, cells = [], []
    for verdict in verdicts:
        check, estimate = verdict.check, verdict.estimate
        threshold = getattr(check, "ratio_below", getattr(check, "threshold", None))
        head = (check.id, check.claim, check.source, check.answers, verdict.verdict, check.kind, check.unit)
        bars = (plain(threshold), plain(getattr(check, "margin", None)))
        numbers = (plain(check.paper_value), *bars, *_columns(estimate), verdict.n or "")
        words = (verdict.conditions, verdict.reason, check.judged_by, verdict.criterion_newer, verdict.command)
        lines.append([*head, *numbers, *words])
        for cell in verdict.cells:
            sign = cell.sign
            won = [sign.wins, sign.losses, sign.ties, plain(sign.p_value)] if sign else ["", "", "", ""]
            head = (check.id, cell.label, cell.state, check.metric, *_columns(cell.estimate), cell.estimate.kind)
            cells.append([*head, cell.estimate.n, cell.seeds, *won, cell.reason])
    write_csv(directory / VERDICTS_FILE, VERDICT_COLUMNS, lines)
    write_csv(directory / CELLS_FILE, CELL_COLUMNS, cells)
    profile = verdicts[0].profile if verdicts else ""
    outcomes = claim_outcomes(paper, read_verdicts(paper, profile, directory))
    write_csv(directory / CLAIMS_CSV, CLAIM_COLUMNS, [_claim_line(outcome) for outcome in outcomes])


def _claim_line(outcome: ClaimOutcome) -> list[Any]:
    claim = outcome.claim
    line = [claim.id, claim.source, claim.statement, claim.where, claim.reports or ""]
    for own, setting in ((outcome.published, claim.published_setting), (outcome.here, claim.here_setting)):
        if own is None:
            line += ["", "", "", "", setting or "", ""]
        else:
            line += [own.verdict, own.checks, own.run, own.text, setting or "", own.command]
    return line


def read_verdicts(paper: Paper, profile: str, directory: Path) -> list[CheckLine]:
    """Every check of the paper with what the files say about it; a check they do not know is `not run`."""
    verdicts = {line["id"]: line for line in read_csv(directory / VERDICTS_FILE)}
    cells: dict[str, list[CellLine]] = {}
    for line in read_csv(directory / CELLS_FILE):
        won = tuple(int(line[name]) for name in ("wins", "losses", "ties")) if line.get("wins") else None
        p_value = float(line["p_value"]) if line.get("p_value") else math.nan
        cells.setdefault(line["id"], []).append(
            CellLine(line["conditions"], line["state"], _estimate(line), line["seeds"], won, p_value, line["reason"])
        )
    lines = []
    for check in paper.checks:
        line = verdicts.get(check.id)
        if line is None or line["verdict"] not in VERDICTS:
            reason = "added after this profile was last judged"
            unknown = Estimate(math.nan, math.nan, math.nan, 0)
            command = command_for(paper.slug, check.profiles[0], check.experiment)
            lines.append(CheckLine(check, profile, NOT_RUN, unknown, "", reason, command, ()))
            continue
        own = tuple(cells.get(check.id, ()))
        words = (line["conditions"], line["reason"], line["command"])
        newer = line.get("criterion_newer", "")
        lines.append(CheckLine(check, profile, line["verdict"], _estimate(line), *words, own, newer))
    return lines


def claim_outcomes(paper: Paper, lines: Sequence[CheckLine]) -> list[ClaimOutcome]:
    """Every claim of the paper, in the written order, with its answers from these lines of its checks."""
    by_id = {line.check.id: line for line in lines}
    outcomes = []
    for claim in paper.claims:
        own = tuple(by_id[check.id] for check in claim.checks)
        published, here = (
            answer([line for line in own if line.check.answers == question], claim.rule)
            for question in (PUBLISHED, HERE)
        )
        if published is None and claim.published_setting:
            published = Answer(NOT_RUN, "no check in the paper's own setting yet", 0, 0, "")
        outcomes.append(ClaimOutcome(claim, own, published, here))
    return outcomes


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
    known = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    ends = (estimate.low, estimate.high) if known else ()
    text, *interval = (digits.text for digits in in_digits(estimate.value, *ends))
    if known:
        text += f" [{', '.join(interval)}]"
    elif not math.isnan(estimate.low):
        text += " [interval unknown]"
    return text + (f", n = {estimate.n}" if n else "")


def _columns(estimate: Estimate) -> list[str]:
    return [plain(estimate.value), plain(estimate.low), plain(estimate.high)]


def _estimate(line: dict[str, str]) -> Estimate:
    numbers = (float(line[name]) if line[name] else math.nan for name in ("value", "low", "high"))
    return Estimate(*numbers, n=int(line["n"] or 0), kind=line.get("interval") or "")
