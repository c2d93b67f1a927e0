"""The manual's scripts for queues: run in a shell with stand-ins, their commands are ones that `replicate` takes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from grpo_replications.replications.__main__ import _parser
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.parts import Part
from grpo_replications.shared.harness.profiles import load_profiles
from grpo_replications.shared.training.launching import check_launch
from grpo_replications.shared.training.ports import SERVER

PAGE = Path(__file__).parents[2] / "replications" / "README.md"
STAND_INS = {
    "replicate": 'printf "%s\\n" "${REPLICATE_VLLM_SERVER:-} $*" >> "$CALLS"',
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "sbatch": """[ "$1" = --parsable ] && echo 41 && exit
        [ "$1" = --dependency=afterany:41 ] || exit 1
        while [ "$1" != --wrap ]; do shift; done; sh -c "$2\"""",
    "vllm": 'printf "%s\\n" "$*" >> "$CALLS.vllm"; exec sleep 60',
    "curl": '[ -e "$CALLS.vllm" ]',
}


def section() -> str:
    return PAGE.read_text(encoding="utf-8").split("### Many machines", 1)[1].split("\n### ", 1)[0]


def scripts() -> list[str]:
    return re.findall(r"```bash\n(.*?)```", section(), re.S)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for name, script in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}


def called(script: str, environment: dict[str, str], task: int | None) -> list[list[str]]:
    """The calls of `replicate` that a script makes as this task of its array; each begins with the server named."""
    own = {**environment, **({"SLURM_ARRAY_TASK_ID": str(task)} if task else {})}
    Path(own["CALLS"]).unlink(missing_ok=True)
    subprocess.run(["bash", "-n", "-c", script], check=True)
    subprocess.run(["bash", "-eu", "-c", script], env=own, check=True)
    return [line.split(" ") for line in Path(own["CALLS"]).read_text().splitlines()]


def test_the_commands_of_the_array_are_understood(environment: dict[str, str]) -> None:
    array, afterwards, *_ = scripts()
    calls = [
        call
        for task, script in ((1, array), (8, array), (None, afterwards))
        for call in called(script, environment, task)
    ]
    parsed = [_parser().parse_args(arguments) for _, *arguments in calls]
    assert [line[1] for line in calls] == ["run", "run", "status", "run"]
    assert [one.part and Part.parse(one.part) for one in (parsed[0], parsed[1], parsed[3])] == [
        Part(1, 8),
        Part(8, 8),
        None,
    ]
    assert re.search(r"--array=1-(\d+)", array)[1] == str(parsed[0].part.split("/")[1])
    paper = Paper.load(PAGE.parent / parsed[0].paper.replace("-", "_"))
    assert paper.profile(parsed[0].profile).requires == "hub"
    assert len({one.results for one in parsed}) == 1, "all in one directory"


def test_several_gpus_for_each_job(environment: dict[str, str], tmp_path: Path) -> None:
    """The profile in the manual can be read and launched, on as many GPUs as its script asks for, one task a node."""
    script = scripts()[2]
    (call,) = called(script, environment, 4)
    options = _parser().parse_args(call[1:])
    assert Part.parse(options.part) == Part(4, 4) and "--array=1-4" in script and "srun --ntasks=1 " in script
    paper = Paper.load(PAGE.parent / "lambda_grpo")
    profiles = tmp_path / "profiles.toml"
    (snippet,) = re.findall(r"```toml\n(.*?)```", section(), re.S)
    profiles.write_text((paper.directory / "profiles.toml").read_text() + snippet)
    profile = load_profiles(profiles)[options.profile].with_overrides(options.only)
    for cell in profile.plans["table2"].cells:
        settings = paper.experiment("table2").parse(cell, "the manual")
        check_launch(settings, settings.launch, settings.processes)
        assert f"--gpus-per-node={settings.processes}\n" in script and settings.save_every


def test_parts_on_one_machine_have_servers_on_ports_of_their_own(environment: dict[str, str], tmp_path: Path) -> None:
    script = scripts()[3].replace("PAPER", "lambda-grpo").replace("PROFILE", "paper").replace("sleep 5", "sleep 0.05")
    assert SERVER in script
    ports = []
    for task in (1, 2):
        (call,) = called(script, environment, task)
        port = re.search(r"--port (\d+)", (tmp_path / "calls.vllm").read_text())[1]
        assert call[0] == f"http://127.0.0.1:{port}" and _parser().parse_args(call[1:]).part == f"{task}/8"
        (tmp_path / "calls.vllm").unlink()
        ports.append(port)
    assert len(set(ports)) == 2
