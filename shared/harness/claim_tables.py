"""Outcomes -> the tables and counts that every report shows: claims first, then the checks under each."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_replications.shared.harness.answers import Answer, count_verdicts
from grpo_replications.shared.harness.claims import OURS, PAPER
from grpo_replications.shared.harness.entries import CONTROL
from grpo_replications.shared.harness.outcomes import CheckLine, ClaimOutcome
from grpo_replications.shared.harness.rendering import Block, Details, Heading, Paragraph, Table
from grpo_replications.shared.harness.verdicts import (
    CONDITIONAL,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
)

NOT_ASKED = "–"


def counts(outcomes: Sequence[ClaimOutcome]) -> list[tuple[str, str]]:
    """What was counted and how it came out, apart: the paper's claims in both settings, our own, controls.

    A control is a check of our own machinery, under whichever claim it stands; it is counted here and nowhere else.
    """
    groups = [
        ("the paper's claims as published", [one.published for one in outcomes if one.claim.source == PAPER]),
        ("the paper's claims here, scaled down", [one.here for one in outcomes if one.claim.source == PAPER]),
        ("our own claims", [one.here for one in outcomes if one.claim.source == OURS]),
    ]
    counted = []
    for name, answers in groups:
        given = [own.verdict for own in answers if own is not None]
        if given:
            counted.append((name, f"{count_verdicts(given)} (of {len(given)})"))
    controls = [line.verdict for one in outcomes for line in one.lines if line.check.answers == CONTROL]
    if controls:
        counted.append(("controls", _count_controls(controls)))
    return counted


def _count_controls(verdicts: Sequence[str]) -> str:
    """`19 hold, 1 fail (of 20)`: a control is no claim, so nothing about it is reproduced."""
    words = ((REPRODUCED, "hold"), (CONDITIONAL, "hold in part"), (NOT_REPRODUCED, "fail"))
    words += ((EQUIVALENT, "show no effect"), (INCONCLUSIVE, "undecided"), (NOT_RUN, "not run"))
    parts = [f"{verdicts.count(verdict)} {word}" for verdict, word in words if verdict in verdicts]
    return f"{', '.join(parts)} (of {len(verdicts)})"


def counts_line(outcomes: Sequence[ClaimOutcome]) -> str:
    """The counts as one sentence."""
    text = "; ".join(f"{name}: {text}" for name, text in counts(outcomes)) + "."
    return text[0].upper() + text[1:]


def claims_table(outcomes: Sequence[ClaimOutcome], source: str) -> Table | None:
    """One row a claim of this source; None where there is none."""
    chosen = [one for one in outcomes if one.claim.source == source]
    if not chosen:
        return None
    if source == PAPER:
        header = ["claim", "the paper reports", "as published", "here (setting)"]
        rows = [
            [
                f"{one.claim.statement} ({one.claim.where})",
                one.claim.reports or "",
                answer_text(one.published, one.claim.published_setting),
                answer_text(one.here, one.claim.here_setting),
            ]
            for one in chosen
        ]
    else:
        header = ["our own claim", "answer (setting)"]
        rows = [[one.claim.statement, answer_text(one.here, one.claim.here_setting)] for one in chosen]
    return Table(header, rows)


def answer_text(answer: Answer | None, setting: str | None) -> str:
    """`**reproduced** (tabular policy, 1,000 seeds): all of 6 checks`; a dash where no check asks for the answer."""
    if answer is None:
        return NOT_ASKED
    return f"**{answer.verdict}**" + (f" ({setting})" if setting else "") + f": {answer.text}"


def checks_table(lines: Sequence[CheckLine]) -> Table:
    """Every check: what it tests, both numbers, verdict, and what to know about it."""
    header = ["check", "decides", "paper", "ours [95 % interval] (unit)", "verdict", "conditions, reason or command"]
    rows = []
    for line in lines:
        note = f"{line.reason}: `{line.command}`" if line.verdict == NOT_RUN else line.conditions or line.reason
        note = f"{line.newer}; {note}" if line.newer else note
        statement = f"{line.check.statement} `{line.check.id}`"
        rows.append([statement, line.check.answers, line.paper, line.ours, f"**{line.verdict}**", note])
    return Table(header, rows)


def checks_of_claims(outcomes: Sequence[ClaimOutcome]) -> list[Block]:
    """One folded table of checks a claim, in the written order."""
    return [
        Details(
            f"{one.claim.statement} ({len(one.lines)} check{'s' if len(one.lines) != 1 else ''})",
            [checks_table(one.lines)],
        )
        for one in outcomes
    ]


def headlines(outcomes: Sequence[ClaimOutcome]) -> str:
    """One Markdown item a question that checks answer, with what each of them says; empty where none asks one."""
    answers: dict[str, list[str]] = {}
    for line in (line for one in outcomes for line in one.lines):
        if line.check.headline:
            ours = f", ours {line.ours}" if line.ours else ""
            text = f"{line.check.statement.rstrip('.')}: **{line.verdict}**{ours}."
            answers.setdefault(line.check.headline, []).append(text)
    return "\n".join(f"- **{question}** {' '.join(texts)}" for question, texts in answers.items())


def claims_blocks(outcomes: Sequence[ClaimOutcome], level: int) -> list[Block]:
    """Counts, the paper's claims, our own, then every check under its claim."""
    return [*claims_overview(outcomes), Heading("Checks", level), *checks_of_claims(outcomes)]


def claims_overview(outcomes: Sequence[ClaimOutcome]) -> list[Block]:
    """Counts, the paper's claims and our own, one row each."""
    blocks: list[Block] = [Paragraph(counts_line(outcomes))]
    return blocks + [table for source in (PAPER, OURS) if (table := claims_table(outcomes, source)) is not None]
