"""What the trainer refuses: settings that cannot work, before anything is sampled, and rewards that are no numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from trl import GRPOConfig
from trl.trainer.utils import is_async_callable

from shared.errors import ReplicationError
from shared.training.token_weights import TokenWeight, Weighting, as_weighting
from shared.training.weighted_loss import check_weighting

TOKEN_LEVEL_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")
"""TRL loss types whose loss is a sum of one term per token, so that a token weight has a meaning.

Left out: `luspo` and any loss with sequence-level importance ratios, where a token has no term of its own.
"""


def check_settings(
    config: GRPOConfig, train_dataset: Any, token_weight: str | TokenWeight | Weighting | None = None
) -> None:
    """Refuse, before anything is generated, settings that fail late or train on nothing.

    Raises ReplicationError for: a group of fewer than two, an unknown loss type, a token weight that the loss cannot
    take (`check_weighting`), a missing `prompt` column, a column that TRL would drop or overwrite, and fewer prompts
    than one batch.
    """
    if config.num_generations < 2:
        raise ReplicationError(f"num_generations is {config.num_generations}; a group needs at least 2 completions.")
    if config.loss_type not in (*TOKEN_LEVEL_LOSSES, "luspo"):
        raise ReplicationError(
            f"loss_type {config.loss_type!r} is unknown; use one of {', '.join(TOKEN_LEVEL_LOSSES)}."
        )
    weighting = as_weighting(token_weight)
    if weighting is not None:
        check_weighting(config, weighting)
    columns = getattr(train_dataset, "column_names", None)
    if columns is None:
        return
    if "prompt" not in columns:
        raise ReplicationError(f"The training set has no column 'prompt' (it has: {', '.join(columns)}).")
    taken = sorted({"completion", "completions", "completion_ids", "prompts"} & set(columns))
    if taken:
        raise ReplicationError(
            f"The training set's column {taken[0]!r} would be lost inside TRL: give it another name."
        )
    prompts = config.generation_batch_size // config.num_generations
    if hasattr(train_dataset, "__len__") and len(train_dataset) < prompts:
        raise ReplicationError(
            f"The training set has {len(train_dataset)} prompts, fewer than the {prompts} of one generation batch, so "
            "not one step would be made. Give more prompts or a smaller batch."
        )


def finite(reward_function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function so that NaN and infinite rewards stop the run; None ("not scored") passes."""
    if isinstance(reward_function, torch.nn.Module) or is_async_callable(reward_function):
        return reward_function

    @functools.wraps(reward_function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        rewards = reward_function(*args, **kwargs)
        for reward in rewards:
            if reward is not None and not math.isfinite(reward):
                name = getattr(reward_function, "__name__", type(reward_function).__name__)
                raise ReplicationError(
                    f"The reward function {name} returned {reward}. Return a finite number, or None for a completion "
                    "that cannot be scored."
                )
        return rewards

    return checked
