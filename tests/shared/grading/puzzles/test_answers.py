"""The parser of answers: every reasonable rendering is read, and nothing that is not the answer."""

from __future__ import annotations

import itertools
import random
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.grading.puzzles.answers import is_well_formed, parse_answer

NAMES = ["Alice", "Bob", "Carol"]
ROLES = {"Alice": "knight", "Bob": "knave", "Carol": "knight"}
PLAIN = "Alice is a knight, Bob is a knave, Carol is a knight"


@pytest.mark.parametrize(
    "text",
    [
        "(1) Alice is a knight\n(2) Bob is a knave\n(3) Carol is a knight",
        "(1) Alice is a knight (2) Bob is a knave (3) Carol is a knight",
        "Carol is a knight, Alice is a knight, and Bob is a knave.",
        "alice is a KNIGHT, BOB IS A KNAVE, carol is a Knight",
        "Alice and Carol are knights; Bob is a knave",
        "Both Alice and Carol are knights, while Bob is a knave.",
        "Hence Alice and Carol are knights and Bob is a knave",
        "Alice, Carol: knights. Bob: knave",
        "Alice knight, Bob knave, Carol knight",
        "Alice is definitely a knight. Bob is therefore a knave. Carol must also be a knight!",
        "Alice is a knight - Bob is a knave - Carol is a knight",
        "Alice=knight Bob=knave Carol=knight",
        "Alice → knight\nBob → knave\nCarol → knight",
        "Alice -> knight, Bob => knave, Carol --> knight",
        "Alice (knight), Bob (knave), Carol (knight)",
        "Alice, knight\nBob, knave\nCarol, knight",
        "Alice\tknight\nBob\tknave\nCarol\tknight",
        "Alice’s role is knight; Bob’s role is knave; Carol’s a knight",
        # markup
        "**Alice**: Knight\n**Bob**: Knave\n**Carol**: Knight",
        "1. **Alice** - Knight\n2. **Bob** - Knave\n3. **Carol** - Knight",
        "- Alice: _knight_\n* Bob: `knave`\n• Carol: __knight__",
        "### Answer\n> Alice is a **knight**\n> Bob is a **knave**\n> Carol is a **knight**",
        "| Name | Role |\n|:---|---:|\n| Alice | Knight |\n| Bob | Knave |\n| Carol | Knight |",
        "<ul><li>Alice: knight</li><li>Bob: knave</li><li>Carol: <b>knight</b></li></ul>",
        r"\boxed{\text{Alice is a knight}, \text{Bob is a knave}, \text{Carol is a knight}}",
        '{"Alice": "knight", "Bob": "knave", "Carol": "knight"}',
        "{'Alice': 'knight', 'Bob': 'knave', 'Carol': 'knight'}",
        '[{"name": "Alice", "role": "knight"}, {"name": "Bob", "role": "knave"}, {"name": "Carol", "role": "knight"}]',
        "$$\\text{Alice} = \\text{knight},\\; \\text{Bob} = \\text{knave},\\; \\text{Carol} = \\text{knight}$$",
        "(1)Alice is a knight(2)Bob is a knave(3)Carol is a knight",
        "a) Alice is a knight\nb) Bob is a knave\nc) Carol is a knight",
        "Alice: Knight ✅\nBob: Knave ❌\nCarol: Knight ✅",
        "“Alice” is a knight, «Bob» is a knave, ‘Carol’ is a knight",
        "Alice is a knight—Bob is a knave—Carol is a knight",
        "Ａｌｉｃｅ is a 𝐤𝐧𝐢𝐠𝐡𝐭, Bo\u200bb is a kna\u00adve, Carol\u00a0is\u2009a knight",
        # grouped by role
        "Knights: Alice, Carol\nKnaves: Bob",
        "Knights: Alice, Carol; Knaves: Bob",
        "Knights: Alice, Carol, Knaves: Bob",
        "Knight: Alice. Knave: Bob. Knight: Carol.",
        "The knights are Alice and Carol, and the knave is Bob.",
        "Knights are Alice and Carol. Knaves are Bob.",
        "**Knights:**\n- Alice\n- Carol\n\n**Knaves:**\n- Bob",
        # denials of the other role
        "Alice is not a knave, Bob is not a knight, Carol isn't a knave",
        "Alice is a knight, not a knave. Bob isn't a knight but a knave. Carol is a knight (not a knave)",
        "Alice is a knight rather than a knave, Bob cannot be a knight, Carol is a knight and not a knave",
        # prose
        "There are 2 knights and 1 knave: " + PLAIN,
        "So who is a knight and who is a knave? " + PLAIN + ". I hope this helps!",
        "The solution is:\nAlice = Knight\nBob = Knave\nCarol = Knight",
        "Alice is a knight because if she were a knave, Bob would be a knight.\n"
        "Bob is a knave since his statement is false.\nCarol is a knight.",
        "Alice is a knight: her words are true. Bob is a knave: he lies. Carol is a knight: see above.",
        "Making Alice a knight and Bob a knave, Carol is a knight",
        PLAIN + ".\n\nThis fits what Bob said about Carol.",
        PLAIN + ". So, again, Alice is a knight!",
        "Suppose Alice is a knave. Then Bob is a knight, which cannot be.\nFinal answer: " + PLAIN,
        "In conclusion, " + PLAIN + ". That is my conclusion: Bob is a knave.",
        # tags
        f"<think>Alice is a knave?</think><answer>{PLAIN}</answer>",
        f"Alice is a knave?</think>\n<Answer> {PLAIN} </Answer>",
        f"<answer>Alice is a knave</answer> No! <answer>{PLAIN}</answer>",
        f"<think><answer>Alice is a knave, Bob is a knave, Carol is a knave</answer></think>{PLAIN}",
        f"<answer>{PLAIN}</answer> Had Alice been a knave, Bob is a knight.",
        f"<answer>{PLAIN}",
        f"<think>...</think> {PLAIN}",
    ],
)
def test_read(text: str) -> None:
    assert parse_answer(text, NAMES) == ROLES
    assert list(parse_answer(text, NAMES[::-1]) or ()) == NAMES[::-1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I do not know.",
        "knight, knave, knight",
        "A: knight, B: knave, C: knight",
        "Everyone is a knight",
        # incomplete, repeated or contradictory
        "Alice is a knight, Bob is a knave, Carol is",
        "Alice is a knight\nBob is a knave\nBob is a knave",
        PLAIN + ", Carol is a knave",
        PLAIN + ". Alice is not a knight.",
        "Alice and Carol are knights. Bob and Carol are knaves.",
        "Alice is a knight but a knave, Bob is a knave, Carol is a knight",
        "Alice is not a knave but a knave, Bob is a knave, Carol is a knight",
        f"<answer>{PLAIN}</answer><answer></answer>",
        f"<answer>{PLAIN}</answer><answer>Alice is a knave</answer>",
        # no assertion
        "Alice is a knight or a knave, Bob is a knave, Carol is a knight",
        "Alice is a knight/knave, Bob is a knave, Carol is a knight",
        "Alice is a knight and a knave, Bob is a knave, Carol is a knight",
        "Alice is neither a knight nor a knave, Bob is a knave, Carol is a knight",
        "Alice might be a knight, Bob is a knave, Carol is a knight",
        "Alice would be a knight, Bob is a knave, Carol is a knight",
        "Either Alice is a knight or Bob is a knave. Carol is a knight",
        "If Alice is a knight, Bob is a knave and Carol is a knight",
        "Alice is a knight if Bob is a knave and Carol is a knight",
        "Suppose Alice is a knight. Then Bob is a knave. Then Carol is a knight.",
        f"{PLAIN}, or Alice is a knave, Bob is a knight, Carol is a knave",
        "It is not the case that Alice is a knight. Bob is a knave. Carol is a knight",
        "It is false that Alice is a knight, Bob is a knave, Carol is a knight",
        "Alice says Bob is a knave. Alice is a knight. Carol is a knight",
        'Alice said, "Bob is a knave." Alice is a knight. Carol is a knight.',
        '"Bob is a knave," Alice claimed. Alice is a knight. Carol is a knight.',
        "According to Alice, Bob is a knave. Alice is a knight. Carol is a knight.",
        # other people
        PLAIN + ", Dave is a knave",
        "(1) Alice is a knight\n(2) Bob is a knave\n(3) Carol is a knight\n(4) dave is a knight",
        "Alice is a knight, Bob is a knave, Mary Carol is a knight",
        "Alice Smith is a knight, Bob is a knave, Carol is a knight",
        "Alice is a knight, Bob is a knave, Caroline is a knight",
        "Alice is a knight, Bob is a knave, Carol-Ann is a knight",
        "Alice is a knight, Bob is a knave, O'Carol is a knight",
        # thinking without an end, and drafts
        f"<think>{PLAIN}",
        f"<think><answer>{PLAIN}</answer></think> I give up.",
    ],
)
def test_not_read(text: str) -> None:
    assert parse_answer(text, NAMES) is None


