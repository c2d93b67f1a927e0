"""Outcomes -> the counts and first lines that every report shows."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_replications.shared.harness.answers import count_verdicts
from grpo_replications.shared.harness.claims import OURS, PAPER
from grpo_replications.shared.harness.entries import CONTROL
from grpo_replications.shared.harness.outcomes import ClaimOutcome
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


def headlines(outcomes: Sequence[ClaimOutcome]) -> str:
    """One Markdown item a question that checks answer, with what each of them says; empty where none asks one."""
    answers: dict[str, list[str]] = {}
    for line in (line for one in outcomes for line in one.lines):
        if line.check.headline:
            ours = f", ours {line.ours}" if line.ours else ""
            text = f"{line.check.statement.rstrip('.')}: **{line.verdict}**{ours}."
            answers.setdefault(line.check.headline, []).append(text)
    return "\n".join(f"- **{question}** {' '.join(texts)}" for question, texts in answers.items())
