"""Trains in every process, from a checkpoint if one is given, and leaves the weights in a file.

Not a test of its own: `test_trainer_distributed.py` starts it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import PartialState

from tests.shared.training.test_resume import train
from tests.shared.training.test_trainer import GROUP, dataset


def main(directory: Path, checkpoint: str | None = None) -> None:
    trainer = train(directory, checkpoint, train_dataset=dataset(7), per_device_train_batch_size=GROUP, max_steps=5)
    weights = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    torch.save(dict(weights), directory / f"rank{PartialState().process_index}.pt")
