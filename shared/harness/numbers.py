"""Every number of the suite as one record: what it is, how sure, on what it rests, and the command that measures it.

A record stands for one cell of one judged check in one profile, or for the share of seeds that a comparison won.
`results/numbers.csv` has one line a record, with the fields of `Number` as columns; whoever cites, compares or
reports a number reads it from there (`read_numbers`) or makes it from the verdicts on disk (`profile_numbers`).

Ids are stable: `CHECK[conditions]@profile`, with `:won` before the @ for a share of seeds won.  An id never changes its
meaning; `number_ids` guards that.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.checks import (
    Check,
    ExactCheck,
    IntervalCheck,
    ShareCheck,
    ThresholdCheck,
    as_list,
)
from grpo_replications.shared.harness.claims import OURS, PAPER, UNLIKE_NAME
from grpo_replications.shared.harness.comparisons import PeakCheck, TimeCheck
from grpo_replications.shared.harness.entries import CONTROL, HERE, PUBLISHED, SUPPORT
from grpo_replications.shared.harness.judging import CENTRAL, central_kind
from grpo_replications.shared.harness.outcomes import CellLine, CheckLine, plain, read_csv, write_csv
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profiles import format_value
from grpo_replications.shared.harness.verdicts import command_for
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.statistics.proportions import share

UNKNOWN_INTERVAL = "unknown"
"""Interval kind of a value whose spread the seeds do not show: a single seed, or seeds that all agree."""
WON = "seeds on which the side called better is better, as a share of the seeds that are not tied"
DIFFERENCES = ("mean difference", "difference of best means")
STANDING = {
    (PAPER, HERE): "scaled analogue, not the paper's own experiment",
    (OURS, HERE): "a question of our own, no claim of the paper",
}


@dataclass(frozen=True)
class Number:
    """One number; the fields are the columns of `numbers.csv`.

    `value`, `low`, `high`: in `unit`; both ends None where there is no interval or it is unknown.  `statistic`: what
    was made of the values of the seeds (mean, mean difference, share, maximum ...).  `interval`: the kind in words,
    a 95 % confidence interval with its method, or the central 95 % of runs as the paper would make them, which is none;
    empty for a value that has none by its nature.  `n` counts `n_of` (seeds, groups ...); 0 where the value rests on
    no seed.  `verdict` is the check's, `state` this cell's among several.  `selection`: which rows, `A minus B` for a
    comparison.  `model`: what was run; `setting`: where the claim was tested, in the claim's words.  `paper_value` is
    printed in the paper, `threshold` and `margin` are ours.  `commit`: all that measured it, the one with most of the
    jobs first, "+" where there were uncommitted changes.  `command` measures the number's experiment alone.
    `read_with`: ids of checks that a citation must name too, separated by spaces.
    """

    id: str
    alias: str
    value: float
    low: float | None
    high: float | None
    unit: str
    statistic: str
    interval: str
    n: int
    n_of: str
    seeds: str
    definition: str
    verdict: str
    state: str
    caveat: str
    statement: str
    selection: str
    model: str
    setting: str
    metric: str
    paper_value: float | None
    threshold: float | None
    margin: float | None
    machine: str
    commit: str
    command: str
    read_with: str

    @property
    def name(self) -> str:
        """The id without its profile."""
        return self.id.rpartition("@")[0]

    @property
    def check(self) -> str:
        """The id of its check."""
        return re.split(r"[\[:]", self.name)[0]

    @property
    def profile(self) -> str:
        """The profile it was measured in."""
        return self.id.rpartition("@")[2]

    @property
    def paper(self) -> str:
        """The paper's name on the command line."""
        return self.id.partition("/")[0]

    @property
    def is_difference(self) -> bool:
        """Whether its sign says which side is larger."""
        return self.statistic in DIFFERENCES

    @property
    def is_confidence_interval(self) -> bool:
        """Whether low and high are a confidence interval."""
        return self.low is not None and not self.interval.startswith(CENTRAL)

    @property
    def counted(self) -> str:
        """What n counts, in the singular where there is one."""
        return self.n_of.removesuffix("s") if self.n == 1 else self.n_of

    @property
    def checkout(self) -> str:
        """The commit to check out, the one that measured most of it; empty where unknown."""
        return self.commit.partition(" ")[0].rstrip("+")

    @property
    def regenerate(self) -> str:
        """The commands that measure this number again from its own source."""
        command = " && ".join(f"{part} ARGS=--fresh" for part in self.command.split(" && "))
        return f"git checkout {self.checkout} && {command}" if self.checkout else command


