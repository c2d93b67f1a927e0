"""Bernoulli-logit prompts trained by group methods: many prompts, seeds and methods in one vectorized run.

A prompt has one parameter theta and solve rate p = sigmoid(theta). A completion is right, y = 1, with probability p;
its reward is R = y and its score s = d log pi / d theta = y - p. A step draws a group of G completions for every prompt
and moves theta by lr * g with g = (1/G) sum_i A_i s_i (Bay & Yearick, arXiv:2607.00152, Bernoulli-logit prompts and
controlled run).

The gradient comes from sampled rewards and scores through the method's advantage function, never from the closed form
that it is meant to test. All that a group's rewards can differ in is the number k of right completions, so k is drawn
from Binomial(G, p), and the advantages of the G + 1 possible groups are computed once: k completions share the first
one's advantage, G - k the last one's. `identity_error` of the result says how far g is from gain * (s+ - s-), with
s+ and s- the mean scores of right and wrong completions. With a wrong advantage it is far from zero.

`reference_step` does the same the slow way, one Bernoulli draw, score and advantage per completion.

Shape legend: S seeds, M prompts, T steps, G completions in a group, B bins of initial solve rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grpo_replications.shared.theory.closed_forms import expected_update, sigma
from grpo_replications.shared.theory.groups import dr_grpo_advantages, grpo_advantages, rloo_advantages
from grpo_replications.synthetic.binomial_sampler import WORD_BITS, binomial_counts

# First words of the seed sequences of the random numbers' three uses.
_FIRST_DRAWS, _REMAINING_BITS, _REDRAWS = 11, 12, 13
# Prompts times seeds simulated side by side. Affects speed only (the arrays stay in the cache), never a result.
_BLOCK = 24_000


@dataclass(frozen=True)
class Method:
    """How a group's rewards become an update, and what the identity says about it.

    Attributes:
        advantages: rewards (..., G) -> advantages (..., G); any order of the completions must give the same values in
            that order.
        gain: (sigma (K,), G) -> factor of (s+ - s-) that the identity claims, (K,).
        closed_form: name of the method in `shared.theory.closed_forms.expected_update`.
        max_redraws: how many more times a silent group is drawn.
    """

    advantages: Callable[[np.ndarray], np.ndarray]
    gain: Callable[[np.ndarray, int], np.ndarray]
    closed_form: str
    max_redraws: int = 0


def population_grpo(rewards: np.ndarray) -> np.ndarray:
    """GRPO as in the paper: population standard deviation, nothing added to it."""
    return grpo_advantages(rewards, ddof=0, eps=0.0)


METHODS: dict[str, Method] = {
    "grpo": Method(population_grpo, lambda sigma, G: sigma, "grpo"),
    "dr-grpo": Method(dr_grpo_advantages, lambda sigma, G: sigma**2, "dr-grpo"),
    "rloo": Method(rloo_advantages, lambda sigma, G: sigma**2 * G / max(G - 1, 1), "rloo"),
    "dapo": Method(population_grpo, lambda sigma, G: sigma, "dapo", max_redraws=3),
}
"""The paper's methods by name. DAPO's number of redraws is that of the controlled run; see `with_redraws`."""


def with_redraws(method: Method, max_redraws: int) -> Method:
    """The same method with another bound on how many more times a silent group is drawn."""
    if max_redraws < 0:
        raise ValueError(f"max_redraws must not be negative, got {max_redraws}")
    return replace(method, max_redraws=max_redraws, closed_form="dapo" if max_redraws else method.closed_form)


@dataclass(frozen=True)
class Trajectories:
    """One method's run. Row t < T describes step t before its update; where there is a row T, it is the end.

    Attributes:
        silent: share of prompts whose first group is silent, (T, S).
        all_right: share whose first group is all right, (T, S).
        predicted_silent: mean over prompts of p^G + (1-p)^G, (T, S).
        samples: completions drawn per prompt, redraws included, (T, S).
        mean_p: mean solve rate, (T + 1, S).
        tracked_p: mean solve rate of the tracked prompts (see `simulate`), (T + 1, S).
        gradient_mass: sum of |g| by bin of initial solve rate, (T, S, B).
        identity_error: largest |g - gain (s+ - s-)| over prompts, (T, S); 0 for silent groups in theory as here.
        final_p: solve rate of each prompt after the last update, (S, M).
    """

    silent: np.ndarray
    all_right: np.ndarray
    predicted_silent: np.ndarray
    samples: np.ndarray
    mean_p: np.ndarray
    tracked_p: np.ndarray
    gradient_mass: np.ndarray
    identity_error: np.ndarray
    final_p: np.ndarray


def simulate(
    initial_p: np.ndarray,
    methods: Sequence[str] | Mapping[str, Method] = ("grpo", "dr-grpo", "dapo"),
    *,
    group_size: int = 8,
    steps: int = 150,
    lr: float = 0.5,
    seeds: Sequence[int] = range(1),
    bins: int = 10,
    tracked: np.ndarray | None = None,
) -> dict[str, Trajectories]:
    """Train every prompt with every method, once per seed, in float64.

    A seed's random numbers depend on the seed alone, so its trajectory is the same whichever seeds and methods run
    beside it. All methods see the same leading bits: compare them seed by seed, as pairs.

    Args:
        initial_p: solve rates before the first step, strictly between 0 and 1: (M,) for all seeds, or (S, M).
        methods: names of METHODS, or methods of one's own by name.
        group_size: G, from 1 to 126.
        steps: T, updates of every prompt.
        lr: step on theta per unit of g.
        seeds: distinct integers >= 0.
        bins: equal-width bins of [0, 1] for the gradient mass by initial solve rate.
        tracked: bool, the shape of initial_p: the prompts of `tracked_p`; all by default.

    Returns:
        The trajectories by method's name.

    Raises:
        ValueError: unknown method, or an argument out of range.

    Cost: O(methods * S * T * M), nearly independent of G; redraws add their share. About 50 ms for one seed and method
    at M = 6,000 and T = 150 on one core. Memory 8 S M bytes for each method.
    """
    chosen = _methods(methods)
    seeds = [int(seed) for seed in seeds]
    p = np.asarray(initial_p, dtype=np.float64)
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError("seeds must be one or more distinct integers >= 0")
    if p.ndim not in (1, 2) or p.size == 0 or (p.ndim == 2 and len(p) != len(seeds)):
        raise ValueError(f"initial_p must have shape (M,) or ({len(seeds)}, M), got {p.shape}")
    if not (np.all(p > 0) and np.all(p < 1)):
        raise ValueError("initial_p must lie strictly between 0 and 1: a logit has no other values")
    if steps < 1 or bins < 1 or not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"steps and bins must be at least 1 and lr positive, got {steps}, {bins} and {lr}")
    mask = np.ones(p.shape, dtype=bool) if tracked is None else np.asarray(tracked, dtype=bool)
    if mask.shape != p.shape or not mask.any(axis=-1).all():
        raise ValueError("tracked must have the shape of initial_p and choose at least one prompt of each seed")
    p, mask = (np.broadcast_to(array, (len(seeds), array.shape[-1])) for array in (p, mask))
    per_block = max(1, _BLOCK // p.shape[1])
    blocks = [slice(first, first + per_block) for first in range(0, len(seeds), per_block)]
    return {
        name: _joined(
            [_run_block(method, p[block], mask[block], seeds[block], group_size, steps, lr, bins) for block in blocks]
        )
        for name, method in chosen.items()
    }


def gradient_tables(method: Method, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """What k right completions contribute to g per unit of their score, and G - k wrong ones: two arrays (G + 1,).

    Entry k is k A_right / G and (G - k) A_wrong / G, with the advantages of a group of k ones and G - k zeros.
    """
    rewards = (np.arange(group_size) < np.arange(group_size + 1)[:, None]).astype(np.float64)
    advantages = np.asarray(method.advantages(rewards), dtype=np.float64)
    if advantages.shape != rewards.shape:
        raise ValueError(f"advantages must keep the shape {rewards.shape} of the rewards, got {advantages.shape}")
    right = np.arange(group_size + 1)
    return right * advantages[:, 0] / group_size, (group_size - right) * advantages[:, -1] / group_size


def mean_field(
    initial_p: np.ndarray, method: str | Method, *, group_size: int = 8, steps: int = 150, lr: float = 0.5
) -> np.ndarray:
    """Solve rates when every prompt moves by its expected update, theta <- theta + lr E[g | p]: (...) -> (T + 1, ...).

    E[g | p] is the closed form of Proposition 2, exact at finite G and for bounded redraws. This is the path without
    sampling noise; the mean over noisy paths differs from it, since E[g] is not linear in theta.
    """
    chosen = METHODS[method] if isinstance(method, str) else method
    theta = np.log(initial_p) - np.log1p(-np.asarray(initial_p, dtype=np.float64))
    redraws = chosen.max_redraws if chosen.closed_form == "dapo" else None
    path = [_sigmoid(theta)]
    for _ in range(steps):
        theta = theta + lr * expected_update(path[-1], group_size, chosen.closed_form, redraws)
        path.append(_sigmoid(theta))
    return np.stack(path)


def reference_step(
    p: np.ndarray, method: Method, group_size: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Counts k and gradients g of one group per prompt the slow way, without redraws: p (M,) -> two arrays (M,).

    Draws an (M, G) matrix of uniforms; every completion has its own reward, score and advantage. O(M G).
    """
    rewards = (generator.random((len(p), group_size)) < p[:, None]).astype(np.float64)
    return rewards.sum(axis=1).astype(np.int64), gradient_from_rewards(p, rewards, method)


