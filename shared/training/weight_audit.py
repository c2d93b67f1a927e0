"""What token weights were in an optimizer step: how many at their bounds, how they go with probability, whether inert.

A weight is *inert* in a step if it is the same for every token: it then does nothing that a learning rate would not do,
and nothing at all if it is 1. It happens where a formula meets a signal that it was not made for: a probability in
place of a raw logit gives every sharpness-guided weight its lower bound.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from grpo_replications.shared.theory.confidence_weights import wide
from grpo_replications.shared.theory.weighting import PlacedWeights, Weighting

_AT_BOUND = 1e-6
"""Weights this close to a bound are at it: float32 weights are rounded."""


class WeightAudit:
    """Gathers the weights of the micro-batches of a step and sums them up.

    Metrics of a step, over all tokens that the loss counts: `token_weights/mean`, `min`, `max` and `correlation` (with
    the token's probability under the current policy) of the product of all factors; `share_lower`, `share_upper` and
    `share_between` of the first factor that has bounds, before rescaling; `share_isolated`, the share of tokens that
    take part in an update of Lopti; `inert`, 1 if some factor gave every token the same weight, or if an update of
    Lopti takes all tokens or none. What has no value, such as a correlation with a constant, is left out.

    Cost per micro-batch: a few passes over (B, T). One gathering of some twenty numbers per step.
    """

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting
        self.bounded = next((i for i, factor in enumerate(weighting.factors) if factor.bounds is not None), None)
        self.steps = 0
        self.inert_steps = [0] * len(weighting.factors)
        self._sums: list[Tensor] = []
        self._lows: list[Tensor] = []
        self._highs: list[Tensor] = []
        self._warned: set[str] = set()

    def add(self, placed: PlacedWeights, logps: Tensor, mask: Tensor) -> None:
        """Note one micro-batch: its weights, and `logps` (B, T) of the current policy where `mask` is true."""
        p = wide(logps.detach()[mask]).exp()
        none = torch.zeros((), dtype=p.dtype, device=p.device)
        w = torch.ones_like(p) if placed.product is None else wide(placed.product[mask])
        lower = upper = isolated = none
        if self.bounded is not None:
            part, bounds = wide(placed.parts[self.bounded][mask]), self.weighting.factors[self.bounded].bounds
            lower, upper = (((part - bound).abs() <= _AT_BOUND * max(1.0, abs(bound))).sum() for bound in bounds)
        if placed.isolated is not None:
            isolated = placed.isolated[mask].sum()
        count = torch.full_like(none, p.numel())
        sums = (count, w.sum(), (w * w).sum(), p.sum(), (p * p).sum(), (w * p).sum(), lower, upper, isolated)
        self._sums.append(torch.stack([x.to(p.dtype) for x in sums]))
        if p.numel():
            values = torch.stack([w, *(wide(part[mask]) for part in placed.parts)])
            self._lows.append(values.amin(dim=1))
            self._highs.append(values.amax(dim=1))

    def close_step(self, gather: Callable[[Tensor], Tensor], step: int, warn: bool = True) -> dict[str, float]:
        """Metrics of the step that the noted micro-batches make up; start the next one.

        `gather` joins tensors of all processes along their first axis; every process must call. `warn`: whether to
        speak up, once per factor, when a weight that follows the policy is inert.
        """
        size = 1 + len(self.weighting.factors)
        like = self._sums[0]
        lows = torch.stack(self._lows).amin(dim=0) if self._lows else torch.full((size,), math.inf).to(like)
        highs = torch.stack(self._highs).amax(dim=0) if self._highs else torch.full((size,), -math.inf).to(like)
        local = torch.cat([torch.stack(self._sums).sum(dim=0), lows, highs])
        every = gather(local.unsqueeze(0)).cpu()
        self._sums, self._lows, self._highs = [], [], []
        n, w, ww, p, pp, wp, lower, upper, isolated = every[:, :9].sum(dim=0).tolist()
        low, high = every[:, 9 : 9 + size].amin(dim=0).tolist(), every[:, 9 + size :].amax(dim=0).tolist()
        metrics: dict[str, float] = {}
        inert = [n > 1 and a == b for a, b in zip(low[1:], high[1:])]
        if self.weighting.factors:
            metrics |= {
                "mean": w / n if n else math.nan,
                "min": low[0] if n else math.nan,
                "max": high[0] if n else math.nan,
                "correlation": _correlation(n, w, ww, p, pp, wp),
            }
        if self.bounded is not None:
            shares = (lower, upper, n - lower - upper)
            names = ("share_lower", "share_upper", "share_between")
            metrics |= {name: share / n if n else math.nan for name, share in zip(names, shares)}
        stuck = False
        if self.weighting.isolation is not None:
            metrics["share_isolated"] = isolated / n if n else math.nan
            stuck = n > 0 and isolated in (0, n)
        metrics["inert"] = float(any(inert) or stuck)
        self.steps += 1
        self.inert_steps = [count + now for count, now in zip(self.inert_steps, inert)]
        if warn:
            self._warn(inert, low[1:], stuck, n, step)
        return {f"token_weights/{name}": value for name, value in metrics.items() if not math.isnan(value)}

    def close_run(self) -> None:
        """Warn of a rollout weight that was inert at every step; one that is inert now and then is nothing unusual."""
        for factor, count in zip(self.weighting.factors, self.inert_steps):
            if factor.bounds is None and self.steps and count == self.steps:
                self._say(f"The token weight {factor} was the same for all tokens of each of the {count} steps.")

    def _warn(self, inert: list[bool], values: list[float], stuck: bool, tokens: float, step: int) -> None:
        for factor, is_inert, value in zip(self.weighting.factors, inert, values):
            if is_inert and factor.bounds is not None:
                self._say(
                    f"The token weight {factor} is inert: at step {step} it is {value:g} for all {tokens:.0f} tokens, "
                    "so it has no effect beyond that of a learning rate. Choose constants that fit the signal's range, "
                    "or, for a signal other than the raw logit, match=True."
                )
        if stuck:
            self._say(
                f"Lopti is inert: at step {step} all or none of the {tokens:.0f} tokens take part in one of the two "
                f"updates. Choose another eta than {self.weighting.isolation:g}."
            )

    def _say(self, message: str) -> None:
        kind = message.split(":")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, stacklevel=3)


def _correlation(n: float, w: float, ww: float, p: float, pp: float, wp: float) -> float:
    """Pearson's correlation from the sums of w, w^2, p, p^2 and w p over n tokens; NaN where one is constant."""
    if n < 2 or not math.isfinite(ww):
        return math.nan
    var_w, var_p = ww / n - (w / n) ** 2, pp / n - (p / n) ** 2
    rounding = 1e-13  # what is left of the variance of equal numbers
    if var_w <= rounding * ww / n or var_p <= rounding * pp / n:
        return math.nan
    return max(-1.0, min(1.0, (wp / n - w * p / n**2) / math.sqrt(var_w * var_p)))
