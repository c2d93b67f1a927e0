"""Results on disk -> REPORT.md, index.html, numbers.csv, numbers.tex, references.bib and tables inside read-me files.

Nothing is typed by hand and nothing is run: the same files on disk give the same report.  Results of the `smoke`
profile are a test of the machinery; they are left out unless a paper has no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.calibration_table import calibration_blocks
from grpo_replications.shared.harness.claim_tables import (
    claims_blocks,
    claims_overview,
    claims_table,
    counts_line,
    headlines,
)
from grpo_replications.shared.harness.claims import PAPER
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.number_ids import add_ids, known_ids
from grpo_replications.shared.harness.number_latex import numbers_tex
from grpo_replications.shared.harness.numbers import profile_numbers, write_numbers
from grpo_replications.shared.harness.outcomes import (
    VERDICTS_FILE,
    CheckLine,
    ClaimOutcome,
    claim_outcomes,
    read_verdicts,
)
from grpo_replications.shared.harness.papers import Paper, check_apart
from grpo_replications.shared.harness.progress import duration
from grpo_replications.shared.harness.references import references_bib
from grpo_replications.shared.harness.rendering import (
    Block,
    Heading,
    Image,
    Paragraph,
    markdown_table,
    to_html,
    to_markdown,
)
from grpo_replications.shared.harness.runs import read_record
from grpo_replications.shared.harness.verdicts import NOT_RUN

SMOKE = "smoke"
PREFERENCE = ("full", "quick", "gpu", "paper")  # whose verdict on a check the read-me files show

LEGEND = (
    "Verdicts: **reproduced**; **reproduced under conditions** (it holds for some settings, which are named); **not "
    "reproduced**; **equivalent** (the whole interval lies inside the margin, the smallest effect that matters: a "
    "claim that there is an effect is then not reproduced); **inconclusive** (the interval does not decide; the reason "
    "says how many seeds would, or that no number would); **not run** (why, and the command). Where a criterion was "
    "written after the measurements that it judges, the check says so. Measurements made before runs kept a record of "
    "their criteria cannot show that a criterion is older: `criterion_newer` in verdicts.csv is then *not recorded*."
)


@dataclass(frozen=True)
class ProfileResults:
    """What is on disk for one profile of one paper."""

    paper: Paper
    profile: str
    directory: Path
    record: dict[str, Any]
    lines: list[CheckLine]


def build_report(papers: Sequence[Paper], results: Path, root: Path | None = None) -> Path:
    """Write every generated file under `results` and return the path of REPORT.md.

    With `root`, the checkout that `results` belongs to, also the generated tables inside its README.md and inside
    each paper's.
    """
    check_apart(papers)
    found = {paper.slug: _shown(collect(paper, results)) for paper in papers}
    blocks = _report(papers, found, results)
    results.mkdir(parents=True, exist_ok=True)
    write_atomic(results / "REPORT.md", to_markdown(blocks))
    write_atomic(results / "index.html", to_html(blocks, "Replication report"))
    aliases = {known.id: known.alias for known in known_ids(papers).values()}
    numbers = [
        number
        for own in found.values()
        for one in own
        for number in profile_numbers(one.paper, one.profile, one.record, one.lines, aliases)
    ]
    write_numbers(results / "numbers.csv", numbers)
    write_atomic(results / "numbers.tex", numbers_tex(numbers))
    if root is not None:
        write_atomic(results / "references.bib", references_bib(root / "CITATION.cff", papers))
        add_ids([paper for paper in papers if paper.directory.is_relative_to(root)])
        _update_readmes(papers, found, root)
    return results / "REPORT.md"


def collect(paper: Paper, results: Path) -> list[ProfileResults]:
    """Every profile of a paper that has verdicts on disk, in the order of `profiles.toml`."""
    found = []
    for profile in paper.profiles:
        directory = results / paper.name / profile
        if (directory / VERDICTS_FILE).exists():
            lines = read_verdicts(paper, profile, directory)
            found.append(ProfileResults(paper, profile, directory, read_record(directory), lines))
    return found


def update_marked_block(path: Path, name: str, text: str) -> bool:
    """Replace what stands between `<!-- generated:NAME -->` and `<!-- /generated:NAME -->` in `path`.

    False where the file or both marks are absent; one mark without the other is an error.
    """
    if not path.exists():
        return False
    content = path.read_text(encoding="utf-8")
    opening, closing = f"<!-- generated:{name} -->", f"<!-- /generated:{name} -->"
    start, end = content.find(opening), content.find(closing)
    if start < 0 and end < 0:
        return False
    if start < 0 or end < start:
        raise ReplicationError(f"{path} has only one of the marks {opening} and {closing}, or has them in wrong order.")
    updated = f"{content[: start + len(opening)]}\n\n{text.strip()}\n\n{content[end:]}"
    if updated != content:
        write_atomic(path, updated)
    return True


def findings(papers: Sequence[Paper], found: dict[str, list[ProfileResults]]) -> str:
    """The part of the root README.md: for every paper its claims, one row each, and the counts."""
    parts = []
    for paper in papers:
        outcomes = best_outcomes(paper, found[paper.slug])
        table = claims_table(outcomes, PAPER)
        if table is not None:
            title = f"**{paper.facts.title}**" + (f" (arXiv:{paper.facts.arxiv})" if paper.facts.arxiv else "")
            page = f"replications/{paper.name}/README.md"
            counted = f"{counts_line(outcomes)} [All checks]({page}#checks)."
            parts += [f"{title}, `{paper.slug}`", markdown_table(table), counted]
    return "\n\n".join(parts) or "No results yet."


def papers_table(papers: Sequence[Paper], root: Path) -> str:
    """The table of papers of the root README.md: source, command and page of each, all of them below `root`."""
    lines = ["| paper | command | page |", "|---|---|---|"]
    for paper in papers:
        facts = paper.facts
        page = (paper.directory / "README.md").relative_to(root).as_posix()
        authors = f"{facts.authors}, " if facts.authors else ""
        url = facts.url or (f"https://arxiv.org/abs/{facts.arxiv}" if facts.arxiv else "")
        link = f" ([{f'arXiv:{facts.arxiv}' if facts.arxiv else 'source'}]({url}))" if url else ""
        title = f"{authors}*{facts.title}*{link}"
        lines.append(f"| {title} | `make replicate-{facts.slug}` | [{facts.slug}]({page}) |")
    return "\n".join(lines)


def _shown(found: list[ProfileResults]) -> list[ProfileResults]:
    return [one for one in found if one.profile != SMOKE] or found


def _report(papers: Sequence[Paper], found: dict[str, list[ProfileResults]], results: Path) -> list[Block]:
    blocks: list[Block] = [
        Heading("Replication report"),
        Paragraph(
            "Generated from the files in this directory by `replicate report`; every number has a stable name in "
            "[numbers.csv](numbers.csv). The unit of replication is the seed, and intervals are 95 % intervals over "
            "seeds; for a check of kind *interval* they are the central 95 % of the means that a study of the paper's "
            "size would report. What did not hold is listed like what did."
        ),
        Paragraph(LEGEND),
    ]
    for paper in papers:
        title = paper.facts.title + (f" (arXiv:{paper.facts.arxiv})" if paper.facts.arxiv else "")
        blocks.append(Heading(title, 2))
        if not found[paper.slug]:
            blocks.append(Paragraph(f"No results yet: `make replicate-{paper.slug}`."))
        for one in reversed(found[paper.slug]):
            blocks += _profile_blocks(one, results)
    return [*blocks, *calibration_blocks(results)]


def _profile_blocks(one: ProfileResults, results: Path) -> list[Block]:
    blocks: list[Block] = [
        Heading(f"Profile {one.profile}", 3),
        Paragraph(provenance_line(one.record)),
        *claims_blocks(claim_outcomes(one.paper, one.lines), 4),
    ]
    for path in sorted((one.directory / "figures").glob("*.png")):
        relative = path.relative_to(results).as_posix()
        printable = path.with_suffix(".pdf")
        blocks.append(
            Image(
                relative,
                path.stem.replace("_", " ").replace("-", " "),
                printable.relative_to(results).as_posix() if printable.exists() else None,
            )
        )
    return blocks


def provenance_line(record: dict[str, Any]) -> str:
    """Command, commit, machine and time of a profile's results, and whether anything is missing."""
    if not record:
        return "Origin unknown: there is no record."
    machine, experiments = record.get("machine", {}), record.get("experiments", {})
    commits = sorted({commit for entry in experiments.values() for commit in entry.get("commits", {})})
    named = [
        commit.rstrip("+")[:12] + (" with uncommitted changes" if commit.endswith("+") else "") for commit in commits
    ]
    seconds = sum(entry.get("job_seconds", 0) / entry.get("workers", 1) for entry in experiments.values())
    parts = [
        f"Command `{record.get('command', '')}`",
        f"commit {', '.join(named) or 'unknown'}",
        f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} cores, "
        f"{', '.join(machine.get('gpus', [])) or 'no GPU'}",
        f"finished {record.get('finished', '')}",
        f"{duration(seconds)} of work",
        f"peak memory of a process {max((e.get('peak_memory_gib', 0) for e in experiments.values()), default=0)} GiB",
    ]
    if not record.get("complete", True):
        done = sum(entry["jobs_finished"] for entry in experiments.values())
        parts.append(f"**incomplete: {done} of {sum(entry['jobs'] for entry in experiments.values())} jobs finished**")
    return "; ".join(parts) + "."


