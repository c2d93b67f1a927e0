"""What is wrong with a paper is told before anything runs: all mistakes at once, with their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_replications.shared.errors import Problems, ReplicationError
from grpo_replications.shared.harness.paper_checks import definition_problems, library_problems, loose_ends
from grpo_replications.shared.harness.papers import Paper

ROOT = Path(__file__).parents[3]
PAPERS = sorted(path.parent for path in (ROOT / "replications").glob("*/claims.toml"))
MARKS = "`draw` `batch`\n<!-- generated:findings-toy-paper -->\n<!-- /generated:findings-toy-paper -->\n"


def change(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def told(problems: list[str], *words: str) -> bool:
    """Whether one of the problems holds all the words."""
    return any(all(word in problem for word in words) for problem in problems)


@pytest.mark.parametrize("directory", PAPERS, ids=lambda path: path.name)
def test_the_papers_have_no_mistakes_and_no_loose_ends(directory: Path) -> None:
    assert definition_problems(directory) == []
    assert loose_ends(Paper.load(directory), {}) == []


def test_a_good_paper_has_no_problems(toy: Path) -> None:
    (toy / "README.md").write_text(MARKS)
    assert definition_problems(toy) == [] and library_problems(Paper.load(toy)) == []
    assert loose_ends(Paper.load(toy), {}) == []


def test_all_mistakes_of_claims_and_code_are_told_at_once(toy: Path) -> None:
    change(
        toy / "claims.toml",
        ('kind = "exact"', 'kind = "exactly"'),
        ('lr"]', 'speed"]'),
        ('profiles = ["full"]', 'profiles = ["fool"]'),
    )
    change(toy / "experiments.py", ('"draw": Experiment', '"drew": Experiment'), ("lr: float", "rate: float"))
    (toy / "figures.py").write_text("import a_library_that_is_not_there")
    problems = definition_problems(toy)
    assert told(problems, "claims.toml", "toy-paper/identity", "kind must be one of")
    assert told(problems, "claims.toml", "toy-paper/direction", "'speed' is in no grid")
    assert told(problems, "claims.toml", "toy-paper/huge", "no profile 'fool'; there are: quick")
    assert told(problems, "profiles.toml", "'draw'", "does not register", "drew, batch")
    assert told(problems, "profiles.toml, [quick.batch]", "unknown setting 'lr'", "'rate' is missing")
    assert told(problems, "figures.py", "a_library_that_is_not_there")


def test_all_mistakes_of_profiles_are_told_and_claims_are_read_nevertheless(toy: Path) -> None:
    change(toy / "profiles.toml", ("seeds = 8", "seeds = 0"), ("[gpu.draw]", '[gpu."dr/aw"]'))
    change(toy / "claims.toml", ('kind = "exact"', 'kind = "exactly"'))
    problems = definition_problems(toy)
    assert told(problems, "[quick.batch]", "seeds") and told(problems, "[full.batch]", "seeds")
    assert told(problems, "dr/aw", "letters, digits") and told(problems, "toy-paper/identity", "kind")


def test_names_of_numbers_are_checked_before_anything_is_computed(toy: Path) -> None:
    change(toy / "profiles.toml", ('method = ["new", "old"]', 'method = ["new", "old", "new*old"]'))
    assert definition_problems(toy) == []  # a method may have that name
    change(
        toy / "claims.toml",
        ('conditions = ["lr"]', 'conditions = ["lr", "method"]'),
        ('better = { method = "new" }', "better = { step = 0 }"),
        ('worse = { method = "old" }', "worse = { step = 10 }"),
    )
    assert told(definition_problems(toy), "toy-paper/direction", "method = new*old", "'*'")


def test_a_directory_of_another_name_is_told(toy: Path) -> None:
    assert told(definition_problems(toy.rename(toy.parent / "other")), "other", 'paper = "toy-paper"', "Rename")


def test_loose_ends(toy: Path) -> None:
    change(
        toy / "experiments.py",
        ('    "batch": Exp', '    "spare": Experiment(draw, "unused", settings=DrawSettings),\n    "batch": Exp'),
    )
    change(
        toy / "figures.py",
        ("FIGURES = ", "def lost(frame) -> 'Figure | None':\n    return None\n\n\nFIGURES = "),
    )
    (toy / "README.md").write_text("![x](../../results/toy_paper/full/figures/absent.png)")
    with open(toy / "claims.toml", "a") as stream:
        stream.write('\n[figures]\nmissing = ["toy-paper/gain"]\n')
    problems = loose_ends(Paper.load(toy), {"smoke": {"draw": {"py"}}, "quick": {"batch": {"score"}}})
    assert told(problems, "experiments.py", "'spare'", "profiles.toml")
    assert told(problems, "toy-paper/identity", "measured no 'residual' in smoke; it has: py")
    assert told(problems, "figures.py", "lost") and told(problems, "README.md", "absent", "scores")
    assert told(problems, "claims.toml, [figures]", "no missing; it has: scores")
    assert told(problems, "README.md", "<!-- generated:findings-toy-paper -->")
    assert told(problems, "README.md", "says nothing of `draw`, `spare`, `batch`")
    assert len(problems) == 7
    (toy / "README.md").unlink()
    assert told(loose_ends(Paper.load(toy), {}), "README.md", "does not exist")


def test_libraries_look_at_every_profile(toy: Path) -> None:
    change(
        toy / "experiments.py",
        (
            "    method: str\n",
            "    method: str\n\n    def check(self):\n        raise ReplicationError(f'no method {self.method}')\n",
        ),
    )
    problems = library_problems(Paper.load(toy))
    assert len(problems) == 4 and told(problems, "[full.batch]: no method old")


def test_problems_are_told_once_and_together() -> None:
    problems = Problems()
    problems.raise_any()
    with problems.noted():
        raise ReplicationError("a\nb")
    problems.add("a")
    assert problems.messages == ["a", "b"]
    with pytest.raises(ReplicationError, match=r"^a\nb$"):
        problems.raise_any()
    with pytest.raises(ZeroDivisionError), problems.noted():
        raise ZeroDivisionError
