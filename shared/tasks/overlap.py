"""Which test problems a training set holds: the same text, or a long run of the same words. Texts in, counts out.

Texts are compared as words and numbers in lower case; punctuation, LaTeX commands and spaces do not count, nor do words
with which all texts of a set end (an instruction). A test problem is *exact* in the training set if all its
words are those of a training problem, and *shares a run* if `run` words in a row are; with fewer words it can only be
exact. Runs that many test problems have in common are phrases; they are left out, and counted. The cost is linear in
the words of both sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_replications.shared.tasks.puzzles.drawing import Puzzle
from grpo_replications.shared.tasks.puzzles.statements import canonical_form

RUN = 13  # words
EXAMPLES = 3
COMMON = 5  # test problems: a run that more of them have is a phrase of the test set, no copy
_WORD = re.compile(r"[^\W\d_]+|\d+")
_COMMAND = re.compile(r"\\[a-zA-Z]+|\\.")


@dataclass(frozen=True)
class Overlap:
    """What a training set and a test set share.

    `tested` and `trained`: their problems. `exact`: test problems whose whole text is a training text; `runs`: those
    with a run of `run` words in one, exact ones included; None where runs mean nothing, as for puzzles, of which
    `renamed` counts those that are the same up to the names of people. `common_runs`: runs left out. `examples`: rows
    of the test set and of the training set (from 0), the kind, and the text or run they share.
    """

    tested: int
    trained: int
    exact: int
    runs: int | None = None
    run: int | None = None
    common_runs: int = 0
    renamed: int | None = None
    examples: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        return asdict(self)


def words(text: str) -> list[str]:
    """The words and numbers of a text in lower case."""
    return _WORD.findall(_COMMAND.sub(" ", text).lower())


def overlap(tests: Sequence[str], training: Sequence[str], run: int = RUN, common: int = COMMON) -> Overlap:
    """What the test problems share with the training problems, from their texts."""
    test_words = _own_words(tests)
    whole: dict[str, list[int]] = {}
    places: dict[str, list[int]] = {}
    for place, (one, text) in enumerate(zip(test_words, tests, strict=True)):
        for key in {" ".join(one), " ".join(words(text))}:
            whole.setdefault(key, []).append(place)
        for text in dict.fromkeys(_runs(one, run)):
            places.setdefault(text, []).append(place)
    rare = {text: found for text, found in places.items() if len(found) <= common}
    exact: dict[int, int] = {}
    shared: dict[int, tuple[int, str]] = {}
    for row, (one, text) in enumerate(zip(_own_words(training), training, strict=True)):
        for key in {" ".join(one), " ".join(words(text))}:
            for place in whole.get(key, ()):
                exact.setdefault(place, row)
        for text in _runs(one, run):
            for place in rare.get(text, ()):
                shared.setdefault(place, (row, text))
    examples = [
        {"test_row": place, "training_row": row, "kind": "exact", "text": tests[place][:200]}
        for place, row in sorted(exact.items())[:EXAMPLES]
    ]
    examples += [
        {"test_row": place, "training_row": row, "kind": "run", "text": text}
        for place, (row, text) in sorted(one for one in shared.items() if one[0] not in exact)[:EXAMPLES]
    ]
    either = len(shared.keys() | exact.keys())
    return Overlap(len(tests), len(training), len(exact), either, run, len(places) - len(rare), examples=examples)


def _own_words(texts: Sequence[str]) -> list[list[str]]:
    """The words of each text, without those with which all end."""
    all_words = [words(text) for text in texts]
    if len(all_words) < 2:
        return all_words
    low, high = min(one[::-1] for one in all_words), max(one[::-1] for one in all_words)
    shortest = min(len(low), len(high))
    common = next((i for i in range(shortest) if low[i] != high[i]), shortest)
    return [one[: len(one) - common] or one for one in all_words]


def _runs(one: list[str], run: int) -> Iterator[str]:
    """Every `run` words in a row, as text."""
    return (" ".join(one[start : start + run]) for start in range(len(one) - run + 1))


def puzzle_overlap(tests: Sequence[Puzzle], training: Sequence[Puzzle]) -> Overlap:
    """The same of Knights & Knaves: puzzles with the same text, and those that are the same up to renaming people."""
    texts = {" ".join(words(puzzle.text)): row for row, puzzle in reversed(list(enumerate(training)))}
    forms = {canonical_form(puzzle.statements) for puzzle in training}
    exact = {place: texts[key] for place, one in enumerate(tests) if (key := " ".join(words(one.text))) in texts}
    renamed = sum(canonical_form(puzzle.statements) in forms for puzzle in tests)
    examples = [
        {"test_row": place, "training_row": row, "kind": "exact", "text": tests[place].text[:200]}
        for place, row in list(exact.items())[:EXAMPLES]
    ]
    return Overlap(len(tests), len(training), len(exact), renamed=renamed, examples=examples)