def best_outcomes(paper: Paper, found: list[ProfileResults]) -> list[ClaimOutcome]:
    """Every claim, each check with its verdict from the most complete profile that has one; empty without results."""
    ranked = [one for name in PREFERENCE for one in found if one.profile == name]
    ranked += [one for one in found if one.profile not in (*PREFERENCE, SMOKE)]
    if not ranked:
        return []
    best = []
    for position in range(len(ranked[0].lines)):
        choices = [one.lines[position] for one in ranked]
        best.append(next((choice for choice in choices if choice.verdict != NOT_RUN), choices[0]))
    return claim_outcomes(paper, best)


def _update_readmes(papers: Sequence[Paper], found: dict[str, list[ProfileResults]], root: Path) -> None:
    inside = [paper for paper in papers if paper.directory.is_relative_to(root)]
    update_marked_block(root / "README.md", "papers", papers_table(inside, root))
    committed = {slug: [one for one in own if one.profile != SMOKE] for slug, own in found.items()}
    if any(committed[paper.slug] for paper in inside):
        update_marked_block(root / "README.md", "findings", findings(inside, committed))
    for paper in papers:
        outcomes = best_outcomes(paper, committed[paper.slug])
        if outcomes:
            texts = {
                "headlines": headlines(outcomes),
                "claims": to_markdown(claims_overview(outcomes)),
                "findings": to_markdown(claims_blocks(outcomes, 3)),  # claims and every check
            }
            for name, text in texts.items():
                update_marked_block(paper.directory / "README.md", f"{name}-{paper.slug}", text)
