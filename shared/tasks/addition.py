"""Addition of two whole numbers: the smallest task on which a small language model learns something real.

The prompt is "What is a + b?" behind a short system message; it is always given, because some chat templates put in
one of their own otherwise. The reward is 1 if the last number of the completion is the sum, else 0. Training and
validation share no pair of operands, in either order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from datasets import Dataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.rewards import Completion, completion_text
from grpo_replications.shared.tasks import Task

SYSTEM_MESSAGE = "You are a helpful assistant."
ENUMERABLE = 2_000_000  # up to so many pairs, they are listed and permuted; beyond, drawn until enough are distinct

_NUMBER = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
_SIGNED = re.compile(r"(?:^|(?<=[\s=:(\[*$]))[-\u2212\u2013]\s?$")


def load(
    low: int = 0,
    high: int = 99,
    train_size: int = 2000,
    validation_size: int = 128,
    validation_low: int | None = None,
    validation_high: int | None = None,
    seed: int = 0,
    system_message: str = SYSTEM_MESSAGE,
) -> Task:
    """Sums of operands drawn evenly from low to high, both included; other bounds for validation if given.

    `seed` decides the training pairs and their order; the validation pairs depend on the bounds and sizes only, so that
    every seed is measured on the same problems. Its generators are its own: the global ones are left alone.
    Raises ReplicationError when there are too few distinct pairs.
    """
    bounds = (low, high)
    held_out_bounds = (
        low if validation_low is None else validation_low,
        high if validation_high is None else validation_high,
    )
    validation = _draw(validation_size, held_out_bounds, np.random.default_rng(0), unordered=True, exclude=frozenset())
    held_out = frozenset(_unordered(pair) for pair in validation)
    train = _draw(train_size, bounds, np.random.default_rng([1, seed]), unordered=False, exclude=held_out)
    return Task(
        name="addition",
        train=_dataset(train, system_message),
        validation=_dataset(validation, system_message),
        rewards=[addition_reward],
        build_prompt=lambda a, b: build_prompt(a, b, system_message),
        settings={
            "low": low, "high": high, "train_size": train_size, "validation_size": validation_size,
            "validation_low": held_out_bounds[0], "validation_high": held_out_bounds[1], "seed": seed,
            "system_message": system_message,
        },
    )  # fmt: skip


def addition_problems(
    count: int, seed: int = 0, low: int = 0, high: int = 99, system_message: str = SYSTEM_MESSAGE
) -> list[dict[str, Any]]:
    """`count` distinct problems as rows with `prompt` (chat messages) and `answer` (the sum as a string)."""
    pairs = _draw(count, (low, high), np.random.default_rng([2, seed]), unordered=False, exclude=frozenset())
    return [_row(a, b, system_message) for a, b in pairs]


def build_prompt(a: int, b: int, system_message: str = SYSTEM_MESSAGE) -> list[dict[str, str]]:
    """Chat messages that ask for a + b."""
    return [{"role": "system", "content": system_message}, {"role": "user", "content": f"What is {a} + {b}?"}]


def addition_reward(completions: Sequence[Completion], answer: Sequence[str], **kwargs: Any) -> list[float]:
    """TRL reward: 1.0 where the last number of the completion is the answer, else 0.0. Reads the completion only."""
    if len(completions) != len(answer):
        raise ValueError(f"{len(completions)} completions but {len(answer)} answers")
    return [
        float(last_number(completion_text(completion)) == str(gold)) for completion, gold in zip(completions, answer)
    ]


def last_number(text: str) -> str | None:
    """The last number in the text, in lowest terms as a string ('1,234.0' gives '1234'); None if there is none.

    Compared as text, so that no length of digits is a burden. An earlier right number does not count if another one
    follows; '3.50' is '3.5'; a minus sign counts as a sign only where no operand stands before it.
    """
    match = None
    for match in _NUMBER.finditer(text):  # noqa: B007 - the last match is wanted
        pass
    if match is None:
        return None
    whole, _, decimals = match.group().replace(",", "").partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    negative = number != "0" and _SIGNED.search(text[max(0, match.start() - 3) : match.start()])
    return f"-{number}" if negative else number


def _row(a: int, b: int, system_message: str) -> dict[str, Any]:
    return {"prompt": build_prompt(a, b, system_message), "answer": str(a + b), "a": a, "b": b}


def _dataset(pairs: list[tuple[int, int]], system_message: str) -> Dataset:
    return Dataset.from_list([_row(a, b, system_message) for a, b in pairs])


def _unordered(pair: tuple[int, int]) -> tuple[int, int]:
    return (min(pair), max(pair))


def _draw(
    count: int,
    bounds: tuple[int, int],
    generator: np.random.Generator,
    unordered: bool,
    exclude: frozenset[tuple[int, int]],
) -> list[tuple[int, int]]:
    """`count` distinct pairs in random order, none of them (in either order) excluded; unordered: (a, b) = (b, a)."""
    low, high = bounds
    if not 0 <= low <= high:
        raise ReplicationError(f"The operands of the addition task need 0 <= low <= high, not {low} and {high}.")
    if count < 1:
        raise ReplicationError(f"The addition task needs at least one problem in each part, not {count}.")
    chosen: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()
    for pair in _candidates(low, high, generator):
        key = _unordered(pair) if unordered else pair
        if key in seen or _unordered(pair) in exclude:
            continue
        seen.add(key)
        chosen.append(pair)
        if len(chosen) == count:
            return chosen
    raise ReplicationError(
        f"Only {len(chosen)} of {count} distinct additions exist with operands from {low} to {high} (beside those held "
        "out); ask for fewer (train_size, validation_size) or widen low and high."
    )


def _candidates(low: int, high: int, generator: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Every pair once in random order, if they can be listed; otherwise independent pairs without end."""
    span = high - low + 1
    if span * span <= ENUMERABLE:
        for code in generator.permutation(span * span).tolist():
            yield low + code // span, low + code % span
        return
    while True:  # so many pairs exist that any number of problems is reached
        yield from map(tuple, generator.integers(low, high, size=(1024, 2), endpoint=True).tolist())
