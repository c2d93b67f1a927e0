"""What a model multiplied when it sampled, kept for scoring the same tokens with the same weights.

On policy, the forward pass of a training step repeats the sampling token by token: the same tokens, seen by the same
weights. Nearly all of its cost is the products of its linear layers. They are kept here, and in scoring a layer answers
with what it has answered before; all between (norms, rotations, attention) is computed anew, so that the backward pass
is the usual one. Numbers differ from a new forward pass only by the order of additions.

Products are kept for weights that stay as they are: whoever scores asks `valid`, and computes anew after an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grpo_replications.shared.models.decoding import instead_of_forward, plain_linears
from grpo_replications.shared.models.prefix_packing import PackedCompletions

KEPT_AT_MOST = 2 * 2**30
"""Bytes kept at most; a rollout that would need more keeps nothing."""


class KeptProducts:
    """Outputs of the linear layers of a model for every token it sampled from, float32 on a CPU.

    Used in three steps: sampling inside `watching`, which calls `note` after every forward pass; `places` of a text;
    scoring inside `answering` for those places. `logits` (places, V): of the places that something was drawn from, as
    `row_of` numbers them.
    """

    def __init__(self, model: nn.Module) -> None:
        head = model.get_output_embeddings()
        self.parameters = list(model.parameters())
        self.linears = [module for module in plain_linears(model) if module is not head]
        self._versions = self._now()
        self._outputs: list[list[Tensor]] = [[] for _ in self.linears]
        self._logits: list[Tensor] = []
        self._place: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}  # of a prefix's last token
        self._count = self._drawn = self._bytes = 0
        self._row: dict[int, int] = {}  # of a place among the logits
        self.full = False

    def valid(self) -> bool:
        """Whether the weights are those that it was sampled with, and everything was kept."""
        return not self.full and self._count > 0 and self._versions == self._now()

    def _now(self) -> list[tuple[int, int]]:
        return [(parameter.data_ptr(), parameter._version) for parameter in self.parameters]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which outputs of linear layers are kept."""
        with ExitStack() as stack:
            for module, outputs in zip(self.linears, self._outputs, strict=True):
                stack.enter_context(instead_of_forward(module, self._noting(module.forward, outputs)))
            yield

    def _noting(self, forward: Any, outputs: list[Tensor]) -> Any:
        def noted(x: Tensor) -> Tensor:
            output = forward(x)
            self._bytes += output.numel() * output.element_size()
            if self._bytes > KEPT_AT_MOST:
                self._let_go()
            elif not self.full:
                outputs.append(output.flatten(0, -2))
            return output

        return noted

    def note(
        self, prompts: Sequence[tuple[int, ...]], prefixes: Sequence[tuple[int, ...]], columns: int, logits: Tensor
    ) -> None:
        """A forward pass has ended: for each row its prompt and the prefix sampled so far, `columns` tokens were fed.

        `logits` (rows, V): of the last token of each row. Feeding starts with the prompt, padded on the left.
        """
        self._bytes += logits.numel() * logits.element_size()
        self._logits.append(logits)
        fed = [len(prompts) * columns] if self.linears else []
        once = all(list(map(len, outputs[len(self._logits) - 1 :])) == fed for outputs in self._outputs)
        if self.full or self._bytes > KEPT_AT_MOST or not fed or not once:  # a layer that two places share: not kept
            self._let_go()
            return
        for prompt, prefix in zip(prompts, prefixes, strict=True):
            self._count += columns
            self._place[prompt, prefix] = self._count - 1
            self._row[self._count - 1] = self._drawn
            self._drawn += 1

    def _let_go(self) -> None:
        self.full = True
        self._place.clear()
        self._logits.clear()
        for outputs in self._outputs:
            outputs.clear()

    def places(self, prompt: Sequence[int], completion: Sequence[int]) -> np.ndarray | None:
        """Where a prompt's tokens and a completion's but its last are kept, one number each; None if one is not."""
        prompt = tuple(prompt)
        last = [self._place.get((prompt, tuple(completion[:t]))) for t in range(len(completion))]
        if any(place is None for place in last):
            return None
        return np.concatenate([np.arange(last[0] - len(prompt) + 1, last[0]), last])

    def places_in(
        self, packed: PackedCompletions, prompts: list[list[int]], completions: list[list[int]]
    ) -> list[Tensor] | None:
        """Where the tokens of packed texts are kept, (R, N) for each batch, -1 on padding; None if one is not.

        `prompts` and `completions`: the packed rows, in their order, without padding.
        """
        sources, nodes = packed.sources.numpy(), packed.nodes.numpy()
        found = np.full(sum(rows * columns for rows, columns in packed.shapes), -1)
        for prompt, completion, row in zip(prompts, completions, nodes, strict=True):
            places = self.places(prompt, completion)
            if places is None:
                return None
            spots = sources[row[: len(completion)]]
            found[np.arange(spots[0] - len(prompt) + 1, spots[0])] = places[: len(prompt) - 1]
            found[spots] = places[len(prompt) - 1 :]
        sizes = [rows * columns for rows, columns in packed.shapes]
        return [part.view(shape) for part, shape in zip(torch.from_numpy(found).split(sizes), packed.shapes)]

    def logits_of(self, places: Tensor) -> Tensor:
        """Logits (places, V) that were drawn from at some places, a copy."""
        rows = torch.tensor([self._row[place] for place in places.tolist()])
        found = self._logits[0].new_empty(len(rows), self._logits[0].size(1))
        start = 0
        for logits in self._logits:
            own = ((rows >= start) & (rows < start + len(logits))).nonzero().flatten()
            found.index_copy_(0, own, logits.index_select(0, rows[own] - start))
            start += len(logits)
        return found

    @contextmanager
    def answering(self, places: Tensor) -> Iterator[None]:
        """A context in which linear layers answer for texts (R, N) with what they gave at `places` (R, N), -1: zeros.

        Gradients reach weights and inputs as if the layer had multiplied.
        """
        answer = _Answer(places, [len(output) for output in self._outputs[0]])
        with ExitStack() as stack:
            for module, outputs in zip(self.linears, self._outputs, strict=True):
                stack.enter_context(instead_of_forward(module, answer.of(module, outputs)))
            yield


class _Answer:
    """What linear layers give for texts whose tokens are kept at `places` (R, N), in passes of so many `lengths`."""

    def __init__(self, places: Tensor, lengths: list[int]) -> None:
        self.shape, flat = places.shape, places.flatten()
        self.unknown = (flat < 0).nonzero().flatten()
        order = flat.argsort(stable=True)[len(self.unknown) :]
        ends = np.searchsorted(flat[order].numpy(), np.cumsum(lengths))
        self.passes = []  # of each: its number, which of its tokens, and where in the texts they belong
        for i, (begin, end) in enumerate(zip([0, *ends], ends)):
            if end > begin:
                where = order[begin:end]
                self.passes.append((i, flat[where] - sum(lengths[:i]), where))

    def of(self, module: nn.Linear, outputs: list[Tensor]) -> Any:
        def forward(x: Tensor) -> Tensor:
            found = outputs[0].new_empty(self.shape.numel(), module.out_features)
            found[self.unknown] = 0
            for i, which, where in self.passes:
                found[where] = outputs[i][which]
            return _Product.apply(x, module.weight, module.bias, found.view(*self.shape, -1))

        return forward


class _Product(torch.autograd.Function):
    """x W' + b whose value is known already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, value: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        return (
            gradient @ weight if for_x else None,
            rows.t() @ x.flatten(0, -2) if for_weight else None,
            rows.sum(dim=0) if for_bias else None,
            None,
        )
