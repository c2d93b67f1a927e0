"""The generated parts of read-me files: the front page's block of each paper, and the claims on each paper's own page.

Words come from `claims.toml`, numbers and verdicts from the results; see `shared.harness.number_marks`.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.answers import Answer
from grpo_replications.shared.harness.claim_tables import NOT_ASKED, counts, counts_line, headlines
from grpo_replications.shared.harness.claims import OURS, PAPER
from grpo_replications.shared.harness.entries import CONTROL, HERE, PUBLISHED
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.number_marks import filled
from grpo_replications.shared.harness.outcomes import CheckLine, ClaimOutcome
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.rendering import (
    Block,
    Details,
    Paragraph,
    Table,
    aligned_table,
    to_markdown,
)
from grpo_replications.shared.harness.verdicts import CONDITIONAL, NOT_RUN
from grpo_replications.shared.harness.verification import measured_again

PICTURES = ("full", "quick", "gpu", "paper")  # whose figure the front page shows

HEADER = ["the paper's claim", "in the paper", "tested as published", "tested here, scaled down"]
LATE = "†"
WIDTH = 250

LEGEND = (
    "**Reproduced**: the criterion is met with the whole 95 % interval. **Under conditions**: in some of the settings "
    "only. **Not reproduced**: the contrary is shown, or an effect of a size that matters is excluded. "
    "**Inconclusive**: the interval does not decide. **Not run**: nothing was measured. "
    f"{LATE}: some of its criteria were written after the measurements."
)
KEY = (
    "In brackets are 95 % intervals; n counts seeds. *Small transformer*: two layers, trained here on sums or on the "
    "paper's tree. *SmolLM2*: SmolLM2-135M-Instruct, on sums. "
    "p is a prompt's solve rate, G the group size, σ the standard deviation of a group's rewards; a group is silent if "
    "all its rewards are equal."
)


def update_readmes(papers: Sequence[Paper], outcomes: dict[str, list[ClaimOutcome]], results: Path, root: Path) -> None:
    """Fill in README.md of the checkout `root`, and every paper's page; `outcomes` by slug, empty without results."""
    inside = [paper for paper in papers if paper.directory.is_relative_to(root)]
    if any(outcomes[paper.slug] for paper in inside):
        blocks = [front_block(paper, outcomes[paper.slug], results, root) for paper in inside]
        text = "\n\n".join([_wrapped(f"{LEGEND} {KEY}"), *blocks])
        update_marked_block(root / "README.md", "findings", text)
    for paper in papers:
        own = outcomes[paper.slug]
        if own:
            page = paper.directory / "README.md"
            update_marked_block(page, f"headlines-{paper.slug}", headlines(own))
            blocks = [*page_blocks(own, paper.slug), *verified(paper, results)]
            for name in ("findings", "claims"):
                update_marked_block(page, f"{name}-{paper.slug}", to_markdown(blocks))


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


def front_block(paper: Paper, outcomes: Sequence[ClaimOutcome], results: Path, root: Path) -> str:
    """What the front page says of one paper: its claims, one picture, three sentences and the counts."""
    facts, front = paper.facts, paper.facts.front
    page = (paper.directory / "README.md").relative_to(root).as_posix()
    url = facts.url or (f"https://arxiv.org/abs/{facts.arxiv}" if facts.arxiv else "")
    source = f"[{f'arXiv:{facts.arxiv}' if facts.arxiv else 'source'}]({url})" if url else ""
    authors = f"{facts.authors}, " if facts.authors else ""
    title = f"{authors}*{facts.title}*" + (f" ({source})" if source else "")
    parts = [
        f"### {front.name if front else facts.title}",
        f"{title}. [All findings and tests]({page}).",
    ]
    lines = [line for one in outcomes for line in one.lines]
    if outcomes:
        parts.append(aligned_table(front_table(outcomes, lines)))
    else:
        parts.append(f"No results yet: `make replicate-{paper.slug}`.")
    if front and outcomes:
        picture = _picture(paper, results, root)
        if picture:
            caption, seen = _drawn_caption(root / picture) or _said(front.caption, lines), _said(front.seen, lines)
            parts += [f"![{front.name}: {seen}]({picture})", _wrapped(f"*{caption} {seen}*")]
        told = {"Holds": front.holds, "Depends on": front.depends_on, "Not shown": front.not_shown}
        parts.append("\n".join(_wrapped(f"- **{name}:** {_said(text, lines)}", "  ") for name, text in told.items()))
    if outcomes:
        parts.append(_wrapped(_short_counts(outcomes)))
    return "\n\n".join(parts)


def front_table(outcomes: Sequence[ClaimOutcome], lines: Sequence[CheckLine]) -> Table:
    """One short row for each claim of the paper that has `short`, or for each of them where none has."""
    theirs = [one for one in outcomes if one.claim.source == PAPER]
    chosen = [one for one in theirs if one.claim.short] or theirs
    rows = [
        [
            one.claim.short or one.claim.statement,
            one.claim.reported_short or one.claim.reports or "",
            _short_answer(one, PUBLISHED, lines),
            _short_answer(one, HERE, lines),
        ]
        for one in chosen
    ]
    return Table(HEADER, rows)


