"""Trains with 1, 2 and 4 processes of gloo, and with weights divided by FSDP2, and leaves in files what each did.

Not a test of its own: `test_many_processes.py` calls `main`.

Completions are scripted, by their place in the batch of all processes, so that every number of processes has the same
ones. Where weights are divided, the policy samples, which it then does across the processes.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from trl import GRPOTrainer

from grpo_replications.shared.models.divided import whole_weights
from grpo_replications.shared.training.launching import SETTINGS_FILES
from grpo_replications.shared.training.token_weights import token_weighting
from tests.shared.training.processes import train_together
from tests.shared.training.redraw_bookkeeping import Recorded
from tests.shared.training.test_trainer import GROUP, TOKENS, dataset, make_trainer, mixed_reward, policy

ROWS = 3 * GROUP  # of a step; two processes take 6 and four take 3 of them, so that groups are split
PROMPTS = 7  # 3 a step: the last one of every pass over the data is left over
EVALUATED = 5
CONSTANTS = {"alpha": 4.0, "tau": 1.0, "mu": 0.25, "lower": 0.5, "upper": 1.5}
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "lambda-grpo": {"weight": "lambda-grpo", "gradient_accumulation_steps": 3},
    "sharpness": {"weight": token_weighting("sharpness", **CONSTANTS)},
    "redraws": {"weight": token_weighting("lambda-grpo*sharpness-mean1", **CONSTANTS), "max_redraws": 2},
}
NUMBERS = (1, 2, 4)
SAMPLED = {"weight": token_weighting("lambda-grpo*sharpness", **CONSTANTS), "max_redraws": 1, "ends": True}
"""Every third token ends a completion, so that processes are done at different lengths."""


def scripted(trainer: Any, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
    """Completions of this call by their places in the batch of all processes."""
    trainer.calls = getattr(trainer, "calls", 0) + 1
    first = len(prompt_ids) * trainer.accelerator.process_index
    return [_completion(trainer.calls, first + row, prompt) for row, prompt in enumerate(prompt_ids)], None


def _completion(call: int, row: int, prompt: list[int]) -> list[int]:
    draws = np.random.default_rng([call, row, *prompt])
    return [int(token) for token in draws.integers(40, 43, size=draws.integers(1, TOKENS + 1))]


def rarely(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """1 for one completion in five, so that many groups are silent."""
    return [float(sum(ids) % 5 == 0) for ids in completion_ids]


def train(directory: Path, weight: Any = None, ends: bool = False, **options: Any) -> dict[str, Any]:
    reward = Recorded(rarely if options.get("max_redraws") else mixed_reward)
    processes = PartialState(cpu=True).num_processes
    model, tokenizer = policy(noise=0.02, sharpness=3.0)
    if ends:
        model.generation_config.eos_token_id = list(range(0, model.config.vocab_size, 3))
    trainer, recorder = make_trainer(
        directory,
        weight,
        reward=reward,
        model=(model, tokenizer),
        train_dataset=dataset(PROMPTS),
        eval_dataset=dataset(EVALUATED),
        per_device_train_batch_size=ROWS // processes // options.get("gradient_accumulation_steps", 1),
        per_device_eval_batch_size=ROWS // processes,
        max_steps=3,
        learning_rate=0.02,
        beta=0.3,
        temperature=0.8,
        **options,
    )
    recorder.on_pre_optimizer_step = lambda *_, **__: None
    trainer.train()
    trained, warned = len(reward.calls), []
    if weight is None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            trainer.evaluate()
    return {
        "weights": {name: value.clone() for name, value in whole_weights(trainer.model)},
        "history": [entry for entry in trainer.state.log_history if "grad_norm" in entry],
        "rewarded": [[tuple(row) for row in call] for call in reward.calls[:trained]],
        "evaluated": [row.prompt for call in reward.calls[trained:] for row in call],
        "warned": [str(one.message) for one in warned],
        "kind": str(trainer.accelerator.distributed_type),
    }


@contextlib.contextmanager
def divided_on_a_cpu() -> Iterator[None]:
    """FSDP2 as the settings file has it. Accelerate leaves it out on a CPU, so it is told that it need not."""
    arguments = launch_command_parser().parse_args(
        ["--config_file", str(SETTINGS_FILES["fsdp2"]), "--num_processes", "2", "--mixed_precision", "no", "script.py"]
    )
    environment = prepare_multi_gpu_env(_validate_launch_command(arguments)[0])
    os.environ.update({name: environment[name] for name in environment if "FSDP" in name})
    as_it_is = AcceleratorState.__init__

    def divided(self: Any, *arguments: Any, **options: Any) -> None:
        as_it_is(self, *arguments, **options)
        if options.get("fsdp_plugin") is not None:
            self.fsdp_plugin = options["fsdp_plugin"]
        PartialState._shared_state["distributed_type"] = self.distributed_type = DistributedType.FSDP

    AcceleratorState._reset_state()
    AcceleratorState.__init__ = divided
    yield


def run(directory: Path, processes: int) -> None:
    sampling = GRPOTrainer._generate_single_turn
    GRPOTrainer._generate_single_turn = scripted
    found = {name: train(directory / name, **options) for name, options in METHODS.items()}
    if processes == 2:
        GRPOTrainer._generate_single_turn = sampling
        found["sampled"] = train(directory / "sampled", **SAMPLED)
        with divided_on_a_cpu():
            found["divided"] = train(directory / "divided", **SAMPLED)
    torch.save(found, directory / f"rank{PartialState().process_index}.pt")


def main(directory: Path) -> None:
    for processes in NUMBERS:
        (directory / str(processes)).mkdir()
        train_together(processes, partial(run, directory / str(processes), processes), directory / "printed.txt")
