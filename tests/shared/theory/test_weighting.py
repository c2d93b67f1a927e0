"""Factors, their places and their product, on a micro-batch of made-up numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_replications.shared.theory.confidence_weights import sharpness_weights
from grpo_replications.shared.theory.weighting import (
    AdvantageReweighting,
    Factor,
    RolloutWeight,
    Sharpness,
    TokenBatch,
    Weighting,
    masked_mean,
)

B, T = 4, 6


def batch(**changes: Any) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(B, T, generator=generator)

    values: dict[str, Any] = {
        "logps": draw(-4, 0),
        "old_logps": draw(-4, 0),
        "raw_logits": draw(5, 25),
        "rollout_weights": draw(0.2, 1),
        "mask": torch.arange(T) < torch.tensor([[6], [3], [5], [0]]),
        "visits": torch.tensor([0, 1, 1, 0]),
    }
    for name in ("logps", "old_logps", "raw_logits"):  # nothing on padding may leak out
        values[name][~values["mask"]] = math.nan
    return TokenBatch(**{**values, **changes})


def constant(value: float) -> Any:
    return lambda rollout: torch.full(rollout.set_sizes.shape, value)


def on(b: TokenBatch, weights: Tensor) -> list[float]:
    return weights[b.mask].tolist()


@pytest.mark.parametrize("signal", ["logit", "logprob", "prob"])
@pytest.mark.parametrize("reverse", [False, True])
def test_sharpness_looks_at_its_signal_of_the_current_policy(signal: str, reverse: bool) -> None:
    b = batch()
    values = {"logit": b.raw_logits, "logprob": b.logps, "prob": b.logps.exp()}[signal].double()
    constants = {"alpha": 3.0, "tau": 2.0, "mu": 0.2, "lower": 0.3, "upper": 1.6}
    weights = Sharpness(signal=signal, reverse=reverse, **constants).weights(b)
    expected = sharpness_weights(values[b.mask], **constants)
    if reverse:
        expected = 1.9 - expected
    assert weights.dtype == torch.float64 and on(b, weights) == pytest.approx(expected.tolist(), rel=1e-12)
    assert not weights.isnan().any()


@pytest.mark.parametrize("signal", ["logprob", "prob"])
def test_matched_signals_give_out_the_raw_logits_weights_in_their_own_order(signal: str) -> None:
    b = batch()
    paper, matched = (Sharpness(signal=s, match=s != "logit").weights(b)[b.mask] for s in ("logit", signal))
    assert torch.equal(paper, Sharpness().weights(b)[b.mask]), "the raw logit matches itself"
    assert torch.equal(matched.sort().values, paper.sort().values) and not torch.equal(matched, paper)
    ranked = b.logps[b.mask].argsort()
    assert bool((matched[ranked].diff() >= 0).all())
    mirrored = Sharpness(signal=signal, match=True, reverse=True).weights(b)[b.mask]
    torch.testing.assert_close(mirrored, 2.4 - matched, rtol=1e-12, atol=0)
    assert Sharpness(signal=signal).needs_raw_logits is False and Sharpness(signal=signal, match=True).needs_raw_logits


def test_advantage_reweighting_looks_at_the_policy_that_sampled() -> None:
    b = batch()
    weights = AdvantageReweighting(alpha=0.3).weights(b)
    assert on(b, weights) == pytest.approx((0.3 * b.old_logps[b.mask].double().exp() + 0.7).tolist(), rel=1e-12)


def test_a_log_probability_that_rounding_lifts_above_zero_is_no_error() -> None:
    b = batch(old_logps=torch.full((B, T), 4e-6))
    assert on(b, AdvantageReweighting().weights(b)) == [1.0] * int(b.mask.sum())


PLACES = {
    ("outside", True): {"gate"},
    ("outside", False): {"advantage"},
    ("inside", True): {"ratio"},
    ("inside", False): {"ratio", "reference"},
}


@pytest.mark.parametrize(("placement", "weight_kl"), PLACES)
def test_a_factor_stands_in_its_place_only(placement: str, weight_kl: bool) -> None:
    b = batch()
    factor = Sharpness(placement=placement, weight_kl=weight_kl)
    placed = Weighting(factors=(factor,)).place(b)
    used = {name for name in ("gate", "advantage", "ratio", "reference") if getattr(placed, name) is not None}
    assert used == PLACES[placement, weight_kl]
    weights = factor.weights(b)
    for name in used:
        expected = weights.log() if placement == "inside" else weights
        assert on(b, getattr(placed, name)) == pytest.approx(on(b, expected), rel=1e-12)
        assert placement == "outside" or not getattr(placed, name)[~b.mask].any(), "nothing is shifted on padding"


def test_factors_in_different_places_multiply_and_the_divisor_goes_with_the_last() -> None:
    b = batch()
    set_weight, sure = RolloutWeight(function=constant(1.0)), Sharpness()
    plain = Weighting(factors=(set_weight, sure)).place(b)
    assert torch.equal(plain.gate, b.rollout_weights) and torch.equal(plain.advantage, sure.weights(b))
    product = b.rollout_weights * sure.weights(b)
    assert torch.equal(plain.product, product)
    scaled = Weighting(factors=(set_weight, sure), rescale=True).place(b)
    assert torch.equal(scaled.gate, b.rollout_weights)
    assert float(scaled.product[b.mask].mean()) == pytest.approx(1, rel=1e-12)
    average = product[b.mask].mean()
    assert on(b, scaled.advantage) == pytest.approx(on(b, sure.weights(b) / average), rel=1e-12)
    assert torch.equal(scaled.parts[1], sure.weights(b)), "parts are as they were, for the audit"
    inside = Weighting(factors=(Sharpness(placement="inside"),), rescale=True).place(b)
    assert float(inside.ratio[b.mask].exp().mean()) == pytest.approx(1, rel=1e-12)


def test_a_mean_over_other_processes_can_be_put_in() -> None:
    b = batch()
    placed = Weighting(factors=(Sharpness(),), rescale=True).place(b, lambda values, mask: torch.tensor(2.0))
    assert torch.equal(placed.advantage, Sharpness().weights(b) / 2)


def test_the_mean_of_nothing_leaves_weights_alone() -> None:
    nothing = torch.zeros(B, T, dtype=torch.bool)
    assert masked_mean(torch.full((B, T), math.nan), nothing) == 1
    placed = Weighting(factors=(AdvantageReweighting(),), rescale=True).place(batch(mask=nothing))
    assert torch.isfinite(placed.advantage).all()


def test_isolation_takes_the_unlikely_tokens_of_a_first_visit_and_the_others_later() -> None:
    b = batch()
    isolated = Weighting(isolation=0.3).place(b).isolated
    unlikely = b.old_logps.exp() < 0.3
    for row, visit in enumerate(b.visits.tolist()):
        real = b.mask[row]
        expected = unlikely[row] if visit == 0 else ~unlikely[row]
        assert torch.equal(isolated[row][real], expected[real])
    assert 0 < isolated[b.mask].sum() < b.mask.sum()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sharpness(placement="beside"), "placement must be one of"),
        (lambda: Sharpness(signal="entropy"), "signal must be one of"),
        (lambda: Sharpness(tau=0.0), "tau must be"),
        (lambda: Sharpness(lower=2.0), "lower must not exceed"),
        (lambda: Sharpness(lower=-0.5), "must not be negative"),
        (lambda: Sharpness(lower=0.0, placement="inside"), "must be positive"),
        (lambda: AdvantageReweighting(alpha=2.0), "alpha must lie in"),
        (lambda: AdvantageReweighting(alpha=1.0, placement="inside"), "must be positive"),
        (lambda: Weighting(rescale=True), "nothing|needs weights"),
        (lambda: Weighting(isolation=1.5), "eta must lie in"),
        (lambda: Weighting(top_entropy_quantile=0.0), "top_entropy_quantile must lie in"),
        (lambda: Weighting(factors=(RolloutWeight(function=constant(1.0)),) * 2), "one rollout weight"),
    ],
)
def test_weightings_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rollout_weight_of_zero_cannot_stand_inside_the_clip() -> None:
    factor = RolloutWeight(function=constant(0.0), placement="inside")
    b = batch()
    assert torch.equal(factor.weights(b), b.rollout_weights)
    with pytest.raises(ValueError, match="gave 0"):
        factor.weights(batch(rollout_weights=torch.zeros(B, T)))


def test_a_factor_of_ones_own_needs_only_its_weights() -> None:
    class Early(Factor):
        def weights(self, batch: TokenBatch) -> Tensor:
            return 1 / (1 + torch.arange(batch.mask.size(1)).expand(batch.mask.shape))

    placed = Weighting(factors=(Early(weight_kl=False), AdvantageReweighting())).place(batch())
    assert placed.gate is None and placed.advantage[0, 1] == 0.5 * placed.parts[1][0, 1]
