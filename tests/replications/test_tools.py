"""The commands for one's own data: what they print, their JSON, and one line for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grpo_replications.replications.__main__ import ROOT, main
from grpo_replications.replications.tools import to_json
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.training.group_log import GroupLog

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def replicate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A group log of 200 groups of 8, of 50 prompts with known solve rates, entropy falling, some groups redrawn."""
    rng = np.random.default_rng(1)
    p = rng.beta(1, 1, 50)
    groups = []
    for i in range(200):
        rewards = (rng.random(8) < p[i % 50]).astype(float).tolist()
        groups.append(
            {
                "step": i // 4,
                "prompt": f"p{i % 50} [bold]",
                "rewards": rewards,
                "advantages": [0.0] * 8,
                "completions": [str(n) for n in range(8)],
                "lengths": [10] * 8,
                "entropy": [2 - i / 200] * 8,
                "draws": 1,
                "redraws_exhausted": False,
            }
        )
    GroupLog(tmp_path / "groups.jsonl").append(groups)
    return tmp_path / "groups.jsonl"


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_run_of_equal_rewards_has_no_trend(replicate: Run, tmp_path: Path, reward: float) -> None:
    path = tmp_path / "groups.jsonl"
    GroupLog(path).append({"step": i // 8, "rewards": [reward] * 8, "advantages": [0.0] * 8} for i in range(120))
    code, printed, _ = replicate("diagnose", path)
    assert code == 0 and "100.0% silent; the same in all steps" in printed


def test_plan_prints_every_part(replicate: Run) -> None:
    code, out, err = replicate("plan-group-size", "--solve-rates", "big-math", "--budget", "512")
    assert code == 0 and err == ""
    for words in (
        "215,608 problems (big-math, 64 rollouts each); group size for fidelity 0.95",
        "0.5 to 0.6    11,874   5.5%",
        "8,661 problems (4.0%) were observed with none right",
        "64 rollouts leave rates up to 0.056 open (95 %)",
        "59.3%  44.3%  32.2%  23.0%  16.5%",
        "Budget of 512 completions a step: G = 8, 64 problems",
        "4 for r = 1",
        "G = 50 (49 to 51), from the mixture of solve rates that fits best (G = 40",
        "64 rollouts: up to G = 256 no shape of difficulties is assumed",
        "A size for each difficulty, at the same cost",
    ):
        assert words in out


def test_plan_reads_a_file_of_rates(replicate: Run, tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    pd.DataFrame({"mine": [0.0, 0.25, 0.5, 0.25, 1.0]}).to_csv(path, index=False)
    code, out, _ = replicate("plan-group-size", "--solve-rates", path, "--column", "mine", "--fidelity", "0.9")
    assert code == 0 and "rates are taken as exact" in out and "no group size ever helps" in out
    code, out, _ = replicate("plan-group-size", "--solve-rates", path, "--column", "mine", "--rollouts", "4", "--json")
    plan = json.loads(out)
    assert code == 0 and plan["samples"] == 4 and plan["problems"] == 5 and plan["budget"] is None
    assert plan["ends"][0]["bound"] == pytest.approx(1 - 0.025**0.25)


def test_diagnose_prints_every_part(replicate: Run, log: Path) -> None:
    code, out, err = replicate("diagnose", log, "--window", "50", "--max-silent", "0.1", "--details")
    assert code == 0 and err == ""
    for words in (
        "200 groups of 8 completions, steps 0 to 49, 50 different prompts",
        "Silent groups: ",
        "Predicted by a Beta distribution of solve rates",
        "Predicted from the same prompts' other groups within 50 steps",
        "8 (this run)",
        "Effective group size",
        "Suggested G, fidelity of at least 0.95, all groups",
        "Suggested G, at most 10% silent, the last part",
        "Entropy, first to last fifth: 1.9 to 1.1 nats",
        "falling",
        "Length, first to last fifth: 10 to 10 tokens",
    ):
        assert words in out
    assert "Redraws" not in out and "OFF" not in out


def test_diagnose_answers_in_one_screen(replicate: Run, log: Path) -> None:
    code, out, err = replicate("diagnose", log)
    assert code == 0 and err == "" and len(out.splitlines()) <= 16
    for words in (
        "200 groups of 8",
        "Silent groups: ",
        "The same 32 completions a step",
        "gain at noise ratio r = 3 ",
        "draws a kept group",
        "Keep num_generations=8 (4 to ",
        "Groups of 8: up to G = 32 no shape of difficulties is assumed",
        "Independence of completions: not refuted",
    ):
        assert words in out


def test_diagnose_as_json_and_from_its_directory(replicate: Run, log: Path) -> None:
    code, out, _ = replicate("diagnose", log.parent, "--json")
    d = json.loads(out)
    assert code == 0 and d["groups"] == 200 and d["group_size"] == 8
    assert set(d["shares"]["silent"]) == {"value", "low", "high", "n", "kind", "level"}
    assert d["sizes"][0]["group_size"] == 2 and len(d["parts"]) == 5 and d["entropy"]["change"]["high"] < 0


def test_json_holds_only_what_json_can() -> None:
    assert json.loads(to_json(Estimate(1.0, float("-inf"), float("nan"), 3))) == {
        "value": 1.0,
        "low": None,
        "high": None,
        "n": 3,
        "kind": "",
        "level": 0.95,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["plan-group-size", "--solve-rates", "big-math", "--fidelity", "1"],
            "--fidelity must lie above 0 and below 1",
        ),
        (["plan-group-size", "--solve-rates", "big-math", "--budget", "1"], "--budget must be at least 2, not 1"),
        (
            ["plan-group-size", "--solve-rates", "big-math", "--max-group-size", "1"],
            "--max-group-size must be at least 2",
        ),
        (["plan-group-size", "--solve-rates", "big-math", "--noise-ratio", "nan"], "--noise-ratio must be at least 0"),
        (["plan-group-size", "--solve-rates", "big-math", "--rollouts", "0"], "--rollouts must be at least 1"),
        (["plan-group-size", "--solve-rates", "big-math", "--rollouts", "32"], "has 64 rollouts a problem, not 32"),
        (["plan-group-size", "--solve-rates", "absent.csv"], "absent.csv"),
        (["diagnose", "absent"], "There is no file or directory absent."),
        (["diagnose", "junk"], "not a group log"),
        (["diagnose", "empty"], "is empty"),
        (["diagnose", "junk.parquet"], "could not be read as a parquet file"),
        (["diagnose", "log", "--fidelity", "0"], "--fidelity must lie above 0"),
        (["diagnose", "log", "--max-silent", "1"], "--max-silent must lie above 0"),
        (["diagnose", "log", "--window", "-1"], "--window must be at least 0"),
        (["diagnose", "log", "--group-size", "4"], "has groups of 8 completions; leave --group-size out"),
        (["diagnose", "log", "--reward", "a=b"], "'b' is no number; write NAME=WEIGHT"),
        (["diagnose", "log", "--reward", "a=2"], "holds summed rewards only"),
    ],
)
def test_wrong_requests_are_answered_in_one_line(
    replicate: Run, log: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(log.parent)
    Path("junk").write_bytes(bytes(range(256)))
    Path("junk.parquet").write_bytes(b"PAR1" + bytes(range(256)))
    Path("empty").touch()
    log.rename("log")
    code, out, err = replicate(*arguments)
    assert code == 2 and out == "" and message in err
    assert err.startswith("error: ") and err.count("\n") == 1


def test_help_names_the_commands_and_their_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command, words in (
        (["--help"], ("plan-group-size", "diagnose outputs/my-run")),
        (["plan-group-size", "--help"], ("--solve-rates SOURCE", "--budget N", "examples:")),
        (["diagnose", "--help"], ("log_completions=True", "--group-size G", "examples:")),
    ):
        with pytest.raises(SystemExit) as stop:
            main(command)
        out = capsys.readouterr().out
        assert stop.value.code == 0 and all(word in out for word in words)


@pytest.mark.parametrize("command", [["plan-group-size", "--solve-rates", "big-math"], ["diagnose", "LOG"]])
def test_neither_command_loads_torch(command: list[str], log: Path) -> None:
    arguments = [str(log) if word == "LOG" else word for word in command]
    script = (
        "import sys; from replications.__main__ import main; "
        "assert not {'torch', 'numpy', 'pandas', 'scipy'} & set(sys.modules); "
        f"code = main({arguments!r}); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
