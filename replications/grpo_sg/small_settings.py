"""What holds for the small transformer's experiments where a profile says nothing; imports no heavy library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.training.settings import DEFAULTS

SMALL_DEFAULTS: dict[str, Any] = {
    **{key: value for key, value in DEFAULTS.items() if key not in ("model", "steps")},
    # Training: 128 completions a rollout. Answers have one to three digits and an end.
    "method": "grpo",
    "equal": "samples",
    "prompts_per_step": 16,
    "group_size": 8,
    "max_new_tokens": 4,
    "precision": "float32",
    # Problems: operands 0 to 49 (some 2,000 ordered pairs beside those held out), longer ones 100 to 149.
    "low": 0,
    "high": 49,
    "train_size": 1500,
    "validation_size": 256,
    "longer_low": 100,
    "longer_high": 149,
    # The start: answers of 800 of the 1,500 training problems are taught, until half of a probe is solved.
    "width": 64,
    "layers": 2,
    "pretrain_size": 800,
    "pretrain_longer": 400,
    "pretrain_longer_share": 0.2,
    "pretrain_accuracy": 0.5,
    "pretrain_lr": 3e-3,
    "pretrain_batch": 128,
    "pretrain_max_steps": 3000,
}
"""Settings of `replications.grpo_sg.training_small`; a profile may set any of them."""


def complete(settings: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """The settings of a run: those of SMALL_DEFAULTS, given or not, and those named in `own`, which must be given.

    One by one: walking over all settings would count the misspelt ones as read.
    """
    known = {key: settings.get(key, value) for key, value in SMALL_DEFAULTS.items()}
    return known | {key: settings[key] for key in own}
