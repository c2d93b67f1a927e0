"""The answer grader: every kind of mistake it must not make, its limits, and the published answer files."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.grading.answer_text import last_boxed, too_large
from shared.grading.rewards import (
    UngradableGoldError,
    accuracy_reward,
    are_correct,
    check_gold,
    format_reward,
    is_correct,
)
from shared.grading.verifier import Verifier

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this clone")
# A computation that the text limits do not catch: only the clock can end it.
ENDLESS = r"\binom{10^{9}}{5\cdot 10^8}"

KINDS = {
    "last box only": [
        (r"\boxed{5} then \boxed{6}", "6", True),
        (r"\boxed{6} then \boxed{5}", "6", False),
        (r"\boxed{5} \boxed{7}", r"\{5,7\}", False),
        (r"\boxed{7} and \boxed{unfinished", "7", True),
        (r"\boxed{\boxed{7}}", "7", True),
        (r"\boxed {7}", "7", True),
    ],
    "empty or absent": [
        (r"5 \boxed{}", "5", False),
        (r"5 \boxed{ }", "5", False),
        (r"\boxed{5} \boxed{}", "5", False),
        ("5", "5", False),
        ("the answer is $5$", "5", False),
        (r"\\boxed{5}", "5", False),
    ],
    "chains": [
        (r"\boxed{0=7}", "7", False),
        (r"\boxed{1+6=7}", "7", False),
        (r"\boxed{x=1=7}", "7", False),
        (r"\boxed{x=7}", "7", True),
        (r"\boxed{x_1=7}", "7", True),
        (r"\boxed{xy=7}", "7", False),
        (r"\boxed{y=7}", "x=7", False),
        (r"\boxed{7}", "x=7", True),
        (r"\boxed{0=7}", "x=7", False),
    ],
    "several values for one": [
        (r"\boxed{5, 7}", "7", False),
        (r"\boxed{7 \text{ or } 8}", "7", False),
        (r"\boxed{x=5 \text{ or } x=7}", "7", False),
        (r"\boxed{\pm 7}", "7", False),
        (r"\boxed{\pm 7}", "-7, 7", True),
    ],
    "tiny and close values": [
        (r"\boxed{3^{-40}}", "3^{-41}", False),
        (r"\boxed{3^{-40}}", r"\frac{1}{3^{40}}", True),
        (r"\boxed{3^{-40}x}", "3^{-41}x", False),
        (r"\boxed{0.0000012}", "0.000001", False),
        (r"\boxed{\{3^{-40}, 1\}}", r"\{3^{-41}, 1\}", False),
        (r"\boxed{0.333333}", r"\frac13", True),
        (r"\boxed{0.33}", r"\frac13", False),
        (r"\boxed{1000000001}", "1000000000", False),
    ],
    "sets, tuples, intervals": [
        (r"\boxed{2,5}", "(2,5)", False),
        (r"\boxed{[2,5]}", "(2,5)", False),
        (r"\boxed{(2,5)}", r"\{2,5\}", False),
        (r"\boxed{\{5,2\}}", r"\{2,5\}", True),
        (r"\boxed{5, 2}", "2,5", True),
        (r"\boxed{(5,2)}", "(2,5)", False),
        (r"\boxed{(2,5]}", "(2,5]", True),
        (r"\boxed{2 < x \leq 5}", "(2,5]", True),
        (r"\boxed{\{1,2,3\}}", "(1,2,3)", False),
        (r"\boxed{(5,\infty) \cup (-\infty,2)}", r"(-\infty,2)\cup(5,\infty)", True),
    ],
    "bases": [
        (r"\boxed{52_{8}}", "52_8", True),
        (r"\boxed{52₈}", "52_8", True),
        (r"\boxed{52₉}", "52_8", False),
        (r"\boxed{52}", "52_8", False),
        (r"\boxed{52_8}", "52", False),
    ],
    "units": [
        (r"\boxed{5 \text{ cm}}", r"5 \text{ m}", False),
        (r"\boxed{5 \text{ cm}}", "5", True),
        (r"\boxed{5}", r"5 \text{ cm}", True),
        (r"\boxed{5 \mathrm{~cm}}", r"5 \text{ centimeters}", True),
        (r"\boxed{5 \text{ million}}", "5", False),
        (r"\boxed{5 \text{ million}}", "5000000", True),
        (r"\boxed{\$5}", "5", True),
        (r"\boxed{60 \text{ radians}}", r"60^\circ", False),
    ],
    "typography": [
        ("\\boxed{\u22127}", "-7", True),
        ("\\boxed{\u20137}", "-7", True),
        ("\\boxed{1\u202f234\u202f567}", "1234567", True),
        ("\\boxed{1\u2009234}", "1234", True),
        (r"\boxed{1{,}234}", "1234", True),
        (r"\boxed{1,234,567}", "1234567", True),
        (r"\boxed{7 8}", "78", False),
        (r"\boxed{60^{\circ}}", "60", True),
        (r"\boxed{18.}", "18", True),
        (r"\boxed{3\frac{1}{2}}", r"\frac{7}{2}", True),
        (r"\boxed{-3 1/2}", "-3.5", True),
        (r"\boxed{2√3}", r"2\sqrt{3}", True),
        (r"\boxed{2*sqrt(3)}", r"2\sqrt{3}", True),
    ],
    "text": [
        (r"\boxed{\text{18}}", "18", True),
        (r"\boxed{\text{The answer is 18}}", "18", True),
        (r"\boxed{18 apples}", "18", True),
        (r"\boxed{\text{at least } 18}", "18", False),
        (r"\boxed{evelyn}", r"\text{Evelyn}", True),
        (r"\boxed{Navin}", r"\text{Evelyn}", False),
        (r"\boxed{C}", r"\text{(C)}", True),
        (r"\boxed{20}", r"\text{June 20}", False),
    ],
    "algebra": [
        (r"\boxed{5+x^2}", "x^2+5", True),
        (r"\boxed{y^2+5}", "x^2+5", False),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", True),
        (r"\boxed{2x}", "f(x)=2x", True),
        (r"\boxed{i^2}", "-1", True),
        (r"\boxed{\begin{bmatrix}3\\8\end{bmatrix}}", r"\begin{pmatrix} 3 \\ 8 \end{pmatrix}", True),
        (r"\boxed{\begin{bmatrix}8\\3\end{bmatrix}}", r"\begin{pmatrix} 3 \\ 8 \end{pmatrix}", False),
        (r"\boxed{x > 7}", "7", False),
        (r"\boxed{\sin 30^\circ}", r"\frac12", True),
    ],
}


@pytest.mark.parametrize(
    "completion, gold, right", [pytest.param(*case, id=f"{kind}:{case[0]}") for kind, c in KINDS.items() for case in c]
)
def test_kinds(completion: str, gold: str, right: bool) -> None:
    assert is_correct(completion, gold) is right


@needs_data
def test_every_published_pair() -> None:
    cases = json.loads((DATA / "cases_grading.json").read_text(encoding="utf-8"))
    wrong = [case for case in cases if is_correct(case["completion"], case["gold"]) is not case["correct"]]
    assert len(cases) >= 24
    assert not wrong


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{1}{", "???", r"\text{}", "10^{99999999}", "9" * 5000, ENDLESS])
def test_a_gold_that_does_not_grade_itself_is_refused(gold: str) -> None:
    with pytest.raises(UngradableGoldError):
        check_gold(gold)
    if gold != ENDLESS:  # which waits for the clock twice more: see test_answers
        with pytest.raises(UngradableGoldError):
            is_correct(r"\boxed{1}", gold)
    with pytest.raises(UngradableGoldError):
        is_correct("no box", gold)


def test_a_gold_must_be_a_string() -> None:
    with pytest.raises(UngradableGoldError, match="string"):
        check_gold(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text, large",
    [
        (r"\frac{6^{6^{6^{6}}} - 6}{11}", True),
        ("9^9^9", True),
        ("9**9**9", True),
        ("10^{10^{10}}", True),
        ("(9!)!", True),
        ("99999!", True),
        ("1" * 1001, True),
        ("2^{1009}", False),
        ("x^{2^{3}}", False),
        ("10!", False),
        ("3^{-40}", False),
        (r"e^{x^{2}}", False),
    ],
)
def test_too_large(text: str, large: bool) -> None:
    assert too_large(text) is large


def test_hostile_answers_end_in_time_and_the_next_is_graded() -> None:
    verifier = Verifier(seconds=1.0)
    verifier.grade("1", "1")
    for hostile in (ENDLESS, r"(10^{9999})^{9999}", r"((10^{9999})^{9999})^{9999}", "(" * 900 + "1" + ")" * 900):
        start = time.monotonic()
        assert verifier.grade(hostile, "7") is False
        assert time.monotonic() - start < 1.0 + 10.0  # its limit and, perhaps, the start of a new worker
        assert verifier.grade("7", "7") is True
    assert verifier.timeouts >= 2
    verifier.close()


def test_batch_budget_holds_and_spares_the_short_answers() -> None:
    verifier = Verifier(seconds=1.0)
    verifier.grade("1", "1")
    hostile = [rf"\boxed{{\binom{{10^{{9}}}}{{5\cdot 10^8}} + {k}}}" for k in range(6)]
    start = time.monotonic()
    graded = are_correct([*hostile, r"\boxed{7}", r"\boxed{7}"], ["7"] * 8, seconds=2.0, verifier=verifier)
    assert time.monotonic() - start < 2.0 + 10.0
    assert graded == [False] * 6 + [True, True]
    verifier.close()


def test_a_killed_worker_is_replaced() -> None:
    verifier = Verifier()
    assert verifier.grade("7", "7")
    assert verifier._process is not None
    verifier._process.kill()
    verifier._process.wait()
    assert verifier.grade("7", "7")
    assert verifier.starts == 2
    verifier.close()


def test_works_off_the_main_thread() -> None:
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(is_correct(r"\boxed{7}", "7"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="\\{}boxed a7", max_size=60))
def test_last_boxed_is_balanced(text: str) -> None:
    content = last_boxed(text)
    if content is not None:
        assert text.count("{" + content + "}") >= 1
        plain = re.sub(r"\\.", "", content)  # without escaped braces, and without the commands' first letters
        assert plain.count("{") == plain.count("}")


def test_last_boxed_is_linear_in_depth() -> None:
    start = time.monotonic()
    assert last_boxed(r"\boxed{" * 20_000 + "7" + "}" * 20_000) == "7"
    assert time.monotonic() - start < 2.0


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


@needs_data
@pytest.mark.slow
def test_every_benchmark_answer_accepts_itself_but_for_the_known_ones() -> None:
    golds = [json.loads(line)["answer"] for line in (DATA / "aime24.jsonl").read_text(encoding="utf-8").splitlines()]
    boxes = [f"\\boxed{{{gold}}}" for gold in golds]
    assert accuracy_reward(boxes, golds) == [1.0] * 30
    others = [f"\\boxed{{{gold}}}" for gold in golds[1:] + golds[:1]]
    assert sum(accuracy_reward(others, golds)) == sum(a == b for a, b in zip(golds, golds[1:] + golds[:1]))