NUMBER_COLUMNS = [field.name for field in dataclasses.fields(Number)]
OPTIONAL = ("low", "high", "paper_value", "threshold", "margin")


def profile_numbers(
    paper: Paper,
    profile: str,
    record: Mapping[str, Any],
    lines: Sequence[CheckLine],
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> list[Number]:
    """The numbers of one profile: one a cell of every judged check, and one a share of seeds won; unknown ones not.

    `aliases`: id of a check -> its alias.
    """
    found = [
        number
        for line in lines
        for cell in line.cells
        for number in _of_cell(paper, profile, record, line, cell)
        if math.isfinite(number.value)
    ]
    return [dataclasses.replace(number, alias=_alias(number, aliases)) for number in found]


def write_numbers(path: Path, numbers: Iterable[Number]) -> None:
    """`numbers.csv`: numbers to nine digits, empty cells where there is nothing."""
    write_csv(path, NUMBER_COLUMNS, [[_cell(getattr(one, name)) for name in NUMBER_COLUMNS] for one in numbers])


def read_numbers(path: Path) -> list[Number]:
    """The records of a `numbers.csv`; ReplicationError where there is none or it has other columns."""
    lines = read_csv(path)
    if not lines:
        raise ReplicationError(f"{path} has no numbers; write it by: replicate report")
    missing = [name for name in NUMBER_COLUMNS if name not in lines[0]]
    if missing:
        raise ReplicationError(
            f"{path} has no column {', '.join(missing)}; write it again by: replicate verdicts && replicate report"
        )
    return [_number(line) for line in lines]


def statistic_of(check: Check) -> str:
    """What the number of a check is made of the seeds' values."""
    if isinstance(check, ExactCheck):
        if check.target:
            return "value furthest from the target"
        return "minimum" if check.expect else "maximum"
    if isinstance(check, ShareCheck):
        return "share"
    if isinstance(check, ThresholdCheck | IntervalCheck):
        return "mean"
    if isinstance(check, TimeCheck):
        return "ratio of mean times"
    return DIFFERENCES[isinstance(check, PeakCheck)]


def interval_words(estimate: Estimate) -> str:
    """The kind of an estimate's interval; empty where it has none by its nature, `unknown` where seeds do not tell."""
    if math.isnan(estimate.low):
        return ""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return UNKNOWN_INTERVAL
    if estimate.kind.startswith(CENTRAL):
        return estimate.kind
    return "95 % CI" + (f", {estimate.kind}" if estimate.kind else "")


def selection_of(check: Check) -> str:
    """`step=last; method=new minus method=old`: the rows that a check reads, and what is compared."""
    parts = [_filter_text(check.select)] if check.select else []
    better, worse = getattr(check, "better", None), getattr(check, "worse", None)
    if better or worse:
        factor = getattr(check, "worse_factor", 1.0)
        times = "" if factor == 1 else f"{factor:g} times "
        word = "over" if isinstance(check, TimeCheck) else "minus"
        parts.append(f"{_filter_text(better)} {word} {times}{_filter_text(worse)}")
    return "; ".join(parts)


def _of_cell(paper: Paper, profile: str, record: Mapping[str, Any], line: CheckLine, cell: CellLine) -> list[Number]:
    check = line.check
    conditions = f"[{cell.conditions}]" if cell.conditions else ""
    entries = [record.get("experiments", {}).get(name, {}) for name in check.experiments]
    commits = _commits(entries)
    claim = next(one for one in paper.claims if one.id == check.claim)
    setting = claim.published_setting if check.answers == PUBLISHED else claim.here_setting
    threshold = getattr(check, "ratio_below", getattr(check, "threshold", None))
    measured = [name for name, entry in zip(check.experiments, entries) if entry] or [check.experiment]
    number = Number(
        id=f"{check.id}{conditions}@{profile}",
        alias="",
        **_value(_named(cell.estimate, check)),
        unit=check.unit,
        statistic=statistic_of(check),
        n_of=_counted(check),
        seeds=cell.seeds,
        definition=check.definition,
        verdict=line.verdict,
        state=cell.state,
        caveat="; ".join(_caveats(line, record, commits)),
        statement=check.statement,
        selection=selection_of(check),
        model=_model(paper, check, entries),
        setting=setting or "",
        metric=check.metric,
        paper_value=check.paper_value,
        threshold=threshold,
        margin=getattr(check, "margin", None) or None,
        machine=_machine(record, entries),
        commit=" ".join(commits),
        command=" && ".join(command_for(paper.slug, profile, name) for name in measured),
        read_with=" ".join(check.read_with),
    )
    _check_name(number.id)
    if cell.won is None or not sum(cell.won[:2]):
        return [number]
    won = dataclasses.replace(
        number,
        id=f"{check.id}{conditions}:won@{profile}",
        **_value(share(cell.won[0], sum(cell.won[:2]), exact=True)),
        unit="share of seeds",
        statistic="share",
        definition=WON,
        metric=f"seeds won by {check.metric}",
        paper_value=None,
        threshold=None,
        margin=None,
    )
    return [number, won]


def _alias(number: Number, aliases: Mapping[str, str]) -> str:
    """The alias of the check, with the conditions and the ending of the number's own id."""
    alias = aliases.get(number.check, "")
    return alias and alias + number.name.removeprefix(number.check)


def _value(estimate: Estimate) -> dict[str, Any]:
    known = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    low, high = (float(estimate.low), float(estimate.high)) if known else (None, None)
    words = interval_words(estimate)
    return {"value": float(estimate.value), "low": low, "high": high, "interval": words, "n": estimate.n}


def _named(estimate: Estimate, check: Check) -> Estimate:
    """The estimate; a range of the paper's runs is called that even where the file does not name its kind."""
    unnamed = isinstance(check, IntervalCheck) and not estimate.kind
    return estimate._replace(kind=central_kind(check.paper_seeds)) if unnamed else estimate


def _counted(check: Check) -> str:
    """What n counts: seeds, or for a share the things of which it is one (`share of groups`: groups)."""
    if not isinstance(check, ShareCheck):
        return "seeds"
    things = check.unit.removeprefix("share of ").partition(",")[0].split()
    return things[0] if things and check.unit.startswith("share of ") else "groups"


def _caveats(line: CheckLine, record: Mapping[str, Any], commits: Mapping[str, int]) -> list[str]:
    """What must be known before the number is cited."""
    check, caveats = line.check, []
    if check.answers == CONTROL:
        caveats.append("a control of the suite itself, no claim of the paper")
    elif check.answers == SUPPORT:
        caveats.append("shown beside the claim, decides no verdict")
    elif (check.source, check.answers) in STANDING:
        caveats.append(STANDING[check.source, check.answers])
    if check.timing:
        caveats.append("a time, which depends on the machine")
    if line.newer:
        caveats.append(line.newer)
    if len(commits) > 1:
        jobs = ", ".join(f"{commit[:12]} {count}" for commit, count in commits.items())
        caveats.append(f"measured at {len(commits)} commits (jobs: {jobs})")
    if any(commit.endswith("+") for commit in commits):
        caveats.append("measured with uncommitted changes (diff.patch beside the record)")
    return caveats


def _commits(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Commit -> jobs that it measured, most first."""
    total: dict[str, int] = {}
    for entry in entries:
        for commit, jobs in entry.get("commits", {}).items():
            total[commit] = total.get(commit, 0) + jobs
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _machine(record: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> str:
    """`AMD EPYC, 2 cores, no GPU`; the machine of the last run gives the cores."""
    machine = record.get("machine", {})
    names = dict.fromkeys(name for entry in entries for name in entry.get("machines", []))
    cores = f"{machine['cores']} cores" if "cores" in machine else "unknown cores"
    gpus = ", ".join(machine.get("gpus", [])) or "no GPU"
    return f"{' and '.join(names) or machine.get('cpu', 'unknown processor')}, {cores}, {gpus}"


def _model(paper: Paper, check: Check, entries: Iterable[Mapping[str, Any]]) -> str:
    """The hub's models that the check's rows are of, or what `measured_on` says of its experiment."""
    names: dict[str, None] = {}
    for entry in entries:
        for settings in entry.get("settings", []):
            name = str(settings.get("model", ""))
            if "/" in name and any(_passes(settings, chosen) for chosen in check.filters):
                names[name] = None
    return ", ".join(names) or paper.facts.measured_on.get(check.experiment, "")


def _passes(settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    return all(key not in settings or settings[key] in as_list(value) for key, value in chosen.items())


def _filter_text(chosen: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key}={'|'.join(map(format_value, value)) if isinstance(value, list) else format_value(value)}"
        for key, value in chosen.items()
    )


def _check_name(name: str) -> None:
    if UNLIKE_NAME.search(name):
        raise ReplicationError(f"The number '{name}' has a character in its name that LaTeX cannot look up.")


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | int) else plain(value)


def _number(line: Mapping[str, str]) -> Number:
    fields: dict[str, Any] = {name: line[name] for name in NUMBER_COLUMNS}
    fields |= {name: float(line[name]) if line[name] else None for name in OPTIONAL}
    return Number(**{**fields, "value": float(line["value"]), "n": int(line["n"] or 0)})
