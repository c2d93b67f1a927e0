"""Models whose weights FSDP2 or DeepSpeed ZeRO-3 has divided among processes: whole weights, and sampling together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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


@contextmanager
def sampling_in_step(model: nn.Module) -> Iterator[None]:
    """Let `model.generate` go on in every process until the last one is done, where the weights are divided.

    A process that stopped at its own last end of sequence would leave the others waiting for its part of the weights.
    Transformers looks for a mark on the model, which accelerate, dividing it with FSDP2, does not make.
    """
    if not is_divided(model) or getattr(model, "_is_fsdp_managed_module", False):
        yield
        return
    model._is_fsdp_managed_module = True
    try:
        yield
    finally:
        del model._is_fsdp_managed_module


def _gathered(value: Any) -> AbstractContextManager[Any]:
    if not hasattr(value, "ds_id"):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([value])
