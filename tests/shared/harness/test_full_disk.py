"""A disk that fills up in the middle of training stops the run with one message, whoever raises, and keeps the rest."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness import jobs
from grpo_replications.shared.harness.jobs import Experiment, Job, JobContext, Origin, Row, row, run_job
from grpo_replications.shared.settings import Settings

FULL = [
    OSError(errno.ENOSPC, "No space left on device", "/elsewhere/checkpoint"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    RuntimeError("[enforce fail at inline_container.cc:668] . PytorchStreamWriter failed: file write failed"),
]


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_a_full_disk_in_mid_training_is_one_message(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(settings: Settings, seed: int, context: JobContext) -> list[Row]:
        (context.directory / "checkpoints").mkdir(exist_ok=True)
        (context.directory / "checkpoints" / "kept").touch()
        if seed == 1:
            raise ValueError("saving failed") from error
        return [row("loss", 1.0)]

    registry = type("M", (), {"EXPERIMENTS": {"train": Experiment(train, "", Settings)}})
    monkeypatch.setattr(jobs, "import_from", lambda *_: registry)
    for seed, status in ((0, "done"), (1, "stop")):
        job = Job("train", 1, {"threads": 1}, "", range(seed, seed + 1), False)
        outcome = run_job(job, tmp_path, tmp_path / "jobs", Origin(None, False, "", ""), None, None)
        assert outcome.status == status
    assert "the disk is full" in outcome.message and "run the same command" in outcome.message
    assert "\n" not in outcome.message and len(list((tmp_path / "jobs").glob("*.json"))) == 1
    assert (tmp_path / "jobs" / job.stem / "checkpoints" / "kept").exists()  # from where the job goes on
    assert not jobs.disk_is_full(ReplicationError("another mistake"))
