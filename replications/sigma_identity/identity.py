"""Experiment `identity`: a group's update is gain * (s+ - s-), in float64, and wrong advantages must break it.

For binary rewards, s+ and s- the mean scores of right and wrong completions and sigma = sqrt(k (G - k)) / G, the update
g = (1/G) sum_i A_i s_i is sigma (s+ - s-) for GRPO, sigma^2 (s+ - s-) for Dr. GRPO and G / (G - 1) times that for RLOO
(Theorem 1); dynamic sampling keeps sigma and leaves out silent groups. The advantages are those of
`shared.theory.groups`, computed from the rewards of each completion; scores are random vectors.

An error is the length of the difference of both sides over the mean length of the terms A_i s_i that are summed, since
the sum itself may cancel to nearly nothing. The controls go through the same comparison.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_replications.replications.sigma_identity.settings import IdentitySettings
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.theory.closed_forms import sigma
from grpo_replications.shared.theory.groups import dr_grpo_advantages, grpo_advantages, rloo_advantages
from grpo_replications.synthetic.bernoulli_logit import population_grpo

TRL_EPS = 1e-4
Advantages = Callable[[np.ndarray], np.ndarray]


def identity(settings: IdentitySettings, seed: int, context: JobContext) -> list[Row]:
    """Largest errors of each identity over random groups, and the mean errors of the controls.

    Settings: `draws` (random matrices of scores; each is tried with every k from 0 to G), `largest_group` (G is drawn
    from 2 up to it), `largest_dimension` (of a score), `largest_baseline` (a number of either sign, up to this size, is
    added to all rewards of a group; rounding grows with it).
    """
    generator = np.random.default_rng(seed)
    worst: dict[str, float] = {}
    controls: dict[str, float] = {}
    groups = 0
    for index in range(settings.draws):
        scores, rewards, right = random_groups(
            generator, settings.largest_group, settings.largest_dimension, settings.largest_baseline
        )
        for name, value in identity_errors(scores, rewards, right).items():
            worst[name] = max(worst.get(name, 0.0), value)
        for name, value in control_errors(scores, rewards, right).items():
            controls[name] = controls.get(name, 0.0) + value / settings.draws
        groups += len(right)
        context.progress((index + 1) / settings.draws)
    metrics = {**worst, **controls, "groups": float(groups)}
    return [{"metric": name, "value": value} for name, value in metrics.items()]


def random_groups(
    generator: np.random.Generator, largest_group: int, largest_dimension: int, largest_baseline: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of one group (G, d) and rewards (G + 1, G) with every number right from 0 to G, in random places.

    Returns scores, rewards with a baseline added to each row, and which completions are right, bool (G + 1, G). Scores
    have lengths over six orders of magnitude.
    """
    size, dimension = generator.integers(2, largest_group + 1), generator.integers(1, largest_dimension + 1)
    lengths = 10.0 ** generator.uniform(-3, 3, (size, 1))
    scores = lengths * generator.standard_normal((size, dimension))
    right = np.arange(size) < np.arange(size + 1)[:, None]
    right = generator.permuted(right, axis=1)
    baseline = generator.uniform(-largest_baseline, largest_baseline, (size + 1, 1))
    return scores, right + baseline, right