def page_blocks(outcomes: Sequence[ClaimOutcome], slug: str) -> list[Block]:
    """A paper's page on its claims: findings first, then, folded, how each was tested and with which command."""
    lines = [line for one in outcomes for line in one.lines]
    blocks: list[Block] = [Paragraph(LEGEND)]
    theirs = [one for one in outcomes if one.claim.source == PAPER]
    ours = [one for one in outcomes if one.claim.source == OURS]
    if theirs:
        blocks.append(Table(HEADER, [_page_row(one, lines) for one in theirs]))
    if ours:
        rows = [[one.claim.short or one.claim.statement, _full_answer(one, HERE, lines)] for one in ours]
        blocks.append(Table(["our own claim", "finding"], rows))
    blocks.append(Paragraph(counts_line(outcomes)))
    blocks.append(Details("How each claim was tested, in whose setting, and the command", [_tests(outcomes, slug)]))
    return blocks


def verified(paper: Paper, results: Path) -> list[Block]:
    """A paragraph for each profile of which jobs were measured again: which, where, and how that came out."""
    lines = {profile: measured_again(results / paper.name / profile) for profile in paper.profiles}
    return [Paragraph(f"Profile `{profile}`. {line}") for profile, line in lines.items() if line]


def _page_row(one: ClaimOutcome, lines: Sequence[CheckLine]) -> list[str]:
    claim = one.claim
    return [
        f"{claim.short or claim.statement} ({claim.where})",
        claim.reports or "",
        _full_answer(one, PUBLISHED, lines),
        _full_answer(one, HERE, lines),
    ]


def _tests(outcomes: Sequence[ClaimOutcome], slug: str) -> Table:
    """Statement, setting of each answer, number of checks, and the experiments that measure it."""
    rows = []
    for one in outcomes:
        claim = one.claim
        rows.append(
            [
                claim.statement,
                _tested(one.published, claim.published_setting),
                _tested(one.here, claim.here_setting) if claim.source != CONTROL else f"{len(one.lines)} controls",
                "; ".join(f"`PROFILE={rest}`" for rest in _commands(one)),
            ]
        )
    return Table(["claim", "in the paper's setting", "in ours", f"`make replicate-{slug}` and"], rows)


def _tested(answer: Answer | None, setting: str | None) -> str:
    if answer is None:
        return NOT_ASKED
    checks = f"{answer.checks} check{'s' if answer.checks != 1 else ''}"
    if answer.run < answer.checks:
        checks += f", {answer.run or 'none'} run"
    return f"{setting}: {checks}" if setting else checks


def _commands(one: ClaimOutcome) -> list[str]:
    """What to write after the paper's target of make to measure what decides a claim, one an experiment."""
    deciding = [line for line in one.lines if line.check.answers in (PUBLISHED, HERE)] or list(one.lines)
    return list(dict.fromkeys(line.command.partition(" PROFILE=")[2] for line in deciding))


def _short_answer(one: ClaimOutcome, question: str, lines: Sequence[CheckLine]) -> str:
    """`**reproduced**: what was found`; the verdict alone where the claim does not say it, or it was not measured."""
    answer, text = _asked(one, question)
    if answer is None:
        return NOT_ASKED
    if answer.verdict == NOT_RUN:
        return NOT_RUN
    found = filled(text, lines) if text else None
    return _verdict(one, answer, question) + (f": {found}" if found else "")


def _full_answer(one: ClaimOutcome, question: str, lines: Sequence[CheckLine]) -> str:
    """As on the front page, but with the checks' own words where the claim has none, and why something was not run."""
    answer, text = _asked(one, question)
    if answer is None:
        return NOT_ASKED
    found = filled(text, lines) if text and answer.verdict != NOT_RUN else None
    return f"{_verdict(one, answer, question)}: {found or answer.text}"


def _asked(one: ClaimOutcome, question: str) -> tuple[Answer | None, str | None]:
    if question == PUBLISHED:
        return one.published, one.claim.published_found
    return one.here, one.claim.here_found


def _verdict(one: ClaimOutcome, answer: Answer, question: str) -> str:
    late = any(line.newer for line in one.lines if line.check.answers == question)
    return f"**{answer.verdict}**{LATE if late else ''}"


def _short_counts(outcomes: Sequence[ClaimOutcome]) -> str:
    """The counts in one line, without their sums."""
    names = {"the paper's claims here, scaled down": "here, scaled down", "our own claims": "our own"}
    counted = [f"{names.get(name, name)}: {text.partition(' (of ')[0]}" for name, text in counts(outcomes)]
    text = "; ".join(counted).replace(CONDITIONAL, "under conditions") + "."
    return text[0].upper() + text[1:]


def _wrapped(text: str, indent: str = "") -> str:
    """Lines of at most `WIDTH` characters, so that the source can be read too."""
    lines = textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _said(text: str, lines: Sequence[CheckLine]) -> str:
    return filled(text, lines) or "not measured yet."


def _drawn_caption(picture: Path) -> str:
    """The caption that a figure was drawn with, kept in captions.json beside it; empty without one."""
    path = picture.with_name("captions.json")
    entry = json.loads(path.read_text(encoding="utf-8")).get(picture.stem, {}) if path.exists() else {}
    return " ".join(entry[part] for part in ("shows", "paper", "sample") if entry.get(part))


def _picture(paper: Paper, results: Path, root: Path) -> str:
    """The path, from the front page, of the paper's picture in the most complete profile that has it."""
    for profile in PICTURES:
        path = results / paper.name / profile / "figures" / f"{paper.facts.front.picture}.png"
        if path.is_file() and path.resolve().is_relative_to(root.resolve()):
            return path.resolve().relative_to(root.resolve()).as_posix()
    return ""