def test_not_a_knight_is_a_knave() -> None:
    assert parse_answer("Alice is not a knight", ["Alice"]) == {"Alice": "knave"}


def test_names_inside_other_names() -> None:
    names = ["Ann", "Annabel", "Ann Marie", "Jo-Ann", "Marie"]
    text = "Ann Marie is a knave, Annabel is a knight, Jo-Ann is a knight, Marie is a knight and Ann is a knave"
    wanted = {"Ann": "knave", "Annabel": "knight", "Ann Marie": "knave", "Jo-Ann": "knight", "Marie": "knight"}
    assert parse_answer(text, names) == wanted
    assert parse_answer(text.upper(), names) == wanted
    assert parse_answer(text.replace("Jo-Ann", "Jo‑Ann").replace("Ann M", "Ann\u00a0 M"), names) == wanted
    assert parse_answer(text.replace("Ann Marie", "Ann, Marie"), names) is None


def test_accents_and_apostrophes() -> None:
    names = ["Zoë", "José", "D’Arcy", "Łukasz"]
    roles = dict(zip(names, ["knight", "knave", "knave", "knight"]))
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, "ZOË is a knight, José is a knave, D'Arcy is a knave, łukasz is a knight")
        assert parse_answer(text, names) == roles
        assert parse_answer(text, [unicodedata.normalize("NFD", name) for name in names]) is not None
    assert parse_answer("Zoé is a knight", ["Zoë"]) is None


