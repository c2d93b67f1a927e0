"""The length of one group's gradient, against every group of a small policy and against drawn scores; Δ = ∇ logit p."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from grpo_replications.shared.theory.closed_forms import sigma
from grpo_replications.shared.theory.group_norms import expected_squared_norm, size_where_signal_leads
from grpo_replications.shared.theory.groups import grpo_advantages


def softmax_policy(seed: int, outcomes: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities (outcomes,), scores (outcomes, dimension) and rewards (outcomes,) of a policy over few answers.

    Logits are linear in the parameters, so that a score is the answer's features minus their mean.
    """
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(outcomes, 3))
    logits = features @ generator.normal(size=3)
    chance = np.exp(logits - logits.max())
    chance /= chance.sum()
    return chance, features - chance @ features, (np.arange(outcomes) % 2 == 0).astype(float)


def class_moments(chance: np.ndarray, scores: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, float]:
    weight = chance * inside / (chance @ inside)
    mean = weight @ scores
    return mean, float(weight @ (scores**2).sum(axis=1) - mean @ mean)


@pytest.mark.parametrize("seed", range(3))
def test_the_formula_is_the_mean_over_every_group_of_a_small_policy(seed: int) -> None:
    chance, scores, rewards = softmax_policy(seed)
    (right, spread_right), (wrong, spread_wrong) = (
        class_moments(chance, scores, rewards),
        class_moments(chance, scores, 1 - rewards),
    )
    size = 4
    total, weight = np.zeros(size + 1), np.zeros(size + 1)
    for group in itertools.product(range(len(chance)), repeat=size):
        members = list(group)
        k, likely = int(rewards[members].sum()), math.prod(chance[members])
        advantages = grpo_advantages(rewards[members][None, :], ddof=0, eps=0.0)[0]
        total[k] += likely * ((advantages @ scores[members] / size) ** 2).sum()
        weight[k] += likely
    delta = right - wrong
    found = expected_squared_norm(np.arange(size + 1), size, delta @ delta, spread_right, spread_wrong)
    np.testing.assert_allclose(found, total / weight, rtol=1e-10, atol=1e-12)


def test_the_formula_is_the_mean_of_drawn_groups_with_unequal_spreads() -> None:
    generator = np.random.default_rng(0)
    size, draws, dimension = 8, 20_000, 6
    delta = np.array([1.0, -0.5, 0, 0, 0, 0])
    for k in (1, 4, 7):
        right = delta + 0.4 * generator.normal(size=(draws, k, dimension))
        wrong = 1.5 * generator.normal(size=(draws, size - k, dimension))
        norms = ((sigma(k, size) * (right.mean(axis=1) - wrong.mean(axis=1))) ** 2).sum(axis=1)
        expected = expected_squared_norm(k, size, delta @ delta, 0.16 * dimension, 2.25 * dimension)
        assert abs(norms.mean() - expected) < 5 * norms.std() / draws**0.5
        equal = expected_squared_norm(k, size, delta @ delta, 1.205 * dimension, 1.205 * dimension)
        assert k == 4 or abs(norms.mean() - equal) > 5 * norms.std() / draws**0.5, "one common spread is seen to fail"


def test_silent_groups_have_no_gradient_and_wrong_counts_are_refused() -> None:
    assert expected_squared_norm([0, 4], 4, 1.0, 2.0, 3.0).tolist() == [0, 0]
    with pytest.raises(ValueError, match="k must not exceed G"):
        expected_squared_norm(5, 4, 1.0, 2.0, 3.0)


def test_signal_and_noise_are_equal_where_the_signal_begins_to_lead() -> None:
    size = size_where_signal_leads(0.5, 2.0)
    assert size == 16
    squared = expected_squared_norm(8, 16, 0.5, 2.0, 2.0)
    assert squared == pytest.approx(2 * 0.25 * 0.5)
    assert size_where_signal_leads([-0.1, 0.0], 1.0).tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("seed", range(3))
def test_class_means_are_multiples_of_the_gradient_of_the_logit(seed: int) -> None:
    chance, scores, rewards = softmax_policy(seed)
    p = chance @ rewards
    right, wrong = (class_moments(chance, scores, inside)[0] for inside in (rewards, 1 - rewards))
    gradient_of_p = (chance * rewards) @ scores  # of sum over right answers of pi: pi times the score
    gradient_of_logit = gradient_of_p / (p * (1 - p))
    np.testing.assert_allclose(right - wrong, gradient_of_logit, atol=1e-12)
    np.testing.assert_allclose(right, (1 - p) * gradient_of_logit, atol=1e-12)
    np.testing.assert_allclose(wrong, -p * gradient_of_logit, atol=1e-12)
