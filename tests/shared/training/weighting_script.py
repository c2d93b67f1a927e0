"""Trains two updates on a rollout in every process and leaves what they were made of in a file.

Not a test of its own: `test_weighting_runs.py` starts it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import PartialState

from grpo_replications.shared.training.token_weights import token_weighting
from tests.shared.training.test_trainer import make_trainer, policy
from tests.shared.training.test_weighting_trainer import CONSTANTS, TEMPERATURE

METHOD = "lopti*lambda-grpo*sharpness-mean1"


def main(directory: Path) -> None:
    trainer, recorder = make_trainer(
        directory,
        token_weighting(METHOD, **CONSTANTS),
        model=policy(sharpness=12.0),
        per_device_train_batch_size=3,  # with two accumulation steps: 12 completions, 3 groups, the second one split
        gradient_accumulation_steps=2,
        loss_type="dapo",
        beta=0.3,
        temperature=TEMPERATURE,
        learning_rate=0.001,
        max_steps=2,
    )
    trainer.train()
    keys = ("row", "prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    torch.save(
        {
            "micro_batches": [{key: batch[key] for key in keys} for batch in trainer._buffered_inputs],
            "gradients": recorder.gradients,
            "weights": recorder.weights,
            "history": [
                {key: value for key, value in entry.items() if "token_weights" in key or "budget" in key}
                for entry in trainer.state.log_history
                if "loss" in entry
            ],
        },
        directory / f"rank{PartialState().process_index}.pt",
    )
