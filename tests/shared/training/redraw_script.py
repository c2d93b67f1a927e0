"""Trains one step with redraws in every process, twice, and leaves in a file what it did.

Not a test of its own: `test_dynamic_sampling_distributed.py` starts it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer
from tests.shared.training.redraw_bookkeeping import Recorded, threshold
from tests.shared.training.test_trainer import make_trainer, policy


def train(directory: Path, size: int, redraw: str, seed: int) -> dict[str, Any]:
    recorded = Recorded(threshold)
    trainer, recorder = make_trainer(
        directory,
        reward=recorded,
        trainer_class=functools.partial(TokenWeightedGRPOTrainer, max_redraws=3, redraw=redraw),
        model=policy(),
        num_generations=size,
        per_device_train_batch_size=3,  # with two accumulation steps 6 rows a process
        gradient_accumulation_steps=2,
        seed=seed,
    )
    trainer.train()
    keys = ("row", "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
    batches = [{key: batch[key] for key in keys} for batch in trainer._buffered_inputs]
    offset = 6 * PartialState().process_index
    return {
        "micro_batches": batches,
        "gradient": recorder.gradients[0],
        "weights": recorder.weights[0],
        "calls": [[tuple(row) for row in call] for call in recorded.calls],
        "samples_spent": trainer._samples_spent,
        "prompt_texts": {
            int(row) + offset: trainer.processing_class.decode(ids[mask.bool()])
            for batch in batches
            for row, ids, mask in zip(batch["row"], batch["prompt_ids"], batch["prompt_mask"], strict=True)
        },
    }


def main(directory: Path) -> None:
    runs = {str(size): train(directory / str(size), size, redraw, seed) for size, redraw, seed in RUNS}
    torch.save(runs, directory / f"rank{PartialState().process_index}.pt")


RUNS = ((4, "samples", 7), (3, "prompts", 7))
