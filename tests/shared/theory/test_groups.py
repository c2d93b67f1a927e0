"""Group mathematics: textbook values, exact zeros in silent groups, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_replications.shared.theory.groups import (
    dr_grpo_advantages,
    group_mean,
    group_std,
    grpo_advantages,
    is_silent,
    rloo_advantages,
)

ADVANTAGES = [grpo_advantages, dr_grpo_advantages, rloo_advantages]
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.5, -1.0, 2.0, 0.25]], dtype=torch.float64)


def test_mean_and_both_deviations() -> None:
    assert torch.allclose(group_mean(REWARDS), REWARDS.mean(-1), rtol=1e-15)
    for ddof in (0, 1):
        assert torch.allclose(group_std(REWARDS, ddof), REWARDS.std(-1, correction=ddof), rtol=1e-14)


def test_advantages_by_their_formulas() -> None:
    centered = REWARDS - REWARDS.mean(-1, keepdim=True)
    assert torch.allclose(dr_grpo_advantages(REWARDS), centered, rtol=1e-14)
    for ddof in (0, 1):
        for eps in (0.0, 1e-4, 0.5):
            expected = centered / (REWARDS.std(-1, correction=ddof, keepdim=True) + eps)
            assert torch.allclose(grpo_advantages(REWARDS, ddof=ddof, eps=eps), expected, rtol=1e-13)
    others = (REWARDS.sum(-1, keepdim=True) - REWARDS) / 3
    assert torch.allclose(rloo_advantages(REWARDS), REWARDS - others, rtol=1e-13)


def test_defaults_are_sample_deviation_and_the_trainers_epsilon() -> None:
    assert torch.equal(grpo_advantages(REWARDS), grpo_advantages(REWARDS, ddof=1, eps=1e-4))
    assert torch.equal(group_std(REWARDS), group_std(REWARDS, ddof=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("value", [0.35, 0.1, -1.7, 1e-4, 1000.3, 0.0])
def test_constant_rewards_give_exact_zeros(dtype: torch.dtype, size: int, value: float) -> None:
    rewards = torch.full((2, size), value, dtype=dtype)
    assert is_silent(rewards).all()
    assert (group_std(rewards, 0) == 0).all() and (group_std(rewards, 1) == 0).all()
    assert torch.equal(group_mean(rewards), rewards[:, 0])
    for advantages in ADVANTAGES:
        assert (advantages(rewards) == 0).all()
    assert (grpo_advantages(rewards, eps=0.0) == 0).all()


def test_naive_deviation_of_a_constant_group_is_not_zero() -> None:
    """What the exact zeros guard against; should torch ever give 0 here, the guard would be untested."""
    assert torch.tensor([0.35] * 8).std() > 0


def test_almost_equal_rewards_are_not_silent() -> None:
    for value in (0.35, 1e-200, 1.0):
        following = np.nextafter(value, 2.0)
        rewards = torch.tensor([value, following, value, value], dtype=torch.float64)
        assert not is_silent(rewards)
        assert group_std(rewards) > 0
        assert torch.isfinite(grpo_advantages(rewards, eps=0.0)).all()
        assert (grpo_advantages(rewards, eps=0.0) != 0).any()


def test_one_silent_group_leaves_the_others_alone() -> None:
    rewards = torch.tensor([[0.35] * 4, [0.0, 0.0, 0.0, 1.0]])
    assert is_silent(rewards).tolist() == [True, False]
    advantages = grpo_advantages(rewards)
    assert (advantages[0] == 0).all()
    assert torch.allclose(advantages[1], torch.tensor([-0.5, -0.5, -0.5, 1.5]), atol=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("function", [group_mean, group_std, is_silent, *ADVANTAGES])
def test_rewards_that_are_no_numbers(function, bad: float) -> None:
    for rewards in (torch.tensor([[1.0, 2.0], [bad, 1.0]]), torch.tensor([bad, bad]), np.array([bad])):
        with pytest.raises(ValueError, match="finite"):
            function(rewards)


@pytest.mark.parametrize("function", [group_mean, group_std, is_silent, *ADVANTAGES])
def test_shapes_without_completions(function) -> None:
    for rewards in (torch.tensor(1.0), torch.ones(3, 0)):
        with pytest.raises(ValueError, match="G >= 1"):
            function(rewards)
    assert function(torch.ones(0, 4)).shape[0] == 0


def test_other_arguments_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="ddof"):
        group_std(REWARDS, 2)
    with pytest.raises(ValueError, match="ddof"):
        grpo_advantages(REWARDS, ddof=-1)
    with pytest.raises(ValueError, match="eps"):
        grpo_advantages(REWARDS, eps=-1e-4)


def test_types_and_arrays() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        rewards = REWARDS.to(dtype)
        for function in (group_mean, group_std, *ADVANTAGES):
            assert function(rewards).dtype == dtype
    assert grpo_advantages(torch.tensor([0, 1, 1])).dtype == torch.float64
    assert grpo_advantages(torch.tensor([True, False])).dtype == torch.float64
    for function in (group_mean, group_std, is_silent, *ADVANTAGES):
        array = function(REWARDS.numpy()[::-1])
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(array, function(REWARDS.flip(0)).numpy())
    assert grpo_advantages(REWARDS.numpy().astype(np.float32)).dtype == np.float32
    assert grpo_advantages(torch.rand(3, 2, 5)).shape == (3, 2, 5)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.sampled_from([0, 1]))
@settings(max_examples=200, deadline=None)
def test_advantages_sum_to_zero_and_have_unit_deviation(values: list[float], ddof: int) -> None:
    rewards = torch.tensor(values, dtype=torch.float64)
    for advantages in ADVANTAGES:
        scale = max(1.0, rewards.abs().max().item())
        assert abs(dr_grpo_advantages(rewards).sum().item()) <= 1e-11 * scale
        assert torch.isfinite(advantages(rewards)).all()
    if (rewards.max() - rewards.min()) > 1e-6:
        standard = grpo_advantages(rewards, ddof=ddof, eps=0.0)
        assert standard.std(correction=ddof).item() == pytest.approx(1.0, rel=1e-6)
    shifted = is_silent(rewards)
    assert bool(shifted) == (max(values) == min(values))
