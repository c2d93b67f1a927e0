"""Knights & Knaves: who of 2 to 7 people always says what is true, and who never does?

The prompt asks for `<think>...</think><answer>(1) NAME is a knight ...</answer>`. Correct is only the whole answer,
each name of the puzzle with its right role (`strict_reward`): credit for each role would pay a constant answer well.

No puzzle is on both sides, whatever the seeds and sizes: a hash of its canonical form, the same under renaming of
people and equivalent wording, decides on which side it belongs. `split_proof` counts the puzzles that two finished data
sets share, from their statements alone.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import Dataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.completions import (
    Completion,
    completion_text,
    has_tags_in_order,
    is_well_formed,
)
from grpo_replications.shared.grading.puzzle_answers import PARSERS, Parser, parse_answer, parse_answer_ar_lopti
from grpo_replications.shared.tables import read_table
from grpo_replications.shared.tasks import RewardFunction, Task
from grpo_replications.shared.tasks.puzzles.drawing import (
    FEWEST_PEOPLE,
    KNAVE,
    KNIGHT,
    MOST_PEOPLE,
    Puzzle,
    draw_puzzle,
)
from grpo_replications.shared.tasks.puzzles.public import public_files
from grpo_replications.shared.tasks.puzzles.statements import Statements, canonical_form, parse_statements, solutions

__all__ = [
    "Puzzle",
    "answer_reward",
    "ar_lopti_reward",
    "ar_lopti_shaping_reward",
    "build_prompt",
    "canonical_form",
    "draw_puzzle",
    "format_reward",
    "is_correct",
    "is_for_validation",
    "is_well_formed",
    "load",
    "parse_answer",
    "read_puzzles",
    "shaped_reward",
    "shaping_reward",
    "solutions",
    "split_proof",
    "strict_reward",
]

SYSTEM_MESSAGE = (
    "You solve logic puzzles. First reason between <think> and </think>. Then state the role of every person, "
    "numbered, between <answer> and </answer>, like this: <think>your reasoning</think><answer>(1) NAME is a knight\n"
    "(2) NAME is a knave</answer>"
)
Layout = Callable[[str], bool]
DEFAULT_SIZES = {"train": 2000, "validation": 200}
HELD_OUT = 4  # one canonical form in so many belongs to the validation side
PATIENCE = 5_000  # draws in a row without a new puzzle before the generator gives up: about a second


def load(
    people: int | Sequence[int] = (3, 4, 5, 6, 7),
    train_size: int | None = None,
    validation_size: int | None = None,
    validation_people: int | Sequence[int] | None = None,
    depth: int = 2,
    width: int = 2,
    reward: str = "strict",
    parser: str = "strict",
    layout: str = "strict",
    public: str | None = None,
    train_path: str | Sequence[str] | None = None,
    validation_path: str | Sequence[str] | None = None,
    seed: int = 0,
    system_message: str = SYSTEM_MESSAGE,
) -> Task:
    """Puzzles with the given numbers of people, each number equally often; other numbers for validation if given.

    `reward`: "strict" (1 for the whole answer, else 0) or "shaped" (`shaped_reward`, 3 / -0.5 / -1 / -3). `parser`, the
    rule by which an answer is read: "strict", which pays in no doubtful case, or "ar-lopti", the looser one of the
    AR-Lopti code, only to compare with that paper's numbers (see `shared.grading.puzzle_answers`). `depth`, `width`:
    see `draw_puzzle`. `layout`, what the shaped reward calls well formed: "strict", only space around the tags, or
    "loose", text too, as AR-Lopti's code has it. A prompt that is text and ends in `<think>` counts as the first tag.
    `public`: a hub id or a directory with the files of K-and-K/knights-and-knaves, of which each number of people has
    900 training puzzles and 100 others for validation, as in AR-Lopti's setting. `train_path`, `validation_path`: files
    to read in place of drawing puzzles (all of them, or the first so many); training puzzles that the validation files
    hold are left out and counted. Sizes are 2000 and 200 drawn puzzles unless given. `seed` decides the training
    puzzles or, with files, their order; the validation puzzles do not depend on it. Validation puzzles all differ in
    canonical form, training puzzles as written.

    Rows have `prompt` (chat messages), `names` and `roles` (lists, in the same order), `answer`, `people`, `statements`
    and `puzzle` (a hash of the canonical form). `Task.settings` adds `split_proof` of the two data sets. Raises
    ReplicationError for settings out of range, unreadable files, and when there are too few distinct puzzles.
    """
    if parser not in PARSERS:
        raise ReplicationError(f"parser must be one of {', '.join(PARSERS)}, not {parser!r}.")
    if reward not in _REWARDS[parser]:
        raise ReplicationError(f"reward must be one of {', '.join(_REWARDS[parser])}, not {reward!r}.")
    if layout not in _LAYOUTS:
        raise ReplicationError(f"layout must be one of {', '.join(_LAYOUTS)}, not {layout!r}.")
    if public is not None and (train_path is not None or validation_path is not None):
        raise ReplicationError("public names all files; give it, or train_path and validation_path.")
    counts = _people(people)
    held_out_counts = counts if validation_people is None else _people(validation_people)
    if not 2 <= depth <= 4 or not 2 <= width <= 3:
        raise ReplicationError(f"depth must be 2, 3 or 4 and width 2 or 3, not {depth} and {width}.")

    if public is not None:
        validation = _public(public, "validation", held_out_counts)
    elif validation_path is not None:
        validation = _read_all(validation_path)
    else:
        validation = _draw("validation", validation_size, held_out_counts, depth, width, seed=0)
    held_out = frozenset(canonical_form(puzzle.statements) for puzzle in validation)
    validation = validation[: _check_size(validation_size)]

    left_out = 0
    if public is None and train_path is None:
        train = _draw("train", train_size, counts, depth, width, seed, exclude=held_out)
    else:
        read = _read_all(train_path) if public is None else _public(public, "train", counts)
        train = [puzzle for puzzle in read if canonical_form(puzzle.statements) not in held_out]
        left_out = len(read) - len(train)
        random.Random(f"knights-and-knaves/order/{seed}").shuffle(train)
        train = train[: _check_size(train_size)]
        if not train:
            raise ReplicationError(f"No training puzzle is left in {public or train_path}: validation holds them all.")

    train_rows, validation_rows = as_rows(train, system_message), as_rows(validation, system_message)
    return Task(
        name="knights-and-knaves",
        train=train_rows,
        validation=validation_rows,
        rewards=list(_rewards(parser, reward, layout)),
        build_prompt=lambda text: build_prompt(text, system_message),
        settings={
            "people": counts if train_path is None else _counts_in(train),
            "validation_people": held_out_counts if validation_path is None else _counts_in(validation),
            "train_size": len(train),
            "validation_size": len(validation), "depth": depth, "width": width, "reward": reward, "parser": parser,
            "layout": layout, "public": public,
            "train_path": train_path, "validation_path": validation_path, "seed": seed,
            "system_message": system_message, "left_out_of_train": left_out,
            **split_proof(train_rows, validation_rows),
        },
    )  # fmt: skip


def build_prompt(text: str, system_message: str = SYSTEM_MESSAGE) -> list[dict[str, str]]:
    """Chat messages that pose a puzzle."""
    return [{"role": "system", "content": system_message}, {"role": "user", "content": text}]


def split_proof(train: Dataset, validation: Dataset) -> dict[str, Any]:
    """That two data sets share no puzzle, from their column `statements`: counts and digests of canonical forms.

    Keys: `train_puzzles` and `validation_puzzles` (distinct canonical forms), `shared_puzzles` (0), and
    `train_digest` and `validation_digest`, SHA-256 of the sorted forms, by which anyone who makes the sets again can
    tell that they are the same. Raises ReplicationError if they share a puzzle. Costs a quarter of a millisecond for
    each distinct puzzle.
    """
    forms = {
        side: {canonical_form(parse_statements(text)) for text in rows["statements"]}
        for side, rows in (("train", train), ("validation", validation))
    }
    shared = len(forms["train"] & forms["validation"])
    if shared:
        raise ReplicationError(
            f"{shared} puzzles are in the training set and in the validation set, up to the names of people. Leave "
            "the validation files out of train_path, or load both through the task, which keeps them apart."
        )
    proof: dict[str, Any] = {f"{side}_puzzles": len(found) for side, found in forms.items()}
    proof["shared_puzzles"] = shared
    for side, found in forms.items():
        proof[f"{side}_digest"] = hashlib.sha256("\n".join(sorted(map(repr, found))).encode()).hexdigest()
    return proof


def is_correct(completion: str, gold: Mapping[str, str]) -> bool:
    """Whether the `<answer>` of a completion gives each name of the puzzle its role in `gold` and says nothing else."""
    return parse_answer(completion, tuple(gold)) == dict(gold)


def strict_reward(
    completions: Sequence[Completion], names: Sequence[Sequence[str]], roles: Sequence[Sequence[str]], **kwargs: Any
) -> list[float]:
    """TRL reward: 1.0 where the `<answer>` after the thought gives every name its right role, else 0.0.

    `names`, `roles`: of each completion's puzzle, in one order. Raises ValueError for a gold answer that is none.
    """
    return [float(answer == gold) for _, answer, gold in _read_answers(completions, names, roles)]


def format_reward(
    completions: Sequence[Completion],
    prompts: Sequence[Any] | None = None,
    layout: Layout = is_well_formed,
    **kwargs: Any,
) -> list[float]:
    """TRL reward: 1.0 for `<think>...</think><answer>...</answer>` with only space around, else -1.0.

    Of a prompt that is text and ends in `<think>`, this tag is part of what is looked at.
    """
    return [1.0 if layout(text) else -1.0 for text in _whole_texts(completions, prompts)]


def _whole_texts(completions: Sequence[Completion], prompts: Sequence[Any] | None) -> list[str]:
    """Completions as text, with the `<think>` that their prompt ended in."""
    texts = [completion_text(completion) for completion in completions]
    if prompts is None:
        return texts
    begun = [isinstance(prompt, str) and prompt.rstrip().endswith("<think>") for prompt in prompts]
    return ["<think>" * before + text for before, text in zip(begun, texts, strict=True)]


def ar_lopti_reward(
    completions: Sequence[Completion], names: Sequence[Sequence[str]], roles: Sequence[Sequence[str]], **kwargs: Any
) -> list[float]:
    """TRL reward: `strict_reward` by AR-Lopti's looser rule, which pays falsely: see `parse_answer_ar_lopti`."""
    read = _read_answers(completions, names, roles, parse_answer_ar_lopti)
    return [float(answer == gold) for _, answer, gold in read]


