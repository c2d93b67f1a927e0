"""What a rehearsal loads in place of a paper's models and data: stand-ins and small files with the same columns."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_replications.replications.preflight import Needs
from grpo_replications.shared.models.stand_ins import Kind, Lesson, kind_of, make_stand_in
from grpo_replications.shared.tasks import knights_and_knaves, load_task
from grpo_replications.shared.tasks.benchmarks import people_of
from grpo_replications.shared.tasks.math import BENCHMARKS, benchmark_source, build_prompt

TRAINING = 30  # problems of a training set
LESSONS = 60  # problems whose answers stand-ins are taught
PUZZLES = 12  # the same of puzzles, for each number of people
FORMAT = "</think><answer></answer>"  # in the form, and says nothing: completions are too short for more
INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."


def make_stand_ins(needs: Needs, directory: Path, root: Any, message: str = "", solvers: Sequence[str] = ()) -> None:
    """Write models and data below `directory`, as `shared.sources` looks for them; what is there stays.

    `root` makes the number of a benchmark's problems from the real one. `message`: the system message of puzzles; with
    the problems it is what the tokenizers are trained on, so that a prompt is about as many tokens as it has words.
    `solvers`: the models that are trained on puzzles, which are taught the form of an answer to them.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of every model that is written
    directory.mkdir(parents=True, exist_ok=True)
    problems, puzzles = _problems(), []
    for name in needs.datasets:
        rows = [_row("open-rs", *next(problems)) for _ in range(TRAINING)]
        _write(directory / f"{name.rpartition('/')[2]}.jsonl", rows)
    for name, _ in map(benchmark_source, needs.benchmarks):
        if people_of(name) is None:
            number = root(BENCHMARKS[name].problems if name in BENCHMARKS else 100)
            _write(directory / f"{name}.jsonl", [_row(name, *next(problems)) for _ in range(number)])
    for name, people in needs.puzzles.items():
        for count in people:
            path = directory / name.rpartition("/")[2] / "train" / f"people{count}_num1000.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = _puzzles(count)
            puzzles += rows[:PUZZLES]
            _write(path, rows)
    some = list(itertools.islice(_problems(), LESSONS))
    quizzes = [row["quiz"] for row in puzzles]
    texts = [INSTRUCTION, message, *(problem for problem, _ in some), *quizzes, "\\boxed{0} \\boxed{1}", FORMAT]
    sums = [Lesson(build_prompt(problem, INSTRUCTION), f"\\boxed{{{gold}}}") for problem, gold in some]
    forms = [Lesson(knights_and_knaves.build_prompt(quiz, message), FORMAT, "<think>") for quiz in quizzes]
    made: dict[tuple[Kind, bool], Path] = {}
    for name in needs.models:
        target, alike = directory / "models" / name, (kind_of(name), name in solvers)
        if alike in made and not target.exists():
            shutil.copytree(made[alike], target)
        lessons = forms if name in solvers else sums if kind_of(name).template else []
        made[alike] = make_stand_in(name, target, texts, lessons)


def _problems() -> Iterator[tuple[str, str]]:
    """Sums, differences and products of small numbers with a digit as answer, all different."""
    for largest in itertools.count(1):
        for a, b in itertools.product(range(largest + 1), repeat=2):
            if max(a, b) == largest:
                if a + b <= 9:
                    yield f"What is {a} plus {b}?", str(a + b)
                if 0 <= a - b <= 9:
                    yield f"What is {a} minus {b}?", str(a - b)
                if a * b <= 9:
                    yield f"What is {a} times {b}?", str(a * b)


def _row(name: str, problem: str, gold: str) -> dict[str, Any]:
    """A problem in the columns that the data set of that name has on the hub."""
    worked = f"The answer is \\boxed{{{gold}}}."
    return {
        "AMC23": {"id": 0, "problem": problem, "answer": float(gold), "url": "", "question": problem},
        "OlympiadBench": {"id": 0, "context": None, "question": problem, "solution": [worked], "final_answer": [gold]},
        "Minerva": {"problem": problem, "solution": worked, "type": "", "idx": 0},
        "MATH-500": {"problem": problem, "solution": worked, "answer": gold, "subject": "", "level": 1},
    }.get(name, {"problem": problem, "solution": worked, "answer": gold})


def _puzzles(people: int) -> list[dict[str, Any]]:
    """Puzzles of our own generator in the columns of the public files; the last 100 rows repeat no earlier one."""
    own = min(20 * people, 60)
    task = load_task("knights-and-knaves", people=people, train_size=own, validation_size=5 * people)
    rows = [
        {
            "quiz": row["prompt"][-1]["content"],
            "names": row["names"],
            "solution": [role == knights_and_knaves.KNIGHT for role in row["roles"]],
            "statements": row["statements"],
        }
        for part in (task.train, task.validation)
        for row in part
    ]
    train, held_out = rows[:own], rows[own:]
    return [train[i % len(train)] for i in range(900)] + [held_out[i % len(held_out)] for i in range(100)]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    if not path.exists():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
