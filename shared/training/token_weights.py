"""Weights on each token's loss term, by name, and the functions underneath.

A token weight multiplies the term of a token in the GRPO objective, by default policy part and KL part alike:

    L = (1 / normalizer) sum_i sum_t w_{i,t} (P_{i,t} a_i - D_{i,t})

Weights are constants of the gradient. A function from a rollout to weights is applied once per rollout, to whole
groups, before a batch is shuffled, split into micro-batches or divided among processes. Weights that follow the
policy are computed anew at every update (`shared.theory.weighting`).

Legend of shapes: B completions of whole groups (group rows contiguous), T tokens.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.theory.confidence_weights import (
    advantage_reweighting,
    isolated_tokens,
    matched_weights,
    reversed_weights,
    sharpness_weights,
)
from grpo_replications.shared.theory.weighting import (
    SIGNALS,
    AdvantageReweighting,
    Factor,
    RolloutBatch,
    RolloutWeight,
    Sharpness,
    TokenWeight,
    Weighting,
)
from grpo_replications.shared.training.settings import METHOD_OPTIONS, MethodSettings

__all__ = [
    "TOKEN_WEIGHTS",
    "RolloutBatch",
    "TokenWeight",
    "Weighting",
    "advantage_reweighting",
    "as_weighting",
    "gate_gradient",
    "isolated_tokens",
    "lambda_weights",
    "matched_weights",
    "process_set_weight",
    "reversed_weights",
    "rollout_weights",
    "sharpness_weights",
    "token_weighting",
]


def lambda_weights(set_sizes: Tensor) -> Tensor:
    """Weights 1 / |lambda(i,t)| of lambda-GRPO (Sullivan & Koller, arXiv:2509.21154, definition of L_lambda).

    `set_sizes`: (B, T) integer process-set sizes, 0 on padding. Returns float32 (B, T), 0 on padding.
    Each process set then contributes (P A - D) once, whatever the number of completions that share it.
    """
    return torch.where(set_sizes > 0, 1.0 / set_sizes.clamp(min=1), 0.0).float()


def process_set_weight(batch: RolloutBatch) -> Tensor:
    """The token weight of lambda-GRPO, from a rollout."""
    return lambda_weights(batch.set_sizes)


_FACTORS: dict[str, Factor] = {
    "lambda-grpo": RolloutWeight(function=process_set_weight),
    "advantage-reweighting": AdvantageReweighting(),
    **{
        f"sharpness{'' if signal == 'logit' else f'-{signal}'}{suffix}": Sharpness(signal=signal, reverse=bool(suffix))
        for signal in SIGNALS
        for suffix in ("", "-reverse")
    },
}
_LOPTI, _TOP_ENTROPY, _RESCALED = "lopti", "80/20", "-mean1"
_ALIASES = {"lopti+ar": "lopti*advantage-reweighting"}


def token_weighting(name: str, **options: Any) -> Weighting | None:
    """The method `name` with `options`; None for plain GRPO. An option of None takes the method's default.

    A name is "grpo", "lambda-grpo", "sharpness" (also "-logprob", "-prob": the confidence signal; then "-reverse"),
    "advantage-reweighting", "lopti", "lopti+ar", "80/20", or several joined by "*", whose weights are multiplied; with
    "-mean1" at its end, weights are rescaled to mean 1. Options: `alpha`, `tau`, `mu`, `lower`, `upper`, `match`
    (sharpness), `alpha` (advantage reweighting: 0.2, with Lopti 0.3), `eta` (Lopti: 0.4, with advantage reweighting
    0.5), `placement`, `weight_kl` (of every factor; without it each has its own) and `rescale`.
    Raises KeyError for an unknown name, ValueError for an option that the method does not have or a value it cannot
    take: an option that would do nothing is never passed over.
    """
    plain = name.removesuffix(_RESCALED)
    parts = [atom for part in plain.split("*") for atom in _ALIASES.get(part, part).split("*")]
    given = {key: value for key, value in options.items() if value is not None}
    unknown = sorted(set(given) - set(METHOD_OPTIONS))
    if unknown:
        raise ValueError(f"unknown options: {', '.join(unknown)}; known: {', '.join(METHOD_OPTIONS)}")
    if plain == "grpo":
        parts = []
    for part in parts:
        if part not in (*_FACTORS, _LOPTI, _TOP_ENTROPY):
            known = ", ".join(["grpo", *_FACTORS, _LOPTI, *_ALIASES, _TOP_ENTROPY])
            raise KeyError(f"unknown method {name}; known are {known}, and products of them such as a*b")

    rescale = given.pop("rescale", name.endswith(_RESCALED))
    isolation = top_entropy = None
    if _LOPTI in parts:
        isolation = given.pop("eta", 0.5 if "advantage-reweighting" in parts else 0.4)
    if _TOP_ENTROPY in parts:
        top_entropy = 0.2
    factors = [_FACTORS[part] for part in parts if part in _FACTORS]
    if isolation is not None:
        factors = [replace(f, alpha=0.3) if isinstance(f, AdvantageReweighting) else f for f in factors]
    for option, value in given.items():
        having = [i for i, factor in enumerate(factors) if option in {field.name for field in fields(factor)}]
        if not having:
            raise ValueError(f"the method {name} has no option {option}")
        if len(having) > 1 and option not in ("placement", "weight_kl"):
            raise ValueError(
                f"{option} belongs to more than one factor of {name}; build a Weighting of your own instead"
            )
        for i in having:
            factors[i] = replace(factors[i], **{option: value})
    if not parts and not rescale:
        return None
    return Weighting(
        factors=tuple(factors), rescale=bool(rescale), isolation=isolation, top_entropy_quantile=top_entropy
    )


def as_weighting(token_weight: str | TokenWeight | Weighting | None) -> Weighting | None:
    """The weighting that a method's name, a function on rollouts or a weighting stands for; None for plain GRPO."""
    if token_weight is None or isinstance(token_weight, Weighting):
        return token_weight
    if isinstance(token_weight, str):
        return token_weighting(token_weight)
    return Weighting(factors=(RolloutWeight(function=token_weight),))


