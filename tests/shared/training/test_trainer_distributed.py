"""A run of two CPU processes is resumed as one is."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path

import pytest
import torch

from grpo_replications.shared.models import catalog
from tests.shared.training.processes import train_together


def launch(directory: Path, *arguments: str, script: str) -> list[dict]:
    """Run `main` of a script of this directory in two processes; what each left in `rank0.pt` and `rank1.pt`."""
    main = importlib.import_module(f"tests.shared.training.{script}").main
    train_together(2, partial(main, directory, *arguments), directory / "printed.txt")
    return [torch.load(directory / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.slow
def test_a_run_of_two_processes_is_resumed_after_the_first_pass(tmp_path: Path) -> None:
    catalog.prepare("tiny-random")
    whole = launch(tmp_path, script="resume_script")
    log = (tmp_path / "groups.jsonl").read_text()
    again = launch(tmp_path, str(tmp_path / "checkpoint-4"), script="resume_script")
    assert (tmp_path / "groups.jsonl").read_text() == log
    for one, other in zip(whole, again, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