def test_names_that_are_words() -> None:
    names = ["Will", "May", "Dr. Art Knight", "R2D2"]
    text = (
        "Will is a knave. May is a knight, as she will be a knight. Dr. Art Knight is a knave (may I add), R2D2: knight"
    )
    assert parse_answer(text, names) == dict(zip(names, ["knave", "knight", "knave", "knight"]))
    assert parse_answer("will is a knave", ["Will"]) == {"Will": "knave"}


@pytest.mark.parametrize("names", [[], ["Ann", "ANN"], ["Ann", ""], ["Ann", " Ann"]])
def test_impossible_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="names must be"):
        parse_answer("Ann is a knight", names)


def test_text_must_be_text() -> None:
    with pytest.raises(TypeError):
        parse_answer(None, NAMES)  # type: ignore[arg-type]


FRAGMENTS = [
    "Ann", "Annabel", "Marie", "is", "are", "a", "not", "knight", "knave", "knights:", "knaves", ",", "and", "or",
    "|", ":", "-", "(", ")", ".", "\n", "if", "<answer>", "</answer>", "<think>", "</think>", "'s", "'", '"', "\\",
    "*", "=", "1", "but", "said",
]  # fmt: skip
people = st.lists(
    st.sampled_from(["Ann", "Annabel", "Ann Marie", "Zoë", "O'Brien", "Jo-Ann", "Otto", "Ada", "Li", "Max"]),
    min_size=2,
    max_size=7,
    unique=True,
)


