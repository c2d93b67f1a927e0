"""How a rollout is sampled: in one mixed-precision context, and from the policy itself."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

from trl import GRPOTrainer

from grpo_replications.shared.models.plain_sampling import distorting_settings, plain_sampling


class OneContextGRPOTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` that samples a rollout inside one mixed-precision context, and nothing else.

    Weights are cast once per rollout and not once per decoded token; the numbers sampled from are the same. vLLM and
    continuous batching compute in a precision of their own, and vLLM is sent the weights there: both are left alone.
    """

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        elsewhere = self.use_vllm or self.use_transformers_continuous_batching
        with nullcontext() if elsewhere else self.accelerator.autocast():
            return super()._generate_single_turn(*args, **kwargs)


class PolicySamples:
    """Mixin before a class derived from `trl.GRPOTrainer`: samples do not follow settings that ship with the model.

    What a configuration states, such as `top_p` or `generation_kwargs`, holds as in TRL.
    """

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        with plain_sampling(self.accelerator.unwrap_model(self.model)):
            return super()._generate_single_turn(*args, **kwargs)

    def _warn_of_generation_settings(self) -> None:
        """Say which of the model's own generation settings are left out."""
        if self.use_vllm:  # it is told every setting
            return
        found = distorting_settings(self.accelerator.unwrap_model(self.model), self.generation_kwargs)
        if found and self.accelerator.is_main_process:
            listed = ", ".join(f"{name}={value!r}" for name, value in found.items())
            warnings.warn(
                f"The model's own generation settings ({listed}) are left out when training samples: with them the "
                "samples would not come from the policy that is trained. To sample with them all the same, state them "
                "in GRPOConfig.generation_kwargs.",
                stacklevel=3,
            )
