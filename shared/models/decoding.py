"""What makes a decoding step cheap: keys and values that are not copied at every token, and weights laid out for it.

Both leave the numbers what they are; laid out weights may round differently in the last digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 32
"""Tokens that a cache has room for beyond those that it holds when it is copied."""

LAID_OUT_AT_MOST = 2**30
"""Bytes of weights laid out anew at most, since they are held twice while sampling."""


class RoomyLayer(DynamicLayer):
    """Keys and values of one layer, with room for tokens to come: adding one writes that token and copies no other.

    Every row is written by one cache alone; `rows` gives disjoint parts of one storage, or copies.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.storage = [
                state.new_empty((*state.shape[:2], 0, state.shape[3])) for state in (key_states, value_states)
            ]
        known = self.get_seq_length()
        length = known + key_states.shape[-2]
        states = []
        for i, new in enumerate((key_states, value_states)):
            if self.storage[i].shape[-2] < length:
                roomy = new.new_empty((*new.shape[:2], length + ROOM, new.shape[3]))
                roomy[:, :, :known] = self.storage[i][:, :, :known]
                self.storage[i] = roomy
            self.storage[i][:, :, known:length] = new
            states.append(self.storage[i][:, :, :length])
        self.keys, self.values = states
        return self.keys, self.values

    def rows(self, chosen: slice | Tensor) -> RoomyLayer:
        """A layer with the chosen rows, a copy for a tensor of row numbers; this one is not to be used any more."""
        layer = RoomyLayer()
        layer.is_initialized, layer.device = True, self.device
        length = self.get_seq_length()
        if isinstance(chosen, slice):
            layer.storage = [kept[chosen] for kept in self.storage]
        else:
            layer.storage = []
            for kept in self.storage:
                roomy = kept.new_empty((len(chosen), kept.shape[1], length + ROOM, kept.shape[3]))
                torch.index_select(kept[:, :, :length], 0, chosen, out=roomy[:, :, :length])
                layer.storage.append(roomy)
        layer.keys, layer.values = (kept[:, :, :length] for kept in layer.storage)
        return layer


def roomy_cache() -> Cache:
    """An empty cache of layers with room."""
    return Cache(layer_class_to_replicate=RoomyLayer)


def select_rows(cache: Cache, chosen: slice | Tensor) -> Cache:
    """A cache with the chosen rows of another, which is not to be used any more."""
    return Cache(layers=[layer.rows(chosen) for layer in cache.layers]) if cache.layers else roomy_cache()


@contextmanager
def instead_of_forward(module: nn.Module, forward: Any) -> Iterator[None]:
    """A context in which calling `module` calls `forward`; afterwards it is as before, whatever patched it."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward  # the class has it again
        else:
            module.forward = own


def plain_linears(model: nn.Module) -> list[nn.Linear]:
    """Linear layers that compute nothing but x W' + b in float32, on a CPU, each once."""
    return [
        module
        for module in model.modules()
        if type(module) is nn.Linear and module.weight.dtype == torch.float32 and module.weight.device.type == "cpu"
    ]


@contextmanager
def laid_out(model: nn.Module) -> Iterator[None]:
    """A context in which wide layers of the model multiply a few rows with weights laid out for that.

    For a few dozen rows a matrix product spends most of its time on bringing the weights into order; here that is done
    once. Only float32 on a CPU and without a gradient, and only layers that are more than twice as wide as what
    goes in: others gain nothing. Where torch cannot do it nothing changes. Memory: those weights once more.
    """
    operations = torch.ops.mkldnn
    wide = [m for m in plain_linears(model) if m.out_features > 2 * m.in_features]
    size = sum(m.weight.numel() * m.weight.element_size() for m in wide)
    possible = torch.backends.mkldnn.is_available() and hasattr(operations, "_reorder_linear_weight")
    with ExitStack() as stack:
        if possible and size <= LAID_OUT_AT_MOST and not torch.is_autocast_enabled("cpu"):
            for module in wide:
                stack.enter_context(instead_of_forward(module, _few_rows(module)))
        yield


def _few_rows(module: nn.Linear) -> Any:
    plain = module.forward
    weight = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), 32)

    def forward(x: Tensor) -> Tensor:
        if x.numel() > 64 * module.in_features:
            return plain(x)
        return torch.ops.mkldnn._linear_pointwise(x, weight, module.bias, "none", [], "")

    return forward