def answer_reward(
    completions: Sequence[Completion],
    names: Sequence[Sequence[str]],
    roles: Sequence[Sequence[str]],
    parse: Parser = parse_answer,
    prompts: Sequence[Any] | None = None,
    layout: Layout = is_well_formed,
    **kwargs: Any,
) -> list[float]:
    """TRL reward: 2.0 for the right answer, -1.5 for a wrong one, -2.0 for none or for one in a bad format."""
    texts = _whole_texts(completions, prompts)
    return [
        -2.0 if answer is None or not layout(text) else 2.0 if answer == gold else -1.5
        for text, (_, answer, gold) in zip(texts, _read_answers(completions, names, roles, parse), strict=True)
    ]


def shaped_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """TRL reward: `format_reward` plus `answer_reward`: 3 right, -0.5 wrong, -1 unreadable, -3 in a bad format."""
    formats, answers = format_reward(completions, **columns), answer_reward(completions, **columns)
    return [a + b for a, b in zip(formats, answers, strict=True)]


def shaping_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """TRL reward: what `shaped_reward` pays beyond `strict_reward`; the two together, summed, are the shaped reward."""
    return [a - b for a, b in zip(shaped_reward(completions, **columns), strict_reward(completions, **columns))]


def ar_lopti_shaping_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """TRL reward: `shaping_reward` by AR-Lopti's looser rule; summed with `ar_lopti_reward` the shaped reward."""
    shaped = shaped_reward(completions, **{**columns, "parse": parse_answer_ar_lopti})
    return [a - b for a, b in zip(shaped, ar_lopti_reward(completions, **columns))]


