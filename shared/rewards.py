r"""Reward functions for mathematics with a boxed answer. They read the completion only, never the prompt.

`is_correct` decides one completion; `accuracy_reward` and `format_reward` are what TRL's trainer calls. The answer is
the last balanced ``\boxed{...}`` and nothing else: no box, an empty box or an unreadable answer is wrong. A gold answer
that does not grade itself as correct raises instead of paying a reward: check data sets with `check_gold` on loading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shared.answer_text import last_boxed
from shared.verifier import UngradableGoldError, Verifier, shared_verifier

__all__ = [
    "UngradableGoldError",
    "accuracy_reward",
    "are_correct",
    "check_gold",
    "completion_text",
    "format_reward",
    "is_correct",
]

Completion = str | Sequence[dict[str, Any]]


def completion_text(completion: Completion) -> str:
    """Text of a completion, plain or as a list of chat messages (their contents joined by newlines)."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def is_correct(completion: str, gold: str) -> bool:
    """Whether the last balanced box of the completion holds the gold answer (math-verify, under a hard time limit).

    Raises UngradableGoldError when the gold answer cannot be read or does not grade itself as correct.
    """
    answer = _answer(completion)
    if answer is None:
        check_gold(gold)
        return False
    return shared_verifier().grade(answer, gold)


def are_correct(
    completions: Sequence[Completion],
    golds: Sequence[str],
    seconds: float = 60.0,
    verifier: Verifier | None = None,
) -> list[bool]:
    """`is_correct` for a batch, all of it within `seconds`; answers that are not reached in time count as wrong."""
    if len(completions) != len(golds):
        raise ValueError(f"{len(completions)} completions but {len(golds)} gold answers")
    answers = [_answer(completion_text(completion)) for completion in completions]
    pairs = [(answer, str(gold)) for answer, gold in zip(answers, golds) if answer is not None]
    graded = iter((verifier or shared_verifier()).grade_batch(pairs, seconds))
    return [answer is not None and next(graded) for answer in answers]


def check_gold(gold: str) -> None:
    """Raise UngradableGoldError unless the gold answer can be read and grades itself as correct."""
    if not isinstance(gold, str):
        raise UngradableGoldError(f"a gold answer must be a string, not {type(gold).__name__}: {gold!r}")
    shared_verifier().check_gold(gold)


def accuracy_reward(completions: Sequence[Completion], solution: Sequence[str], **kwargs: Any) -> list[float]:
    """TRL reward: 1.0 where the boxed answer is the solution, else 0.0. One call grades one batch."""
    return [float(correct) for correct in are_correct(completions, solution)]


def format_reward(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    r"""TRL reward: 1.0 for one ``<think>...</think>`` then one ``<answer>...</answer>``, or for a filled ``\boxed{}``.

    A completion that uses any of the four tags must use all of them once, in order, with nothing but space around.
    """
    return [float(_well_formed(completion_text(completion))) for completion in completions]


_TAGS = re.compile(r"</?(?:think|answer)>")
_LAYOUT = re.compile(r"\s*<think>.*</think>\s*<answer>.*\S.*</answer>\s*", re.DOTALL)


def _well_formed(text: str) -> bool:
    tags = _TAGS.findall(text)
    if tags:
        return tags == ["<think>", "</think>", "<answer>", "</answer>"] and bool(_LAYOUT.fullmatch(text))
    return _answer(text) is not None


def _answer(text: str) -> str | None:
    """Content of the last balanced box; None without a box or with an empty one."""
    content = last_boxed(text)
    return content if content and content.strip() else None
