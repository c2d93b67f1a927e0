"""A run of two CPU processes under `accelerate launch` is resumed as one is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpo_replications.shared.models import catalog

ROOT = Path(__file__).parents[3]


def launch(directory: Path, *arguments: str, script: str) -> list[dict]:
    """Run a script of this directory in two processes; what each left in `rank0.pt` and `rank1.pt`."""
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    ]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command += [str(Path(__file__).with_name(script)), str(directory), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(directory / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.slow
def test_a_run_of_two_processes_is_resumed_after_the_first_pass(tmp_path: Path) -> None:
    catalog.prepare("tiny-random")
    whole = launch(tmp_path, script="resume_script.py")
    log = (tmp_path / "groups.jsonl").read_text()
    again = launch(tmp_path, str(tmp_path / "checkpoint-4"), script="resume_script.py")
    assert (tmp_path / "groups.jsonl").read_text() == log
    for one, other in zip(whole, again, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