def loose_shaping_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """TRL reward: `shaping_reward` where text may stand around the tags."""
    return shaping_reward(completions, **{**columns, "layout": has_tags_in_order})


def ar_lopti_loose_shaping_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """TRL reward: `ar_lopti_shaping_reward` where text may stand around the tags, as in that paper's code."""
    return ar_lopti_shaping_reward(completions, **{**columns, "layout": has_tags_in_order})


_LAYOUTS = ("strict", "loose")
# The first is 1.0 exactly where a completion is correct, as a task's first reward has to be; TRL sums them.
_REWARDS: dict[str, dict[str, tuple[RewardFunction, ...]]] = {
    "strict": {"strict": (strict_reward,), "shaped": (strict_reward, shaping_reward)},
    "ar-lopti": {"strict": (ar_lopti_reward,), "shaped": (ar_lopti_reward, ar_lopti_shaping_reward)},
}
_LOOSE = {shaping_reward: loose_shaping_reward, ar_lopti_shaping_reward: ar_lopti_loose_shaping_reward}


def _rewards(parser: str, reward: str, layout: str) -> tuple[RewardFunction, ...]:
    return tuple(
        _LOOSE.get(function, function) if layout == "loose" else function for function in _REWARDS[parser][reward]
    )


def read_puzzles(path: str | Path) -> list[Puzzle]:
    """Puzzles from a `.parquet` or `.jsonl` file in the form of the public K&K test files.

    Columns `quiz`, `names`, `solution` (True for a knight) and `statements`. Raises ReplicationError unless every gold
    solution is the only one that its statements allow.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise ReplicationError(
            f"{path} is a folder. Name its files one by one, so that no test file gets into training."
        )
    try:
        written = path.stat()
        return list(_read(path, written.st_mtime_ns, written.st_size))
    except OSError as error:
        raise _unreadable(path, error) from error


@lru_cache(maxsize=16)  # a task reads each file several times: for each number of people, and for both sides
def _read(path: Path, changed: int, size: int) -> tuple[Puzzle, ...]:
    """The puzzles of a file as it was last changed."""
    try:
        table = read_table(path)
        columns = [table[name].tolist() for name in ("quiz", "names", "solution", "statements")]
    except (ReplicationError, KeyError) as error:  # unreadable, a column missing
        raise _unreadable(path, error) from error
    return tuple(_checked_puzzle(f"Row {number} of {path}", *row) for number, row in enumerate(zip(*columns)))


def _unreadable(path: Path, error: Exception) -> ReplicationError:
    return ReplicationError(
        f"{path} cannot be read as Knights & Knaves puzzles ({type(error).__name__}: {error}). It must be a .parquet "
        "or .jsonl file with the columns quiz, names, solution and statements."
    )


def _checked_puzzle(where: str, text: Any, names: Any, solution: Any, statements: Any) -> Puzzle:
    try:
        puzzle = Puzzle(
            tuple(map(str, names)), parse_statements(statements), tuple(bool(knight) for knight in solution), str(text)
        )
        found = solutions(puzzle.statements)
    except (TypeError, ValueError) as error:
        raise ReplicationError(f"{where} is no Knights & Knaves puzzle: {error}.") from error
    if found != [puzzle.solution] or len(set(puzzle.names)) != len(puzzle.solution):
        raise ReplicationError(f"{where}: its statements allow {len(found)} solutions, or another than the one given.")
    return puzzle


def _read_all(paths: str | Sequence[str]) -> list[Puzzle]:
    files = [paths] if isinstance(paths, (str, Path)) else list(paths)
    return [puzzle for path in files for puzzle in read_puzzles(path)]


def _public(source: str, side: str, counts: list[int]) -> list[Puzzle]:
    """Public puzzles of one side, in the order of the files."""
    return [puzzle for path, rows in public_files(source, side, counts) for puzzle in read_puzzles(path)[rows]]


def _read_answers(
    completions: Sequence[Completion],
    names: Sequence[Sequence[str]],
    roles: Sequence[Sequence[str]],
    parse: Parser = parse_answer,
) -> Iterator[tuple[str, dict[str, str] | None, dict[str, str]]]:
    """(text, answer read, gold answer) of each completion."""
    if not len(completions) == len(names) == len(roles):
        raise ValueError(f"{len(completions)} completions, but names of {len(names)} puzzles and roles of {len(roles)}")
    for completion, people, gold in zip(completions, names, roles):
        if len(people) != len(gold) or not people or not set(gold) <= {KNIGHT, KNAVE}:
            raise ValueError(f"not a gold answer: names {people!r} with roles {gold!r}")
        text = completion_text(completion)
        yield text, parse(text, people), dict(zip(people, gold))


def _people(people: int | Sequence[int]) -> list[int]:
    counts = [people] if isinstance(people, int) else list(people) if isinstance(people, (list, tuple)) else []
    if not counts or any(type(n) is not int or not FEWEST_PEOPLE <= n <= MOST_PEOPLE for n in counts):
        raise ReplicationError(
            f"people must be a number from {FEWEST_PEOPLE} to {MOST_PEOPLE}, or a list of them, not {people!r}."
        )
    return counts


def _counts_in(puzzles: list[Puzzle]) -> list[int]:
    return sorted({len(puzzle.names) for puzzle in puzzles})


def _check_size(size: int | None) -> int | None:
    if size is not None and (type(size) is not int or size < 1):
        raise ReplicationError(f"Each part of the Knights & Knaves task needs at least one puzzle, not {size!r}.")
    return size


def _draw(
    side: str,
    size: int | None,
    counts: list[int],
    depth: int,
    width: int,
    seed: int,
    exclude: frozenset[tuple[int, ...]] = frozenset(),
) -> list[Puzzle]:
    """`size` puzzles of one side ("train" or "validation") in random order, equally many for each entry of `counts`."""
    size = _check_size(size) or DEFAULT_SIZES[side]
    wanted = Counter(counts[i % len(counts)] for i in range(size))
    puzzles: list[Puzzle] = []
    for people, number in wanted.items():
        generator = random.Random(f"knights-and-knaves/{side}/{people}/{seed}")
        drawn = _distinct(generator, side, number, people, depth, width, exclude)
        if len(drawn) < number:
            raise ReplicationError(
                f"Only {len(drawn)} of {number} distinct {side} puzzles with {people} people were found, with depth "
                f"{depth} and width {width} ({PATIENCE:,} draws in a row gave no new one). Ask for fewer "
                f"({side}_size), for more people, or for greater depth or width."
            )
        puzzles += drawn
    random.Random(f"knights-and-knaves/{side}/order/{seed}").shuffle(puzzles)
    return puzzles


def _distinct(
    generator: random.Random,
    side: str,
    number: int,
    people: int,
    depth: int,
    width: int,
    exclude: frozenset[tuple[int, ...]],
) -> list[Puzzle]:
    """Up to `number` puzzles of one side, none of an excluded form; validation: distinct in form, train: as written."""
    drawn: list[Puzzle] = []
    seen: set[Any] = set()
    failures = 0
    while len(drawn) < number and failures < PATIENCE:
        puzzle = draw_puzzle(generator, people, depth, width)
        form = canonical_form(puzzle.statements)
        key: Any = form if side == "validation" else puzzle.statements
        if _side(form) != side or form in exclude or key in seen:
            failures += 1
            continue
        failures = 0
        seen.add(key)
        drawn.append(puzzle)
    return drawn


def is_for_validation(statements: Statements) -> bool:
    """Whether a puzzle belongs to the validation side, with all others of its canonical form."""
    return _side(canonical_form(statements)) == "validation"


def _side(form: tuple[int, ...]) -> str:
    return "validation" if int(_puzzle_hash(form), 16) % HELD_OUT == 0 else "train"


def _puzzle_hash(form: tuple[int, ...]) -> str:
    return hashlib.sha256(repr(form).encode()).hexdigest()


def _row(puzzle: Puzzle, system_message: str) -> dict[str, Any]:
    statements: Statements = puzzle.statements
    return {
        "prompt": build_prompt(puzzle.text, system_message),
        "names": list(puzzle.names),
        "roles": list(puzzle.roles.values()),
        "answer": puzzle.answer,
        "people": len(puzzle.names),
        "statements": repr(statements),
        "puzzle": _puzzle_hash(canonical_form(statements))[:16],
    }


def as_rows(puzzles: list[Puzzle], system_message: str) -> Dataset:
    """Puzzles as the rows of a task, with their prompts."""
    return Dataset.from_list([_row(puzzle, system_message) for puzzle in puzzles])
