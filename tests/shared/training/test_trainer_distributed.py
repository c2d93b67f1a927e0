"""A group split over two CPU processes gets the weights, advantages and gradient of the whole group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpo_replications.shared.models import catalog
from grpo_replications.shared.training.group_log import read_group_log
from tests.shared.training import grpo_oracle as oracle
from tests.shared.training.test_trainer import GROUP, TOKENS, mixed_reward, relative

ROOT = Path(__file__).parents[3]
PER_PROCESS = 6


def launch(directory: Path, *arguments: str, script: str = "split_group_script.py") -> list[dict]:
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
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_a_group_split_over_two_processes(tmp_path: Path, loss_type: str) -> None:
    catalog.prepare("tiny-random")
    ranks = launch(tmp_path, loss_type)
    completions = [row for rank in ranks for row in oracle.regroup(rank["micro_batches"])]
    assert len(completions) == 3 * GROUP
    counts = oracle.prefix_counts(completions, GROUP)
    half = GROUP // 2
    halves = [oracle.prefix_counts(completions[i : i + half], half) for i in (GROUP, GROUP + half)]
    assert counts[GROUP : 2 * GROUP] != halves[0] + halves[1], (
        "a set of the split group must reach across the processes"
    )
    a = oracle.advantages(mixed_reward(completions), GROUP)

    reference, model = (oracle.double_precision(catalog.load("tiny-random")[0]) for _ in range(2))
    model.load_state_dict({k: v.double() for k, v in ranks[0]["weights"].items()})
    tokens = sum(map(len, completions))
    total = 0.0
    for rank, saved in enumerate(ranks):
        for batch in saved["micro_batches"]:
            rows = [int(row) + rank * PER_PROCESS for row in batch["row"]]
            mask = batch["completion_mask"].double()
            w = torch.zeros_like(mask)
            for i, row in enumerate(rows):
                w[i, : len(counts[row])] = 1.0 / torch.tensor(counts[row], dtype=torch.float64)
            assert torch.allclose(batch["token_weights"].double(), w, atol=1e-7)
            expected = torch.tensor([a[row] for row in rows], dtype=torch.float64)
            assert torch.allclose(batch["advantages"].double(), expected, atol=1e-4)
            logps = oracle.completion_logps(model, batch)
            with torch.no_grad():
                ref = oracle.completion_logps(reference, batch)
            normalizer = tokens if loss_type == "dapo" else len(rows) * 4  # 2 micro-batches x 2 processes
            total = total + oracle.loss(
                loss_type, logps, logps.detach(), ref, expected, w, mask, beta=0.3, normalizer=normalizer
            )
    gradient = oracle.flat_gradient(total, model)
    assert torch.equal(ranks[0]["gradient"], ranks[1]["gradient"])
    assert relative(ranks[0]["gradient"], gradient) < 2e-5

    groups = list(read_group_log(tmp_path / "groups.jsonl"))
    assert [group["completion_ids"] for group in groups] == [
        completions[g : g + GROUP] for g in range(0, 3 * GROUP, GROUP)
    ]
    assert all(len(ids) <= TOKENS for ids in completions)
    assert all(value is not None for group in groups for value in group["entropy"])


@pytest.mark.slow
def test_a_run_of_two_processes_is_resumed_after_the_first_pass(tmp_path: Path) -> None:
    catalog.prepare("tiny-random")
    whole = launch(tmp_path, script="resume_script.py")
    log = (tmp_path / "groups.jsonl").read_text()
    again = launch(tmp_path, str(tmp_path / "checkpoint-4"), script="resume_script.py")
    assert (tmp_path / "groups.jsonl").read_text() == log
    for one, other in zip(whole, again, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
