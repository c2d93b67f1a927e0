"""Weights of process sets against a brute-force count, and the gate that applies them to gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grpo_replications.shared.theory.process_sets import process_set_sizes
from grpo_replications.shared.theory.weighting import AdvantageReweighting, RolloutWeight, Sharpness, Weighting
from grpo_replications.shared.training.token_weights import (
    TOKEN_WEIGHTS,
    RolloutBatch,
    as_weighting,
    gate_gradient,
    lambda_weights,
    process_set_weight,
    token_weighting,
)

GROUP, GROUPS, TOKENS = 5, 6, 7


def rollout(seed: int) -> tuple[Tensor, Tensor]:
    """Ids over two tokens, so that prefixes are shared, and a mask of random lengths, empty completions among them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, (GROUP * GROUPS, TOKENS), generator=generator)
    lengths = torch.randint(TOKENS + 1, (GROUP * GROUPS, 1), generator=generator)
    ids[:GROUP, 0], lengths[:GROUP] = 1, lengths[:GROUP].clamp(min=1)  # one group that starts alike
    return ids, torch.arange(TOKENS) < lengths


def brute_force(ids: Tensor, mask: Tensor) -> Tensor:
    """1 / (completions of the group that are as long and agree up to here), by comparing every pair of prefixes."""
    completions = [row[real].tolist() for row, real in zip(ids, mask)]
    weights = torch.zeros(ids.shape, dtype=torch.float64)
    for i, own in enumerate(completions):
        group = completions[i // GROUP * GROUP : (i // GROUP + 1) * GROUP]
        for t in range(len(own)):
            weights[i, t] = 1 / sum(other[: t + 1] == own[: t + 1] for other in group)
    return weights


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_one_over_the_number_of_completions_that_share_the_prefix(seed: int) -> None:
    ids, mask = rollout(seed)
    expected = brute_force(ids, mask)
    assert len(expected.unique()) >= GROUP, "padding and nearly every set size must occur"
    weights = lambda_weights(process_set_sizes(ids, mask, GROUP))
    torch.testing.assert_close(weights.double(), expected, rtol=1e-7, atol=0)
    batch = RolloutBatch(ids, mask, process_set_sizes(ids, mask, GROUP), torch.zeros(len(ids)), GROUP)
    assert torch.equal(TOKEN_WEIGHTS["lambda-grpo"](batch), weights)
    assert TOKEN_WEIGHTS["grpo"] is None


def test_a_process_set_counts_once_however_many_share_it() -> None:
    ids = torch.tensor([[1, 2, 3], [1, 2, 4], [1, 5, 5], [6, 0, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 0]])
    weights = lambda_weights(process_set_sizes(ids, mask, 4))
    third = 1 / 3
    expected = torch.tensor([[third, 0.5, 1.0], [third, 0.5, 1.0], [third, 1.0, 1.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(weights, expected)
    assert float(weights.sum()) == pytest.approx(7)  # the sets {1,2,3}, {4}, {1,2}, {3}, {1}, {2}, {3}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_weights_are_float32_and_zero_on_padding_whatever_integers_the_sizes_are(dtype: torch.dtype) -> None:
    weights = lambda_weights(torch.tensor([[3, 1, 0]], dtype=dtype))
    assert weights.dtype == torch.float32 and weights[0, 2] == 0
    assert lambda_weights(torch.zeros(2, 0, dtype=dtype)).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_gate_keeps_every_value_and_scales_every_gradient(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logps = (-10 * torch.rand(4, 6, generator=generator)).to(dtype).requires_grad_()
    weights = torch.rand(4, 6, generator=generator)
    gated = gate_gradient(logps, weights)
    assert gated.dtype == dtype and torch.equal(gated, logps)
    upstream = torch.randn(4, 6, generator=generator).to(dtype)
    (gradient,) = torch.autograd.grad(gated, logps, upstream)
    assert gradient.dtype == dtype
    assert torch.equal(gradient, upstream * weights.to(dtype))


def test_the_gate_scales_a_term_as_a_whole_even_where_it_is_not_linear() -> None:
    """Policy ratio and KL estimator of one token: the gradient of w * term, at the value of the term."""
    logps = torch.tensor([[-1.0, -2.5]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[0.25, 0.5]], dtype=torch.float64)
    old, reference = torch.tensor([[-1.1, -2.0]]).double(), torch.tensor([[-0.7, -3.0]]).double()

    def terms(x: Tensor) -> Tensor:
        return torch.exp(x - old) * 1.7 - 0.3 * (torch.exp(reference - x) - (reference - x) - 1)

    (expected,) = torch.autograd.grad((weights * terms(logps)).sum(), logps)
    gated = terms(gate_gradient(logps, weights))
    assert torch.equal(gated, terms(logps))
    (gradient,) = torch.autograd.grad(gated.sum(), logps)
    torch.testing.assert_close(gradient, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("value", [-float("inf"), -3e38, -1e4, -0.0])
def test_the_gate_makes_no_nan_where_a_token_is_impossible(value: float) -> None:
    logps = torch.tensor([[value, -1.0]], requires_grad=True)
    gated = gate_gradient(logps, torch.tensor([[0.5, 0.5]]))
    assert torch.equal(gated, logps)
    gated[0, 1].backward()
    assert logps.grad.tolist() == [[0.0, 0.5]]


def test_a_weight_of_zero_takes_a_token_out_and_weights_get_no_gradient() -> None:
    logps = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    weights = torch.tensor([[0.0, 2.0]], requires_grad=True)
    torch.exp(gate_gradient(logps, weights)).sum().backward()
    assert logps.grad[0, 0] == 0 and logps.grad[0, 1] > 0
    assert weights.grad is None


# --- methods by name --------------------------------------------------------------------------------------------------


def test_the_defaults_of_every_method_are_those_of_its_paper() -> None:
    sharpness = {"alpha": 2.0, "tau": 9.0, "mu": 0.25, "lower": 1.0, "upper": 1.4}
    assert TOKEN_WEIGHTS["sharpness"] == Weighting(factors=(Sharpness(signal="logit", **sharpness),))
    assert TOKEN_WEIGHTS["sharpness-prob-reverse"] == Weighting(factors=(Sharpness(signal="prob", reverse=True),))
    assert TOKEN_WEIGHTS["advantage-reweighting"] == Weighting(factors=(AdvantageReweighting(alpha=0.2),))
    assert TOKEN_WEIGHTS["lopti"] == Weighting(isolation=0.4)
    assert TOKEN_WEIGHTS["lopti+ar"] == Weighting(factors=(AdvantageReweighting(alpha=0.3),), isolation=0.5)
    assert TOKEN_WEIGHTS["80/20"] == Weighting(top_entropy_quantile=0.2)
    assert TOKEN_WEIGHTS["sharpness-mean1"] == Weighting(factors=(Sharpness(),), rescale=True)
    for name, method in TOKEN_WEIGHTS.items():
        assert as_weighting(name) == as_weighting(method), "a name means the same in the table and to the trainer"


def test_only_the_weight_of_lambda_grpo_scales_the_kl_term_unless_told() -> None:
    assert [factor.weight_kl for factor in token_weighting("lambda-grpo*sharpness").factors] == [True, False]
    told = token_weighting("lambda-grpo*sharpness", weight_kl=True, placement="inside")
    assert {(factor.weight_kl, factor.placement) for factor in told.factors} == {(True, "inside")}


def test_names_multiply_and_options_reach_the_factor_that_has_them() -> None:
    product = token_weighting("lopti*lambda-grpo*sharpness-logprob-mean1", tau=2.0, eta=0.3, match=True)
    assert product == Weighting(
        factors=(RolloutWeight(function=process_set_weight), Sharpness(signal="logprob", tau=2.0, match=True)),
        rescale=True,
        isolation=0.3,
    )
    both = token_weighting("80/20*advantage-reweighting", alpha=0.5)
    assert both == Weighting(factors=(AdvantageReweighting(alpha=0.5),), top_entropy_quantile=0.2)
    assert token_weighting("advantage-reweighting*lopti") == TOKEN_WEIGHTS["lopti+ar"]
    assert token_weighting("lopti+ar", alpha=0.1, eta=0.2) == Weighting(
        factors=(AdvantageReweighting(alpha=0.1),), isolation=0.2
    )
    assert token_weighting("sharpness-mean1", rescale=False) == TOKEN_WEIGHTS["sharpness"]
    assert token_weighting("sharpness", alpha=None, eta=None) == TOKEN_WEIGHTS["sharpness"]
    assert token_weighting("grpo", tau=None, rescale=False) is None


def test_a_function_of_ones_own_stands_for_a_weight_on_the_whole_term() -> None:
    weighting = as_weighting(process_set_weight)
    assert weighting == token_weighting("lambda-grpo") and weighting.rollout_weight is process_set_weight
    assert weighting.factors[0].weight_kl and not weighting.needs_raw_logits


@pytest.mark.parametrize("name", ["lamda-grpo", "", "grpo*sharpness", "sharpness*", "sharpness-entropy"])
def test_an_unknown_name_is_a_key_error_that_lists_the_known(name: str) -> None:
    with pytest.raises(KeyError, match="known are grpo, lambda-grpo"):
        token_weighting(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("grpo", {"tau": 9.0}, "grpo has no option tau"),
        ("lambda-grpo", {"alpha": 2.0}, "lambda-grpo has no option alpha"),
        ("sharpness", {"eta": 0.4}, "sharpness has no option eta"),
        ("lopti", {"placement": "inside"}, "lopti has no option placement"),
        ("80/20", {"weight_kl": True}, "80/20 has no option weight_kl"),
        ("advantage-reweighting*sharpness", {"alpha": 1.0}, "more than one factor"),
        ("lopti", {"rescale": True}, "rescale needs weights"),
        ("grpo", {"rescale": True}, "rescale needs weights"),
        ("sharpness", {"temperature": 1.0}, "unknown options: temperature; known: alpha"),
        ("sharpness", {"placement": "beside"}, "placement must be one of"),
        ("sharpness", {"lower": 2.0}, "lower must not exceed upper"),
        ("sharpness", {"match": True}, "match=True would do nothing"),
        ("sharpness", {"weight_kl": "no"}, "weight_kl must be True or False"),
        ("lambda-grpo*lambda-grpo", {}, "one rollout weight"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        token_weighting(name, **options)
