"""Rollouts by the tree of prefixes: the policy's distribution, the run's seed, and weights that stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.tree_sampling import cast_once
from tests.shared.training.test_trainer import TOKENS, make_trainer, policy


def rollouts(directory: Path, **settings: Any) -> list[list[int]]:
    trainer, recorder = make_trainer(directory, max_steps=2, tree_sampling=True, **settings)
    trainer.train()
    assert all(weight.dtype == torch.float32 for weight in trainer.model.parameters())
    assert any(gradient.any() for gradient in recorder.gradients)
    return [ids for group in read_group_log(directory / "groups.jsonl") for ids in group["completion_ids"]]


@pytest.mark.parametrize("precision", [{}, {"bf16": True}])
def test_the_seed_decides_the_samples(precision: dict[str, Any], tmp_path: Path) -> None:
    first, again, other = (rollouts(tmp_path / str(i), seed=seed, **precision) for i, seed in enumerate((7, 7, 8)))
    assert first == again != other
    assert all(len(ids) == TOKENS or ids[-1] == 0 for ids in first)


def test_weights_are_cast_once_and_are_themselves_again() -> None:
    model, _ = policy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError), cast_once(model, torch.bfloat16):
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
        assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
        raise RuntimeError
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"generation_kwargs": {"min_p": 0.1}}, "generation_kwargs"),
        ({"use_transformers_continuous_batching": True}, "continuous batching"),
    ],
)
def test_other_distributions_and_engines_are_refused(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match=reason):
        make_trainer(tmp_path, tree_sampling=True, **settings)
