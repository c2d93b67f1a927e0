"""Knights & Knaves as tokens: traces that reason rightly, rewards for right answers only, sides that share nothing."""

from __future__ import annotations

import random

import pytest
import torch

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.tasks.puzzles.drawing import draw_puzzle
from grpo_replications.shared.tasks.puzzles.statements import solutions
from grpo_replications.synthetic.puzzle_traces import (
    BAD,
    END,
    SO,
    Vocabulary,
    draw_puzzles,
    encoded,
    mask_of,
    strict_rewards,
)

KNIGHT, KNAVE = "telling-truth", "lying"
PUZZLE = (("and", (KNIGHT, 1), (KNAVE, 2)), ("not", (KNAVE, 0)), ("and", (KNIGHT, 1), (KNIGHT, 0)))
# 1 says: 2 is a knight and 3 is a knave. 2 says: 1 is no knave. 3 says: 2 is a knight and 1 is a knight.


def test_everything_that_can_be_said_has_a_token_of_its_own() -> None:
    words = Vocabulary(3)
    tokens = [words.ok(i) for i in range(3)] + [words.assignment(a) for a in range(8)] + list(words.statements.values())
    assert sorted([SO, BAD, END, 3, *tokens]) == list(range(len(words)))
    generator = random.Random(0)
    drawn = {(i, one) for _ in range(60) for i, one in enumerate(draw_puzzle(generator, 3).statements)}
    assert drawn <= set(words.statements)


def test_a_trace_by_hand() -> None:
    puzzles, words = encoded([PUZZLE]), Vocabulary(3)
    assert solutions(PUZZLE) == [(False, False, False)]
    right = words.assignment(0)
    tested = [right, words.ok(0), words.ok(1), words.ok(2), SO, right, END]
    assert puzzles.traces[0, 0, : puzzles.lengths[0, 0]].tolist() == tested
    # All knights: 1 says that 3 is a knave, which no knight can say then.
    assert puzzles.traces[0, 7, : puzzles.lengths[0, 7]].tolist() == [words.assignment(7), BAD, *tested]
    # 1 and 2 knights: what 1 says is true, so is what 2 says, and what 3 says, which a knave cannot.
    begun = [words.assignment(3), words.ok(0), words.ok(1), BAD, words.assignment(4)]
    assert puzzles.traces[0, 3].tolist()[:5] == begun


def test_every_trace_is_right_and_sides_share_no_form() -> None:
    sides = {held_out: draw_puzzles("test", 60, 3, held_out) for held_out in (False, True)}
    for puzzles in sides.values():
        assert bool(strict_rewards(puzzles.traces, puzzles.solutions).all())
        assert torch.equal(mask_of(puzzles.traces).sum(dim=2), puzzles.lengths)
        assert len({tuple(prompt) for prompt in puzzles.prompts.tolist()}) == 60
    assert not sides[True].forms & sides[False].forms
    assert torch.equal(draw_puzzles("test", 60, 3, True).traces, sides[True].traces)
    with pytest.raises(ReplicationError, match="different puzzles"):
        draw_puzzles("test", 1000, 2, True)
    with pytest.raises(ValueError, match="no assignment"):
        encoded([(("not", (KNIGHT, 0)), (KNIGHT, 0))])


def test_only_the_right_answer_is_paid() -> None:
    right, other = 30, 31
    texts = {
        (SO, right, END, 9): 1.0,
        (5, SO, right, END): 1.0,
        (5, SO, other, END): 0.0,
        (5, SO, right, 9): 0.0,  # no end
        (5, 9, right, END): 0.0,  # not announced
        (SO, SO, right, END): 0.0,  # announced twice
        (SO, other, END, right): 0.0,
        (SO, right, right, END): 0.0,
        (END, SO, right, END): 0.0,
        (SO, END, right, END): 0.0,
    }
    found = strict_rewards(torch.tensor([list(texts)]), torch.tensor([right]))
    assert found.tolist() == [list(texts.values())]
