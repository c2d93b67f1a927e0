"""Whole weights of a model that FSDP2 or DeepSpeed ZeRO-3 has divided among processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def is_divided(model: nn.Module) -> bool:
    """Whether this process holds only a part of some weight."""
    return any(isinstance(value, DTensor) or hasattr(value, "ds_id") for value in model.parameters())


@torch.no_grad()
def whole_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and whole value of one parameter after another; every process must go through all of them."""
    for name, value in model.named_parameters():
        with _gathered(value):
            yield name, value.full_tensor() if isinstance(value, DTensor) else value.detach()


@torch.no_grad()
def copy_whole_weights(model: nn.Module, to: nn.Module) -> None:
    """Give `to`, a model of the same kind that is not divided, the weights of `model`; every process must call."""
    own = dict(to.named_parameters())
    for name, value in whole_weights(model):
        own[name].copy_(value)


def _gathered(value: Any) -> AbstractContextManager[Any]:
    if not hasattr(value, "ds_id"):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([value])
