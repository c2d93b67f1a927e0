"""`CITATION.cff` -> BibTeX: one entry for the suite, one for each replicated paper, under the paper's name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.number_latex import latex_text
from grpo_replications.shared.harness.papers import Paper

SUITE = "grpo-replications"
"""The key of the suite's own entry."""
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def entries(citation: Path, papers: Sequence[Paper]) -> dict[str, str]:
    """Key -> BibTeX entry: the suite, then the references of the file, each under the name of its paper.

    Raises ReplicationError where the file cannot be read or is no citation.
    """
    try:
        document = yaml.safe_load(citation.read_text(encoding="utf-8"))
        references = document.get("references", [])
        found = {SUITE: _entry(SUITE, document, {"version": str(document["version"])})}
        slugs = {paper.facts.arxiv: paper.slug for paper in papers if paper.facts.arxiv}
        for reference in references:
            match = ARXIV.search(str(reference.get("notes", "")))
            arxiv = match[1] if match else ""
            key = slugs.get(arxiv) or re.sub(r"[^a-z0-9]+", "-", reference["title"].lower()).strip("-")
            preprint = {"eprint": arxiv, "archiveprefix": "arXiv", "url": f"https://arxiv.org/abs/{arxiv}"}
            found[key] = _entry(key, reference, preprint if arxiv else {})
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ReplicationError(f"{citation} cannot be read as a citation file: {error!r}.") from None
    return found


def references_bib(citation: Path, papers: Sequence[Paper]) -> str:
    """All entries as one file."""
    return "\n".join(["% Generated from CITATION.cff by: replicate report", *entries(citation, papers).values()])


def with_note(entry: str, note: str) -> str:
    """The entry with a field `note`."""
    return entry.removesuffix("}\n") + f"  note = {{{latex_text(note)}}},\n}}\n"


def _entry(key: str, source: Mapping[str, Any], more: Mapping[str, str]) -> str:
    released = source.get("year") or str(source.get("date-released", ""))[:4]
    fields = {
        "title": f"{{{latex_text(source['title'])}}}",
        "author": " and ".join(_author(author) for author in source["authors"]),
        "year": str(released),
        **more,
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@misc{{{key},", *lines, "}"]) + "\n"


def _author(author: Mapping[str, str]) -> str:
    if "name" in author:
        return f"{{{latex_text(author['name'])}}}"
    names = [author.get("name-particle", ""), author["family-names"]]
    family = latex_text(" ".join(name for name in names if name))
    given = author.get("given-names")
    return f"{family}, {latex_text(given)}" if given else family
