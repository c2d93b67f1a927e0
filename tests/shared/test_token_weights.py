"""Weights of process sets against a brute-force count, and the gate that applies them to gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shared.process_sets import process_set_sizes
from shared.token_weights import TOKEN_WEIGHTS, RolloutBatch, gate_gradient, lambda_weights

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
