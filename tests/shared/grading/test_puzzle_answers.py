"""Knights & Knaves answers: the layouts that are read, and wordings that must never be paid."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_replications.shared.grading.puzzle_answers import parse_answer, parse_answer_ar_lopti, read_roles

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this clone")

NAMES = ["Mia", "Leo", "Zed"]
ROLES = {"Mia": "knight", "Leo": "knave", "Zed": "knight"}

READ = [
    "(1) Mia is a knight\n(2) Leo is a knave\n(3) Zed is a knight",
    "(1) Mia is a knight (2) Leo is a knave (3) Zed is a knight",
    "1. Mia is a knight.\n2. Leo is a knave.\n3. Zed is a knight.\n",
    "1) Mia - knight\n2) Leo - knave\n3) Zed - knight",
    "- **Mia**: Knight\n- **Leo**: Knave\n- **Zed**: Knight",
    "* Mia is a **knight**\n* Leo is a **knave**\n* Zed is a **knight**",
    "• Mia → knight\n• Leo → knave\n• Zed → knight",
    "**(1) Mia is a knight.** **(2) Leo is a knave.** **(3) Zed is a knight.**",
    "Zed is a knight; Leo is a knave; Mia is a knight",
    "MIA IS A KNIGHT, LEO IS A KNAVE, AND ZED IS A KNIGHT.",
    "Mia and Zed are knights, and Leo is a knave.",
    "Both Mia and Zed are knights, while Leo is a knave",
    "Mia, Zed are knights; Leo is a knave",
    "Leo is a knave, but Mia and Zed are both knights.",
    "Mia (knight), Leo (knave), Zed (knight)",
    "Mia=knight, Leo=knave, Zed=knight",
    "Mia: a knight; Leo: a knave; Zed: a knight",
    "Mia must be a knight, Leo must be a knave, Zed must be a knight",
    "Therefore, Mia is a knight, Leo is a knave and Zed is a knight.",
    "Final answer: Mia is a knight, Leo is a knave, Zed is a knight",
    "Mia is a knight (truth-teller)\nLeo is a knave (liar)\nZed is a knight (truth-teller)",
    "Knights: Mia, Zed\nKnaves: Leo",
    "Knaves: Leo | Knights: Zed and Mia",
    "**Knights:** Mia, Zed\n**Knaves:** Leo",
    "Knights (2): Mia, Zed; Knaves (1): Leo",
    "Knights = {Mia, Zed}; Knaves = {Leo}",
    "Knights:\n- Mia\n- Zed\n\nKnaves:\n- Leo",
    "Knights:\n1. Mia\n2. Zed\nKnaves:\n1. Leo",
    "The knights are Mia and Zed. The only knave is Leo.",
    "| Name | Role |\n|---|---|\n| Mia | Knight |\n| Leo | Knave |\n| Zed | Knight |",
    "| Person | Identity |\n| :--- | :---: |\n| **Mia** | a knight |\n| **Leo** | a knave |\n| **Zed** | a knight |",
    "| # | Name | Role |\n|---|---|---|\n| 1 | Mia | knight |\n| 2 | Leo | Knave |\n| 3 | Zed | Knight |",
    '{"Mia": "knight", "Leo": "knave", "Zed": "knight"}',
    "Mia ✅ knight, Leo ❌ knave, Zed ✅ knight",
]
REST = "Leo is a knave, Zed is a knight"
UNREAD = [
    "",
    "knight, knave, knight",
    f"Mia is a knight, {REST}, Mia is a knave",
    f"Mia is a knight, {REST}, Mia is a knight",
    f"Mia is a knight, {REST}, Bob is a knave",
    "Mia is a knight, Leo is a knave",
    f"Mia is not a knight, {REST}",
    f"Mia isn't a knight, {REST}",
    f"Mia is no knight, {REST}",
    f"Mia is never a knight, {REST}",
    f"Mia is a non-knight, {REST}",
    f"Mia is probably a knight, {REST}",
    f"Mia may be a knight, {REST}",
    f"Mia was a knight, {REST}",
    f"Mia claims to be a knight, {REST}",
    f"Mia is a knight?, {REST}",
    f"If Mia is a knight, {REST}",
    f"Mia is a knight if {REST}",
    f"Mia is a knight unless {REST}",
    f"Mia is a knight because {REST}",
    f"Mia is a knight or {REST}",
    f"Either Mia is a knight, {REST}",
    f"Suppose Mia is a knight, {REST}",
    f"Assume: Mia is a knight, {REST}",
    f"Leo says Mia is a knight, {REST}",
    f"It is false that Mia is a knight, {REST}",
    f"We can rule out that Mia is a knight, {REST}",
    f"A tempting mistake: Mia is a knight, {REST}",
    f"Wrong: Mia is a knight, {REST}",
    f"For example, Mia is a knight, {REST}",
    f"The answer is not: Mia is a knight, {REST}",
    f"I think Mia is a knight, {REST}",
    f"Mia is a knight, {REST}. Or the reverse.",
    f"Mia is a knight, {REST}, or vice versa",
    f"Mia is a knight, {REST}. That is false.",
    f"Mia is a knight, {REST}... or is she?",
    f"Mia is a knight, {REST}. All statements are wrong.",
    f"Mia is a knight, {REST} is what I ruled out",
    f"Mia is a knight, {REST}\n\nNo, wait.",
    f"Mia is a knight, {REST} (unlikely)",
    f"Mia is a knight (false), {REST}",
    f"Mia is a knight (liar), {REST}",
    f"Mia is a knight/knave, {REST}",
    f"Mia is a knight-errant, {REST}",
    f"Mia is a knight's friend, {REST}",
    f"Mia is a knightly person, {REST}",
    f"Mia the knight is a villain, {REST}",
    f"Mia is the opposite of a knight, {REST}",
    f"Mia is a knight to Leo, {REST}",
    f"Mia is a spy, {REST}",
    f"Anna-Mia is a knight, {REST}",
    f"Mia-Anna is a knight, {REST}",
    f"Miam is a knight, {REST}",
    f"M is a knight, {REST}",
    f"She is a knight, {REST}",
    f"Mia ❌ knight, {REST}",
    f"Mia ≠ knight, {REST}",
    f"Mia != knight, {REST}",
    f"Mia: knight: {REST}",
    f"Mia -> knight -> knave, {REST}",
    f"~~Mia is a knight~~, {REST}",
    f"<s>Mia is a knight</s>, {REST}",
    f"Mia is a knight, {REST} 50%",
    f"Mia is a knight {REST}",
    f"Option 1: Mia is a knight, {REST}",
    "Mia, Zed: knight, knave; Leo: knave",
    "Mia, Leo, Zed: knight/knave",
    "Mia and Zed is a knight, Leo is a knave",
    "Neither Mia nor Zed is a knave. Leo is a knave.",
    "Leo is a knave; the others are knights",
    "All are knights except Leo",
    "Only Leo is a knave",
    "The only knight is Mia. Zed is a knight. Leo is a knave.",
    "The knights are Mia, Leo. Zed is a knight.",
    "Zed is a knight. Knights (1): Mia. Leo is a knave",
    "| Name | Role |\n|---|---|\n| knave | Mia | knight |\n| Leo | Knave |\n| Zed | Knight |",
    "| # | Name | Role |\n|---|---|---|\n| not | Mia | knight |\n| 2 | Leo | Knave |\n| 3 | Zed | Knight |",
    '{"a":' * 30_000 + "1" + "}" * 30_000,
    "Knights: Mia, Zed",
    "Knights: Mia, Zed\nKnaves: Leo, Zed",
    "Knights: Mia, Zed\nKnaves: Leo\nKnights: none",
    "Knights: Mia, Leo\nKnaves: Leo\nZed",
    "Knights (3): Mia, Zed\nKnaves (1): Leo",
    "Knights (0): Mia, Zed\nKnaves: Leo",
    "Knights: not Leo\nKnaves: Leo",
    "Knights: Mia, Zed?\nKnaves: Leo",
    "Knights: Mia, maybe Zed\nKnaves: Leo",
    "Knights: Mia or Zed\nKnaves: Leo",
    "Knights: everyone else\nKnaves: Leo",
    "Non-knights: Mia, Zed\nNon-knaves: Leo",
    "Not knights: Mia, Zed\nNot knaves: Leo",
    "Fake knights: Mia, Zed\nKnaves: Leo",
    "Knights / Knaves: Mia, Zed / Leo",
    "Knights:\nMia: knave\nZed\nKnaves: Leo",
    "Knights:\nKnaves:\nMia, Leo, Zed: knights",
    "| Name | Not the role |\n|---|---|\n| Mia | Knight |\n| Leo | Knave |\n| Zed | Knight |",
    "| Name | Role |\n|---|---|\n| Mia | Knight |\n| Leo | Knave |\n| Zed | Knight |\n| Zed | Knave |",
    "| Name | Role |\n|---|---|\n| Mia | not Knight |\n| Leo | Knave |\n| Zed | Knight |",
    "| Name | Role |\n|---|---|\n| Mia | Knight |\n| Leo | Knave |\n| Zed | Knight |\n\nor the reverse",
    '{"Mia": "knight", "Leo": "knave", "Zed": "knave", "Zed": "knight"}',
    '{"Mia": "not a knight", "Leo": "knave", "Zed": "knight"}',
    '{"wrong": {"Mia": "knight", "Leo": "knave", "Zed": "knight"}}',
    '{"Mia": ["knight"], "Leo": "knave", "Zed": "knight"}',
    '[{"Mia": "knight", "Leo": "knave", "Zed": "knight"}]',
    '{"Mia": "knight", "Leo": "knave", "Zed": "knight"} is wrong',
]


@pytest.mark.parametrize("answer", READ)
def test_usual_layouts_are_read(answer: str) -> None:
    assert parse_answer(f"<think>Leo is a knight?</think>\n<answer>{answer}</answer>", NAMES) == ROLES


@pytest.mark.parametrize("answer", UNREAD)
def test_everything_else_is_no_answer(answer: str) -> None:
    assert read_roles(answer, NAMES) is None


@pytest.mark.parametrize("answer", READ)
@pytest.mark.parametrize(
    "tail", [" Not!", " or not", "\nThis is wrong.", " (just kidding)", "?", ", Bob is a knave", "\n- Mia is a knave"]
)
def test_nothing_may_follow_an_answer(answer: str, tail: str) -> None:
    assert read_roles(answer + tail, NAMES) is None
    assert parse_answer(f"<answer>{answer}</answer>{tail}", NAMES) is None


GOOD = "Mia is a knight, Leo is a knave, Zed is a knight"


@pytest.mark.parametrize(
    "text, read",
    [
        (f"<think>x</think><answer>{GOOD}</answer>", True),
        (f"x</think><answer>{GOOD}</answer>", True),  # the prompt opened the thought
        (f"<answer>{GOOD}</answer>", True),
        (f"<think>x</think> So: <answer>{GOOD}</answer>\n", True),
        (f"<think>x</think><answer>{GOOD}", True),  # cut off at a stop string
        (f"<think>x</think><answer>Leo is a knight</answer> No: <answer>{GOOD}</answer>", True),
        (f"<think><answer>Leo is a knight</answer></think><answer>{GOOD}</answer>", True),
        (GOOD, False),
        (f"<think>x</think>{GOOD}", False),
        (f"<think><answer>{GOOD}</answer>", False),
        (f"<think><answer>{GOOD}</answer></think>", False),
        (f"<THINK> <answer>{GOOD}</answer>", False),
        (f"<thinking><answer>{GOOD}</answer>", False),
        (f"<think>x</think><answer>{GOOD}</answer><think>wait", False),
        (f"<think>x</think><answer>{GOOD}</answer><answer></answer>", False),
        (f"<think>x</think><answer>{GOOD}</answer><answer>Leo is", False),
        (f"<think>x</think><answer>{GOOD}</answer> I am not sure.", False),
        (f"<think>x</think><answer>{GOOD}, <think>wait</think></answer>", False),
        (f"<think>x</think>{GOOD}</answer>", False),
        (f"<think>x</think><answer>{GOOD[:-3]}", False),
    ],
)
def test_which_block_counts(text: str, read: bool) -> None:
    assert parse_answer(text, NAMES) == (ROLES if read else None)


@pytest.mark.parametrize("empty", ["", "none", "None.", "nobody", "No one", "N/A", "∅", "{}", "-", "—", "(none)"])
@pytest.mark.parametrize("layout", ["Knights: Mia, Leo, Zed\nKnaves: {}", "Knaves: {}\nKnights: Mia, Leo, Zed"])
def test_an_empty_list_under_a_heading(empty: str, layout: str) -> None:
    assert read_roles(layout.replace("{}", empty), NAMES) == dict.fromkeys(NAMES, "knight")
    assert read_roles(layout.replace("{}", empty).replace("Mia, ", ""), NAMES) is None


@pytest.mark.parametrize(
    "names",
    [
        ("Will", "May"),
        ("Not", "If"),
        ("No", "Either"),
        ("Knight", "Ada"),
        ("Ada", "Adam"),
        ("A", "An"),
        ("Le Roy", "O'Neil"),
    ],
)
def test_names_that_are_words_or_begin_alike(names: tuple[str, str]) -> None:
    for roles in itertools.product(["knight", "knave"], repeat=2):
        text = "\n".join(f"({i}) {name} is a {role}" for i, (name, role) in enumerate(zip(names, roles), start=1))
        assert read_roles(text, names) == dict(zip(names, roles))


@given(
    st.permutations(range(4)),
    st.lists(st.sampled_from(["knight", "knave"]), min_size=4, max_size=4),
    st.sampled_from([", ", "; ", "\n", ". ", " and "]),
)
def test_any_order_and_separator_reads_the_same_roles(order: list[int], roles: list[str], separator: str) -> None:
    names = ["Ann", "Bo", "Cy", "Di"]
    text = separator.join(f"{names[i]} is a {roles[i]}" for i in order)
    assert read_roles(text, names) == dict(zip(names, roles))
    assert list(read_roles(text, names) or ()) == names


@pytest.mark.parametrize("names", [["Ada", "ada"], ["Ada", ""], ["Ada", " "]])
def test_names_that_cannot_be_told_apart_are_an_error(names: list[str]) -> None:
    with pytest.raises(ValueError):
        parse_answer("<answer>Ada is a knight</answer>", names)


def test_time_is_linear_in_hostile_texts() -> None:
    for text in (
        "\n" * 50_000 + "Mia",
        "Mia, " * 20_000,
        "Knights: " * 10_000,
        "- " * 50_000,
        "Mia is a knight, " * 5_000,
    ):
        assert read_roles(text, NAMES) is None
        assert parse_answer(f"<answer>{text}" * 3, NAMES) is None


@pytest.mark.parametrize(
    "text, roles",
    [
        (f"<think>x</think><answer>{GOOD}</answer>", ROLES),
        (f"<think>x</think><answer>Never believe that {GOOD}!</answer>", ROLES),  # where the rule pays falsely
        (f"<think><answer>{GOOD}</answer>", ROLES),
        ("<answer>Knights: Mia, Zed. Knave: Leo</answer>", None),  # the number is right, the pattern is not there
        (f"<answer>{GOOD}, so one knave</answer>", None),  # four roles for three names
        (f"<answer>{GOOD}", None),
    ],
)
def test_the_rule_of_ar_lopti(text: str, roles: dict[str, str] | None) -> None:
    assert parse_answer_ar_lopti(text, NAMES) == roles


@needs_data
def test_public_cases() -> None:
    cases = json.loads((DATA / "cases_puzzle_answers.json").read_text(encoding="utf-8"))
    assert len(cases) >= 50
    assert [case for case in cases if parse_answer(case["text"], case["names"]) != case["expected"]] == []