def identity_errors(scores: np.ndarray, rewards: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Largest error of each identity over the groups: scores (G, d), rewards and right (K, G)."""
    size = scores.shape[0]
    gain = _gain(right)
    grpo, rloo = population_grpo(rewards), rloo_advantages(rewards)
    silent = gain == 0
    return {
        "grpo_error": largest_error(scores, grpo, right, gain),
        "dr_grpo_error": largest_error(scores, dr_grpo_advantages(rewards), right, gain**2),
        "rloo_error": largest_error(scores, rloo, right, size / (size - 1) * gain**2),
        "dapo_error": largest_error(scores, np.where(silent[:, None], 0.0, grpo), right, ~silent * gain),
        "trl_error": largest_error(scores, grpo_advantages(rewards, ddof=1, eps=TRL_EPS), right, trl_gain(gain, size)),
        "silent_update": float(np.abs(_update(scores, np.stack([grpo, rloo])[:, silent])).max()),
        "leave_one_out_error": leave_one_out_error(rewards),
    }


def control_errors(scores: np.ndarray, rewards: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Mean error, over the groups that are not silent, of GRPO's identity with advantages that are wrong on purpose."""
    mixed = _gain(right) > 0
    scores_of_wrong = {
        name: errors(scores, wrong(rewards[mixed]), right[mixed], _gain(right[mixed]))
        for name, wrong in WRONG_ADVANTAGES.items()
    }
    return {f"control_{name}": float(values.mean()) for name, values in scores_of_wrong.items()}


def trl_gain(gain: np.ndarray, size: int, eps: float = TRL_EPS) -> np.ndarray:
    """sigma^2 / (sigma sqrt(G / (G - 1)) + eps): the factor where a sample deviation plus eps divides, as in TRL."""
    return gain**2 / (gain * np.sqrt(size / (size - 1)) + eps)


def sample_deviation(rewards: np.ndarray) -> np.ndarray:
    """Wrong: the sample standard deviation (ddof = 1) in place of the population's."""
    return grpo_advantages(rewards, ddof=1, eps=0.0)


def misprinted_sigma(rewards: np.ndarray) -> np.ndarray:
    """Wrong: sqrt(k (G - k) / G) for sigma, which puts G under the root."""
    deviation = rewards - rewards.mean(axis=-1, keepdims=True)
    return deviation / np.sqrt((deviation**2).sum(axis=-1, keepdims=True))


def uncentered(rewards: np.ndarray) -> np.ndarray:
    """Wrong: the mean is not subtracted."""
    return rewards / rewards.std(axis=-1, keepdims=True)


WRONG_ADVANTAGES: dict[str, Advantages] = {
    "sample_deviation": sample_deviation,
    "misprinted_sigma": misprinted_sigma,
    "uncentered": uncentered,
}


def errors(scores: np.ndarray, advantages: np.ndarray, right: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Error of each group: scores (G, d), advantages and right (K, G), gain (K,) -> (K,).

    The claimed side is gain * (s+ - s-) with both means taken over the completions themselves; a mean over none is 0.
    """
    count = right.sum(axis=1, keepdims=True)
    mean_right = right @ scores / np.maximum(count, 1)
    mean_wrong = ~right @ scores / np.maximum(right.shape[1] - count, 1)
    difference = _update(scores, advantages) - gain[:, None] * (mean_right - mean_wrong)
    terms = np.abs(advantages) @ np.linalg.norm(scores, axis=1) / len(scores)
    size = np.linalg.norm(difference, axis=1)
    return np.divide(size, terms, out=size, where=terms > 0)  # where no term is left, the difference itself


def largest_error(scores: np.ndarray, advantages: np.ndarray, right: np.ndarray, gain: np.ndarray) -> float:
    """Largest of `errors` over the groups."""
    return float(errors(scores, advantages, right, gain).max())


def leave_one_out_error(rewards: np.ndarray) -> float:
    """Proposition 1, R_i - mu = (G - 1)/G (R_i - b_i) with b_i the mean of the others: largest difference over max |R|.

    The mean of the others is summed over the others, not derived from the group's mean.
    """
    size = rewards.shape[1]
    others = ~np.eye(size, dtype=bool)
    left_out = np.stack([rewards[:, chosen].mean(axis=1) for chosen in others], axis=1)
    difference = dr_grpo_advantages(rewards) - (size - 1) / size * (rewards - left_out)
    return float((np.abs(difference) / np.abs(rewards).max(axis=1, keepdims=True)).max())


def _update(scores: np.ndarray, advantages: np.ndarray) -> np.ndarray:
    """g = (1/G) sum_i A_i s_i: scores (G, d), advantages (..., G) -> (..., d)."""
    return advantages @ scores / len(scores)


def _gain(right: np.ndarray) -> np.ndarray:
    """sigma of each group: right (K, G) -> (K,)."""
    return np.asarray(sigma(right.sum(axis=1), right.shape[1]))
