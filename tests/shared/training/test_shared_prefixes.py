"""Scoring every distinct prefix once: TRL's gradients and log-probabilities, from fewer tokens."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer import utils

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog
from grpo_replications.shared.training import shared_prefixes
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.token_weights import token_weighting
from tests.shared.training.test_trainer import GROUP, make_trainer, mixed_reward, policy

pytestmark = pytest.mark.skipif(not hasattr(utils, "add_fused_lm_head"), reason="this version of TRL is refused")


def silent_first(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Rewards that are equal in the first group and mixed in the second."""
    return [0.5] * GROUP + mixed_reward(completion_ids[GROUP:])


RAW_LOGITS = token_weighting("sharpness", mu=0.0, lower=0.01, upper=9.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "raw logits and a reference": {"token_weight": RAW_LOGITS, "beta": 0.1},
    "process sets, two updates": {"token_weight": "lambda-grpo", "num_iterations": 2, "max_steps": 2},
    "accumulation, cut off": {
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": GROUP,
        "mask_truncated_completions": True,
        "top_entropy_quantile": 0.5,
    },
    "adapter and checkpointing": {"peft": True, "gradient_checkpointing": True},
    "a silent group": {"token_weight": RAW_LOGITS, "reward": silent_first},
    "bfloat16": {"bf16": True, "reward": silent_first},
}
ARCHITECTURES = [("llama", "eager"), ("qwen2", "sdpa"), ("qwen3", "eager")]


def repetitive() -> tuple[Any, Any]:
    """The tiny policy, so sharp that completions begin alike, and with an end that comes at different lengths."""
    model, tokenizer = policy(sharpness=25.0)
    with torch.no_grad():
        model.get_input_embeddings().weight[tokenizer.eos_token_id] *= 2.5
    return model, tokenizer


def of_type(model_type: str, **changes: Any) -> tuple[Any, Any]:
    """A random model of an architecture that the tiny model's tokenizer fits, sharp enough to repeat itself."""
    tiny, tokenizer = policy()
    own = tiny.config
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = {name: getattr(own, name) for name in (*names, "num_key_value_heads", "eos_token_id", "pad_token_id")}
    torch.manual_seed(1)
    config = AutoConfig.for_model(model_type, head_dim=own.hidden_size // own.num_attention_heads, **sizes)
    model = AutoModelForCausalLM.from_config(config, **changes)
    with torch.no_grad():
        model.model.norm.weight *= 100
    return model, tokenizer


def trained(
    directory: Path, share: bool, model: Any, **settings: Any
) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False) if settings.pop("peft", False) else None
    torch.manual_seed(3)
    trainer, recorder = make_trainer(directory, model=model(), peft_config=lora, share_prefixes=share, **settings)
    trainer.train()
    return recorder.gradients, trainer.state.log_history


def check(tmp_path: Path, tolerance: float = 1e-5, model: Any = repetitive, **settings: Any) -> None:
    plain, log = trained(tmp_path / "plain", False, model, **settings)
    shared, of_shared = trained(tmp_path / "shared", True, model, **settings)
    groups = read_group_log(tmp_path / "shared" / "groups.jsonl")
    starts = [(g, ids[0]) for g, group in enumerate(groups) for ids in group["completion_ids"]]
    assert len(set(starts)) < len(starts), "some completions of a group must begin alike"
    assert len(plain) == len(shared) > 0
    for one, other in zip(plain, shared, strict=True):
        assert one.norm() > 0
        assert (one - other).norm() <= tolerance * one.norm()
    for one, other in zip(log[:-1], of_shared[:-1], strict=True):
        assert other["scoring/share"] < 0.75
        for name in {"reward", "entropy", "kl", "token_weights/mean", "token_weights/max"} & one.keys():
            assert one[name] == pytest.approx(other[name], rel=max(tolerance, 1e-5))


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_those_of_one_row_a_completion(name: str, tmp_path: Path) -> None:
    settings = dict(SETTINGS[name])
    check(tmp_path, tolerance=0.03 if settings.get("bf16") else 1e-5, **settings)


def test_without_any_advantage_the_gradient_is_zero(tmp_path: Path) -> None:
    settings = {"reward": lambda completion_ids, **_: [0.5] * len(completion_ids)}
    (gradient,), _ = trained(tmp_path, True, repetitive, **settings)
    assert not gradient.any()


@pytest.mark.parametrize(("model_type", "attention"), ARCHITECTURES)
def test_gradients_hold_for_every_architecture_that_is_not_refused(
    model_type: str, attention: str, tmp_path: Path
) -> None:
    check(tmp_path, model=partial(of_type, model_type, attn_implementation=attention))


def test_every_architecture_that_is_not_refused_is_compared() -> None:
    assert {model_type for model_type, _ in ARCHITECTURES} == set(shared_prefixes.MODEL_TYPES)
    assert {attention for _, attention in ARCHITECTURES} == set(shared_prefixes.ATTENTION)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt2"}, "type 'gpt2'"),
        ({"attention_dropout": 0.1}, "dropout"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"_attn_implementation": "flash_attention_2"}, "flash_attention_2"),
    ],
)
def test_what_is_not_tested_is_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    model, tokenizer = catalog.tiny_random()
    for name, value in changes.items():
        setattr(model.config, name, value)
    with pytest.raises(ReplicationError, match=reason):
        make_trainer(tmp_path, model=(model, tokenizer), share_prefixes=True)


def test_noise_that_is_drawn_for_every_completion_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="neftune_noise_alpha"):
        make_trainer(tmp_path, model=catalog.tiny_random(), share_prefixes=True, neftune_noise_alpha=5.0)


def test_where_nothing_is_saved_rows_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight long completions in one text would attend to each other in vain; then TRL's own rows, to the bit."""

    config = catalog.tiny_random()[0].config
    assert shared_prefixes.work(config, [(1, 8 * 400 + 20)]) > shared_prefixes.work(config, [(8, 420)])
    monkeypatch.setattr(shared_prefixes, "work", lambda config, shapes: 1)
    plain, _ = trained(tmp_path / "plain", False, repetitive)
    shared, log = trained(tmp_path / "shared", True, repetitive)
    assert log[0]["scoring/share"] == 1
    assert all(map(torch.equal, plain, shared))
