"""One model of transformers where many small ones are expected: a stack of one, of any architecture.

Shape legend: N texts, M positions of a text, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class StackOfOne:
    """A model of transformers with the interface of `ManyTransformers` that training and token trees need.

    Its parameters are views of the model's own with a first axis of one, so training changes the model itself. Those
    that the model does not train (`requires_grad` False) are no part of it, tied ones count once.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.parameters = {name: value.detach().unsqueeze(0) for name, value in trained.items()}

    def __len__(self) -> int:
        return 1

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self.model.dtype

    def trainable(self) -> list[Tensor]:
        """The parameters, (1, ...) each, which gradients are taken of, in the model's order."""
        return list(self.parameters.values())

    def copy(self) -> StackOfOne:
        """The same model with parameters of its own."""
        return StackOfOne(copy.deepcopy(self.model))

    def logits(
        self, ids: Tensor, positions: Tensor | None = None, visible: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Logits (1, N, M, V) of the token after each of `ids` (1, N, M), and no cache.

        `positions` (M,) and `visible` (M, M) bool as for `ManyTransformers.logits`: which tokens each one attends to.
        Cost: a forward pass of N texts of M tokens.
        """
        length = ids.size(2)
        if positions is None:
            positions = torch.arange(length)
        if visible is None:
            visible = torch.ones(length, length, dtype=torch.bool).tril()
        mask = torch.zeros(visible.shape, dtype=self.dtype).masked_fill(~visible, torch.finfo(self.dtype).min)
        arguments = {
            "input_ids": ids[0],
            "position_ids": positions.expand(ids.size(1), -1),
            "attention_mask": mask.expand(ids.size(1), 1, -1, -1),
            "use_cache": False,
        }
        here = {name: value[0] for name, value in self.parameters.items()}
        return functional_call(self.model, here, kwargs=arguments).logits.unsqueeze(0), None
