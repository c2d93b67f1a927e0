"""What the trainer refuses: settings that cannot work, before anything is sampled, and rewards that are no numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from trl import GRPOConfig
from trl.trainer.utils import get_callable_name, is_async_callable

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training.token_weights import TokenWeight, Weighting, as_weighting
from grpo_replications.shared.training.weighted_loss import check_weighting

TOKEN_LEVEL_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")
"""TRL loss types whose loss is a sum of one term per token, so that a token weight has a meaning.

Left out: `luspo` and any loss with sequence-level importance ratios, where a token has no term of its own.
"""


_PASSED = ("completions", "completion_ids", "prompts", "trainer_state", "log_extra", "log_metric", "environments")
"""What TRL passes to reward functions itself, in place of a column of that name."""


def check_settings(
    config: GRPOConfig,
    train_dataset: Any,
    token_weight: str | TokenWeight | Weighting | None = None,
    needs_prompts: bool = True,
) -> None:
    """Refuse, before anything is generated, settings that fail late or train on nothing.

    `needs_prompts`: whether prompts come from the data set, and not from an environment.
    Raises ReplicationError for: a group of fewer than two, an unknown loss type, a token weight that the loss cannot
    take (`check_weighting`), a missing `prompt` column, a column that TRL would overwrite, and fewer prompts than one
    batch. Warns of a column `completion`, which TRL keeps from reward functions.
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
    if needs_prompts and "prompt" not in columns:
        raise ReplicationError(f"The training set has no column 'prompt' (it has: {', '.join(columns)}).")
    taken = sorted(set(_PASSED) & set(columns))
    if taken:
        raise ReplicationError(
            f"The training set's column {taken[0]!r} would be lost inside TRL: give it another name."
        )
    if "completion" in columns:
        warnings.warn(
            "The training set's column 'completion' is not passed to reward functions, which get the sampled "
            "completions. Give it another name if a reward needs it.",
            stacklevel=3,
        )
    prompts = config.generation_batch_size // config.num_generations
    if hasattr(train_dataset, "__len__") and len(train_dataset) < prompts:
        raise ReplicationError(
            f"The training set has {len(train_dataset)} prompts, fewer than the {prompts} of one generation batch, so "
            "not one step would be made. Give more prompts or a smaller batch."
        )


def warn_of_repeated_prompts(prompts: int, completions: int, batch_size: int, processes: int) -> None:
    """Warn of an evaluation in which TRL scores some prompts twice: accelerate fills up the last batch with the first.

    `completions`: of each prompt. `batch_size`: completions a process scores at once.
    """
    together = batch_size * processes
    surplus = -prompts * completions % together
    if processes > 1 and surplus:
        fitting = math.lcm(together, completions) // completions
        warnings.warn(
            f"The {prompts} prompts of the evaluation set, {completions} completions each, do not fill batches of "
            f"{together} over {processes} processes: {surplus} completions more are scored, of its first prompts "
            f"again, and count in the averages. Give a multiple of {fitting} prompts, or evaluate in one process.",
            stacklevel=3,
        )


def finite(reward_function: Any) -> Any:
    """Wrap a reward function so that NaN and infinite rewards stop the run; None ("not scored") passes.

    An asynchronous function stays one. What can be pickled still can. A reward model is left as it is.
    """
    if isinstance(reward_function, torch.nn.Module):
        return reward_function
    return _FiniteLater(reward_function) if is_async_callable(reward_function) else _Finite(reward_function)


class _Finite:
    """A reward function whose rewards are checked; called like it, and named like it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function
        self.__name__ = get_callable_name(function)

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self._checked(self.__wrapped__(*args, **kwargs))

    def _checked(self, rewards: Iterable[Any]) -> list[Any]:
        rewards = list(rewards)  # it may be a generator
        for reward in rewards:
            if reward is not None and not math.isfinite(reward):
                raise ReplicationError(
                    f"The reward function {self.__name__} returned {reward}. Return a finite number, or None for a "
                    "completion that cannot be scored."
                )
        return rewards


class _FiniteLater(_Finite):
    """The same of an asynchronous function."""

    async def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        return self._checked(await self.__wrapped__(*args, **kwargs))
