"""Confidence weights against their formulas in plain Python, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from grpo_replications.shared.theory.confidence_weights import (
    advantage_reweighting,
    isolated_tokens,
    matched_weights,
    reversed_weights,
    sharpness_weights,
)

LOGITS = [-40.0, -3.0, 0.0, 1.0, 9.887510598012987, 10.0, 12.5, 15.0, 17.65, 20.0, 30.0, 500.0]


def sharpness(signal: float, alpha: float, tau: float, mu: float, lower: float, upper: float) -> float:
    """Equation 20 as it is written, one number at a time."""
    raised = alpha * (1 / (1 + math.exp(-signal / tau)) - mu)
    return lower if raised < lower else upper if raised > upper else raised


@pytest.mark.parametrize(
    ("alpha", "tau", "mu", "lower", "upper"),
    [(2.0, 9.0, 0.25, 1.0, 1.4), (3.0, 1.0, 0.1, 0.2, 2.0), (2.0, 9.0, 0.0, 0.0, 10.0), (-1.0, 4.0, 2.0, 1.1, 1.9)],
)
def test_sharpness_weights_are_equation_20(alpha: float, tau: float, mu: float, lower: float, upper: float) -> None:
    expected = [sharpness(h, alpha, tau, mu, lower, upper) for h in LOGITS]
    weights = sharpness_weights(torch.tensor(LOGITS, dtype=torch.float64), alpha, tau, mu, lower, upper)
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-14)
    assert len(set(expected)) > 3, "the cases must not all be clipped"


def test_the_defaults_of_sharpness_weights_are_the_papers() -> None:
    weights = sharpness_weights(np.array(LOGITS))
    np.testing.assert_allclose(weights, [sharpness(h, 2.0, 9.0, 0.25, 1.0, 1.4) for h in LOGITS], rtol=1e-14)
    assert weights[LOGITS.index(10.0)] == pytest.approx(1.0046, abs=1e-4) and weights[-1] == 1.4
    assert sharpness_weights(9 * math.log(3)) == pytest.approx(1.0), "where the clip lets go: sigmoid = 3/4"


@pytest.mark.parametrize("values", [np.linspace(0, 1, 101), np.log(np.linspace(1e-6, 1, 101))])
def test_a_probability_or_log_probability_in_place_of_the_logit_makes_every_weight_exactly_one(values: Any) -> None:
    assert set(sharpness_weights(values)) == {1.0}
    assert len(set(sharpness_weights(values, tau=0.5, mu=-0.1))) > 10, "with other constants it would not be"


def test_infinite_signals_have_weights_and_the_mirror_image_stays_within_the_bounds() -> None:
    signal = torch.tensor([-math.inf, 12.0, math.inf], dtype=torch.float64)
    weights = sharpness_weights(signal)
    assert weights[0] == 1.0 and weights[2] == 1.4
    mirrored = reversed_weights(weights, 1.0, 1.4)
    assert mirrored[0] == 1.4 and mirrored[2] == pytest.approx(1.0, abs=1e-15)
    torch.testing.assert_close(mirrored, 2.4 - weights, rtol=1e-15, atol=0)
    assert reversed_weights([0.0, 5.0], 1.0, 1.4).tolist() == [1.4, 1.0]


def test_advantage_reweighting_is_alpha_p_plus_one_minus_alpha() -> None:
    p = np.array([0.0, 1e-30, 0.3, 0.75, 1.0])
    np.testing.assert_allclose(advantage_reweighting(p), 0.2 * p + 0.8, rtol=1e-15)
    np.testing.assert_allclose(advantage_reweighting(p, 0.3), 0.3 * p + 0.7, rtol=1e-15)
    assert advantage_reweighting(p, 0.0).tolist() == [1.0] * 5
    assert advantage_reweighting(0.5, alpha=1.0) == 0.5


def test_every_token_is_isolated_in_exactly_one_of_the_two_updates() -> None:
    p = torch.tensor([0.0, 0.3999, 0.4, 0.4001, 1.0], dtype=torch.float64)
    assert isolated_tokens(p).tolist() == [True, True, False, False, False]
    assert isolated_tokens(p, first=False).tolist() == [False, False, True, True, True]
    assert isolated_tokens(p, 0.0).sum() == 0 and isolated_tokens(p, 1.0).sum() == 4
    assert isolated_tokens(p).dtype == torch.bool


@pytest.mark.parametrize("function", [sharpness_weights, advantage_reweighting, reversed_weights])
def test_every_kind_of_array_is_answered_in_kind(function: Any) -> None:
    values = [[0.0, 0.5], [1.0, 0.25]]
    exact = function(np.array(values))
    assert exact.dtype == np.float64 and exact.shape == (2, 2)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        result = function(torch.tensor(values, dtype=dtype, requires_grad=True))
        assert result.dtype == dtype and not result.requires_grad, "weights are constants of the gradient"
        assert torch.equal(result, torch.from_numpy(exact).to(dtype)), "rounded once"
    assert function(torch.tensor([0, 1])).dtype == torch.float64
    assert function(np.array([0, 1], dtype=np.int32)).dtype == np.float64
    assert function(np.float32(0.5)).dtype == np.float32
    assert function(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (sharpness_weights, {"lower": 1.5}, "lower must not exceed upper"),
        (sharpness_weights, {"upper": math.nan}, "lower must not exceed upper"),
        (sharpness_weights, {"tau": 0.0}, "tau must be a positive"),
        (sharpness_weights, {"tau": -9.0}, "tau must be a positive"),
        (sharpness_weights, {"tau": math.nan}, "tau must be a positive"),
        (sharpness_weights, {"alpha": math.nan}, "finite numbers"),
        (sharpness_weights, {"mu": math.inf}, "finite numbers"),
        (reversed_weights, {"lower": 2.0}, "lower must not exceed upper"),
        (advantage_reweighting, {"alpha": 1.5}, "alpha must lie in"),
        (advantage_reweighting, {"alpha": -0.1}, "alpha must lie in"),
        (isolated_tokens, {"eta": math.nan}, "eta must lie in"),
    ],
)
def test_constants_that_make_no_weight_are_refused(function: Any, arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(torch.tensor([0.5]), **arguments)


@pytest.mark.parametrize("function", [sharpness_weights, advantage_reweighting, isolated_tokens, reversed_weights])
def test_nan_is_refused(function: Any) -> None:
    with pytest.raises(ValueError, match="NaN"):
        function(torch.tensor([0.5, math.nan]))
    with pytest.raises(ValueError, match="real numbers"):
        function(torch.tensor([1j]))


@pytest.mark.parametrize("function", [advantage_reweighting, isolated_tokens])
@pytest.mark.parametrize("bad", [-0.01, 1.01, math.inf])
def test_what_is_no_probability_is_refused(function: Any, bad: float) -> None:
    with pytest.raises(ValueError, match="probabilities must lie"):
        function(torch.tensor([0.5, bad]))


def test_matched_weights_keep_the_values_and_follow_the_ranks_of_the_signal() -> None:
    generator = torch.Generator().manual_seed(0)
    signal, weights = torch.randn(50, generator=generator), torch.rand(50, generator=generator, dtype=torch.float64)
    matched = matched_weights(signal, weights)
    assert torch.equal(matched.sort().values, weights.sort().values)
    assert torch.equal(matched.argsort(), signal.argsort())
    assert torch.equal(matched_weights(weights, weights), weights)
    # An increasing function of a signal is the same signal: probability and log-probability cannot differ here.
    assert torch.equal(matched_weights(signal.exp(), weights), matched)


def test_tokens_of_equal_signal_get_equal_matched_weights() -> None:
    signal = torch.tensor([3.0, 1.0, 3.0, 2.0])
    matched = matched_weights(signal, torch.tensor([0.1, 0.7, 0.3, 0.5]))
    assert matched.tolist() == pytest.approx([0.6, 0.1, 0.6, 0.3])
    assert matched_weights(torch.zeros(0), torch.zeros(0)).shape == (0,)
    with pytest.raises(ValueError, match="alike"):
        matched_weights(signal, torch.zeros(3))
    with pytest.raises(ValueError, match="NaN"):
        matched_weights(signal * math.nan, signal)


def test_matched_weights_answer_in_kind_and_keep_means_of_integers() -> None:
    dealt = matched_weights(np.array([1.0, 1.0, 0.0]), np.array([1, 2, 5]))
    assert isinstance(dealt, np.ndarray) and dealt.tolist() == [3.5, 3.5, 1.0]
    assert matched_weights(torch.tensor([1, 1]), torch.tensor([1, 2])).tolist() == [1.5, 1.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("eta", [0.1, 0.4, 0.5, 0.9])
def test_a_probability_of_eta_is_not_isolated_in_any_precision(eta: float, dtype: torch.dtype) -> None:
    p = torch.tensor([eta, 0.0], dtype=dtype)
    assert isolated_tokens(p, eta).tolist() == (p < eta).tolist() == [False, True]
    assert isolated_tokens(p, eta, first=False).tolist() == [True, False]
