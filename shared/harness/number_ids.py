"""The ids of numbers keep their meaning: a committed table of every check's id, short alias and hash of its meaning.

The table is `number_ids.csv` beside the papers' directories.  `replicate report` adds the checks that it lacks and
never changes or drops a line.  So an id whose meaning changed, or that vanished without being listed as withdrawn, is
seen (`id_problems`; a test and `replicate check` look).  A withdrawn id is listed in the table "Ids that changed" of
the README beside it; `*` in an id there stands for any text.  Where only the words of a definition were corrected,
empty the line's `meaning`, and the next report fills it in.

An alias is short and unique across papers: the check's own `alias`, or one made of the end of its id.  It stays once it
stands in the table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from grpo_replications.shared.harness.checks import Check
from grpo_replications.shared.harness.outcomes import read_csv, write_csv
from grpo_replications.shared.harness.papers import Paper

IDS_FILE = "number_ids.csv"
WITHDRAWN_HEADING = "## Ids that changed"
COLUMNS = ["id", "alias", "meaning"]
# What a check's number is; thresholds and margins judge it and leave it what it is.
MEANING = (
    *("kind", "metric", "unit", "definition", "experiment", "select", "better", "worse", "worse_factor", "reduce"),
    *("higher_is_better", "conditions", "timing", "target", "expect", "paper_seeds", "totals", "metric_is"),
    *("over_rates", "diverged", "horizon", "reach"),
)


@dataclass(frozen=True)
class KnownId:
    """One line of the table: a check's id, its alias, and the hash of what its number means (empty: not known yet)."""

    id: str
    alias: str
    meaning: str


def meaning_of(check: Check) -> str:
    """Twelve hexadecimal digits that change with what the check's number is: its metric, unit, definition, rows."""
    fields = check.model_dump(mode="json", exclude_defaults=True, include=set(MEANING))
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_ids(path: Path) -> dict[str, KnownId]:
    """The table by id; empty where there is none."""
    return {line["id"]: KnownId(*(line[name] for name in COLUMNS)) for line in read_csv(path)}


def write_ids(path: Path, known: Iterable[KnownId]) -> None:
    """Write the table, by id."""
    write_csv(path, COLUMNS, [dataclasses.astuple(one) for one in sorted(known, key=lambda one: one.id)])


def completed(known: dict[str, KnownId], papers: Sequence[Paper]) -> dict[str, KnownId]:
    """The table with the checks that it lacks, and with what its lines leave empty; nothing else changes."""
    found = dict(known)
    taken = {one.alias for one in known.values()} | {check.alias or "" for paper in papers for check in paper.checks}
    for paper in papers:
        ids = [check.id for check in paper.checks]
        for check in paper.checks:
            line = found.get(check.id, KnownId(check.id, "", ""))
            alias = line.alias or check.alias or _derived(check.id, paper, ids, taken)
            taken.add(alias)
            found[check.id] = KnownId(check.id, alias, line.meaning or meaning_of(check))
    return found


def known_ids(papers: Sequence[Paper]) -> dict[str, KnownId]:
    """The tables beside these papers, completed."""
    known: dict[str, KnownId] = {}
    for parent in dict.fromkeys(paper.directory.parent for paper in papers):
        known |= read_ids(parent / IDS_FILE)
    return completed(known, papers)


def add_ids(papers: Sequence[Paper]) -> None:
    """Complete the tables beside these papers on disk."""
    for parent in dict.fromkeys(paper.directory.parent for paper in papers):
        known = read_ids(parent / IDS_FILE)
        added = completed(known, [paper for paper in papers if paper.directory.parent == parent])
        if added != known:
            write_ids(parent / IDS_FILE, added.values())


def id_problems(parent: Path, papers: Sequence[Paper]) -> list[str]:
    """What is wrong with the ids of the papers in `parent`, a line each: meanings that changed, ids that vanished."""
    known, withdrawn = read_ids(parent / IDS_FILE), withdrawn_ids(parent / "README.md")
    checks = {check.id: check for paper in papers for check in paper.checks}
    slugs = {paper.slug for paper in papers}
    problems = []
    for line in known.values():
        check = checks.get(line.id)
        if check is None:
            if line.id.partition("/")[0] in slugs and now_called(line.id, withdrawn) is None:
                problems.append(
                    f'{line.id} is gone; list it under "{WITHDRAWN_HEADING[3:]}" in {parent / "README.md"}.'
                )
        elif line.meaning and line.meaning != meaning_of(check):
            problems.append(
                f"{line.id} means something else than in {parent / IDS_FILE}; give the new number an id of its own "
                "and list the old one as withdrawn, or, where only words were corrected, empty the line's meaning."
            )
        elif check.alias and line.alias and check.alias != line.alias:
            problems.append(f"{line.id} has the alias {line.alias} in {parent / IDS_FILE}, not {check.alias}.")
    return problems


def withdrawn_ids(page: Path) -> dict[str, str]:
    """Withdrawn id, perhaps with `*`, -> what is said of it, from the table under "Ids that changed" of a page."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    section = text.partition(f"{WITHDRAWN_HEADING}\n")[2].partition("\n## ")[0]
    found = {}
    for row in re.findall(r"^\|(.+)\|(.+)\|$", section, re.M):
        for name in re.findall(r"`([^`]+/[^`]+)`", row[0]):
            found[name] = row[1].strip()
    return found


def now_called(name: str, withdrawn: dict[str, str]) -> str | None:
    """What a page says of a withdrawn id; None where it is not withdrawn."""
    return next((now for pattern, now in withdrawn.items() if fnmatchcase(name, pattern)), None)


def _derived(name: str, paper: Paper, ids: Sequence[str], taken: set[str]) -> str:
    """`lambda-table2-count-above-grpo`: the paper's short name, and the end of the id.

    As short as it can be, of two parts at least, without being another id's end as well.
    """
    parts = name.split("/")[1:]
    for length in range(min(2, len(parts)), len(parts) + 1):
        end = "/".join(parts[-length:])
        alias = re.sub(r"[^a-z0-9]+", "-", f"{paper.facts.short}-{end}").strip("-")
        alone = sum(f"/{other}".endswith(f"/{end}") for other in ids) == 1
        if alone and alias not in taken:
            return alias
    return re.sub(r"[^a-z0-9]+", "-", name)
