"""The answer to a claim from the verdicts on its checks; the rules are those of `shared.harness.claims`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_replications.shared.harness.verdicts import (
    CONDITIONAL,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    VERDICTS,
)

NO_EFFECT = "no effect of a size that matters"
STATES = {
    REPRODUCED: "hold",
    CONDITIONAL: "hold under conditions",
    NOT_REPRODUCED: "fail",
    EQUIVALENT: "are equivalent",
    INCONCLUSIVE: "are inconclusive",
}

if TYPE_CHECKING:
    from grpo_replications.shared.harness.outcomes import CheckLine


@dataclass(frozen=True)
class Answer:
    """One answer to a claim: its verdict, in words what it rests on, and how many of its checks were run.

    `command` measures what was not run; empty where everything was.
    """

    verdict: str
    text: str
    checks: int
    run: int
    command: str


def answer(lines: Sequence[CheckLine], rule: str) -> Answer | None:
    """The answer that these lines, those of the checks that decide it, give by the claim's rule; None without any."""
    if not lines:
        return None
    run = [line for line in lines if line.verdict != NOT_RUN]
    missing = [line for line in lines if line.verdict == NOT_RUN]
    command = missing[0].command if missing else ""
    if not run:
        return Answer(NOT_RUN, "; ".join(dict.fromkeys(line.reason for line in lines)), len(lines), 0, command)
    verdict = combined([line.verdict for line in run], rule)
    words = _words(lines, run, rule)
    if all(line.verdict == EQUIVALENT for line in run):
        words = f"{NO_EFFECT}; {words}"
    late = [line for line in run if line.newer]
    if late:
        words += f"; {late[0].newer}" if len(run) == 1 else f"; {len(late)} with a {late[0].newer}"
    return Answer(verdict, words, len(lines), len(run), command)


def combined(verdicts: Sequence[str], rule: str) -> str:
    """The verdict on a claim from those of its checks that were run; see `shared.harness.claims`.

    A claim that there is an effect is not reproduced where the check is equivalent: no effect of a size that matters.
    """
    verdicts = [NOT_REPRODUCED if verdict == EQUIVALENT else verdict for verdict in verdicts]
    some = REPRODUCED in verdicts or CONDITIONAL in verdicts
    if (rule == "any" and REPRODUCED in verdicts) or all(verdict == REPRODUCED for verdict in verdicts):
        return REPRODUCED
    if rule == "both" and NOT_REPRODUCED in verdicts:
        return NOT_REPRODUCED
    if rule == "both":
        decided = all(verdict in (REPRODUCED, CONDITIONAL) for verdict in verdicts)
        return CONDITIONAL if decided else INCONCLUSIVE
    if some:
        return CONDITIONAL
    against = all if rule == "any" else any
    return NOT_REPRODUCED if against(verdict == NOT_REPRODUCED for verdict in verdicts) else INCONCLUSIVE


def count_verdicts(verdicts: Iterable[str]) -> str:
    """`3 reproduced, 1 not reproduced`, in the order of `VERDICTS`, empty kinds left out."""
    present = list(verdicts)
    return ", ".join(f"{present.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in present)


def _words(lines: Sequence[CheckLine], run: Sequence[CheckLine], rule: str) -> str:
    if len(lines) == 1:
        (line,) = run
        if len(line.cells) > 1:
            return line.conditions
        where = "" if line.verdict == REPRODUCED else line.conditions
        return "; ".join(part for part in (line.ours, where) if part)
    verdicts = [line.verdict for line in run]
    total = f"{len(lines)} checks" if len(run) == len(lines) else f"{len(lines)} checks, {len(run)} of them run"
    if verdicts.count(verdicts[0]) == len(verdicts):
        where = {line.conditions for line in run} if verdicts[0] == CONDITIONAL else set()
        words = f"{len(run)} of {len(lines)} checks {STATES[verdicts[0]]}"
        words += f", {len(lines) - len(run)} not run" if len(run) < len(lines) else ""
        return words + (f" ({where.pop()})" if len(where) == 1 else "")
    holding = [line.check.statement.rstrip(".") for line in run if line.verdict == REPRODUCED]
    if rule == "any" and holding:
        return f"{len(holding)} of {total}: {'; '.join(holding)}"
    counts = count_verdicts(verdicts).replace(EQUIVALENT, f"{EQUIVALENT} ({NO_EFFECT})")
    return f"{counts} of {total}"
