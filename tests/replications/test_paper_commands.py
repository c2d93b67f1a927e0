"""Adding a paper: the guide's own commands in a copy of the project, refusals, and what `check` says."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_replications.replications.__main__ import main
from grpo_replications.replications.paper_commands import new_paper, problems_of
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.harness.papers import Paper, discover

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "replications" / "README.md"
PACKAGE = "grpo_replications.replications.my_paper"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def replicate(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("REPLICATE_RESULTS", str(tmp_path / "results"))

    def run(*arguments: str) -> tuple[int, str]:
        code = main(arguments, papers=toy.parent)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project without its results, whose `make` finds an environment that is ready."""
    root = tmp_path_factory.mktemp("work") / "copy"
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("grpo_replications", "shared", "synthetic", "replications"):
        shutil.copytree(ROOT / name, root / name, ignore=skip)
    for name in ("Makefile", "README.md", "CITATION.cff", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    environment = root / ".venv" / "bin"
    environment.mkdir(parents=True)
    for name, command in (("python", '"$@"'), ("replicate", '-m replications "$@"')):
        (environment / name).write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {command}\n")
        (environment / name).chmod(0o755)
    (root / ".venv" / ".installed").touch()
    return root


ONE_PROCESS = """
import contextlib, io, json, shlex, subprocess, sys
from grpo_replications.replications.__main__ import main

def lines_of(command):
    # What `make` would run, as it prints it; `replicate` is its own line.
    if not command.startswith("make "):
        return [command]
    made = subprocess.run(["make", "-n", *command.split()[1:]], capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in made.splitlines() if " -m replications run " in line]
    return ["replicate " + line.partition(" -m replications ")[2]]

printed = {}
for command in json.loads(sys.argv[1]):
    heard = io.StringIO()
    for line in lines_of(command):
        name, *arguments = shlex.split(line)
        assert name == "replicate", line
        with contextlib.redirect_stdout(heard):
            code = main(arguments)
        if code:
            sys.exit(f"{line}: exit code {code}: {heard.getvalue()}")
    printed[command] = heard.getvalue()
print(json.dumps(printed))
"""
"""Runs the commands one after another; each alone would spend most of its time on imports."""


def commands(guide: str) -> list[str]:
    """Every command of the guide's shell blocks, in order."""
    blocks = re.findall(r"```sh\n(.*?)```", guide, re.S)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.slow
def test_every_command_of_the_guide_runs(copy: Path) -> None:
    # MAKEFLAGS: the language model of the other papers is not prepared again here.
    environment = {**os.environ, "PYTHONPATH": str(copy), "MAKEFLAGS": "-o model"}
    environment.pop("REPLICATE_RESULTS", None)
    typed = commands(GUIDE.read_text(encoding="utf-8"))
    assert len(typed) >= 8
    one_process = [sys.executable, "-c", ONE_PROCESS, json.dumps(typed)]
    done = subprocess.run(one_process, cwd=copy, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    printed = json.loads(done.stdout.splitlines()[-1])
    assert list(printed) == typed
    assert "no problem found" in printed["replicate check my-paper"]
    own, committed = copy / "results-mine", copy / "results"
    assert (own / "my_paper" / "smoke" / "figures" / "silent_groups.png").is_file()
    for results in (own, committed):
        with (results / "my_paper" / "quick" / "verdicts.csv").open(newline="") as file:
            assert {row["verdict"] for row in csv.DictReader(file)} == {"reproduced"}
    assert (own / "own_idea" / "smoke" / "record.json").is_file()
    front = (copy / "README.md").read_text(encoding="utf-8")
    assert "[All findings and tests](replications/my_paper/README.md)" in front
    assert "own-idea" not in front and "Own idea" not in front  # it lies elsewhere
    page = (copy / "replications" / "my_paper" / "README.md").read_text(encoding="utf-8")
    assert "Larger groups are less often silent." in page and "`PROFILE=quick ONLY=silent-groups`" in page


@pytest.mark.slow
def test_the_example_of_a_training_experiment_trains(tmp_path: Path) -> None:
    directory = new_paper("trained-paper", tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    settings, experiment = (
        block.replace("grpo_replications.replications.my_paper", "trained_paper") for block in blocks[:2]
    )
    (directory / "settings.py").write_text(settings)
    (directory / "experiments.py").write_text(experiment)
    registered = Paper(directory).experiments["training"]
    cell = {
        "model": "tiny-random", "steps": 2, "group_size": 4, "prompts_per_step": 2, "max_new_tokens": 4,
        "train_size": 32, "trl": {"importance_sampling_level": "sequence"},
    }  # fmt: skip
    rows = registered.function(registered.parse(cell, "here"), 0, JobContext(tmp_path / "job"))
    assert [(one["metric"], one["step"]) for one in rows] == [
        ("reward", 0), ("silent_share", 0), ("reward", 1), ("silent_share", 1)
    ]  # fmt: skip
    assert len({one["value"] for one in rows if one["metric"] == "reward"} | {0.0, 1.0}) > 2  # neither 0 nor 1


def test_a_new_paper_meets_the_style_of_the_code(copy: Path) -> None:
    directory = new_paper("styled-paper", copy / "replications", 'Of "groups"'.replace('"', "'"))
    for command in (["check"], ["format", "--check"]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(directory)], cwd=copy, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout
    shutil.rmtree(directory)


@pytest.mark.parametrize("name", ["Paper", "my_paper", "my--paper", "-p", "1p", "p/q", "pa per", "λ", ""])
def test_names_that_no_paper_may_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReplicationError, match="lower-case words"):
        new_paper(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_or_hidden(replicate: Run, toy: Path, tmp_path: Path) -> None:
    before = (toy / "claims.toml").read_text()
    assert replicate("new-paper", "toy-paper")[0] == 2
    code, printed = replicate("new-paper", "toy-paper", "--directory", str(tmp_path / "elsewhere"))
    assert code == 2 and "There is a paper 'toy-paper' already" in printed
    (tmp_path / "taken").mkdir()
    with pytest.raises(ReplicationError, match="exists already"):
        new_paper("taken", tmp_path)
    for name in ("json", "lambda"):
        with pytest.raises(ReplicationError, match="a module or a keyword"):
            new_paper(name, tmp_path)
    with pytest.raises(ReplicationError, match="title"):
        new_paper("good", tmp_path, 'a "b"')
    assert (toy / "claims.toml").read_text() == before and not (tmp_path / "good").exists()


def test_check_lists_every_problem_and_fails(replicate: Run, toy: Path) -> None:
    code, printed = replicate("check", "toy-paper")
    assert code == 1 and "README.md does not exist" in printed and "1 problem(s)" in printed
    (toy / "README.md").write_text(
        "`draw` `batch`\n<!-- generated:findings-toy-paper -->\n<!-- /generated:findings-toy-paper -->\n"
    )
    code, printed = replicate("check")
    assert code == 0 and "quick: 10 jobs of draw, batch, up to 1 min; judges 2 of 3 checks" in printed
    text = (toy / "claims.toml").read_text()
    (toy / "claims.toml").write_text(text.replace('kind = "exact"', 'kind = "x"').replace('metric = "score"', ""))
    code, printed = replicate("check", str(toy))
    assert code == 1 and "3 problem(s)" in printed and printed.count("claims.toml, claim") == 3
    assert replicate("check", "absent")[0] == 2


def test_check_compares_with_the_other_papers(toy: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "toy_paper"
    shutil.copytree(toy, other)
    problems = problems_of(toy, [other], tmp_path / "results")
    assert any("both use the name" in problem and str(other) in problem for problem in problems)


def test_a_run_of_one_experiment_is_refused_for_a_mistake_in_another(replicate: Run, toy: Path) -> None:
    code = (toy / "experiments.py").read_text()
    (toy / "experiments.py").write_text(code.replace('"batch": Experiment', '"bach": Experiment'))
    status, printed = replicate("run", "toy-paper", "--only", "draw")
    assert status == 2 and "'batch'" in printed and not (toy / "calls.txt").exists()


def test_a_paper_elsewhere_is_a_package_of_its_own(tmp_path: Path) -> None:
    directory = new_paper("own-package", tmp_path / "one")
    assert problems_of(directory, [], tmp_path / "results") == []
    shutil.copytree(directory, tmp_path / "two" / "own_package")
    problems = problems_of(tmp_path / "two" / "own_package", [], tmp_path / "results")
    assert any("cannot be imported" in problem and "Rename" in problem for problem in problems)


def test_every_paper_can_be_cited() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for paper in discover(ROOT / "replications"):
        assert f"arXiv:{paper.facts.arxiv}" in citation and paper.facts.title in citation


@pytest.mark.parametrize("command", ["list", "plan-group-size --solve-rates big-math --json", "new-paper --help"])
def test_a_reader_that_stops_reading_ends_in_no_traceback(command: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "replications", *command.split()],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stdout.close()
    told = process.stderr.read()
    assert "Traceback" not in told and "Broken" not in told
    process.wait(timeout=60)
