"""Without a token weight the trainer is stock TRL, bit for bit: weights, gradients and logs over a grid of settings.

`make test` runs one setting of each kind; `python -m pytest -m grid` all of the products.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from trl import GRPOTrainer

from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer
from tests.shared.training.test_trainer import GROUP, dataset, make_trainer, mixed_reward

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
OWN = ("time/", "groups/", "tree/", "budget/", "token_weights/")  # what is logged beside TRL's figures
TIMES = ("runtime", "per_second", "step_time")
MOVING = {"max_steps": 3, "learning_rate": 0.05, "max_grad_norm": 1.0}

FAST: dict[str, dict[str, Any]] = {
    **{f"loss {name}": {"loss_type": name} for name in LOSSES},
    "two updates": {"num_iterations": 2},
    "two batches a rollout": {"steps_per_generation": 2},
    "accumulation": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": GROUP},
    "reference": {"beta": 0.1},
    "batch scale": {"scale_rewards": "batch"},
    "no scale": {"scale_rewards": "none"},
    "sequence ratios": {"importance_sampling_level": "sequence"},
    "most entropic tokens": {"top_entropy_quantile": 0.2},
    "bfloat16": {"bf16": True},
    "adapter": {"peft": True},
    "checkpointing": {"gradient_checkpointing": True},
}
PRODUCTS = [
    dict(zip(("loss_type", "num_iterations", "gradient_accumulation_steps", "beta", "scale_rewards"), values))
    for values in itertools.product(LOSSES, (1, 2), (1, 2), (0.0, 0.1), ("group", "batch"))
]


def trained(directory: Path, trainer_class: type, settings: dict[str, Any]) -> tuple[Any, Any, list[dict[str, Any]]]:
    settings = dict(settings)
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapter = lora if settings.pop("peft", False) else None
    torch.manual_seed(3)  # of an adapter's first weights
    trainer, recorder = make_trainer(
        directory,
        trainer_class=trainer_class,
        peft_config=adapter,
        train_dataset=dataset(24),
        reward=mixed_reward,
        **{**MOVING, **settings},
    )
    trainer.train()
    return trainer, recorder, trainer.state.log_history


def check(directory: Path, settings: dict[str, Any]) -> None:
    stock, of_stock, stock_log = trained(directory / "stock", GRPOTrainer, settings)
    ours, of_ours, our_log = trained(directory / "ours", TokenWeightedGRPOTrainer, settings)
    assert len(of_stock.gradients) == len(of_ours.gradients) > 0
    assert all(map(torch.equal, of_stock.gradients, of_ours.gradients))
    assert any(gradient.any() for gradient in of_stock.gradients)
    theirs = stock.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.model.state_dict().items())
    for one, other in zip(stock_log, our_log, strict=True):
        same = {key: value for key, value in other.items() if not key.startswith(OWN)}
        for key in (*one, *same):
            assert any(time in key for time in TIMES) or one[key] == same[key], key


@pytest.mark.parametrize("name", FAST)
def test_a_setting_of_each_kind(name: str, tmp_path: Path) -> None:
    check(tmp_path, FAST[name])


@pytest.mark.grid
@pytest.mark.parametrize("settings", PRODUCTS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_every_product_of_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    check(tmp_path, settings)
