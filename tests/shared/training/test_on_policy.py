"""Products kept from sampling to scoring: the same gradients, and only while they are those of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer import utils

from grpo_replications.shared.models import kept_products
from grpo_replications.shared.training.group_log import read_group_log
from tests.shared.training.test_shared_prefixes import RAW_LOGITS, of_type, repetitive
from tests.shared.training.test_trainer import GROUP, make_trainer

pytestmark = pytest.mark.skipif(not hasattr(utils, "add_fused_lm_head"), reason="this version of TRL is refused")


def trained(directory: Path, share: bool, model: Any, **settings: Any) -> tuple[Any, list[torch.Tensor], list[float]]:
    trainer, recorder = make_trainer(directory, model=model, tree_sampling=True, share_prefixes=share, **settings)
    trainer.train()
    samples = [group["completion_ids"] for group in read_group_log(directory / "groups.jsonl")]
    assert trainer._kept is None
    return samples, recorder.gradients, [entry.get("scoring/kept") for entry in trainer.state.log_history[:-1]]


SETTINGS: dict[str, tuple[dict[str, Any], list[float]]] = {
    "on policy": ({"learning_rate": 0.01, "max_steps": 2}, [1, 1]),
    "raw logits, temperature": ({"token_weight": RAW_LOGITS, "temperature": 1.5, "beta": 0.1}, [1]),
    "accumulation": ({"per_device_train_batch_size": GROUP, "gradient_accumulation_steps": 2}, [1]),
    "two passes": ({"num_iterations": 2, "max_steps": 2, "learning_rate": 0.01}, [1, 0]),
    "entropy bonus": ({"entropy_coef": 0.1}, [1]),
    "checkpointing": ({"gradient_checkpointing": True}, [0]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_those_of_a_forward_pass_of_trl(name: str, tmp_path: Path) -> None:
    settings, used = SETTINGS[name]
    samples, plain, _ = trained(tmp_path / "plain", False, repetitive(), **settings)
    again, shared, kept = trained(tmp_path / "shared", True, repetitive(), **settings)
    assert samples == again
    assert kept == used
    for one, other in zip(plain, shared, strict=True):
        assert one.norm() > 0
        assert (one - other).norm() <= 1e-5 * one.norm()


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])  # biases; norms of queries and keys
def test_it_holds_for_every_architecture(model_type: str, tmp_path: Path) -> None:
    _, (plain,), _ = trained(tmp_path / "plain", False, of_type(model_type))
    _, (shared,), kept = trained(tmp_path / "shared", True, of_type(model_type))
    assert kept == [1] and (plain - shared).norm() <= 1e-5 * plain.norm()


def test_a_rollout_that_is_too_large_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_products, "KEPT_AT_MOST", 10_000)
    assert trained(tmp_path, True, repetitive())[2] == [0]


def test_a_layer_that_two_places_share_keeps_nothing(tmp_path: Path) -> None:
    def shared() -> tuple[Any, Any]:
        model, tokenizer = repetitive()
        model.model.layers[1].mlp = model.model.layers[0].mlp
        return model, tokenizer

    _, (plain,), _ = trained(tmp_path / "plain", False, shared())
    _, (packed,), kept = trained(tmp_path / "shared", True, shared())
    assert kept == [0] and (plain - packed).norm() <= 1e-5 * plain.norm()


def test_products_of_an_earlier_step_are_not_used_where_the_optimizer_counts_no_versions(tmp_path: Path) -> None:
    settings = {"num_iterations": 2, "max_steps": 2, "learning_rate": 0.01, "optim": "adamw_torch_fused"}
    assert trained(tmp_path, True, repetitive(), **settings)[2] == [1, 0]


def test_products_of_other_weights_are_not_used() -> None:
    model, _ = repetitive()
    kept = kept_products.KeptProducts(model)
    assert not kept.valid()
    kept._count = 1
    assert kept.valid()
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    assert not kept.valid()
