"""Samples that end at their first box: the cut is where the box closes, in tokens, and training sees no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_replications.shared.grading.completions import first_box
from grpo_replications.shared.grading.rewards import accuracy_reward, of_first_box
from grpo_replications.shared.models import catalog
from grpo_replications.shared.training.box_stop import tokens_up_to_box
from tests.shared.training.test_trainer import make_trainer


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{\frac{1}{2}} or \boxed{3}", r"\boxed{\frac{1}{2}}"),
        (r"\boxed{1", None),
        ("no box }", None),
        (r"<think> \boxed{} ...", r"\boxed{}"),
    ],
)
def test_the_first_box(text: str, box: str | None) -> None:
    assert first_box(text) == box


def test_the_first_box_alone_is_graded_even_in_a_thought() -> None:
    texts = [r"<think> it is \boxed{4}", r"\boxed{3} no, \boxed{4}", "4"]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    assert of_first_box(accuracy_reward)(completions=chats, solution=["4"] * 3) == [1.0, 0.0, 0.0]


def test_the_cut_is_after_the_token_that_closes_the_box() -> None:
    tokenizer = catalog.tiny_random()[1]
    ids = tokenizer(r"is \boxed{a{b}c} and more", add_special_tokens=False)["input_ids"]
    kept = tokens_up_to_box(tokenizer, ids)
    assert tokenizer.decode(ids[:kept]).endswith("c}") and first_box(tokenizer.decode(ids[: kept - 1])) is None
    assert tokens_up_to_box(tokenizer, ids[: kept - 1]) == kept - 1


def test_training_sees_what_comes_before_the_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_replications.shared.training.box_stop.tokens_up_to_box", lambda _, ids: min(len(ids), 2))
    seen: list[int] = []

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        seen.extend(map(len, completion_ids))
        return [float(sum(ids) % 3) for ids in completion_ids]

    for stop in (False, True):
        trainer, _ = make_trainer(tmp_path, None, max_steps=1, reward=reward, stop_at_box=stop)
        trainer.train()
        assert (max(seen) <= 2) == stop
        assert trainer.state.log_history[0]["completions/max_length"] == max(seen)
        seen.clear()