def rendered(generator: random.Random, roles: dict[str, str]) -> str:
    """The roles in a random wording, order, case and markup."""
    items = list(roles.items())
    generator.shuffle(items)
    style = generator.randrange(5)
    if style == 0:  # by role
        parts = []
        for role in ("knight", "knave"):
            names = [name for name, its in items if its == role]
            if names:
                parts.append(f"{role.capitalize()}s: {', '.join(names)}")
        text = generator.choice(["\n", "; ", ". "]).join(parts)
    elif style == 1:
        text = "| Person | Role |\n|---|---|\n" + "\n".join(f"| {name} | {role} |" for name, role in items)
    else:
        wordings = [
            "{0} is a {1}",
            "{0}: {1}",
            "**{0}** is a **{1}**",
            "{0} must be a {1}",
            "{0} - {1}",
            "{0} is not a {2}",
        ]
        wording = generator.choice(wordings)
        lines = [wording.format(n, r, "knave" if r == "knight" else "knight") for n, r in items]
        if style == 2:
            lines = [f"({i}) {line}" for i, line in enumerate(lines, start=1)]
        if style == 3 and generator.random() < 0.5:
            lines.append(generator.choice(lines))
        text = generator.choice(["\n", ", ", ". ", "; "]).join(lines)
    text = generator.choice([str, str.upper, str.lower])(text)
    text = unicodedata.normalize(generator.choice(["NFC", "NFD"]), text)
    before, after = generator.choice([("", ""), ("Here is the answer.\n", "\nThat is all."), ("<answer>", "</answer>")])
    return before + text + after


@settings(max_examples=200, deadline=None)
@given(people, st.data())
def test_any_rendering_of_an_assignment_is_read_as_that_assignment(names: list[str], data: st.DataObject) -> None:
    generator = data.draw(st.randoms(use_true_random=False))
    roles = {name: data.draw(st.sampled_from(["knight", "knave"])) for name in names}
    assert parse_answer(rendered(generator, roles), names) == roles


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS)))
def test_whatever_the_text_the_result_is_whole_or_none(parts: list[str]) -> None:
    names = ["Ann", "Annabel", "Ann Marie"]
    answer = parse_answer(" ".join(parts), names)
    assert answer is None or (list(answer) == names and set(answer.values()) <= {"knight", "knave"})


def test_long_junk_takes_no_time() -> None:
    long = 100_000
    pieces = [
        "a", "Ann, ", "Ann is ", "Ann is a knight, ", "knights: ", "<a", "<answer>", '"', "\n", " ", "-", "a-",
        "n't", "(", "1", "final answer", "\u0301\u0316", "\ufdfa", "\u1100\u1161",
    ]  # fmt: skip
    junk = [piece * (long // len(piece)) + " knight" for piece in pieces]
    generator = random.Random(0)
    junk.append("".join(chr(generator.randrange(1, 0xD7FF)) for _ in range(long)) + "knight")
    junk.append("".join(generator.choice([*pieces, "knight", ":"]) for _ in range(long // 4)))
    for text in junk:
        start = time.process_time()
        parse_answer(text, ["Ann", "Annabel", "Ann Marie"])
        assert time.process_time() - start < 3, text[:20]  # quadratic time would be minutes


@pytest.mark.parametrize(
    "text, good",
    [
        ("<think>x</think><answer>y</answer>", True),
        ("\n<think>\nx\n</think>\n\n<answer>y</answer>\n", True),
        ("<think></think><answer></answer>", True),
        ("x</think><answer>y</answer>", False),
        ("<think>x</think>y", False),
        ("<answer>y</answer><think>x</think>", False),
        ("<think>x<answer>y</answer></think>", False),
        ("<think>x</think><answer>y</answer><answer>y</answer>", False),
        ("<think>x</think>so <answer>y</answer>", False),
        ("<think>x</think><answer>y</answer> done", False),
        ("<think>x</think><answer>y", False),
        ("", False),
    ],
)
def test_well_formed(text: str, good: bool) -> None:
    assert is_well_formed(text) is good


def test_every_assignment_is_told_from_every_other() -> None:
    names = ["Ann", "Annabel", "Ann Marie", "Bo"]
    for roles in itertools.product(["knight", "knave"], repeat=4):
        gold = dict(zip(names, roles))
        assert parse_answer("\n".join(f"{name} is a {role}" for name, role in gold.items()), names) == gold
