"""Token weights that are functions of how sure the policy is of a token, as pure functions.

Every function takes torch tensors (any dtype and device), numpy arrays or numbers and answers in kind: floating input
keeps its dtype, integers give float64. Everything is computed in float64 and rounded once, at the end. Results carry no
gradient, whatever the input carries: weights are constants of the gradient (the papers' stop-gradient, sg).

Arguments that make no weight (NaN, bounds in the wrong order, a probability outside [0, 1], ...) raise ValueError.
Cost of each: one pass over the tokens, and a sort in `matched_weights`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grpo_replications.shared.theory.arrays import Array, as_real_tensor, for_arrays

_ROUNDING = 1e-6  # a probability that comes from exp(log-probability) in float32 may exceed 1 by this much


def _real_tensor(values: Any, name: str) -> Tensor:
    """Values without gradient as a tensor of their own dtype; ValueError for NaN and for what is no real number."""
    given = as_real_tensor(values, name).detach()
    if given.isnan().any():
        raise ValueError(f"{name} got NaN among the {given.numel()} values of an argument")
    return given


def wide(values: Tensor) -> Tensor:
    """The same numbers in float64, or in float32 on a device of type "mps", which has no float64."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def _constant(given: Tensor, name: str) -> Tensor:
    return wide(_real_tensor(given, name))


def check_bounds(lower: float, upper: float) -> None:
    """Raise ValueError unless `lower` and `upper` are numbers with lower <= upper."""
    if not lower <= upper:
        raise ValueError(f"lower must not exceed upper, got [{lower}, {upper}]")


@for_arrays(_constant)
def sharpness_weights(
    signal: Array,
    alpha: float = 2.0,
    tau: float = 9.0,
    mu: float = 0.25,
    lower: float = 1.0,
    upper: float = 1.4,
) -> Array:
    """Sharpness-guided weights clip(alpha (sigmoid(signal / tau) - mu), lower, upper), of the shape of `signal`.

    Le, Ngo Van & Le, arXiv:2511.00066v4, equation 20, where `signal` is the raw logit of the selected token under the
    current policy; the defaults are the values of its earlier version. Infinite signals are allowed.
    """
    check_bounds(lower, upper)
    if not (math.isfinite(tau) and tau > 0):
        raise ValueError(f"tau must be a positive number, got {tau}")
    if not (math.isfinite(alpha) and math.isfinite(mu)):
        raise ValueError(f"alpha and mu must be finite numbers, got {alpha} and {mu}")
    return (alpha * (torch.sigmoid(signal / tau) - mu)).clamp(lower, upper)


@for_arrays(_constant)
def reversed_weights(weights: Array, lower: float = 1.0, upper: float = 1.4) -> Array:
    """The mirror image within [lower, upper], lower + upper - w: decreasing where `weights` increase, same spread."""
    check_bounds(lower, upper)
    return (lower + upper - weights).clamp(lower, upper)


@for_arrays(_constant)
def advantage_reweighting(probability: Array, alpha: float = 0.2) -> Array:
    """Factors alpha p + 1 - alpha on the advantage, of the shape of `probability` (arXiv:2505.12929).

    `probability`: of the selected token under the policy that sampled it, at the sampling temperature. `alpha` in
    [0, 1]: 0.2 alone, 0.3 together with Lopti.
    """
    _check_probability(probability)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha}")
    return alpha * probability.clamp(0, 1) + 1 - alpha


def isolated_tokens(probability: Array, eta: float = 0.4, first: bool = True) -> Array:
    """Which tokens take part in an update of Lopti, boolean: p < eta in the first one, the others in the second.

    Lopti of arXiv:2505.12929: low-probability token isolation. `probability` as in `advantage_reweighting`; `eta` in
    [0, 1]: 0.4 alone, 0.5 together with Advantage Reweighting. The comparison is in the dtype of `probability`, so that
    a float32 probability of 0.4 is not below an eta of 0.4.
    """
    given = _real_tensor(probability, "isolated_tokens")
    given = given if given.is_floating_point() else wide(given)
    _check_probability(given)
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must lie in [0, 1], got {eta}")
    below = given < torch.tensor(eta, dtype=given.dtype, device=given.device)
    chosen = below if first else ~below
    return chosen if isinstance(probability, Tensor) else chosen.numpy()[()]


def matched_weights(signal: Array, weights: Array) -> Array:
    """The values of `weights` dealt out anew in the order of `signal`: the largest weight to the largest signal.

    `signal`, `weights`: (N,), one per token. Ranks of the result are those of `signal`, its values those of `weights`,
    so that signals can be compared without comparing how their weights are distributed. Tokens of equal signal share
    the mean of the weights that fall to them. Only ranks matter, so two signals that are increasing functions of each
    other, such as probability and log-probability, are the same signal here. Cost: two sorts.
    """
    in_kind = isinstance(signal, Tensor)
    signal, weights = _real_tensor(signal, "matched_weights"), _real_tensor(weights, "matched_weights")
    if signal.shape != weights.shape or signal.ndim != 1:
        raise ValueError(f"signal and weights must be (N,) alike, got {tuple(signal.shape)} and {tuple(weights.shape)}")
    _, level, count = signal.unique(return_inverse=True, return_counts=True)
    # Sums within levels of equal signal; the sorted weights fall to the levels in their order.
    of_sorted = torch.repeat_interleave(torch.arange(len(count), device=signal.device), count)
    values = wide(weights.sort().values)
    sums = torch.zeros(len(count), dtype=values.dtype, device=signal.device).index_add(0, of_sorted, values)
    dealt = (sums / count)[level]
    dealt = dealt.to(weights.dtype) if weights.is_floating_point() else dealt
    return dealt if in_kind else dealt.numpy()


def _check_probability(probability: Tensor) -> None:
    if probability.numel() and not (probability.amin() >= 0 and probability.amax() <= 1 + _ROUNDING):
        raise ValueError(
            f"probabilities must lie in [0, 1], got {float(probability.amin())} to {float(probability.amax())}"
        )
