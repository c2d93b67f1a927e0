"""`replicate compare` and the end of `replicate run`, on a checkout with committed results of the toy paper."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_replications.replications import places
from grpo_replications.replications.__main__ import main
from grpo_replications.shared.harness.workers import stop_workers

Run = Callable[..., tuple[int, str]]
ID = "toy-paper/direction"


@pytest.fixture(scope="module", autouse=True)
def _no_workers_left() -> Iterator[None]:
    yield
    stop_workers()


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def replicate(toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in a checkout of its own, whose papers are the toy; its root is the working directory."""
    root = toy.parents[1]
    (root / "replications").mkdir()
    (root / "pyproject.toml").touch()
    (root / "README.md").write_text("<!-- generated:papers -->\n<!-- /generated:papers -->\n")
    (root / ".gitignore").write_text("jobs/\n/results-mine/\n/papers/toy_paper/calls.txt\n__pycache__/\n")
    git(root, "init", "-q")
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(places, "ROOT", root)
    monkeypatch.setattr("grpo_replications.replications.__main__.ROOT", root)
    monkeypatch.chdir(root)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(arguments, papers=toy.parent)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def change_a_number(directory: Path) -> None:
    """Move the first number of `ID` and turn its verdict."""
    for name, changes in (("verdict_cells.csv", {"value": "0.5"}), ("verdicts.csv", {"verdict": "inconclusive"})):
        with (directory / name).open(newline="") as stream:
            lines = list(csv.DictReader(stream))
        next(line for line in lines if line["id"] == ID).update(changes)
        with (directory / name).open("w", newline="") as stream:
            writer = csv.DictWriter(stream, lines[0])
            writer.writeheader()
            writer.writerows(lines)


def test_from_a_run_of_ones_own_to_two_commits(replicate: Run, tmp_path: Path) -> None:
    own, committed = tmp_path / "results-mine", tmp_path / "results"
    code, printed = replicate("run", "toy-paper", "--workers", "1")
    assert code == 0 and "there are no committed results of this profile" in printed
    assert "toy-paper" not in (tmp_path / "README.md").read_text() and not committed.exists()
    shutil.copytree(own, committed)
    assert replicate("run", "toy-paper", "--update-committed")[0] == 0
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")

    # A run of one's own: beside the committed results, compared with them, nothing that git knows is touched.
    code, printed = replicate("run", "toy-paper", "--workers", "1")
    assert code == 0 and "identical to the committed results: 3 numbers, 2 verdicts" in printed
    assert "0 of 10 jobs to do" in printed, "the same command resumes"
    assert len(printed.split("toy-paper, quick\n")[1].splitlines()) <= 10
    assert "replicate verdicts toy-paper --profile quick --results results-mine" in printed
    status = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert status.stdout == ""
    for name in ("index.html", "numbers.csv", "toy_paper/quick/figures/scores.png", "toy_paper/quick/claims.csv"):
        assert (own / name).is_file(), name
    code, printed = replicate("compare")
    assert code == 0 and "identical" in printed and "the same to the byte" in printed
    code, printed = replicate("run", "toy-paper", "--workers", "1", "--json")
    assert json.JSONDecoder().raw_decode(printed)[0]["identical_to_committed"] is True
    assert replicate("run", "toy-paper", "--workers", "1", "--quiet") == (0, "")

    # One number changes: it is named with both values, and the ids are whole though the terminal is narrow.
    change_a_number(own / "toy_paper" / "quick")
    code, printed = replicate("compare", "committed", "mine", "--paper", "toy-paper", "--profile", "quick")
    assert code == 1 and "1 of 3 numbers differ" in printed and f"{ID}[lr=0.5]\n" in printed
    assert "reproduced under conditions → inconclusive; 1 of 2 numbers moved" in printed
    code, printed = replicate("compare", "results/toy_paper/quick", "results-mine/toy_paper/quick", "--json")
    (found,) = json.loads(printed)
    assert code == 1 and [one["id"] for one in found["numbers"] if one["moved"]] == [f"{ID}[lr=0.5]"]
    code, printed = replicate("compare", "--markdown", "--only-changed")
    assert code == 1 and f"| {ID} | reproduced under conditions → inconclusive |" in printed

    # Of damaged results nothing is compared, and nothing is called identical.
    shutil.copytree(own, tmp_path / "damaged")
    for name in ("record.json", "timings.csv.bz2", "verdicts.csv", "verdict_cells.csv"):
        path = tmp_path / "damaged" / "toy_paper" / "quick" / name
        whole = path.read_bytes()
        path.write_bytes(whole[: 2 * len(whole) // 3])
        code, printed = replicate("compare", "results-mine", "damaged")
        assert code == 2 and name in printed and "damaged" in printed and "Traceback" not in printed
        path.write_bytes(whole)
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])  # a whole line is missing
    code, printed = replicate("compare", "results-mine", "damaged")
    assert code == 1 and "judged only in results-mine" in printed
    path.write_bytes(whole)
    shutil.copytree(own / "toy_paper" / "quick", tmp_path / "damaged" / "toy_paper" / "other")
    assert "only in damaged: toy-paper other (not compared)" in replicate("compare", "results-mine", "damaged")[1]

    # Two commits, read without a checkout; a page of figures that needs no other file.
    change_a_number(tmp_path / "results" / "toy_paper" / "quick")
    git(tmp_path, "commit", "-qam", "second")
    assert replicate("compare", "committed", "mine")[0] == 0
    code, printed = replicate("compare", "HEAD~1", "committed", "--figures", "out.html")
    assert code == 1 and "1 of 2 verdicts changed" in printed
    page = (tmp_path / "out.html").read_text()
    assert page.count("data:image/png;base64,") == 2 and "the same on both sides" in page
    assert "src=" not in page.replace('src="data:', "") and "http" not in page.split("</title>")[1]
    code, printed = replicate("compare", "paper", "mine")
    assert code == 1 and "paper 1; ours 0.5" in printed and "outside" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "mine"], "'nowhere' is neither"),
        (["results", "mine"], "There is nothing to compare: results has no results; mine has no results."),
        (["committed", "mine"], "There are no committed results"),
        (["--profiles", "quick"], "--profiles takes two names"),
        (["paper", "mine"], "mine holds no results"),
    ],
)
def test_wrong_requests_are_answered_in_one_line(
    replicate: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "results").mkdir()
    code, printed = replicate("compare", *arguments)
    assert code == 2 and message in printed and printed.count("\n") == 1


def test_two_targets_are_refused(replicate: Run) -> None:
    code, printed = replicate("run", "toy-paper", "--update-committed", "--results", "elsewhere")
    assert code == 2 and "give one of them" in printed
