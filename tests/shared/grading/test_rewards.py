"""Mathematics rewards: what of a completion is read, golds that cannot be used, and the columns that TRL passes."""

from __future__ import annotations

import pytest

from grpo_replications.shared.grading.completions import after_thought, last_boxed
from grpo_replications.shared.grading.rewards import (
    UngradableGoldError,
    accuracy_reward,
    check_gold,
    format_reward,
    is_correct,
)


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{1}{", "???", r"\text{}", "10^{99999999}", "9" * 5000])
def test_a_gold_that_does_not_grade_itself_is_refused(gold: str) -> None:
    with pytest.raises(UngradableGoldError):
        check_gold(gold)
    with pytest.raises(UngradableGoldError):
        is_correct(r"\boxed{1}", gold)
    with pytest.raises(UngradableGoldError):
        is_correct("no box", gold)


def test_a_gold_must_be_a_string() -> None:
    with pytest.raises(UngradableGoldError, match="string"):
        check_gold(7)  # type: ignore[arg-type]


def test_accuracy_reward_reads_the_completion_only() -> None:
    plain = [r"\boxed{4}", r"\boxed{5}", "4"]
    chat = [[{"role": "assistant", "content": text}] for text in plain]
    prompts = [[{"role": "user", "content": r"answer in \boxed{4}"}]] * 3
    for completions in (plain, chat):
        rewards = accuracy_reward(completions=completions, prompts=prompts, solution=["4", "4", "4"], step=3)
        assert rewards == [1.0, 0.0, 0.0]
    with pytest.raises(UngradableGoldError):
        accuracy_reward(completions=[r"\boxed{4}"], solution=[r"\frac{1}{"])
    with pytest.raises(ValueError, match="3 completions"):
        accuracy_reward(completions=plain, solution=["4"])


def test_format_reward() -> None:
    good = ["<think>a</think><answer>b</answer>", " <think>a\nb</think>\n<answer>b</answer>\n", r"so \boxed{7}"]
    bad = [
        "<answer>b</answer><think>a</think>",
        "<think>a</think><answer>b</answer> and more",
        "<think>a</think><answer> </answer>",
        "<think>a</think><think>a</think><answer>b</answer>",
        r"<think>\boxed{7}",
        r"\boxed{}",
        "7",
    ]
    assert format_reward(completions=good + bad) == [1.0] * len(good) + [0.0] * len(bad)


@pytest.mark.parametrize(
    "completion, right",
    [
        (r"\boxed{8} then \boxed{5}", True),
        (r"\boxed{5} then \boxed{8}", False),
        (r"\boxed{\boxed{5}}", True),
        (r"\boxed {5}", True),
        (r"\boxed{5} and \boxed{unfinished", True),
        (r"5 \boxed{}", False),
        (r"\boxed{5} \boxed{ }", False),
        (r"\\boxed{5}", False),
        ("the answer is $5$", False),
        (r"<think>\boxed{8}</think> so \boxed{5}", True),
        (r"<think>\boxed{5}</think> so \boxed{8}", False),
        (r"<think>\boxed{5}</think> so 5", False),
        (r"<think>I guess \boxed{5}, but", False),
        (r"a prompt may open the thought: \boxed{8}</think>\boxed{5}", True),
        (r"\boxed{5} <think>let me check", False),
        (r"<THINK>\boxed{5}", False),
        (r"[THINK]\boxed{5}", False),
        (r"[THINK]\boxed{8}[/THINK]\boxed{5}", True),
        (r"<|begin_of_thought|>\boxed{5}", False),
        (r"<|begin_of_thought|>\boxed{8}<|end_of_thought|>\boxed{5}", True),
        (r"<analysis>\boxed{5}", False),
        (r"\boxed{ \boxed {5} }", True),
        (r"\boxed{\text{not }\boxed{5}}", False),
        (r"\boxed{-\boxed{-5}}", False),
        (r"\boxed{8\boxed{5}}", False),
        ([{"role": "user", "content": r"\boxed{5}"}, {"role": "assistant", "content": "no"}], False),
        ([{"role": "assistant", "content": r"\boxed{5}"}, {"role": "tool", "content": r"\boxed{}"}], True),
        ([{"role": "assistant", "content": [{"type": "text", "text": r"\boxed{5}"}]}], True),
    ],
)
def test_only_the_last_box_of_the_models_own_answer_counts(completion: object, right: bool) -> None:
    assert is_correct(completion, "5") is right  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["<" + " " * 200_000, "<think" + " " * 200_000, "[" + " " * 200_000, "<|" * 100_000])
def test_a_long_run_of_space_is_read_at_once(text: str) -> None:
    assert after_thought(text) == text  # quadratic time would take minutes


def test_deeply_nested_boxes_are_read_at_once() -> None:
    assert last_boxed(r"\boxed{" * 20_000 + "7" + "}" * 20_000) == "7"
