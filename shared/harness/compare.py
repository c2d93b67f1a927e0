"""Two snapshots of results -> what differs: numbers against their intervals, verdicts with the reason, origin.

Compared are the experiments that both sides have measured; what only one side has measured is listed and is no
difference, so that a run of one experiment can be compared with the whole.  Timings never repeat; they are listed apart
and are no difference either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_replications.shared.harness.measurements import MEASUREMENTS, read_rows
from grpo_replications.shared.harness.outcomes import number
from grpo_replications.shared.harness.row_changes import RowChanges, row_changes
from grpo_replications.shared.harness.snapshots import JudgedCheck, Number, Snapshot

NORMAL_95 = 1.959964  # half of a 95 % interval in standard errors
SLIGHT = 1e-3  # of a combined standard error, or of the value where there is no interval


@dataclass(frozen=True)
class NumberPair:
    """One number on both sides.

    `standard_errors`: the difference b - a in units of the combined standard error, that of the difference of two
    independent estimates (half-widths of the 95 % intervals over 1.96); nan where a side has no confidence interval.
    `overlap`: whether the intervals overlap; None where one has none.
    """

    name: str
    check: str
    unit: str
    a: Number
    b: Number
    timing: bool
    paper_value: float
    standard_errors: float
    overlap: bool | None

    @property
    def moved(self) -> bool:
        """Whether value or interval differ in any of their nine digits."""
        return any(not _same(x, y) for x, y in zip(_ends(self.a), _ends(self.b)))

    @property
    def size(self) -> tuple[float, float]:
        """For sorting by how far it moved: standard errors where there are any, then the share of its own size."""
        return (0.0 if math.isnan(self.standard_errors) else abs(self.standard_errors), self.relative)

    @property
    def relative(self) -> float:
        """The difference as a share of the larger value."""
        largest = max(abs(self.a.value), abs(self.b.value), 1e-300)
        return _or_zero(abs(self.b.value - self.a.value) / largest)

    @property
    def slight(self) -> bool:
        """Whether the values differ by no more than the rounding of another processor might make them."""
        return (self.relative if math.isnan(self.standard_errors) else abs(self.standard_errors)) < SLIGHT


@dataclass(frozen=True)
class VerdictChange:
    """A check whose verdict differs, and every reason for it that the files show."""

    check: str
    a: str
    b: str
    reasons: tuple[str, ...]
    timing: bool


@dataclass(frozen=True)
class AnswerChange:
    """A claim whose answer (`question`: published or here) differs."""

    claim: str
    question: str
    a: str
    b: str


@dataclass(frozen=True)
class Comparison:
    """Everything that differs between two snapshots, and how many things do not.

    `lone_a`, `lone_b`: checks (of the same profile: their numbers, too) judged on that side only though both have
    measured their experiment.  `only_a`,
    `only_b`: experiments that only that side has measured.  `identical_bytes`: of the measurements; None where a side
    has no such file.  `rows`: None where they were not compared (different profiles, or the same bytes).
    """

    a: Snapshot
    b: Snapshot
    numbers: tuple[NumberPair, ...]
    checks: int
    verdicts: tuple[VerdictChange, ...]
    answers: tuple[AnswerChange, ...]
    lone_a: tuple[str, ...]
    lone_b: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    identical_bytes: bool | None
    rows: tuple[RowChanges, ...] | None
    settings: tuple[str, ...]
    origin: tuple[tuple[str, str, str], ...]

    @property
    def moved(self) -> list[NumberPair]:
        """Numbers that are no timings and differ, the furthest first."""
        return sorted((one for one in self.numbers if one.moved and not one.timing), key=lambda one: one.size)[::-1]

    @property
    def timings(self) -> list[NumberPair]:
        """Timings that differ."""
        return [one for one in self.numbers if one.moved and one.timing]

    @property
    def counted(self) -> int:
        """Numbers that are no timings."""
        return sum(not one.timing for one in self.numbers)

    @property
    def changed(self) -> list[VerdictChange]:
        """Changed verdicts of checks that do not look at timings."""
        return [one for one in self.verdicts if not one.timing]

    @property
    def compared(self) -> bool:
        """Whether the sides have measured anything in common."""
        return bool(self.a.measured & self.b.measured)

    @property
    def differs(self) -> bool:
        """Whether anything but timings differs in what both sides have measured."""
        rows = bool(self.rows) and any(one.differ or one.only_a or one.only_b for one in self.rows)
        return bool(self.moved or self.changed or self.lone_a or self.lone_b or rows)


def compare(a: Snapshot, b: Snapshot) -> Comparison:
    """What differs from `a` to `b`: two results of a profile, or two profiles of a paper.

    Cost: linear in the checks; measurements are only read where they are of the same profile and differ in their bytes.
    """
    both = a.measured & b.measured
    same_profile = (a.paper, a.profile) == (b.paper, b.profile)
    known = [name for name in (*a.checks, *(one for one in b.checks if one not in a.checks))]
    numbers, verdicts, lone_a, lone_b, checks = [], [], [], [], 0
    left_out = set()  # claims that rest on what one side has not measured
    for name in known:
        first, second = a.checks.get(name), b.checks.get(name)
        present = first or second
        if present.experiment not in both:
            if present.experiment in a.measured | b.measured:
                left_out.add(present.claim)
            continue
        if not (first and first.run and second and second.run):
            timing = any(one is not None and one.timing for one in (first, second))
            if not timing and first is not None and first.run:
                lone_a.append(name)
            elif not timing and second is not None and second.run:
                lone_b.append(name)
            continue
        checks += 1
        pairs = _pairs(first, second)
        if same_profile and not (first.timing or second.timing):
            lone_a += [first.numbers[where].name for where in first.numbers if where not in second.numbers]
            lone_b += [second.numbers[where].name for where in second.numbers if where not in first.numbers]
        numbers += pairs
        if first.verdict != second.verdict:
            reasons = tuple(reasons_for(first, second, pairs))
            timing = first.timing or second.timing
            verdicts.append(VerdictChange(name, first.verdict, second.verdict, reasons, timing))
    digests = a.digest, b.digest
    identical = None if None in digests else digests[0] == digests[1]
    rows = tuple(_row_changes(a, b, both)) if same_profile and identical is False else None
    return Comparison(
        a,
        b,
        tuple(numbers),
        checks,
        tuple(verdicts),
        tuple(_answer_changes(a, b, left_out)),
        tuple(lone_a),
        tuple(lone_b),
        tuple(sorted(a.measured - b.measured)),
        tuple(sorted(b.measured - a.measured)),
        identical,
        rows,
        tuple(settings_changes(a.record, b.record, both)),
        tuple(origin_of(a.record, b.record)),
    )


def reasons_for(a: JudgedCheck, b: JudgedCheck, pairs: list[NumberPair]) -> list[str]:
    """Why a check's verdict differs, as far as the files say; both sides have one."""
    reasons = []
    changed = [name for name in a.criterion if a.criterion[name] != b.criterion[name]]
    if changed:
        values = [
            f"{name} {a.criterion[name] or 'none'} → {b.criterion[name] or 'none'}"
            for name in changed
            if name != "criterion"
        ]
        reasons.append("criterion changed" + (f" ({', '.join(values)})" if values else " in its words"))
    if a.numbers.keys() != b.numbers.keys():
        reasons.append(f"judged for {len(a.numbers)} → {len(b.numbers)} settings, {len(pairs)} of them the same")
    if a.n != b.n:
        reasons.append(f"n {a.n} → {b.n}")
    moved = [one for one in pairs if one.moved]
    if moved:
        furthest = max(moved, key=lambda one: one.size)
        count = "number moved" if len(pairs) == 1 else f"{len(moved)} of {len(pairs)} numbers moved"
        reasons.append(count + (", furthest " if len(pairs) > 1 else " ") + movement(furthest))
    return reasons or ["the rules of judging changed: same criterion, same numbers"]


