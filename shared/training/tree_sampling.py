"""Rollouts drawn by the tree of their prefixes: an option that samples faster than transformers' `generate`.

A prompt is computed once and not G times, completions that have begun alike are one row until they part, what has ended
leaves the batch, and a token costs one uniform number and not one for each entry of the vocabulary
(`shared.models.sampling`); keys and values are not copied at every token, and weights of wide layers are laid out once
for a few rows (`shared.models.decoding`). In mixed precision the weights are cast to 16 bits once for a rollout. The
distribution of a completion is the policy's as before, other random numbers are used: the completions differ from
those that TRL draws with the same seed. Draws come from torch's global generator, so resuming stays exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models.sampling import sample_rows


class TreeSampling:
    """Mixin before a class derived from `trl.GRPOTrainer`: samples by the tree of prefixes where `tree_sampling` is."""

    tree_sampling = False

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.tree_sampling:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        model = self.accelerator.unwrap_model(self.model_wrapped)
        config = self.args
        dtype = torch.bfloat16 if config.bf16 else torch.float16 if config.fp16 else None
        with cast_once(model, dtype):
            drawn = sample_rows(
                model,
                prompt_ids,
                getattr(self, "eos_token_ids", None) or [self._tokenizer.eos_token_id],  # TRL before 1.16 knows one
                max_new_tokens=self.max_completion_length,
                temperature=self.temperature,
                kept=self._products_to_keep(model),
            )
        return [list(ids) for ids in drawn], None

    def _check_tree_sampling(self, given: Any) -> None:
        """Raise ReplicationError where sampling is another engine's or draws from another distribution."""
        reason = unsupported(self, given) if self.tree_sampling else None
        if reason is not None:
            raise ReplicationError(f"tree_sampling does not work with {reason}. Set tree_sampling to false.")


def unsupported(trainer: Any, given: Any) -> str | None:
    """Why rollouts cannot be drawn by the tree under a trainer's settings; None where they can.

    `given`: the arguments that the trainer was called with.
    """
    config = trainer.args
    changed = [
        f"{name}={getattr(config, name)}"
        for name, neutral in (
            ("top_p", (1.0,)),
            ("top_k", (0, None)),
            ("min_p", (0, None)),
            ("repetition_penalty", (1.0,)),
        )
        if getattr(config, name, neutral[0]) not in neutral
    ]
    distributed = str(getattr(trainer.accelerator.distributed_type, "value", trainer.accelerator.distributed_type))
    causal = trainer.accelerator.unwrap_model(trainer.model)
    windows = set(getattr(causal.config, "layer_types", None) or ()) - {"full_attention"}
    for wrong, what in (
        (trainer.use_vllm, "vLLM, which samples by itself"),
        (trainer.use_transformers_continuous_batching, "continuous batching, which samples by itself"),
        (changed, f"{', '.join(changed)}: it draws from the policy itself"),
        (config.generation_kwargs, "generation_kwargs: it draws from the policy itself"),
        (given.get("tools") or given.get("environment_factory"), "tools and environments"),
        (given.get("rollout_func"), "rollout_func"),
        (trainer._is_vlm, "models of images"),
        (windows, f"layers of type {', '.join(sorted(windows))}"),
        (distributed in ("FSDP", "DEEPSPEED", "MEGATRON_LM"), f"{distributed}, for which it is not tested"),
    ):
        if wrong:
            return what
    return None


@contextmanager
def cast_once(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """A context in which the model's parameters are copies in `dtype`; with None it is left as it is.

    The parameters are theirs again afterwards, to the bit, also on an error. Memory: the copies.
    """
    if dtype is None:
        yield
        return
    own = [(parameter, parameter.data) for parameter in model.parameters() if parameter.is_floating_point()]
    try:
        for parameter, data in own:
            parameter.data = data.to(dtype)
        yield
    finally:
        for parameter, data in own:
            parameter.data = data
