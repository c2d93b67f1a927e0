"""The command line: what it prints, where it writes, and how it fails."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_replications.replications.__main__ import ROOT, _Console, find_paper, main
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.bench import BenchRow
from grpo_replications.shared.harness.workers import stop_workers

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module", autouse=True)
def _no_workers_left() -> Iterator[None]:
    yield
    stop_workers()


@pytest.fixture
def replicate(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("REPLICATE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str]:
        code = main(arguments, papers=toy.parent)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_list(replicate: Run) -> None:
    code, printed = replicate("list")
    assert code == 0
    for word in (
        "toy-paper",
        "2 claims of the paper, 0 of our own, 3 checks",
        "quick",
        "a few seconds (up to 1 min)",
        "draw, batch",
        "needs gpu",
    ):
        assert word in printed
    code, printed = replicate("list", "--json")
    (paper,) = json.loads(printed)
    assert code == 0 and paper["paper"] == "toy-paper" and paper["profiles"][0]["experiments"] == ["draw", "batch"]


def test_run_goes_all_the_way_to_the_report(replicate: Run, tmp_path: Path) -> None:
    code, printed = replicate("run", "toy_paper", "--workers", "1")
    assert code == 0
    directory = tmp_path / "results" / "toy_paper" / "quick"
    for name in (
        "record.json",
        "measurements.csv.bz2",
        "verdicts.csv",
        "claims.csv",
        "figures/scores.png",
        "figures/scores.pdf",
    ):
        assert (directory / name).is_file(), name
    for name in ("REPORT.md", "index.html", "numbers.csv", "numbers.tex"):
        assert (tmp_path / "results" / name).is_file(), name
    assert "Profile quick: a few seconds" in printed and "draw, batch" in printed
    assert "as published       1 reproduced, 1 not run (of 2)" in printed and "report " in printed
    assert "replicate run toy_paper --workers 1" in (directory / "record.json").read_text()

    for command in (
        ["verdicts"],
        ["figures", "toy-paper"],
        ["report"],
        ["verdicts", "toy-paper", "--profile", "quick"],
    ):
        before = (directory / "measurements.csv.bz2").stat().st_mtime_ns
        (directory / "verdicts.csv").unlink() if command[0] == "verdicts" else None
        (directory / "figures" / "scores.png").unlink() if command[0] == "figures" else None
        assert replicate(*command)[0] == 0
        assert (directory / "measurements.csv.bz2").stat().st_mtime_ns == before
        assert (directory / "verdicts.csv").is_file() and (directory / "figures" / "scores.png").is_file()

    code, printed = replicate("cite", "toy-paper-identity")
    assert code == 0 and "toy-paper/identity@quick" in printed and "Nothing is left over" not in printed
    (judged,) = json.loads(replicate("verdicts", "--json")[1])
    assert (judged["profile"], judged["claims"][0]["published"]["verdict"]) == ("quick", "reproduced")
    assert judged["claims"][0]["checks"][0]["id"] == "toy-paper/identity"


def test_a_failing_job_gives_exit_code_one_and_the_rest(replicate: Run, toy: Path, tmp_path: Path) -> None:
    (toy / "fail").touch()
    code, printed = replicate("run", "toy-paper", "--profile", "smoke", "--seeds", "3")
    assert code == 1
    assert "seed 1 is broken" in printed and "run the same command to resume" in printed and "error.txt" in printed
    assert (tmp_path / "results" / "REPORT.md").is_file()
    (toy / "fail").unlink()
    code, printed = replicate("run", "toy-paper", "--profile", "smoke", "--seeds", "3")
    assert code == 0 and "1 of 3 jobs to do, 2 already done" in printed


def test_an_unreachable_hub_stops_at_once_with_its_message(replicate: Run, toy: Path) -> None:
    (toy / "stop").touch()
    code, printed = replicate("run", "toy-paper", "--profile", "smoke")
    assert code == 2 and "error: draw: The hub cannot be reached." in printed and "Traceback" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "toy"], "There is no paper 'toy'; there are: toy-paper."),
        (["run", "toy-paper", "--profile", "quik"], "its profiles are: quick, smoke, full, gpu."),
        (["run", "toy-paper", "--only", "x"], "No experiment of profile 'quick' is called 'x'"),
        (["run", "toy-paper", "--seeds", "0"], "seeds: write a number of seeds of at least 1"),
        (["run", "toy-paper", "--executor", "slurm"], "--executor must be one of local, ray"),
        (["verdicts"], "Nothing has been measured yet"),
        (["figures", "toy-paper", "--profile", "x"], "no profile 'x'"),
    ],
)
def test_wrong_requests_are_answered_in_one_line(replicate: Run, arguments: list[str], message: str) -> None:
    code, printed = replicate(*arguments)
    assert code == 2 and message in printed and "Traceback" not in printed
    assert printed.startswith("error: ") and printed.count("\n") == 1


def test_a_mistake_in_a_paper_names_the_file(replicate: Run, toy: Path) -> None:
    text = (toy / "claims.toml").read_text()
    (toy / "claims.toml").write_text(text.replace("metric", "metrik", 1))
    code, printed = replicate("list")
    assert code == 2 and "claims.toml, claim toy-paper/theorem, check toy-paper/identity: " in printed


def test_a_paper_can_be_given_by_its_directory(toy: Path) -> None:
    for name in (str(toy), "toy-paper", "toy_paper"):
        assert find_paper(name, toy.parent).name == "toy_paper"
    with pytest.raises(ReplicationError, match="no paper 'absent'"):
        find_paper("absent", toy.parent)


def test_results_elsewhere_leave_the_read_me_alone(replicate: Run) -> None:
    readme = ROOT / "README.md"
    before = readme.read_bytes() if readme.exists() else None
    assert replicate("run", "toy-paper", "--profile", "smoke")[0] == 0
    assert (readme.read_bytes() if readme.exists() else None) == before


def test_model_prepares_the_named_model(replicate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("grpo_replications.shared.models.catalog")
    module.prepare = lambda name: Path("/cache") / name  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "grpo_replications.shared.models.catalog", module)
    code, printed = replicate("model", "tiny-random")
    assert code == 0 and "tiny-random is ready: /cache/tiny-random" in printed


@pytest.mark.parametrize(("ratio", "code"), [(7.0, 0), (9.0, 1)])
def test_bench_compares_with_its_targets(
    replicate: Run, monkeypatch: pytest.MonkeyPatch, ratio: float, code: int
) -> None:
    rows = [BenchRow("fast", 25.0, 20.0, "higher"), BenchRow("slow", ratio, 8.0, "lower")]
    for name, row in zip(("grpo_replications.shared.harness.bench", "grpo_replications.synthetic.bench"), rows):
        monkeypatch.setattr(f"{name}.BENCHES", {name: lambda row=row: [row]}, raising=False)
    monkeypatch.setattr("grpo_replications.replications.step_bench.BENCHES", {})  # minutes
    found, printed = replicate("bench")
    assert found == code and "25.0" in printed and "slow" in printed


def test_output_that_nobody_reads_is_left_to_main() -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        _Console(file=Closed()).print("a line")


def test_help_and_list_import_nothing_heavy() -> None:
    check = (
        "import sys; from replications.__main__ import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "import shared.harness.papers, shared.harness.claims\n"
        "print(sorted({'torch', 'trl', 'scipy', 'matplotlib', 'pandas'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n") and "examples:" in result.stdout


def test_every_command_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("list", "run", "verdicts", "figures", "report", "compare", "status", "model", "bench"):
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0 and len(capsys.readouterr().out) > 100
