r"""Reward functions for mathematics with a boxed answer. They read the completion only, never the prompt.

`is_correct` decides one completion; `accuracy_reward`, `format_reward`, `partial_credit_reward` and what `combined`
makes of them are what TRL's trainer calls. The answer is the last balanced `\boxed{...}` after the thought and nothing
else: no box, an empty box or an unreadable answer is wrong. What counts as the same answer is said in `maths_answers`;
a new pair costs 5 to 100 ms, in a process that can be stopped. A gold answer that does not grade itself as correct
raises instead of paying a reward, whatever the completion says: check data sets with `check_gold` on loading.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from grpo_replications.shared.grading.completions import (
    LAYOUT_TAGS,
    Completion,
    boxed_answer,
    completion_text,
    first_box,
    is_well_formed,
)
from grpo_replications.shared.grading.maths_answers import UngradableGoldError, answer_parts
from grpo_replications.shared.grading.pool import GradingPool, shared_pool

__all__ = [
    "Completion",
    "RewardFunction",
    "UngradableGoldError",
    "accuracy_reward",
    "are_correct",
    "check_gold",
    "combined",
    "completion_text",
    "format_reward",
    "is_correct",
    "of_first_box",
    "partial_credit_reward",
]

RewardFunction = Callable[..., list[float]]


def is_correct(completion: Completion, gold: str) -> bool:
    """Whether the last balanced box of the completion holds the gold answer (math-verify, under a hard time limit).

    Raises UngradableGoldError when the gold answer cannot be read or does not grade itself as correct.
    """
    return are_correct([completion], [gold])[0]


def are_correct(
    completions: Sequence[Completion],
    golds: Sequence[str],
    seconds: float = 60.0,
    pool: GradingPool | None = None,
) -> list[bool]:
    """`is_correct` for a batch, all of it within `seconds`; answers that are not reached in time count as wrong.

    The gold answer of a completion without a box is checked too (once), so that no batch hides one that is unreadable.
    """
    if len(completions) != len(golds):
        raise ValueError(f"{len(completions)} completions but {len(golds)} gold answers")
    answers = [boxed_answer(completion_text(completion)) for completion in completions]
    texts = [_gold_text(gold) for gold in golds]
    pool = pool or shared_pool()
    boxed = [(answer, gold) for answer, gold in zip(answers, texts) if answer is not None]
    graded_with_answers = {gold for _, gold in boxed}
    for gold in dict.fromkeys(texts):
        if gold not in graded_with_answers:
            pool.check_gold(gold)
    graded = iter(pool.grade_batch(boxed, seconds))
    return [answer is not None and next(graded) for answer in answers]


def check_gold(gold: str) -> None:
    """Raise UngradableGoldError unless the gold answer can be read and grades itself as correct."""
    shared_pool().check_gold(_gold_text(gold))


def _gold_text(gold: Any) -> str:
    if not isinstance(gold, str):
        raise UngradableGoldError(f"a gold answer must be a string, not {type(gold).__name__}: {gold!r}")
    return gold


def accuracy_reward(completions: Sequence[Completion], solution: Sequence[str], **kwargs: Any) -> list[float]:
    """TRL reward: 1.0 where the boxed answer is the solution, else 0.0. One call grades one batch."""
    return [float(correct) for correct in are_correct(completions, solution)]


def of_first_box(reward: RewardFunction) -> RewardFunction:
    """The reward of a completion's first box alone, in a thought or not: for samples that end there (`stop_at_box`)."""

    @functools.wraps(reward)
    def of_box(completions: Sequence[Completion], **columns: Any) -> list[float]:
        return reward(completions=[first_box(completion_text(one)) or "" for one in completions], **columns)

    return of_box


def partial_credit_reward(
    completions: Sequence[Completion], solution: Sequence[str], seconds: float = 60.0, **kwargs: Any
) -> list[float]:
    """TRL reward: 1.0 for the solution; where it has several parts, the share of them that a wrong answer still has.

    Parts are the elements of a list, set, tuple or interval. Those of a set are matched in any order, those of a tuple
    in their places, and the share is of the larger number of parts, so that listing more of them does not pay. An
    answer of another kind, or to a solution of one part, has 0.0 unless it is right. All within about `seconds`.
    """
    end = time.monotonic() + seconds
    correct = are_correct(completions, solution, seconds)
    answers = [boxed_answer(completion_text(completion)) for completion in completions]
    return [
        1.0 if right else 0.0 if answer is None else _share_of_parts(answer, gold, end - time.monotonic())
        for right, answer, gold in zip(correct, answers, solution, strict=True)
    ]


def _share_of_parts(answer: str, gold: str, seconds: float) -> float:
    """Matched parts of a wrong answer over the larger number of parts; 0.0 for another kind, below 1.0 in any case."""
    kind, parts = answer_parts(answer)
    gold_kind, gold_parts = answer_parts(gold)
    if len(gold_parts) < 2 or kind != gold_kind or (kind != "set" and len(parts) != len(gold_parts)):
        return 0.0
    in_any_order = kind == "set"
    pairs = [(part, one) for part in parts for one in gold_parts] if in_any_order else list(zip(parts, gold_parts))
    same = dict(zip(pairs, shared_pool().grade_batch(pairs, max(seconds, 0.0)), strict=True))
    unmatched, matched = list(gold_parts), 0
    if not in_any_order:
        matched = sum(same[pair] for pair in pairs)
    for part in parts if in_any_order else ():
        found = next((one for one in unmatched if same[part, one]), None)
        if found is not None:
            unmatched.remove(found)
            matched += 1
    largest = max(len(parts), len(gold_parts))
    return min(matched, largest - 1) / largest


def combined(*weighted: tuple[RewardFunction, float]) -> RewardFunction:
    """One TRL reward function from several: the sum of weight times reward, each given as (function, weight).

    Where a function returns None (not applicable, as TRL has it), it adds nothing; where all do, the result is None.
    TRL logs the parts apart if they are given to the trainer as such, with `reward_weights`. Raises ValueError for no
    function or a weight that is not finite.
    """
    if not weighted or not all(math.isfinite(weight) for _, weight in weighted):
        raise ValueError("combined needs (function, weight) pairs with finite weights")

    def combined_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
        values = [function(completions=completions, **columns) for function, _ in weighted]
        totals: list[Any] = []
        for own in zip(*values, strict=True):
            known = [weight * value for value, (_, weight) in zip(own, weighted, strict=True) if value is not None]
            totals.append(sum(known) if known else None)
        return totals

    return combined_reward


def format_reward(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    r"""TRL reward: 1.0 for one `<think>...</think>` then one `<answer>...</answer>`, or for a filled `\boxed{}`.

    A completion that uses any of the four tags must use all of them once, in order, with nothing but space around.
    """
    return [float(_well_formed(completion_text(completion))) for completion in completions]


_EMPTY_ANSWER = re.compile(r"<answer>\s*</answer>")


def _well_formed(text: str) -> bool:
    if LAYOUT_TAGS.search(text):
        return is_well_formed(text) and not _EMPTY_ANSWER.search(text)
    return boxed_answer(text) is not None
