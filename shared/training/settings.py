"""What a training run is made of, with the values that hold where a profile says nothing; imports no library."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shared.models.catalog import EMBEDDED

METHOD_OPTIONS = ("alpha", "tau", "mu", "lower", "upper", "eta", "placement", "weight_kl", "rescale", "match")
"""Options of a method (`shared.training.token_weights.token_weighting`); one that a method lacks is refused."""

DEFAULTS: dict[str, Any] = {
    "model": EMBEDDED,
    "method": "grpo",
    "steps": 20,
    "prompts_per_step": 4,
    "group_size": 6,
    "lr": 1e-6,
    "optimizer": "adam",
    "max_grad_norm": 1.0,
    "max_new_tokens": 32,
    "temperature": 1.0,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "beta": 0.0,
    "num_iterations": 1,
    "max_redraws": 0,
    "redraw": "samples",
    "gradient_accumulation_steps": 1,
    "precision": "bfloat16",
    "lora_rank": 0,
    "lora_alpha": 128,
    "lora_dropout": 0.05,
    "gradient_checkpointing": False,
    "use_vllm": False,
    **dict.fromkeys(METHOD_OPTIONS),
}
"""Settings of a run; a profile may set any of them, and an unknown one is refused. Options of None are the method's."""


def trainer_settings(settings: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
    """Those settings that belong to a training run, but those of `without`, which are left unread.

    One by one: walking over all settings would count the misspelt ones as read.
    """
    return {key: settings[key] for key in DEFAULTS if key in settings and key not in without}
