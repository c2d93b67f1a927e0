"""Log-probabilities and entropies of tokens from hidden states, in tiles that stay small.

The head of a small model is a large part of its work. Here a tile of logits is passed over as few times as the formulas
need, and where the logits are known they are not computed again. With z the logits over the temperature and p their
softmax, d log p_y / d z = 1[y] - p, and the entropy H has d H / d z = -p (log p + H).

Legend of shapes: M tokens, H width of the model, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TILE_BYTES = 2**24
"""Bytes of logits that are held at once, beyond those that are given."""


def token_scores(
    hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float = 1.0, logits: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probability of each label and entropy of its distribution, both (M,), float32.

    `hidden` (M, H), `weight` (V, H), `labels` (M,). `logits` (M, V), if known, before the temperature: a backward pass
    overwrites them with their gradient.
    """
    return _TokenScores.apply(hidden, weight, labels, temperature, logits)


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float, logits: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        logps, entropies, norms = (hidden.new_empty(len(hidden)) for _ in range(3))
        size = _tile_size(hidden, weight)
        scratch = hidden.new_empty(2, size, len(weight))  # fresh memory for every tile would cost more than the sums
        for tile, z in _tiles(hidden, weight, logits, temperature, size):
            chosen = z.gather(1, labels[tile].unsqueeze(1)).squeeze(1)
            most = z.amax(dim=1, keepdim=True)
            less = torch.sub(z, most, out=scratch[0, : len(z)])  # at most 0: nothing large cancels in the entropy
            odds = torch.exp(less, out=scratch[1, : len(z)])
            total = odds.sum(dim=1)
            rest = total.log()
            norms[tile] = most.squeeze(1) + rest
            logps[tile] = chosen - most.squeeze(1) - rest
            entropies[tile] = rest - less.mul_(odds).sum(dim=1) / total
        ctx.save_for_backward(hidden, weight, labels, norms, entropies)
        ctx.logits, ctx.temperature = logits, temperature
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, of_logps: Tensor | None, of_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, labels, norms, entropies = ctx.saved_tensors
        for_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for_weight = None
        # Known logits become their gradient where they lie, so that one product serves all of them.
        size = _tile_size(hidden, weight) if ctx.logits is None else len(hidden)
        for tile, z in _tiles(hidden, weight, ctx.logits, ctx.temperature, size):
            logp = z.sub_(norms[tile].unsqueeze(1))
            if of_entropies is None:
                gradient = logp.exp_().mul_(-of_logps[tile].unsqueeze(1))
            else:
                gradient = logp.exp()
                logp.add_(entropies[tile].unsqueeze(1)).mul_(of_entropies[tile].unsqueeze(1))
                if of_logps is not None:
                    logp.add_(of_logps[tile].unsqueeze(1))
                gradient.mul_(logp).neg_()
            if of_logps is not None:
                gradient.scatter_add_(1, labels[tile].unsqueeze(1), of_logps[tile].unsqueeze(1))
            if ctx.temperature != 1:
                gradient /= ctx.temperature
            if for_hidden is not None:
                torch.mm(gradient, weight, out=for_hidden[tile])
            if ctx.needs_input_grad[1] and for_weight is None:
                for_weight = gradient.t() @ hidden[tile]
            elif for_weight is not None:
                for_weight.addmm_(gradient.t(), hidden[tile])
        ctx.logits = None
        return for_hidden, for_weight, None, None, None


def _tile_size(hidden: Tensor, weight: Tensor) -> int:
    """Tokens of a tile."""
    return min(len(hidden), max(1, TILE_BYTES // (len(weight) * hidden.element_size())))


def _tiles(hidden: Tensor, weight: Tensor, logits: Tensor | None, temperature: float, size: int) -> Any:
    """Slices of `size` tokens with their logits over the temperature."""
    own = None if logits is not None else hidden.new_empty(size, len(weight))
    for start in range(0, len(hidden), size):
        tile = slice(start, start + size)
        if logits is None:
            z = torch.mm(hidden[tile], weight.t(), out=own[: len(hidden[tile])])
            if temperature != 1:
                z /= temperature
        else:
            z = logits[tile] if temperature == 1 else logits[tile] / temperature
        yield tile, z
