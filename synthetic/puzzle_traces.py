"""Knights & Knaves as tokens: puzzles, and traces that try one assignment of roles after another.

A puzzle of n people is one token for the statement of each person, in order, then `?`. There is a token for every
statement that the task's generator can draw for a person; what a statement means under an assignment is for a model to
learn. A completion tries assignments:

    KNK ok1 bad NKK ok1 ok2 ok3 so NKK <end>

An assignment is one token, the roles of all people in order (K: knight). After it come verdicts on the statements in
order, `ok` where a statement is true exactly if its speaker is a knight, up to the first `bad`. A trace that is taught
begins with any assignment and goes on in counting order, cyclically; once all verdicts are ok, the assignment is the
answer. A policy is free to do otherwise: what is rewarded is the answer alone.

Shape legend: N puzzles, P = n + 1 tokens of a puzzle, A = 2^n assignments, T tokens of a trace.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.tasks.knights_and_knaves import PATIENCE, is_for_validation
from grpo_replications.shared.tasks.puzzles.drawing import draw_puzzle
from grpo_replications.shared.tasks.puzzles.statements import Statement, Statements, canonical_form, truth_table

END, SO, BAD, ASK = range(4)
_FIRST_OK = 4


@dataclass(frozen=True)
class Vocabulary:
    """Numbers of the tokens for puzzles of `people` people.

    End, so, bad, ?, then n verdicts ok, 2^n assignments, and the statements of person 1, those of person 2, and so on.
    """

    people: int

    @cached_property
    def statements(self) -> dict[tuple[int, Statement], int]:
        """The token of each statement (of depth 2 and width 2) that a person (from 0) can make."""
        first = _FIRST_OK + self.people + 2**self.people
        said = ((i, one) for i in range(self.people) for one in _sayings(i, self.people))
        return {key: first + place for place, key in enumerate(said)}

    def __len__(self) -> int:
        return _FIRST_OK + self.people + 2**self.people + len(self.statements)

    def ok(self, person: int) -> int:
        """The verdict that a person's statement fits the assignment."""
        return _FIRST_OK + person

    def assignment(self, a: int) -> int:
        """The token of an assignment, in which person i is a knight where bit i of `a` is set."""
        return _FIRST_OK + self.people + a


def _sayings(speaker: int, people: int) -> list[Statement]:
    """Every statement that the generator can draw for a speaker: those that some roles make true and others false."""
    claims = [
        (claim, i) for i in range(people) for claim in ("telling-truth", "lying") if (claim, i) != ("lying", speaker)
    ]
    pairs = [(kind, *two) for kind in ("and", "or", "->", "<=>") for two in itertools.permutations(claims, 2)]
    every = [*claims, *(("not", claim) for claim in claims), *pairs]
    return [one for one in every if 0 < truth_table(one, people) < (1 << (1 << people)) - 1]


@dataclass(frozen=True)
class Puzzles:
    """N puzzles: `prompts` (N, P), `solutions` (N,), the tokens of the right assignments, and `traces` (N, A, T).

    Trace a begins with assignment a and is filled up with ends. `lengths` (N, A): tokens of a trace, with one end.
    `forms`: the puzzles' canonical forms.
    """

    prompts: Tensor
    solutions: Tensor
    traces: Tensor
    lengths: Tensor
    forms: frozenset[tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.prompts)


def draw_puzzles(name: str, count: int, people: int, held_out: bool) -> Puzzles:
    """`count` puzzles of the task's generator, all different as written; `name` seeds the generator.

    `held_out`: those whose canonical form only measures, or those that train (`is_for_validation`): puzzles of the two
    sides differ even when people are renamed or statements put in equivalent words. Raises ReplicationError if there
    are too few puzzles.
    """
    generator, found, failures = random.Random(name), dict[Statements, None](), 0
    while len(found) < count:
        statements = draw_puzzle(generator, people).statements
        if statements not in found and is_for_validation(statements) == held_out:
            found[statements], failures = None, 0
            continue
        failures += 1
        if failures > PATIENCE:
            raise ReplicationError(
                f"Only {len(found)} of {count} different puzzles of {people} people were found. Ask for fewer puzzles, "
                "or for more people."
            )
    return encoded(list(found))


def encoded(puzzles: Sequence[Statements]) -> Puzzles:
    """Puzzles as tokens, with every trace. Raises ValueError for a puzzle that no assignment solves."""
    people = len(puzzles[0])
    words = Vocabulary(people)
    prompts = [[*(words.statements[i, one] for i, one in enumerate(puzzle)), ASK] for puzzle in puzzles]
    traces = [traces_of([truth_table(one, people) for one in puzzle], words) for puzzle in puzzles]
    lengths = torch.tensor([[len(one) for one in row] for row in traces])
    ids = torch.full((*lengths.shape, int(lengths.max())), END)
    for i, row in enumerate(traces):
        for a, one in enumerate(row):
            ids[i, a, : len(one)] = torch.tensor(one)
    solutions = torch.tensor([row[0][-2] for row in traces])
    return Puzzles(torch.tensor(prompts), solutions, ids, lengths, frozenset(map(canonical_form, puzzles)))


def traces_of(tables: Sequence[int], words: Vocabulary) -> list[list[int]]:
    """The trace that begins with each assignment, from the truth tables of the statements."""
    tests = [_test(tables, a, words) for a in range(2**words.people)]
    fitting = [tokens[-1] != BAD for tokens in tests]
    if not any(fitting):
        raise ValueError("no assignment fits these statements")
    found = []
    for start in range(len(tests)):
        tokens, a = list(tests[start]), start
        while not fitting[a]:
            a = (a + 1) % len(tests)
            tokens += tests[a]
        found.append([*tokens, SO, words.assignment(a), END])
    return found


def _test(tables: Sequence[int], a: int, words: Vocabulary) -> list[int]:
    """An assignment and its verdicts, up to the first bad one."""
    tokens = [words.assignment(a)]
    for person, table in enumerate(tables):
        if (table >> a & 1) != (a >> person & 1):
            return [*tokens, BAD]
        tokens.append(words.ok(person))
    return tokens


def strict_rewards(completions: Tensor, solutions: Tensor) -> Tensor:
    """1 where the answer is right, else 0: float64 (..., G), completions (..., G, T), solutions (...).

    An answer is the assignment between the only `so` and the end, with nothing else there.
    """
    counted = mask_of(completions)
    last = (counted.sum(dim=-1, keepdim=True) - 1).clamp(min=2)
    ended = completions.gather(-1, last) == END
    answered = completions.gather(-1, last - 1) == solutions[..., None, None]
    announced = completions.gather(-1, last - 2) == SO
    once = ((completions == SO) & counted).sum(dim=-1) == 1
    return ((ended & answered & announced).squeeze(-1) & once).double()


def mask_of(completions: Tensor) -> Tensor:
    """Which tokens of completions (..., T) count: those up to and with the first end."""
    ends = completions == END
    return (ends.cumsum(dim=-1) - ends.long()) == 0