def gradient_from_rewards(p: np.ndarray, rewards: np.ndarray, method: Method) -> np.ndarray:
    """g = (1/G) sum_i A_i s_i from the rewards of every completion: p (M,), rewards (M, G) -> (M,)."""
    scores = rewards - p[:, None]
    return (method.advantages(rewards) * scores).mean(axis=1)


def gradient_from_counts(p: np.ndarray, counts: np.ndarray, tables: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The same g from k alone: k of the scores are 1 - p and G - k of them 0 - p. All (n,)."""
    right, wrong = tables
    gradient = right.take(counts)
    gradient *= 1.0 - p
    return np.subtract(gradient, wrong.take(counts) * p, out=gradient)


class SeedDraws:
    """The random numbers of some seeds: each seed's come from generators of its own."""

    def __init__(self, seeds: Sequence[int], prompts: int) -> None:
        self.prompts, self.seeds = prompts, len(seeds)
        self._first, self._remaining, self._again = (
            [np.random.Generator(np.random.PCG64(np.random.SeedSequence([use, seed]))) for seed in seeds]
            for use in (_FIRST_DRAWS, _REMAINING_BITS, _REDRAWS)
        )

    def counts(self, p: np.ndarray, group_size: int) -> np.ndarray:
        """One group for each prompt of each seed: p (S * M,) -> k, uint8."""
        words = np.concatenate([_words(generator, self.prompts) for generator in self._first])
        return binomial_counts(p, group_size, words, self._remaining_bits)

    def counts_again(self, p: np.ndarray, group_size: int, positions: np.ndarray) -> np.ndarray:
        """A group for each of the given positions among all prompts (m,), with solve rates p (m,): k, uint8."""
        shares = zip(self._again, self.by_seed(positions), strict=True)
        words = np.concatenate([_words(generator, count) for generator, count in shares])
        return binomial_counts(p, group_size, words, lambda chosen: self._remaining_bits(positions[chosen]))

    def _remaining_bits(self, positions: np.ndarray) -> np.ndarray:
        shares = zip(self._remaining, self.by_seed(positions), strict=True)
        return np.concatenate([generator.random(count) for generator, count in shares])

    def by_seed(self, positions: np.ndarray) -> np.ndarray:
        """How many of the ascending positions belong to each seed: (S,)."""
        return np.diff(np.searchsorted(positions, self.prompts * np.arange(self.seeds + 1)))


def _words(generator: np.random.Generator, count: int) -> np.ndarray:
    """Random 16-bit words, cut from 64-bit draws in the same order on every machine: uint16, (count,)."""
    raw = generator.bit_generator.random_raw(-(-count // (64 // WORD_BITS)))
    return raw.astype("<u8", copy=False).view("<u2")[:count]


def _run_block(
    method: Method,
    initial_p: np.ndarray,
    tracked: np.ndarray,
    seeds: Sequence[int],
    group_size: int,
    steps: int,
    lr: float,
    bins: int,
) -> Trajectories:
    """Train some seeds side by side: initial_p and tracked (S, M)."""
    shape = S, M = initial_p.shape
    draws, tables = SeedDraws(seeds, M), gradient_tables(method, group_size)
    claimed = method.gain(np.asarray(sigma(np.arange(group_size + 1), group_size)), group_size)
    silent_of_count = np.isin(np.arange(group_size + 1), (0, group_size)).astype(np.float64)
    bin_of_prompt = np.minimum((initial_p * bins).astype(np.int64), bins - 1)
    bin_of_prompt = (bin_of_prompt + bins * np.arange(S)[:, None]).ravel()
    share = tracked / tracked.sum(axis=1, keepdims=True)
    silent, all_right, predicted, samples, error = np.empty((5, steps, S))
    mean_p, tracked_p = np.empty((2, steps + 1, S))
    mass = np.empty((steps, S, bins))
    theta = (np.log(initial_p) - np.log1p(-initial_p)).ravel()
    for step in range(steps):
        p = _sigmoid(theta)
        _record_p(p.reshape(shape), share, mean_p[step], tracked_p[step])
        predicted[step] = _silent_rate(p, group_size).reshape(shape).mean(axis=1)
        counts = draws.counts(p, group_size)
        is_silent = silent_of_count.take(counts)
        silent[step] = is_silent.reshape(shape).mean(axis=1)
        all_right[step] = (counts == group_size).reshape(shape).mean(axis=1)
        samples[step] = group_size
        if method.max_redraws:
            samples[step] += _redraw(draws, p, counts, is_silent, group_size, method.max_redraws, shape)
        gradient = gradient_from_counts(p, counts, tables)
        # s+ - s- = (1 - p) - (0 - p) = 1, whatever p.
        difference = gradient - claimed.take(counts)
        error[step] = np.abs(difference, out=difference).reshape(shape).max(axis=1)
        size = np.abs(gradient, out=difference)
        mass[step] = np.bincount(bin_of_prompt, weights=size, minlength=S * bins).reshape(S, bins)
        gradient *= lr
        theta += gradient
    final_p = _sigmoid(theta).reshape(shape)
    _record_p(final_p, share, mean_p[steps], tracked_p[steps])
    return Trajectories(silent, all_right, predicted, samples, mean_p, tracked_p, mass, error, final_p)


def _redraw(
    draws: SeedDraws,
    p: np.ndarray,
    counts: np.ndarray,
    is_silent: np.ndarray,
    group_size: int,
    max_redraws: int,
    shape: tuple[int, int],
) -> np.ndarray:
    """Draw silent groups again, in place in `counts` (S * M,), up to a bound; extra completions per prompt, (S,)."""
    positions, extra = np.flatnonzero(is_silent), np.zeros(shape[0])
    for _ in range(max_redraws):
        extra += draws.by_seed(positions)
        counts[positions] = again = draws.counts_again(p[positions], group_size, positions)
        positions = positions[(again == 0) | (again == group_size)]
    return extra * group_size / shape[1]


def _record_p(p: np.ndarray, share: np.ndarray, mean_p: np.ndarray, tracked_p: np.ndarray) -> None:
    p.mean(axis=1, out=mean_p)
    np.einsum("sm,sm->s", p, share, out=tracked_p)


def _silent_rate(p: np.ndarray, group_size: int) -> np.ndarray:
    """p^G + (1-p)^G by repeated squaring; `closed_forms.silent_rate` checks and costs more."""
    return _power(p, group_size) + _power(1.0 - p, group_size)


def _power(base: np.ndarray, exponent: int) -> np.ndarray:
    square, result = base.copy(), None
    while exponent:
        if exponent % 2:
            result = square.copy() if result is None else result * square
        exponent //= 2
        if exponent:
            square *= square
    return result


def _sigmoid(theta: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # exp(-theta) = inf gives 0, which is right
        result = np.exp(-theta)
    result += 1.0
    return np.divide(1.0, result, out=result)


def _methods(methods: Sequence[str] | Mapping[str, Method]) -> dict[str, Method]:
    if isinstance(methods, Mapping):
        return dict(methods)
    unknown = [name for name in methods if name not in METHODS]
    if unknown or isinstance(methods, str):
        raise ValueError(f"methods must be a list of {', '.join(METHODS)}; got {methods!r}")
    return {name: METHODS[name] for name in methods}


def _joined(blocks: Sequence[Trajectories]) -> Trajectories:
    """Blocks of seeds as one run; seeds are on axis 1, of final_p on axis 0."""
    fields = {name: [getattr(block, name) for block in blocks] for name in Trajectories.__dataclass_fields__}
    return Trajectories(**{name: np.concatenate(parts, axis=int(name != "final_p")) for name, parts in fields.items()})