def movement(pair: NumberPair) -> str:
    """How far a number moved, in words: `by +0.3 combined standard errors`, or the difference itself."""
    if _same(pair.a.value, pair.b.value):
        return "in its interval only"
    if not math.isnan(pair.standard_errors):
        return f"by {pair.standard_errors:+.2g} combined standard errors"
    return f"by {number(pair.b.value - pair.a.value)}"


def settings_changes(a: Mapping[str, Any], b: Mapping[str, Any], experiments: frozenset[str]) -> list[str]:
    """Seeds and settings in which the records of an experiment differ, one line an experiment."""
    lines = []
    for name in sorted(experiments):
        first, second = (one.get("experiments", {}).get(name, {}) for one in (a, b))
        parts = []
        if first.get("seeds") != second.get("seeds"):
            parts.append(f"seeds {first.get('seeds')} | {second.get('seeds')}")
        before, after = (_values(one.get("settings", [])) for one in (first, second))
        for key in dict.fromkeys((*before, *after)):
            if before.get(key) != after.get(key):
                parts.append(f"{key} {_listed(before.get(key))} | {_listed(after.get(key))}")
        if parts:
            lines.append(f"{name}: {'; '.join(parts)}")
    return lines


def origin_of(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what, side a, side b): commits, machine, versions of packages; every package that differs has its line."""
    lines = [(what, describe(a), describe(b)) for what, describe in (("commit", _commits), ("machine", _machine))]
    first, second = a.get("packages", {}), b.get("packages", {})
    versions = {"Python": tuple(one.get("machine", {}).get("python", "unknown") for one in (a, b))}
    versions |= {name: (first.get(name, "none"), second.get(name, "none")) for name in dict.fromkeys((*first, *second))}
    different = [(name, *pair) for name, pair in versions.items() if pair[0] != pair[1]]
    return lines + (different or [("packages", "the same", "the same")])


def _pairs(a: JudgedCheck, b: JudgedCheck) -> list[NumberPair]:
    return [
        NumberPair(
            first.name,
            a.id,
            b.unit or a.unit,
            first,
            b.numbers[where],
            a.timing or b.timing,
            b.paper_value if not math.isnan(b.paper_value) else a.paper_value,
            math.nan if a.is_range or b.is_range else standard_errors(first, b.numbers[where]),
            overlap(first, b.numbers[where]),
        )
        for where, first in a.numbers.items()
        if where in b.numbers
    ]


def standard_errors(a: Number, b: Number) -> float:
    """The difference b - a over the standard error of the difference of two independent estimates; nan without one."""
    if not (_bounded(a) and _bounded(b)):
        return math.nan
    half_widths = math.hypot(a.high - a.low, b.high - b.low) / 2
    return (b.value - a.value) * NORMAL_95 / half_widths if half_widths > 0 else math.nan


def overlap(a: Number, b: Number) -> bool | None:
    """Whether the intervals have a point in common; None where a side has no interval."""
    if any(math.isnan(end) for end in (a.low, a.high, b.low, b.high)):
        return None
    return a.low <= b.high and b.low <= a.high


def _bounded(one: Number) -> bool:
    return math.isfinite(one.low) and math.isfinite(one.high)


def _row_changes(a: Snapshot, b: Snapshot, experiments: frozenset[str]) -> list[RowChanges]:
    frames = [read_rows(side.directory / MEASUREMENTS) for side in (a, b)]
    return row_changes(*(frame[frame["experiment"].isin(experiments)] for frame in frames))


def _answer_changes(a: Snapshot, b: Snapshot, left_out: set[str]) -> list[AnswerChange]:
    return [
        AnswerChange(claim, question, verdict, b.answers[claim, question])
        for (claim, question), verdict in a.answers.items()
        if claim not in left_out and b.answers.get((claim, question), verdict) != verdict
    ]


def _values(cells: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Every setting with the values that it has in the cells, each once, in the written order."""
    values: dict[str, list[Any]] = {}
    for cell in cells:
        for key, value in cell.items():
            known = values.setdefault(key, [])
            if value not in known:
                known.append(value)
    return values


