"""`replicate cite`: a number as a sentence with its origin, as LaTeX, BibTeX or JSON; pinned in a file, and checked."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.citations import (
    changes,
    citation_fields,
    default_names,
    find,
    latex_citation,
    pinned_file,
    read_pins,
    text_citation,
)
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.number_ids import withdrawn_ids
from grpo_replications.shared.harness.numbers import Number, read_numbers
from grpo_replications.shared.harness.papers import discover
from grpo_replications.shared.harness.references import SUITE, entries, with_note

ROOT = Path(__file__).resolve().parents[1]


def cite(options: argparse.Namespace, console: Console, results: Path) -> int:
    """Run `replicate cite` with these options on the numbers in `results`; 1 where a pinned number changed."""
    numbers = read_numbers(results / "numbers.csv")
    withdrawn = withdrawn_ids(options.papers / "README.md")
    if options.check:
        if options.ids or options.output:
            raise ReplicationError("--check takes a pinned file alone: replicate cite --check cited.tex")
        return _check(options.check, numbers, withdrawn)
    if not options.ids:
        raise ReplicationError("Name a number by its id or alias; they are in numbers.csv and in the report.")
    found = [find(asked, numbers, withdrawn) for asked in options.ids]
    names = options.alias or default_names(options.ids, found)
    if len(names) != len(found):
        raise ReplicationError(f"{len(found)} numbers and {len(names)} times --alias: give one for each, or none.")
    if len(set(names)) < len(names):
        raise ReplicationError("A name or number is given twice.")
    if options.output:
        aliases = [part for name in options.alias or [] for part in ("--alias", name)]
        command = shlex.join(["replicate", "cite", *(one.id for one in found), *aliases, "-o", options.output.name])
        try:
            write_atomic(options.output, pinned_file(dict(zip(names, found)), command))
        except OSError as error:
            raise ReplicationError(f"{options.output} cannot be written: {error.strerror}.") from None
        macros = ", ".join(rf"\repnum{{{name}}}" for name in names)
        print(f"{options.output} defines {macros}", file=sys.stderr)
        return 0
    print(_formatted(options, names, found, numbers, console.width))
    return 0


def _formatted(
    options: argparse.Namespace, names: Sequence[str], found: Sequence[Number], numbers: Sequence[Number], width: int
) -> str:
    if options.format == "json":
        return json.dumps([citation_fields(one, name) for one, name in zip(found, names)], indent=1, ensure_ascii=False)
    if options.format == "latex":
        return "\n".join(latex_citation(one) for one in found)
    if options.format == "bibtex":
        return _bibtex(found, options.papers)
    by_id = {one.id: one for one in numbers}
    texts = []
    for one, name in zip(found, names):
        beside = [
            by_id[f"{other}@{one.profile}"] for other in one.read_with.split() if f"{other}@{one.profile}" in by_id
        ]
        texts.append(text_citation(one, name, beside, width))
    return "\n\n".join(texts)


def _bibtex(found: Sequence[Number], papers: Path) -> str:
    """The suite's entry, with the commits of the numbers, and those of their papers."""
    if not (ROOT / "CITATION.cff").is_file():
        raise ReplicationError("CITATION.cff is part of the checkout, and this is an installed copy; cite from there.")
    known = entries(ROOT / "CITATION.cff", discover(papers))
    commits = dict.fromkeys(one.checkout[:12] for one in found if one.checkout)
    note = f"Numbers measured at commit {', '.join(commits)}" if commits else ""
    cited = [with_note(known[SUITE], note) if note else known[SUITE]]
    cited += [known[slug] for slug in dict.fromkeys(one.paper for one in found) if slug in known]
    return "\n".join(cited).rstrip()


def _check(path: Path, numbers: Sequence[Number], withdrawn: dict[str, str]) -> int:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReplicationError(f"{path} cannot be read: {error.strerror}.") from None
    changed = changes(text, numbers, withdrawn)
    for line in changed:
        print(line)
    total = len(read_pins(text))
    print(
        f"{path}: {len(changed)} of {total} pinned numbers changed" if changed else f"{path}: all {total} numbers stand"
    )
    return 1 if changed else 0
