"""The Knights & Knaves task: disjoint parts with a proof, rewards, and the public test files."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset, concatenate_datasets

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.puzzle_answers import read_roles
from grpo_replications.shared.tasks import load_task
from grpo_replications.shared.tasks.knights_and_knaves import (
    answer_reward,
    build_prompt,
    format_reward,
    is_correct,
    read_puzzles,
    shaped_reward,
    split_proof,
    strict_reward,
)
from grpo_replications.shared.tasks.puzzles.statements import canonical_form, parse_statements, solutions

DATA = Path(__file__).parents[4] / "shared" / "data" / "kk"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this clone")
FILES = {people: DATA / f"{people}ppl_test.parquet" for people in (3, 5, 7)}
SMALL = {"train_size": 100, "validation_size": 40}


def forms(dataset: Dataset) -> list[tuple[int, ...]]:
    return [canonical_form(parse_statements(text)) for text in dataset["statements"]]


def test_rows() -> None:
    task = load_task("knights-and-knaves", people=[2, 4], train_size=20, validation_size=6)
    assert set(task.train.column_names) == {"prompt", "names", "roles", "answer", "people", "statements", "puzzle"}
    assert sorted(task.train["people"]) == [2] * 10 + [4] * 10 != task.train["people"]
    for row in task.train:
        assert [message["role"] for message in row["prompt"]] == ["system", "user"]
        assert row["prompt"] == task.build_prompt(row["prompt"][1]["content"])
        assert all(name in row["prompt"][1]["content"] for name in row["names"])
        assert solutions(parse_statements(row["statements"])) == [tuple(role == "knight" for role in row["roles"])]
        assert read_roles(row["answer"], row["names"]) == dict(zip(row["names"], row["roles"]))
    system = build_prompt("?")[0]["content"]
    assert "<think>" in system and "<answer>(1) NAME is a knight" in system


def test_no_seed_or_size_puts_a_puzzle_on_both_sides() -> None:
    tasks = [
        load_task("knights-and-knaves", people=[2, 3], train_size=size, validation_size=10 + seed, seed=seed)
        for seed, size in ((0, 150), (1, 200))
    ]
    held_out = {form for task in tasks for form in forms(task.validation)}
    trained_on = {form for task in tasks for form in forms(task.train)}
    assert not held_out & trained_on
    for task in tasks:
        assert len(set(task.train["statements"])) == len(task.train)
        assert len(set(forms(task.validation))) == len(task.validation) == len(set(task.validation["puzzle"]))
        assert task.settings["shared_puzzles"] == 0
        assert task.settings["train_puzzles"] == len(set(forms(task.train)))
        assert task.settings["validation_puzzles"] == len(task.validation)


def test_seed_moves_the_training_set_only() -> None:
    first, again, other = (load_task("knights-and-knaves", **SMALL, seed=seed) for seed in (0, 0, 1))
    assert first.train["prompt"] == again.train["prompt"]
    assert first.settings["train_digest"] == again.settings["train_digest"] != other.settings["train_digest"]
    assert first.validation["prompt"] == other.validation["prompt"]
    assert first.settings["validation_digest"] == other.settings["validation_digest"]
    # Unlike with a seed added to an item's number, neighboring seeds have next to nothing in common.
    assert len(set(first.train["statements"]) & set(other.train["statements"])) < 10


def test_global_generator_is_left_alone() -> None:
    state = random.getstate()
    load_task("knights-and-knaves", **SMALL)
    assert random.getstate() == state


def test_split_proof_sees_a_leak_behind_other_names() -> None:
    task = load_task("knights-and-knaves", people=3, **SMALL)
    leaked = task.validation.select([0]).to_list()[0]
    swapped = {0: 2, 1: 0, 2: 1}

    def rename(part: object) -> object:
        if isinstance(part, tuple):
            return tuple(rename(x) for x in part)
        return swapped.get(part, part) if isinstance(part, int) else part

    statements = parse_statements(leaked["statements"])
    moved = [("not", ("not", rename(statements[old]))) for old in (1, 2, 0)]
    leak = Dataset.from_list([{**leaked, "statements": repr(tuple(moved))}])
    assert leak["statements"][0] not in task.validation["statements"]
    with pytest.raises(ReplicationError, match="1 puzzles are in the training set"):
        split_proof(concatenate_datasets([task.train, leak]), task.validation)


def test_numbers_of_people_for_validation() -> None:
    task = load_task("knights-and-knaves", people=3, validation_people=[6, 7], **SMALL)
    assert set(task.train["people"]) == {3}
    assert sorted(task.validation["people"]) == [6] * 20 + [7] * 20


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"people": 2, "train_size": 500, "validation_size": 3},
            r"Only \d+ of 500 distinct train puzzles with 2 people",
        ),
        ({"people": 2, "validation_size": 30}, "Only .* distinct validation puzzles"),
        ({"people": 1}, "from 2 to 7"),
        ({"people": [3, 8]}, "from 2 to 7"),
        ({"people": []}, "from 2 to 7"),
        ({"people": "3"}, "from 2 to 7"),
        ({"people": True}, "from 2 to 7"),
        ({"train_size": 0}, "at least one"),
        ({"validation_size": -1}, "at least one"),
        ({"depth": 1}, "depth"),
        ({"width": 9}, "width"),
        ({"reward": "partial"}, "strict, shaped"),
        ({"persons": 3}, "no setting persons"),
        ({"train_path": "missing.parquet"}, "cannot be read"),
    ],
)
def test_impossible_settings(settings: dict, message: str) -> None:
    with pytest.raises(ReplicationError, match=message):
        load_task("knights-and-knaves", **settings)


# Rewards.

GOLD = {"names": [["Ann", "Bob"]], "roles": [["knight", "knave"]]}
RIGHT, WRONG, NONE = "(1) Ann is a knight\n(2) Bob is a knave", "(1) Ann is a knave\n(2) Bob is a knave", "who knows?"


@pytest.mark.parametrize(
    "completion, strict, total",
    [
        (f"<think>.</think><answer>{RIGHT}</answer>", 1.0, 3.0),
        (f"<think>.</think>\n<answer>\n{RIGHT}\n</answer>\n", 1.0, 3.0),
        (f"<think>.</think><answer>{WRONG}</answer>", 0.0, -0.5),
        (f"<think>.</think><answer>{NONE}</answer>", 0.0, -1.0),
        ("<think>.</think><answer></answer>", 0.0, -1.0),
        ("<think>.</think><answer>Ann is a knight</answer>", 0.0, -1.0),
        (f"<answer>{RIGHT}</answer>", 1.0, -3.0),
        (RIGHT, 0.0, -3.0),
        (f"<answer>{WRONG}</answer>", 0.0, -3.0),
        (f"<think>{RIGHT}", 0.0, -3.0),
        ("", 0.0, -3.0),
    ],
)
def test_rewards(completion: str, strict: float, total: float) -> None:
    messages = [{"role": "assistant", "content": completion}]
    for given in (completion, messages):
        assert strict_reward([given], **GOLD, prompts=["?"]) == [strict]
        assert (
            format_reward([given])[0] + answer_reward([given], **GOLD)[0] == shaped_reward([given], **GOLD)[0] == total
        )
        shaped = load_task("knights-and-knaves", reward="shaped", **SMALL).rewards
        assert shaped[0] is strict_reward  # what evaluation counts as correct
        assert sum(reward([given], **GOLD)[0] for reward in shaped) == total  # what TRL trains on
    assert is_correct(completion, {"Ann": "knight", "Bob": "knave"}) is bool(strict)


def test_the_rule_of_ar_lopti_is_chosen_by_name_and_pays_more() -> None:
    denied = "<think>.</think><answer>It is false that Ann is a knight and Bob is a knave.</answer>"
    loose = load_task("knights-and-knaves", reward="shaped", parser="ar-lopti", **SMALL)
    assert loose.settings["parser"] == "ar-lopti"
    assert [reward([denied], **GOLD)[0] for reward in loose.rewards] == [1.0, 2.0]
    strict = load_task("knights-and-knaves", reward="shaped", **SMALL)
    assert strict.settings["parser"] == "strict"
    assert [reward([denied], **GOLD)[0] for reward in strict.rewards] == [0.0, -1.0]
    with pytest.raises(ReplicationError, match="strict, ar-lopti"):
        load_task("knights-and-knaves", parser="lenient", **SMALL)


def test_strict_is_the_default_reward() -> None:
    assert load_task("knights-and-knaves", **SMALL).rewards == [strict_reward]


def test_a_constant_answer_earns_little() -> None:
    """Partial credit would pay the best constant answer about two thirds; the strict reward pays it rarely."""
    rows = load_task("knights-and-knaves", people=3, train_size=400, validation_size=1).train
    columns = {"names": rows["names"], "roles": rows["roles"]}
    strict, partial = [], []
    for roles in itertools.product(["knight", "knave"], repeat=3):
        lines = [[f"{name} is a {role}" for name, role in zip(names, roles)] for names in rows["names"]]
        texts = [f"<answer>{'; '.join(line)}</answer>" for line in lines]
        strict.append(sum(strict_reward(texts, **columns)) / len(rows))
        partial.append(sum(sum(a == b for a, b in zip(gold, roles)) / 3 for gold in rows["roles"]) / len(rows))
    assert sum(strict) == pytest.approx(1.0)  # every gold answer is one of the eight
    assert max(strict) < 0.25 and max(partial) > 0.5


@pytest.mark.parametrize(
    "gold",
    [
        {"names": [["Ann", "Bob"]], "roles": [["knight"]]},
        {"names": [["Ann", "Bob"]], "roles": [["knight", "liar"]]},
        {"names": [[]], "roles": [[]]},
        {"names": [["Ann", "ann"]], "roles": [["knight", "knave"]]},
        {"names": [["Ann", "Bob"]] * 2, "roles": [["knight", "knave"]] * 2},
    ],
)
def test_a_gold_answer_that_is_none_is_an_error(gold: dict) -> None:
    with pytest.raises(ValueError):
        strict_reward([RIGHT], **gold)


# Files.


def write_file(path: Path, **changes: object) -> str:
    row = {"quiz": "?", "names": ["Ann", "Bob"], "solution": [False, True],
           "statements": "(('and', ('lying', 0), ('lying', 1)), ('lying', 0))", **changes}  # fmt: skip
    path.write_text(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n", encoding="utf-8")
    return str(path)


def test_files_of_puzzles(tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.jsonl")
    assert [puzzle.roles for puzzle in read_puzzles(file)] == [{"Ann": "knave", "Bob": "knight"}]
    pd.read_json(file, lines=True).to_parquet(tmp_path / "a.parquet")
    assert read_puzzles(tmp_path / "a.parquet") == read_puzzles(file)
    changes = [
        {"solution": [True, True]},
        {"statements": "(('lying', 1), ('lying', 0))"},
        {"statements": "?"},
        {"statements": None},
        {"names": ["Ann", "Ann"]},
        {"names": ["Ann"]},
        {"solution": 1},
    ]
    for change in changes:
        with pytest.raises(ReplicationError):
            read_puzzles(write_file(tmp_path / "b.jsonl", **change))
    with pytest.raises(ReplicationError, match="one by one"):
        read_puzzles(tmp_path)


def test_training_leaves_out_what_the_validation_file_holds(tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.jsonl")
    mirror_image = "(('not', ('telling-truth', 1)), ('and', ('lying', 1), ('lying', 0)))"
    mirrored = write_file(tmp_path / "b.jsonl", names=["Eve", "Max"], solution=[True, False], statements=mirror_image)
    another = "(('or', ('telling-truth', 0), ('telling-truth', 1)), ('and', ('lying', 0), ('lying', 1)))"
    other = write_file(tmp_path / "c.jsonl", solution=[True, False], statements=another)
    task = load_task("knights-and-knaves", train_path=[mirrored, other], validation_path=file)
    assert len(task.train) == 1 and task.settings["left_out_of_train"] == 1 and task.settings["people"] == [2]
    with pytest.raises(ReplicationError, match="No training puzzle is left"):
        load_task("knights-and-knaves", train_path=mirrored, validation_path=file)
    drawn = load_task("knights-and-knaves", people=2, train_size=60, validation_path=file)
    assert drawn.settings["shared_puzzles"] == 0 and len(drawn.train) == 60


@needs_data
@pytest.mark.parametrize("people", FILES)
def test_public_files(people: int) -> None:
    """Solver and gold agree; every gold rendering is right; of the first puzzles every wrong assignment is not."""
    table, puzzles = pd.read_parquet(FILES[people]), read_puzzles(FILES[people])
    assert len(puzzles) == 100
    generator = random.Random(people)
    for number, (puzzle, (_, row)) in enumerate(zip(puzzles, table.iterrows())):
        assert solutions(puzzle.statements) == [tuple(map(bool, row["solution"]))]
        gold = puzzle.roles
        assert puzzle.answer == row["solution_text_format"]
        lines = row["solution_text_format"].split("\n")
        generator.shuffle(lines)
        for rendering in (
            row["solution_text"],
            row["solution_text_format"],
            "\n".join(lines).upper(),
            "; ".join(lines),
            "**" + "**\n**".join(lines) + "**",
        ):
            assert is_correct(f"<think>{row['cot_foot']}</think><answer>{rendering}</answer>", gold)
        names, truth = list(gold), list(gold.values())
        for roles in itertools.product(["knight", "knave"], repeat=people if number < 10 else 0):
            text = "\n".join(f"({i}) {n} is a {r}" for i, (n, r) in enumerate(zip(names, roles), start=1))
            assert is_correct(f"<answer>{text}</answer>", gold) == (list(roles) == truth)


@needs_data
def test_drawn_training_puzzles_are_none_of_the_public_ones() -> None:
    task = load_task(
        "knights-and-knaves", people=[3, 5, 7], train_size=300, validation_path=list(map(str, FILES.values()))
    )
    assert len(task.validation) == 300 and task.settings["validation_people"] == [3, 5, 7]
    public = {canonical_form(puzzle.statements) for file in FILES.values() for puzzle in read_puzzles(file)}
    assert task.settings["shared_puzzles"] == 0 and not public & set(forms(task.train))
    assert (
        task.settings["validation_puzzles"] == len(public) == 292
    )  # as one counts that tells no equivalent ones apart


def test_public_puzzles_are_divided_as_published(tmp_path: Path) -> None:
    """900 and 100 rows of each file; what training shares with the held-out rows is left out, whatever their number."""
    (tmp_path / "train").mkdir()
    row = {"quiz": "Who is what?", "names": ["Ann", "Bob"]}
    kinds = [
        {**row, "solution": list(map(bool, solutions(parse_statements(text))[0])), "statements": text}
        for text in (
            "(('not', ('telling-truth', 1)), ('and', ('lying', 0), ('lying', 1)))",
            "(('or', ('telling-truth', 0), ('telling-truth', 1)), ('and', ('lying', 0), ('lying', 1)))",
        )
    ]
    rows = [kinds[0]] * 899 + [kinds[1]] + [kinds[0]] * 10 + [kinds[1]] * 90
    (tmp_path / "train" / "people2_num1000.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ReplicationError, match="No training puzzle is left"):
        load_task("knights-and-knaves", people=2, public=str(tmp_path), validation_size=5)
    rows[900:] = [kinds[1]] * 100
    (tmp_path / "train" / "people2_num1000.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load_task("knights-and-knaves", people=2, public=str(tmp_path), train_size=2000, validation_size=5)
    assert (len(task.train), len(task.validation), task.settings["left_out_of_train"]) == (899, 5, 1)
    with pytest.raises(ReplicationError, match="people3_num1000"):
        load_task("knights-and-knaves", people=3, public=str(tmp_path))


def test_a_prompt_that_ends_in_the_first_tag_and_text_around_the_tags() -> None:
    gold = {"names": [["Ann"]], "roles": [["knight"]]}
    whole = "<think>a</think><answer>(1) Ann is a knight</answer>"
    begun, around = whole.removeprefix("<think>"), "Well. " + whole + "\n"

    def paid(layout: str, completion: str, prompt: object = "Who?") -> float:
        task = load_task(
            "knights-and-knaves", people=2, reward="shaped", layout=layout, train_size=2, validation_size=1
        )
        return sum(reward(completions=[completion], prompts=[prompt], **gold)[0] for reward in task.rewards)

    assert paid("strict", whole) == paid("loose", whole) == paid("loose", around) == 3.0
    assert paid("strict", around) == -3.0
    assert paid("strict", begun, "Who? <think>") == 3.0 and paid("strict", begun, [{"content": "<think>"}]) == -3.0
