"""Many tiny softmax policies at once that add two numbers, with exact losses and exact expected updates.

A prompt is a pair of operands below `base`; a completion is two tokens, the tens and the ones digit of an answer, out
of ten each. The policy is a two-layer network: logits = W tanh(A[a] + A[b] + C[previous token]) + bias. There are so
few prompts and completions that the solve rate of every prompt, the loss over all prompts and the expected update are
sums and not estimates. What the network does not see in training it has to generalize to.

All policies of a run are rows of one matrix of parameters `theta` (P, D), so that one operation works on all of them.

Legend of shapes: P policies, D parameters of one, M prompts, N samples, H hidden units, 10 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

TOKENS = 10
SLOPE = 3.0  # of the operands' embeddings, in the units of the activation's bend
START = TOKENS  # stands for the previous token where there is none


@dataclass(frozen=True)
class AdditionPolicies:
    """The family of policies: operands below `base`, `hidden` units; every method takes the parameters `theta` (P, D).

    `shift` is a constant added to every logit: it changes no probability, only what a weight of the raw logit sees.
    """

    base: int
    hidden: int
    noise: float
    shift: float = 0.0

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of A, C, W and the bias."""
        return (
            (self.base, self.hidden),
            (TOKENS + 1, self.hidden),
            (self.hidden, TOKENS),
            (1, TOKENS),
        )

    @property
    def size(self) -> int:
        """D, the number of parameters of one policy."""
        return sum(rows * columns for rows, columns in self.shapes)

    def prompts(self) -> Tensor:
        """All pairs of operands, (M, 2)."""
        operands = torch.arange(self.base)
        return torch.cartesian_prod(operands, operands)

    def initial(self, policies: int, generator: torch.Generator) -> Tensor:
        """Random parameters (policies, D), float64.

        C is normal of deviation 2, W of variance 1 / H, the bias 0. A[a] is a random direction times the size of a,
        from -1 to 1 in steps that tell neighboring sums apart, plus noise of deviation `noise` for each operand: the
        more noise, the less a prompt tells of others with the same sum.
        """

        def normal(*shape: int) -> Tensor:
            return torch.randn(policies, *shape, generator=generator, dtype=torch.float64)

        sizes = torch.linspace(-1, 1, self.base, dtype=torch.float64).unsqueeze(1)
        operands = SLOPE * sizes * normal(1, self.hidden) + self.noise * normal(self.base, self.hidden)
        parts = (
            operands,
            2 * normal(TOKENS + 1, self.hidden),
            normal(self.hidden, TOKENS) * self.hidden**-0.5,
            torch.zeros(policies, TOKENS, dtype=torch.float64),
        )
        return torch.cat([part.flatten(start_dim=1) for part in parts], dim=1)

    def logits(self, theta: Tensor, first: Tensor, second: Tensor, previous: Tensor) -> Tensor:
        """Raw logits (P, N, 10) after `previous` tokens for operands `first`, `second`; indices (N,) or (P, N)."""
        a, c, w, bias = self._split(theta)
        state = torch.tanh(_rows(a, first) + _rows(a, second) + _rows(c, previous))
        return state @ w + bias + self.shift

    def _split(self, theta: Tensor) -> list[Tensor]:
        parts = theta.split([rows * columns for rows, columns in self.shapes], dim=1)
        return [part.reshape(len(theta), *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    # --- exact quantities -------------------------------------------------------------------------------------------

    def solve_rates(self, theta: Tensor, answers: Tensor) -> Tensor:
        """Probability of the right completion for every prompt, (P, M); `answers` (M, 2) or (P, M, 2) are digits."""
        first, second = self.prompts().unbind(dim=1)
        tens, ones = answers.unbind(dim=-1)
        shape = (len(theta), len(first))
        logp = torch.zeros(shape, dtype=theta.dtype)
        for previous, digit in ((torch.full_like(first, START), tens), (tens, ones)):
            logps = self.logits(theta, first, second, previous).log_softmax(dim=2)
            logp = logp + logps.gather(2, digit.expand(shape).unsqueeze(2)).squeeze(2)
        return logp.exp()

    def losses(self, theta: Tensor, answers: Tensor, mask: Tensor) -> Tensor:
        """1 minus the mean solve rate over the prompts where `mask` (P, M) is true, (P,)."""
        rates = self.solve_rates(theta, answers)
        return 1 - (rates * mask).sum(dim=1) / mask.sum(dim=1)


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """`table` (P, K, H) at `index` (N,) or (P, N): (P, N, H)."""
    policies, size, width = table.shape
    offsets = size * torch.arange(policies).unsqueeze(1)
    return embedding(index + offsets, table.reshape(policies * size, width))


def digits_of_sums(base: int) -> Tensor:
    """Tens and ones digit of a + b for every prompt of `AdditionPolicies.prompts`, (M, 2)."""
    operands = torch.arange(base)
    sums = torch.cartesian_prod(operands, operands).sum(dim=1)
    return torch.stack([sums // 10, sums % 10], dim=1)


def gradients(losses: Tensor, theta: Tensor) -> Tensor:
    """Gradient of every policy's own loss, (P,) to (P, D): no loss depends on another policy's parameters."""
    (gradient,) = torch.autograd.grad(losses.sum(), theta)
    return gradient
