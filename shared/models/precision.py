"""Language models that compute in float64 throughout, for checks that float32 rounding would blur.

The models of transformers compute some layers in float32 whatever the type of their weights. The two functions here
replace such layers in place by the same function, of the same parameters, in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def in_float64(model: nn.Module) -> nn.Module:
    """The model with its normalization layers in float64 too; transformers computes them in float32 whatever the dtype.

    Without this, equal prefixes in two rows differ by float32 rounding (1e-8), and the comparison is no float64 check.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm") and not isinstance(child, nn.RMSNorm):
                exact = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon, dtype=torch.float64)
                exact.weight = child.weight
                setattr(module, name, exact)
    return model


def with_exact_rotary(model: nn.Module) -> nn.Module:
    """The model with the angles of its rotary position embedding in float64.

    A rotary embedding depends on differences of positions only, but float32 angles break that by 1e-7: the same
    completion behind a padded and an unpadded prompt would have two log-probabilities.
    Raises ValueError for a rotary embedding whose frequencies change with the length of the sequence.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RotaryEmbedding"):
                if getattr(child, "rope_type", "default") != "default":
                    raise ValueError(f"rotary embeddings of type {child.rope_type!r} have no fixed frequencies")
                setattr(module, name, _ExactRotary(child.inv_freq, child.attention_scaling))
    return model


class _ExactRotary(nn.Module):
    """Cosine and sine of position times frequency, (B, T, head size) each, computed in float64."""

    def __init__(self, inv_freq: Tensor, scaling: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", inv_freq.double(), persistent=False)
        self.scaling = scaling

    def forward(self, x: Tensor, position_ids: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        angles = position_ids.unsqueeze(-1).double() * self.inv_freq.to(x.device)
        angles = torch.cat([angles, angles], dim=-1)
        return (angles.cos() * self.scaling).to(x.dtype), (angles.sin() * self.scaling).to(x.dtype)
