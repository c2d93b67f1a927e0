"""Token weights of many runs at once, each with a tau that fits the raw logits of its own start.

With the default constants a weight reaches U = 1.4 where sigmoid(h / tau) = .95. Small transformers have small raw
logits, so that with tau = 9 every weight would be L. Here tau is the median raw logit of the start's own samples over
ln 19: half of the tokens have U at the start, the others less. All weights are rescaled to mean 1 over a rollout of a
run, so that no method makes larger steps by a common factor.

Shape legend: S runs, R completions of a run, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_replications.shared.models.many_transformers import ManyTransformers, SeedStreams
from grpo_replications.shared.theory.confidence_weights import matched_weights, sharpness_weights, wide
from grpo_replications.shared.theory.weighting import AdvantageReweighting, Factor, TokenBatch, Weighting
from grpo_replications.shared.training.token_weights import token_weighting
from grpo_replications.synthetic.digit_sums import problems

SHARPNESS = ("sharpness", "sharpness-logprob", "sharpness-reverse")
METHODS = ("grpo", *SHARPNESS, "advantage-reweighting", "advantage-reweighting-0.3", "lopti", "80/20")
LOWER, UPPER = 1.0, 1.4
_SAMPLING_STREAM, _PROMPT_STREAM = 21, 22
_PROMPTS, _GROUP = 64, 8


@dataclass(frozen=True, kw_only=True)
class FittedSharpness(Factor):
    """Sharpness-guided weights of S runs whose rows stand one after another, run s with `taus[s]`.

    `signal`: what ranks the tokens; "logprob" gets the raw logits' weights dealt out by its own ranks. `reverse`:
    weights decreasing in it. `contrast`: 1 + contrast (w / mean - 1), no less than 0, in place of w.
    """

    taus: tuple[float, ...]
    signal: str = "logit"
    reverse: bool = False
    contrast: float = 1.0
    weight_kl: bool = False

    needs_raw_logits = True

    def weights(self, batch: TokenBatch) -> Tensor:
        runs, mask = len(self.taus), batch.mask
        scaled = wide(torch.where(mask, batch.raw_logits, 0.0)).view(runs, -1) / torch.tensor(self.taus).unsqueeze(1)
        weights = sharpness_weights(scaled, tau=1.0, lower=LOWER, upper=UPPER)
        counted = mask.view(runs, -1)
        if self.signal == "logprob":
            for s, logps in enumerate(batch.logps.view(runs, -1)):
                weights[s, counted[s]] = matched_weights(logps[counted[s]], weights[s, counted[s]])
        if self.reverse:
            weights = LOWER + UPPER - weights
        if self.contrast != 1:
            means = (weights * counted).sum(dim=1, keepdim=True) / counted.sum(dim=1, keepdim=True).clamp(min=1)
            weights = (1 + self.contrast * (weights / means - 1)).clamp(min=0.0)
        return weights.view(mask.shape)


def weighting(method: str, taus: Sequence[float], contrast: float = 1.0) -> Weighting | None:
    """The method's weights for runs with these `taus`, at mean 1; None for plain GRPO.

    Lopti and 80/20 leave tokens out and are not rescaled, as published.
    """
    if method in SHARPNESS:
        signal = "logprob" if method == "sharpness-logprob" else "logit"
        reverse = method == "sharpness-reverse"
        factor = FittedSharpness(taus=tuple(taus), signal=signal, reverse=reverse, contrast=contrast)
        return Weighting(factors=(factor,), rescale=True)
    if method.startswith("advantage-reweighting"):
        alpha = 0.3 if method.endswith("0.3") else 0.2
        return Weighting(factors=(AdvantageReweighting(alpha=alpha),), rescale=True)
    return token_weighting(method)


def fitted_taus(models: ManyTransformers, seeds: Sequence[int], terms: int) -> tuple[float, ...]:
    """Median raw logit of each model's samples on training problems, over ln 19."""
    prompts = problems([np.random.default_rng([_PROMPT_STREAM, s]) for s in seeds], _PROMPTS, terms, held_out=False)
    drawn = models.sample(prompts, SeedStreams(seeds, _SAMPLING_STREAM).uniforms(_PROMPTS, _GROUP, terms))
    with torch.no_grad():
        raw = models.completion_logits(prompts, drawn).gather(4, drawn.unsqueeze(4)).flatten(1)
    return taus_of(raw, torch.ones_like(raw, dtype=torch.bool))


def taus_of(raw: Tensor, mask: Tensor) -> tuple[float, ...]:
    """Median over ln 19 of each run's raw logits (S, N) where `mask` (S, N) is true."""
    medians = raw.double().masked_fill(~mask, torch.nan).nanquantile(0.5, dim=1)
    return tuple(float(median) / math.log(19) for median in medians)