TOKEN_WEIGHTS: dict[str, TokenWeight | Weighting | None] = {
    "grpo": None,
    "lambda-grpo": process_set_weight,
    **{
        name: token_weighting(name)
        for name in (*_FACTORS, "sharpness-mean1", "sharpness-reverse-mean1", _LOPTI, *_ALIASES, _TOP_ENTROPY)
        if name != "lambda-grpo"
    },
}
"""Methods by name, each with its defaults; `None` is plain GRPO. Products and other options: `token_weighting`."""


def rollout_weights(function: TokenWeight, batch: RolloutBatch) -> Tensor:
    """The weights that `function` gives a rollout, checked: (B, T), 0 on padding, whatever it gave there.

    Raises ReplicationError, which names the function, for: anything but a tensor of real numbers of exactly that shape,
    and a token's weight that is negative, infinite or NaN.
    """
    name = getattr(function, "__name__", repr(function))
    weights, mask = function(batch), batch.completion_mask.bool()
    wanted = f"a tensor of {tuple(mask.shape)}, one weight for each token of the rollout"
    if not isinstance(weights, Tensor) or weights.is_complex():
        raise ReplicationError(f"The token weight {name} gave {_kind(weights)}; it must give {wanted}.")
    if weights.shape != mask.shape:
        raise ReplicationError(f"The token weight {name} gave shape {tuple(weights.shape)}; it must give {wanted}.")
    weights = weights.detach().to(mask.device)
    weights = weights if weights.is_floating_point() else weights.float()
    wrong = mask & ~(weights.isfinite() & (weights >= 0))
    if wrong.any():
        row, token = wrong.nonzero()[0].tolist()
        raise ReplicationError(
            f"The token weight {name} gave {weights[row, token]:g} to token {token} of completion {row} and "
            f"{int(wrong.sum())} such weights of {int(mask.sum())}; a weight must be finite and not negative."
        )
    return weights.masked_fill(~mask, 0.0)


def _kind(value: Any) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def gate_gradient(logps: Tensor, weights: Tensor) -> Tensor:
    """Return `logps` unchanged in value, with the gradient of each entry multiplied by its weight.

    `logps`, `weights`: (B, T). A loss that is a sum of terms, each a function of one token's log-probability, gets each
    term's gradient scaled by that token's weight: policy ratio, clipping and KL estimator keep their values, so which
    tokens are clipped does not depend on the weights. Cost: O(B T), no (B, T, V) tensor.
    """
    return _Gate.apply(logps, weights.to(logps.dtype))


class _Gate(torch.autograd.Function):
    """The identity forwards, a product with the weights backwards."""

    @staticmethod
    def forward(ctx: Any, logps: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return logps.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return gradient * weights, None


def method_weighting(settings: MethodSettings) -> Weighting | None:
    """The token weight of the settings' method with its options; None for plain GRPO."""
    return token_weighting(settings.method, **settings.method_options())


def passes(settings: MethodSettings) -> int:
    """Optimizer steps that a run makes on each rollout: its mini-batches, `num_iterations` times (twice for Lopti).

    `steps` counts optimizer steps, so a comparison at equal samples sets it to rollouts x passes.
    """
    weighting = method_weighting(settings)
    repeats = 2 if weighting is not None and weighting.isolation is not None else settings.num_iterations
    accumulation = settings.gradient_accumulation_steps
    micro_batches = settings.trl.get("steps_per_generation", settings.mini_batches * accumulation)
    return repeats * max(1, micro_batches // accumulation)
