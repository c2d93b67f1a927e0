"""What an answer of two people asserts and what it only mentions: denials, reports, corrections, questions, logic."""

from __future__ import annotations

import random

import pytest

from shared.grading.puzzles import answer_words
from shared.grading.puzzles.answers import parse_answer

NAMES = ("Ada", "Otto")


def read(text: str) -> str | None:
    """Initials of the roles read, "K" for a knight and "V" for a knave."""
    answer = parse_answer(text, NAMES)
    return answer and "".join("K" if answer[name] == "knight" else "V" for name in NAMES)


@pytest.mark.parametrize(
    "text",
    [
        # denied or denied in part
        "Not both Ada and Otto are knights",
        "It's not true that both Ada and Otto are knights",
        "It is not true that Ada is a knight and Otto is a knave",
        "It is not true that Ada is a knight and Otto is a knave. Ada is a knight",
        "Ada and Otto are not both knights",
        "Ada and Otto cannot both be knights",
        "Both Ada and Otto are not knights",
        "None of Ada and Otto are knights",
        "One of Ada and Otto is a knave. Ada is a knight",
        "At least one of Ada and Otto is a knave. Ada is a knight",
        "Ada is not necessarily a knight. Otto is a knave",
        "Ada isn't definitely a knight. Otto is a knave",
        "Ada is not certainly a knight. Otto is a knave",
        "Ada is not only a knight. Otto is a knave",
        'Otto\'s statement "Ada is a knight" is false. Otto is a knave',
        "Otto's statement 'Ada is a knight' is false. Otto is a knave",
        "Otto's statement: Ada is a knight. Otto is a knave",
        "Otto's claim that Ada is a knight is false. Otto is a knave",
        "The statement that Ada is a knight is false. Otto is a knave",
        "The assertion (Ada is a knight) is wrong. Otto is a knave",
        "Ada is a knight is false. Otto is a knave",
        "Ada: knight (false)\nOtto: knave",
        "Ada: knight - wrong\nOtto: knave",
        "Ada is a knight, which is not true. Otto is a knave",
        "Ada is a knight and Otto is a knave is false",
        "Ada is a knight. False. Otto is a knave",
        "Ada is a knight. That is not true. Otto is a knave",
        # a second role
        "Ada: knight → knave\nOtto: knave",
        "Ada: knight → knave, Otto: knave",
        "Ada: knight -> knave\nOtto: knave",
        "Ada: knight; knave\nOtto: knave",
        "Ada: knight\n knave\nOtto: knave",
        "Ada: knight then knave\nOtto: knave",
        "Ada: knight - knave\nOtto: knave",
        "Ada: knight knave\nOtto: knave",
        "Ada: knight + knave\nOtto: knave",
        "Ada: knight & knave\nOtto: knave",
        "Ada: knight | knave\nOtto: knave",
        "Ada: knight (70%), knave (30%)\nOtto: knave",
        "Ada: knight (0.7), knave (0.3)\nOtto: knave",
        "Ada is a knight, no, a knave. Otto is a knave",
        "Ada is a knight. No wait, she is a knave. Otto is a knave",
        "Ada is a knight. Wait, no, she's a knave. Otto is a knave",
        "Ada is a knight, I mean a knave. Otto is a knave",
        "Ada is a knight, sorry, knave. Otto is a knave",
        "Ada is a knight and also a knave. Otto is a knave",
        "Ada is a knight and is a knave. Otto is a knave",
        "Ada is a knight; she is not a knight. Otto is a knave",
        "Ada is a knight, Otto is a knave; both are knaves",
        "Ada is a knight, Otto is a knave. Both of them are knights",
        "Ada is a knight, Otto is a knave. They are both knaves",
        "Ada is a knight, Otto is a knave. They are knights",
        "Ada is a knight, Otto is a knave. Everyone is a knave",
        "Ada is a knight, Otto is a knave. All of them are knights",
        "Ada is a knight, Otto is a knave. Nobody is a knight",
        "Ada is a knight, Otto is a knave. None of them is a knave",
        # strangers in a list
        "Knights: Ada, Zara; Knaves: Otto",
        "KNIGHTS: ADA, ZARA; KNAVES: OTTO",
        "Knights: Zara, Ada; Knaves: Otto",
        "Knights:\n- Ada\n- Zara\nKnaves:\n- Otto",
        "Knights:\nAda, Zara\nKnaves:\nOtto",
        "The knights are Ada and Zara. The knave is Otto",
        # questions, conditions and logic
        "Is Ada a knight? Is Otto a knave?",
        "Ada is a knight? Otto is a knave",
        "Ada: knight? Otto: knave?",
        "Ada is a knight, Otto is a knave?",
        "Ada is a knight!? Otto is a knave",
        "Is Ada a knight. Otto is a knave",
        "Ada is a knight => Otto is a knave",
        "Ada is a knight ⇒ Otto is a knave",
        "Ada is a knight → Otto is a knave",
        "Ada is a knight ⇔ Otto is a knave",
        "Ada is a knight <=> Otto is a knave",
        "Ada is a knight <-> Otto is a knave",
        "Ada is a knight ∨ Otto is a knave",
        "Ada is a knight ⇐ Otto is a knave",
        "Ada is a knight <= Otto is a knave",
        "Ada is a knight XOR Otto is a knave",
        "Ada is a knight ≡ Otto is a knave",
        "¬(Ada is a knight), Otto is a knave",
        "Ada is a knight provided that Otto is a knave",
        "Ada is a knight provided Otto is a knave. Otto is a knave",
        "Ada is a knight only if Otto is a knave. Otto is a knave",
        "Ada is a knight implies Otto is a knave",
        "Ada is a knight \\Rightarrow Otto is a knave",
        "Ada is a knight \\lor Otto is a knave",
        "Ada is a knight assuming Otto is a knave.\nOtto is a knave",
        "Maybe Ada is a knight. Otto is a knave",
        # somebody's words, and half an answer
        'As Otto put it, "Ada is a knight". Otto is a knave',
        "Otto expressed that Ada is a knight. Otto is a knave",
        'In Otto\'s words: "Ada is a knight". Otto is a knave',
        'In a statement by Otto: "Ada is a knight". Otto is a knave',
        "Ada and Otto claim Ada is a knight. Otto is a knave",
        "Ada and Otto are a knight, respectively",
        "Ada and Otto are a knight, a knave and a knave, respectively",
        "Ada (unlike Otto) is a knight. Ada is a knight",
        "Ada/Otto is a knight. Ada is a knight",
        "Ada is 70% a knight. Otto is a knave",
        "Ada != knight, Otto = knave or knight",
        "Ada:\n  knight\n  knave\nOtto:\n  knave",
        "Ada:\n  knight or knave\nOtto:\n  knave",
        "Ada:\n  knight (false)\nOtto:\n  knave",
        "name: Ada\nrole: knight\nrole: knave\nname: Otto\nrole: knave",
        "Ada tells the truth (knave). Otto is a knave",
        "Ada is a knight except when Otto is a knave. Otto is a knave",
        "Knight\nAda\nKnave\nOtto",
        "Ada\nOtto\nknight\nknave",
        'Otto: "Ada is a knight". Otto is a knave',
        '"Ada is a knight" - Otto. Otto is a knave',
        "Otto: Ada is a knight. Otto: knave",
        "Ada is a knight, says Otto. Otto is a knave",
        "Ada is a knight, Otto says. Otto is a knave",
        "Ada is a knight according to Otto. Otto is a knave",
        "Ada is a knight, probably. Otto is a knave",
        "Knight\nAda\n\nKnave\nOtto\n\nOtto is a knave",
        '{"Ada is a knight": false, "Otto is a knave": true}',
        "Otto thinks Ada is a knight. Otto is a knave",
        "Ada is a knight ... no: knave. Otto is a knave",
    ],
)
def test_not_asserted(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "(Ada, knight), (Otto, knave)",
        "[(Ada, knight), (Otto, knave)]",
        "Ada:\n  knight\nOtto:\n  knave",
        "**Ada**\n- knight\n**Otto**\n- knave",
        "name: Ada\nrole: knight\nname: Otto\nrole: knave",
        "- name: Ada\n  role: knight\n- name: Otto\n  role: knave",
        '{"Ada": {"role": "knight"}, "Otto": {"role": "knave"}}',
        '[\n {\n "name": "Ada",\n "role": "knight"\n },\n {\n "name": "Otto",\n "role": "knave"\n }\n]',
        "Ada & knight \\\\\\ Otto & knave",
        "Ada~is~a~knight, Otto~is~a~knave",
        "\\mathrm{Ada\\ is\\ a\\ knight}, \\mathrm{Otto\\ is\\ a\\ knave}",
        "①Ada is a knight ②Otto is a knave",
        "Ada's status: Knight. Otto's status: Knave",
        "Ada is actually a knight. Otto is really a knave",
        "Ada is in fact a knight. Otto is, in fact, a knave",
        "Ada is, therefore, a knight. Otto is therefore a knave",
        "Ada tells the truth (knight). Otto lies (knave)",
        "Ada always tells the truth (knight). Otto always lies (knave)",
        "Ada and Otto are a knight and a knave, respectively",
        "Otto and Ada are a knave and a knight respectively.",
        "Ada and Otto are respectively a knight and a knave",
        "Ada, a knight, and Otto, a knave",
        "Ada, a knight. Otto, a knave.",
        "Ada was a knight. Otto will be a knave",
        "Ada was a knight, Otto was a knave",
        "Ada is definitely not a knave. Otto is certainly not a knight",
        "Ada must not be a knave. Otto cannot be a knight",
        'Since Otto\'s statement "Ada is a knave" is false, Ada is a knight. Otto is a knave',
        "Otto's statement is false, so Otto is a knave. Ada is a knight",
        "Ada is a knight: her statement is true. Otto is a knave: his claim is false",
        "Ada is a knight (a knight tells the truth). Otto is a knave: a knave lies",
        "Ada is a knight. Otto is a knave. So she is right and he is a knave.",
        "Ada is a knight, and she is a knight. Otto is a knave, a knave",
        "Ada is a knight. Otto's statement is false, so he is a knave. So Otto is a knave",
        "Ada is a knight, Otto is a knave. Everyone is a knight or a knave",
        "Ada is a knight, Otto is a knave. Each is either a knight or a knave",
        "Ada is a knight, Otto is a knave. They are not both knights",
        "Ada is a knight, Otto is a knave. No, they are not both knaves",
        "Ada is a knight, Otto is a knave. That is one knight and one knave",
        "Ada is a knight, Otto is a knave. This gives 1 knight and 1 knave",
        "Who is a knight? Ada is a knight. And Otto? Otto is a knave",
        "Is Ada a knave? No. Ada is a knight. Otto is a knave",
        "Contradiction → Ada is a knight\n⇒ Otto is a knave",
        "Ada → knight, Otto → a knave",
        "Ada: knight. Hence Otto is a knave. This means Otto is a knave",
        "Ada is a knight ∧ Otto is a knave",
        "Ada: ¬knave, Otto: ¬knight",
        "Ada ≠ knave, Otto != knight",
        "Knights: Ada. Knaves: Otto. Explanation: Ada tells the truth",
        "Knights: Ada, Knaves: Otto",
        "Knights:\n- Ada\n\nKnaves:\n- Otto\n\nExplanation\nsee above",
        "Knights → Ada; Knaves → Otto",
        "Knight: Ada: Otto is a knave",
        "As a knight, Ada tells the truth. Ada is a knight and Otto is a knave.",
        "Neither is unknown. Ada is a knight; Otto is a knave",
        "Not all are knights. Ada is a knight. Otto is a knave.",
        "Ada is a knight (90% sure). Otto is a knave (80% sure)",
        "### Knights and Knaves\nAda is a knight\nOtto is a knave\n",
        "Based on the provided statements: Ada is a knight, Otto is a knave",
        "My final statement: Ada is a knight, Otto is a knave",
        "In other words: Ada is a knight, Otto is a knave",
        "In other words, Ada is a knight, Otto is a knave",
        "No, Ada is a knight, Otto is a knave",
        "Ada is a knight, since if she is a knave, Otto is a knight. Otto is a knave",
        "Both statements fit: Ada is a knight, Otto is a knave",
        "It is not the case\nAda is a knight, Otto is a knave",
    ],
)
def test_asserted(text: str) -> None:
    assert read(text) == "KV"


