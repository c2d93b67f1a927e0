"""Partial credit, combined rewards, and what a reward function takes for a completion or a gold answer."""

from __future__ import annotations

import pytest

from grpo_replications.shared.grading.rewards import (
    UngradableGoldError,
    accuracy_reward,
    are_correct,
    combined,
    completion_text,
    format_reward,
    is_correct,
    partial_credit_reward,
)


def boxed(answer: str) -> str:
    return rf"So \boxed{{{answer}}}."


@pytest.mark.parametrize(
    ("answer", "gold", "share"),
    [
        ("3,1,2", "1,2,3", 1.0),
        ("1,2", "1,2,3", 2 / 3),
        (r"\{2,7\}", r"\{1,2,3\}", 1 / 3),
        ("1,2,3,4,5,6", "1,2,3", 0.5),  # listing more does not pay
        ("1,1,1", "1,2,3", 1 / 3),  # nor does saying one part again
        (r"\frac{2}{4}, 5", "0.5, 6", 0.5),
        ("(1,3)", "(1,2)", 0.5),
        ("(2,1)", "(1,2)", 0.0),  # places count in a tuple
        ("[1,2)", "(1,2)", 0.0),  # another kind of interval
        ("1,2", "(1,2)", 0.0),
        ("(1,2,3)", "(1,2)", 0.0),
        ("4", "5", 0.0),
        ("5", "5", 1.0),
        ("4,5", "5", 0.0),
        ("5", "4,5", 0.0),
    ],
)
def test_partial_credit_is_the_share_of_right_parts(answer: str, gold: str, share: float) -> None:
    assert partial_credit_reward([boxed(answer)], [gold]) == [pytest.approx(share)]


def test_partial_credit_is_full_exactly_where_the_answer_is_right_and_needs_a_box() -> None:
    golds = ["1,2", "1,2", "1,2", "7"]
    completions = [boxed("2,1"), "1,2", boxed(r"1,\text{none}"), boxed("7.0")]
    rewards = partial_credit_reward(completions, golds)
    assert [reward == 1.0 for reward in rewards] == are_correct(completions, golds)
    assert rewards == [1.0, 0.0, 0.5, 1.0]


def test_partial_credit_has_a_time_limit() -> None:
    endless = ",".join([r"\binom{10^{9}}{5\cdot 10^8}"] * 3)
    assert partial_credit_reward([boxed(endless)], ["1,2,3"], seconds=1.0) == [0.0]


def test_combined_is_the_weighted_sum_and_passes_every_column_on() -> None:
    def bonus(completions: list[str], extra: list[int | None], **kwargs: object) -> list[float | None]:
        return [None if value is None else float(value) for value in extra]

    reward = combined((accuracy_reward, 2.0), (format_reward, 0.5), (bonus, -1.0))
    got = reward(completions=[boxed("4"), boxed("5"), "4"], solution=["4"] * 3, extra=[1, None, 3])
    assert got == [2.0 + 0.5 - 1.0, 0.5, -3.0]
    assert combined((bonus, 1.0))(completions=["a"], extra=[None]) == [None]


@pytest.mark.parametrize("weights", [[], [float("nan")], [1.0, float("inf")]])
def test_combined_refuses_weights_that_make_no_sum(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        combined(*((format_reward, weight) for weight in weights))


def test_a_completion_is_text_or_chat_messages_and_nothing_else() -> None:
    parts = [{"type": "text", "text": boxed(r"\frac12")}, {"type": "image", "image": None}]
    for completion in (boxed(r"\frac12"), [{"role": "assistant", "content": boxed(r"\frac12")}], [{"content": parts}]):
        assert is_correct(completion, "0.5")
    assert completion_text([{"content": None}, {"content": "a"}]) == "\na"
    for wrong in (None, 7, ["a"], b"a"):
        with pytest.raises(TypeError, match="completion"):
            is_correct(wrong, "0.5")  # type: ignore[arg-type]


@pytest.mark.parametrize("gold", [None, True, 7, 0.5, ["7"], "", "x ="])
@pytest.mark.parametrize("completion", [boxed("None"), "no box at all"])
def test_an_unreadable_gold_is_an_error_whatever_the_completion_says(completion: str, gold: object) -> None:
    for grade in (lambda: is_correct(completion, gold), lambda: accuracy_reward([completion, boxed("1")], [gold, "1"])):
        with pytest.raises(UngradableGoldError):
            grade()
