"""The forward pass of an on-policy step is its sampling: what was multiplied there is not multiplied again.

With `tree_sampling` and `share_prefixes` both set, the first optimizer step on a rollout scores the very tokens that
the same weights have just seen. `shared.models.kept_products` keeps those products, in float32 on a CPU, where they
cost most of a step. A second step on the same rollout, or anything that has changed, is computed as usual.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from grpo_replications.shared.models.kept_products import KeptProducts

KEPT = "scoring/kept"
"""Logged where both options are set: 1 if products of the sampling were used in a scoring, 0 if not."""


class OnPolicy:
    """Mixin before a class derived from `trl.GRPOTrainer`: keeps products from sampling to the first scoring."""

    _kept: KeptProducts | None = None
    _kept_at = -1  # the optimizer step whose weights they are of: fused optimizers do not count versions

    def _products_to_keep(self, model: nn.Module) -> KeptProducts | None:
        """Where the sampling that begins keeps its products; None where nothing is to be kept."""
        config = self.args
        checkpointed = config.gradient_checkpointing or any(
            getattr(module, "gradient_checkpointing", False) for module in model.modules()
        )
        if (
            not (self.share_prefixes and self.tree_sampling and self.model.training)
            or model.device.type != "cpu"
            or config.bf16
            or config.fp16
            or checkpointed
            or hasattr(model, "peft_config")
        ):
            self._kept = None
        elif not self._is_current(self._kept):
            self._kept, self._kept_at = KeptProducts(model), self.state.global_step
        return self._kept

    def _kept_products(self) -> KeptProducts | None:
        """What this scoring can use; it is let go with the last micro-batch of an optimizer step."""
        kept = self._kept
        if kept is None or self._loss_inputs is None:
            return None
        usable = self._is_current(kept)
        if self.accelerator.sync_gradients or not usable:
            self._kept = None
        return kept if usable else None

    def _is_current(self, kept: KeptProducts | None) -> bool:
        return kept is not None and kept.valid() and self._kept_at == self.state.global_step

    def _note_kept(self, used: Any) -> None:
        if self.share_prefixes and self.tree_sampling:
            self._metrics["train" if self.model.training else "eval"][KEPT].append(float(used))