def test_both_and_respectively() -> None:
    assert read("Both Ada and Otto are knights") == read("All of Ada, Otto are knights") == "KK"
    assert read("Ada and Otto are not knights") == read("Knights: none; knaves: Ada, Otto") == "VV"
    assert read("Otto and Ada are a knight and a knave, respectively") == "VK"
    names = ["Ada", "Otto", "Zoe"]
    roles = dict(zip(names, ["knight", "knave", "knight"]))
    assert parse_answer("Ada, Otto, and Zoe are a knight, a knave, and a knight, respectively.", names) == roles
    assert parse_answer("Ada is a knight. Otto is a knave. Zoe is a knight. Both of them are knights", names) == roles
    assert parse_answer("Ada is a knight. Otto is a knave. Zoe is a knight. Both of them are knaves", names) is None


def test_a_puzzle_told_again_asserts_nothing() -> None:
    puzzle = (
        'Ada was heard saying, "Otto is a knight". "Ada is a knave," Otto claimed. As Ada put it, "Ada is a knave". '
        'In a statement by Otto: "Otto is a knave and Ada is a knave". "Otto is a knight" - Ada. Otto expressed that '
        "Ada is a knave. Ada told you that Otto is a knight if and only if Ada is a knight. In Ada's words: "
        '"Otto is a knight". So who is a knight and who is a knave?'
    )
    assert read(puzzle) is None
    assert read(f"{puzzle}\n(1) Ada is a knight\n(2) Otto is a knave") == "KV"


def test_no_depth_is_too_deep() -> None:
    for piece in (
        "knight: Ada is a knight, ",
        "Ada knight: ",
        "knight and knight: Ada ",
        "is not ",
        "(",
        "knaves: Zara, ",
    ):
        read(piece * 2000)
    assert read("knight: Ada is a knight, " * 2000 + "Otto is a knave") == "KV"


def test_no_sequence_of_tokens_raises() -> None:
    vocabulary = sorted(
        {word for value in vars(answer_words).values() if isinstance(value, frozenset) for word in value}
    )
    frequent = [
        "Ada",
        "Otto",
        "Zara",
        "knight",
        "knaves",
        "Knights",
        "\n",
        ".",
        ";",
        "?",
        "1",
        "70%",
        '"',
        "\\to",
        "⇔",
        "->",
    ]
    generator = random.Random(0)
    for _ in range(5000):
        pieces = generator.choices([*frequent, "respectively"], k=30) + generator.choices(vocabulary, k=20)
        generator.shuffle(pieces)
        read(generator.choice([" ", " ", ""]).join(pieces))