def _listed(values: list[Any] | None) -> str:
    return "none" if values is None else ", ".join(str(value) for value in values)


def _commits(record: Mapping[str, Any]) -> str:
    """Commits that the results come from: `8795d5a8db63`, a + for uncommitted changes."""
    entries = record.get("experiments", {}).values()
    found = sorted({commit for entry in entries for commit in entry.get("commits", {})})
    return ", ".join(one[:12] + ("+" if one.endswith("+") else "") for one in found) or "unknown"


def _machine(record: Mapping[str, Any]) -> str:
    """The processors that experiments ran on, then cores and GPUs of the machine that wrote the record."""
    machine, entries = record.get("machine", {}), record.get("experiments", {})
    own = machine.get("cpu", "unknown processor")
    ran: dict[str, list[str]] = {}
    for name, entry in entries.items():
        for cpu in entry.get("machines") or [own]:
            ran.setdefault(cpu, []).append(name)
    most = max(ran, key=lambda cpu: len(ran[cpu]), default=own)
    parts = [most, *(f"{cpu} ({', '.join(names)})" for cpu, names in ran.items() if cpu != most)]
    gpus = ", ".join(machine.get("gpus", [])) or "no GPU"
    return f"{' and '.join(parts)}, {machine.get('cores', '?')} cores, {gpus}"


def _ends(one: Number) -> tuple[float, float, float]:
    return one.value, one.low, one.high


def _same(x: float, y: float) -> bool:
    return x == y or (math.isnan(x) and math.isnan(y))


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
