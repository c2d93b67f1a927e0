"""Trains one step in every process of `accelerate launch` and leaves each process's batch and gradient in a file.

Not a test of its own: `test_trainer_distributed.py` starts it. Usage: script.py DIRECTORY LOSS_TYPE
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import PartialState

from grpo_replications.shared.training.token_weights import TOKEN_WEIGHTS
from tests.shared.training.test_trainer import make_trainer, policy


def main(directory: Path, loss_type: str) -> None:
    trainer, recorder = make_trainer(
        directory,
        TOKEN_WEIGHTS["lambda-grpo"],
        model=policy(sharpness=12.0),
        per_device_train_batch_size=3,  # with two accumulation steps: 12 completions, 3 groups, the second one split
        gradient_accumulation_steps=2,
        loss_type=loss_type,
        beta=0.3,
    )
    trainer.train()
    keys = ("row", "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "token_weights")
    torch.save(
        {
            "micro_batches": [{key: batch[key] for key in keys} for batch in trainer._buffered_inputs],
            "gradient": recorder.gradients[0],
            "weights": recorder.weights[0],
        },
        directory / f"rank{PartialState().process_index}.pt",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
