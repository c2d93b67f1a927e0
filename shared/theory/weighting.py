"""What a token weight is to the loss: its factors, what each of them looks at, and where in the loss each stands.

The GRPO objective is a sum over tokens of (policy term - beta KL term), policy term min(r A, clip(r) A) with the ratio
r = pi / pi_old. A weight w, a constant of the gradient, can stand in three places:

- `placement="outside"`, `weight_kl=True`: w (min(r A, clip(r) A) - beta KL), the whole term;
- `placement="outside"`, `weight_kl=False`: w min(r A, clip(r) A) - beta KL;
- `placement="inside"`: min(w r A, clip(w r) A) - beta KL, so that the weight decides which tokens are clipped. The KL
  estimator compares pi with pi_ref as ever (`weight_kl=False`), or compares w pi with pi_ref (`weight_kl=True`): the
  latter is not 0 at pi = pi_ref.

A `Weighting` is a product of factors, each in its own place, optionally rescaled to mean 1; beside them it may isolate
tokens (Lopti) or keep the policy term of the most entropic ones only (80/20).

Legend of shapes: B completions, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_replications.shared.theory.confidence_weights import (
    advantage_reweighting,
    isolated_tokens,
    matched_weights,
    reversed_weights,
    sharpness_weights,
    wide,
)

PLACEMENTS = ("outside", "inside")
SIGNALS = ("logit", "logprob", "prob")


@dataclass(frozen=True)
class RolloutBatch:
    """What a rollout weight may look at: every completion of every group of one rollout, gathered from all processes.

    `completion_ids`, `completion_mask`, `set_sizes`: (B, T); `rewards`: (B,); group g holds rows g*G to (g+1)*G - 1.
    """

    completion_ids: Tensor
    completion_mask: Tensor
    set_sizes: Tensor
    rewards: Tensor
    group_size: int


TokenWeight = Callable[[RolloutBatch], Tensor]
"""Maps a rollout to weights of shape (B, T), float, finite and not negative; values on padding do not matter."""


@dataclass(frozen=True)
class TokenBatch:
    """What a factor may look at when a micro-batch goes through the loss; no tensor carries a gradient.

    `logps`, `old_logps`: (B, T), of the selected tokens under the current policy and under the one that sampled them,
    both at the sampling temperature. `raw_logits`: (B, T), before that temperature, or None where no factor asks for
    them. `rollout_weights`: (B, T) or None. `mask`: (B, T) bool, tokens that the loss counts. `visits`: (B,), how often
    the loss has already gone through a completion: 0 in the first update on a batch, 1 in the second.
    """

    logps: Tensor
    old_logps: Tensor
    raw_logits: Tensor | None
    rollout_weights: Tensor | None
    mask: Tensor
    visits: Tensor


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One factor of a token's weight. Subclasses give `weights`; `bounds` are the least and largest possible weight."""

    placement: str = "outside"
    weight_kl: bool = True

    needs_raw_logits = False
    bounds = None

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, not {self.placement!r}")
        if not isinstance(self.weight_kl, bool):
            raise ValueError(f"weight_kl must be True or False, not {self.weight_kl!r}")
        if self.bounds is not None and self.bounds[0] < 0:
            raise ValueError(f"weights must not be negative, but the least of {self} is {self.bounds[0]}")
        if self.placement == "inside" and self.bounds is not None and self.bounds[0] == 0:
            raise ValueError(f"a weight inside the clip must be positive, but {self} can be 0")

    def weights(self, batch: TokenBatch) -> Tensor:
        """The weights of the micro-batch, (B, T); values on padding do not matter."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RolloutWeight(Factor):
    """A weight computed once per rollout from whole groups, such as that of lambda-GRPO."""

    function: TokenWeight

    def weights(self, batch: TokenBatch) -> Tensor:
        if self.placement == "inside" and not bool((batch.rollout_weights[batch.mask] > 0).all()):
            raise ValueError(f"a weight inside the clip must be positive, but {self.function} gave 0")
        return batch.rollout_weights

    def __str__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


@dataclass(frozen=True, kw_only=True)
class Sharpness(Factor):
    """Sharpness-guided weights of a confidence signal of the current policy, recomputed at every update.

    `signal`: "logit" (the paper's), "logprob" or "prob", the latter two at the sampling temperature. `reverse`: weights
    decreasing in the signal, lower + upper - w. `match`: deal the weights that the raw logits give out in the order of
    `signal`, so that signals differ in whom they favor and not in how their weights are distributed; within each
    micro-batch of a process. Other arguments: see `sharpness_weights`.
    """

    signal: str = "logit"
    alpha: float = 2.0
    tau: float = 9.0
    mu: float = 0.25
    lower: float = 1.0
    upper: float = 1.4
    reverse: bool = False
    match: bool = False
    weight_kl: bool = False

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise ValueError(f"signal must be one of {', '.join(SIGNALS)}, not {self.signal!r}")
        if self.match and self.signal == "logit":
            raise ValueError("match=True would do nothing: the weights dealt out are those of the raw logit already")
        sharpness_weights(0.0, self.alpha, self.tau, self.mu, self.lower, self.upper)  # checks them
        super().__post_init__()

    @property
    def bounds(self) -> tuple[float, float]:
        return self.lower, self.upper

    @property
    def needs_raw_logits(self) -> bool:
        return self.match or self.signal == "logit"

    def weights(self, batch: TokenBatch) -> Tensor:
        signal = {"logit": batch.raw_logits, "logprob": batch.logps, "prob": batch.logps.exp()}[self.signal]
        matched = self.match and self.signal != "logit"
        # Padding may hold anything; float64, so that no step of the way rounds a weight off its bound.
        source = wide(torch.where(batch.mask, batch.raw_logits if matched else signal, 0.0))
        weights = sharpness_weights(source, self.alpha, self.tau, self.mu, self.lower, self.upper)
        if matched:
            weights[batch.mask] = matched_weights(signal[batch.mask], weights[batch.mask])
        return reversed_weights(weights, self.lower, self.upper) if self.reverse else weights


@dataclass(frozen=True, kw_only=True)
class AdvantageReweighting(Factor):
    """A' = (alpha pi_old + 1 - alpha) A (arXiv:2505.12929); a factor on the advantage, so the KL term keeps its own."""

    alpha: float = 0.2
    weight_kl: bool = False

    def __post_init__(self) -> None:
        advantage_reweighting(0.0, self.alpha)  # checks it
        super().__post_init__()

    @property
    def bounds(self) -> tuple[float, float]:
        return 1 - self.alpha, 1.0

    def weights(self, batch: TokenBatch) -> Tensor:
        return advantage_reweighting(_probability(batch), self.alpha)


@dataclass(frozen=True)
class PlacedWeights:
    """Weights of a micro-batch by place, (B, T) each or None where nothing stands.

    `gate`: on the whole term, outside. `advantage`: on the policy term, outside. `ratio`: log-weights inside the clip,
    of which `reference` is the part that the reference policy takes along, so that the KL term does not see it.
    `isolated`: bool, tokens that take part in this update. `product`: all factors together, and `parts`: each alone.
    """

    gate: Tensor | None = None
    advantage: Tensor | None = None
    ratio: Tensor | None = None
    reference: Tensor | None = None
    isolated: Tensor | None = None
    product: Tensor | None = None
    parts: tuple[Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """A method: the product of `factors`, and what else the method does to the loss of a token.

    `rescale`: divide the product by its mean over the tokens of the micro-batch in all processes. With factors in
    different places, the divisor goes with the last one. `isolation`: eta of Lopti, two updates per batch, of which
    the first takes the tokens with pi_old < eta only and the second the others only; everything of the rest is left
    out (policy, KL, entropy bonus), denominators stay those of all tokens. `top_entropy_quantile`: the share of tokens,
    by entropy, that keep their policy term; this is TRL's own option.
    """

    factors: tuple[Factor, ...] = ()
    rescale: bool = False
    isolation: float | None = None
    top_entropy_quantile: float | None = None

    def __post_init__(self) -> None:
        if sum(isinstance(factor, RolloutWeight) for factor in self.factors) > 1:
            raise ValueError("a product can hold one rollout weight: multiply within it")
        if self.rescale and not self.factors:
            raise ValueError("rescale needs weights to rescale; this method has none")
        if self.isolation is not None:
            isolated_tokens(0.0, self.isolation)  # checks it
        if self.top_entropy_quantile is not None and not 0 < self.top_entropy_quantile <= 1:
            raise ValueError(f"top_entropy_quantile must lie in (0, 1], got {self.top_entropy_quantile}")

    @property
    def needs_raw_logits(self) -> bool:
        return any(factor.needs_raw_logits for factor in self.factors)

    @property
    def rollout_weight(self) -> TokenWeight | None:
        """The function that weighs whole rollouts, if there is one."""
        return next((factor.function for factor in self.factors if isinstance(factor, RolloutWeight)), None)

    @property
    def token_level(self) -> bool:
        """Whether tokens of one completion can be treated unlike; 80/20 alone is left to TRL."""
        return bool(self.factors) or self.isolation is not None

    def place(self, batch: TokenBatch, mean: Callable[[Tensor, Tensor], Tensor] | None = None) -> PlacedWeights:
        """The weights of a micro-batch, each in its place.

        `mean(values, mask)` takes the mean for `rescale`; the default sees this micro-batch only.
        """
        parts = [factor.weights(batch) for factor in self.factors]
        isolated = None
        if self.isolation is not None:
            p = _probability(batch)
            first, second = (isolated_tokens(p, self.isolation, first=first) for first in (True, False))
            isolated = torch.where(batch.visits.unsqueeze(1) == 0, first, second)
        placed: dict[str, Tensor | None] = {"gate": None, "advantage": None, "ratio": None, "reference": None}
        used = list(parts)
        if self.rescale:
            average = (mean or masked_mean)(_product(parts), batch.mask)
            used[-1] = parts[-1] / torch.where(average > 0, average, 1.0)
        for factor, weights in zip(self.factors, used, strict=True):
            if factor.placement == "outside":
                place = "gate" if factor.weight_kl else "advantage"
                placed[place] = weights if placed[place] is None else placed[place] * weights
                continue
            shift = torch.where(batch.mask, weights, 1.0).log()
            for place in ("ratio",) if factor.weight_kl else ("ratio", "reference"):
                placed[place] = shift if placed[place] is None else placed[place] + shift
        product = _product(used) if used else None
        return PlacedWeights(**placed, isolated=isolated, product=product, parts=tuple(parts))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values` (B, T) where `mask` is true; 1 where it is nowhere."""
    return torch.where(mask.any(), torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1), 1.0)


def _product(parts: list[Tensor]) -> Tensor:
    product = parts[0]
    for part in parts[1:]:
        product = product * part
    return product


def _probability(batch: TokenBatch) -> Tensor:
    """Probability of the selected tokens under the policy that sampled them, (B, T) float64; 1 on padding."""
    return wide(torch.where(batch.mask, batch.old_logps, 0.0)).clamp(max=0.0).exp()
