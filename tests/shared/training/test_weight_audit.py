"""The audit of token weights against counts made by hand, and what it says of a weight that does nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_replications.shared.theory.weighting import (
    AdvantageReweighting,
    PlacedWeights,
    RolloutWeight,
    Sharpness,
    TokenBatch,
    Weighting,
)
from grpo_replications.shared.training.weight_audit import WeightAudit

PREFIX = "token_weights/"
T = 8


def micro_batch(seed: int, rows: int = 3, low: float = 5.0, high: float = 35.0) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    logps = -3 * torch.rand(rows, T, generator=generator)
    logits = low + (high - low) * torch.rand(rows, T, generator=generator)
    mask = torch.arange(T) < torch.randint(1, T + 1, (rows, 1), generator=generator)
    weights = torch.ones(rows, T)
    return TokenBatch(logps, logps, logits, weights, mask, torch.zeros(rows, dtype=torch.long))


def run(weighting: Weighting, batches: list[TokenBatch], audit: WeightAudit | None = None) -> dict[str, float]:
    audit = audit or WeightAudit(weighting)
    for batch in batches:
        audit.add(weighting.place(batch), batch.logps, batch.mask)
    return audit.close_step(lambda x: x, step=7)


def test_the_figures_of_a_step_are_those_of_all_its_tokens() -> None:
    weighting = Weighting(factors=(Sharpness(), AdvantageReweighting()), rescale=True)
    batches = [micro_batch(seed, rows) for seed, rows in ((0, 3), (1, 1), (2, 5))]
    metrics = run(weighting, batches)
    product = np.concatenate([weighting.place(b).product[b.mask].numpy() for b in batches])
    sure = np.concatenate([weighting.factors[0].weights(b)[b.mask].numpy() for b in batches])
    p = np.concatenate([b.logps[b.mask].double().exp().numpy() for b in batches])
    expected = {
        "mean": product.mean(),
        "min": product.min(),
        "max": product.max(),
        "correlation": np.corrcoef(product, p)[0, 1],
        "share_lower": (sure == 1.0).mean(),
        "share_upper": (sure == 1.4).mean(),
        "share_between": ((sure > 1.0) & (sure < 1.4)).mean(),
        "inert": 0.0,
    }
    assert metrics == pytest.approx({PREFIX + name: float(value) for name, value in expected.items()}, rel=1e-9)
    assert all(0 < expected[name] < 1 for name in ("share_lower", "share_upper", "share_between"))
    assert abs(sum(metrics[PREFIX + f"share_{name}"] for name in ("lower", "upper", "between")) - 1) < 1e-12


def test_a_bound_is_recognized_in_rounded_and_in_mirrored_weights() -> None:
    batches = [micro_batch(0, 20)]
    metrics, mirrored = (run(Weighting(factors=(Sharpness(reverse=r),)), batches) for r in (False, True))
    for name, other in (("share_lower", "share_upper"), ("share_upper", "share_lower"), ("share_between",) * 2):
        assert metrics[PREFIX + name] == pytest.approx(mirrored[PREFIX + other]) and metrics[PREFIX + name] > 0
    audit = WeightAudit(Weighting(factors=(Sharpness(),)))
    rounded = torch.tensor([[1.4, 1.0, 1.2]])
    audit.add(PlacedWeights(product=rounded, parts=(rounded,)), torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool))
    metrics = audit.close_step(lambda x: x, 0)
    shares = [metrics[PREFIX + f"share_{name}"] for name in ("lower", "upper", "between")]
    assert shares == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("signal", ["prob", "logprob"])
def test_a_signal_that_the_constants_were_not_made_for_is_reported_once(signal: str) -> None:
    weighting = Weighting(factors=(Sharpness(signal=signal),))
    audit = WeightAudit(weighting)
    with pytest.warns(UserWarning, match=r"is inert: at step 7 it is 1 for all \d+ tokens") as caught:
        metrics = [run(weighting, [micro_batch(seed)], audit) for seed in range(3)]
    assert len(caught) == 1 and f"signal='{signal}'" in str(caught[0].message)
    for of_step in metrics:
        assert of_step[PREFIX + "inert"] == of_step[PREFIX + "share_lower"] == of_step[PREFIX + "mean"] == 1
        assert PREFIX + "correlation" not in of_step, "with a constant there is none"


def test_an_inert_factor_is_found_behind_one_that_is_not() -> None:
    weighting = Weighting(factors=(AdvantageReweighting(), Sharpness(signal="prob")))
    with pytest.warns(UserWarning, match="Sharpness"):
        metrics = run(weighting, [micro_batch(0)])
    assert metrics[PREFIX + "inert"] == 1 and metrics[PREFIX + "correlation"] == pytest.approx(1)


def test_weights_that_differ_raise_no_alarm_and_other_processes_count() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weighting = Weighting(factors=(Sharpness(),))
        assert run(weighting, [micro_batch(0)])[PREFIX + "inert"] == 0
        # Every weight of this process is at its lower bound, those of another one are not.
        audit, there = WeightAudit(weighting), []
        other = WeightAudit(weighting)
        low, high = micro_batch(0, low=0.0, high=9.0), micro_batch(1, low=20.0, high=30.0)
        other.add(weighting.place(high), high.logps, high.mask)
        other.close_step(lambda x: there.append(x) or x, 0, warn=False)
        audit.add(weighting.place(low), low.logps, low.mask)
        metrics = audit.close_step(lambda x: torch.cat([x, there[0]]), 0)
    assert metrics[PREFIX + "inert"] == 0
    tokens = int(low.mask.sum()), int(high.mask.sum())
    assert metrics[PREFIX + "share_lower"] == pytest.approx(tokens[0] / sum(tokens))


def test_a_process_that_is_not_to_speak_does_not() -> None:
    weighting = Weighting(factors=(Sharpness(signal="prob"),))
    audit = WeightAudit(weighting)
    audit.add(weighting.place(micro_batch(0)), micro_batch(0).logps, micro_batch(0).mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert audit.close_step(lambda x: x, 0, warn=False)[PREFIX + "inert"] == 1


def test_lopti_says_how_many_tokens_take_part_and_when_an_update_is_empty() -> None:
    batch = micro_batch(0, 6)
    p = batch.logps[batch.mask].exp()
    metrics = run(Weighting(isolation=0.4), [batch])
    assert metrics == {PREFIX + "share_isolated": pytest.approx(float((p < 0.4).double().mean())), PREFIX + "inert": 0}
    with pytest.warns(UserWarning, match="all or none"):
        assert run(Weighting(isolation=1e-6), [batch])[PREFIX + "inert"] == 1


def test_a_rollout_weight_is_reported_when_it_was_inert_throughout() -> None:
    def ones(rollout: object) -> Tensor:
        raise NotImplementedError

    weighting = Weighting(factors=(RolloutWeight(function=ones),))
    audit = WeightAudit(weighting)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit.close_run()  # nothing was trained
        assert run(weighting, [micro_batch(0)], audit) == {
            PREFIX + "mean": 1,
            PREFIX + "min": 1,
            PREFIX + "max": 1,
            PREFIX + "inert": 1,
        }
    with pytest.warns(UserWarning, match="each of the 1 steps"):
        audit.close_run()


def test_steps_without_a_token_have_no_figures() -> None:
    weighting = Weighting(factors=(Sharpness(),), isolation=0.4)
    batch = micro_batch(0)
    nothing = torch.zeros_like(batch.mask)
    audit = WeightAudit(weighting)
    audit.add(weighting.place(batch), batch.logps, nothing)
    assert audit.close_step(lambda x: x, 0) == {PREFIX + "inert": 0}
