"""How often each kind of decision is wrong, measured on simulated data whose answer is known.

`calibrate()` gives one row for each kind of decision, kind of data, number of seeds and true effect: the rates of each
outcome, the rate of wrong ones beside the rate allowed, and the coverage of the interval that decides beside its level.
The decisions are those of this package, called on many samples at once, not copies of their rules.

A wrong decision, for a margin m and a true effect e: a direction called though |e| <= m or the sign is the other
(beyond zero: though e = 0 or the sign is the other), equivalence called though |e| >= m, non-inferiority called though
e <= -m or denied though e >= -m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from grpo_replications.shared.statistics.curves import peak_of_curves
from grpo_replications.shared.statistics.decisions import (
    difference_interval,
    direction_states,
    equivalence_states,
    non_inferiority_states,
)
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval
from grpo_replications.shared.statistics.proportions import clustered_share, share
from grpo_replications.shared.statistics.sign_tests import sign_test
from grpo_replications.shared.statistics.states import EQUIVALENT, FAILS, HOLDS, LEVEL, UNDECIDED
from grpo_replications.shared.statistics.times import ratio_of_times

SIZES = (6, 8, 12, 20)
EFFECTS = (0.0, 0.5, 1.0, 2.0)  # in margins
COLUMNS = (
    *("kind", "data", "n", "effect", HOLDS, FAILS, EQUIVALENT, UNDECIDED),
    *("wrong", "allowed", "coverage", "nominal", "samples"),
)
Sampler = Callable[[np.random.Generator, int, int, float], np.ndarray]


@dataclass(frozen=True)
class Source:
    """A kind of paired differences: `draw(generator, samples, n, effect)` -> `(samples, n)` with mean `effect`."""

    draw: Sampler
    margin: float
    unit: float | None = None


def _normal(generator: np.random.Generator, samples: int, n: int, effect: float) -> np.ndarray:
    return effect + generator.normal(size=(samples, n))


def _heavy(generator: np.random.Generator, samples: int, n: int, effect: float) -> np.ndarray:
    """Two skewed arms of one shape: their difference is symmetric, with heavy tails, standard deviation 1."""
    x, y = generator.exponential(size=(2, samples, n)) / np.sqrt(2)
    return effect + x - y


def _right(generator: np.random.Generator, samples: int, n: int, effect: float) -> np.ndarray:
    return effect + generator.exponential(size=(samples, n)) - 1


def _left(generator: np.random.Generator, samples: int, n: int, effect: float) -> np.ndarray:
    return effect + 1 - generator.exponential(size=(samples, n))


def _binary(generator: np.random.Generator, samples: int, n: int, effect: float) -> np.ndarray:
    """Yes-or-no outcomes of both methods, independent given the seed: shares (1 + effect) / 2 and (1 - effect) / 2."""
    x = generator.random((samples, n)) < (1 + effect) / 2
    y = generator.random((samples, n)) < (1 - effect) / 2
    return x.astype(np.float64) - y


def _ties(generator: np.random.Generator, samples: int, n: int, effect: float) -> np.ndarray:
    """Seven seeds of ten are tied; the others are normal, so that without an effect the standard deviation is 1."""
    differs = generator.random((samples, n)) < 0.3
    return np.where(differs, effect / 0.3 + generator.normal(size=(samples, n)) / np.sqrt(0.3), 0.0)


SOURCES = {
    "normal": Source(_normal, 1.0),
    "heavy tails": Source(_heavy, 1.0),
    "skewed right": Source(_right, 1.0),
    "skewed left": Source(_left, 1.0),
    "binary": Source(_binary, 0.4, unit=1.0),
    "heavy ties": Source(_ties, 1.0),
}


def calibrate(
    samples: int = 2000, sizes: Sequence[int] = SIZES, level: float = LEVEL, cells: int = 1, seed: int = 0
) -> pd.DataFrame:
    """Error rates and coverage of every kind of decision: a table with the columns `COLUMNS`.

    `samples` simulated studies a row (a fifth of them for peaks of curves and times, which are bootstrapped one by
    one).  `effect` is the true mean difference, share or ratio; `nominal` the level of the interval.  Rates that have
    no meaning for a kind are nan.  About 15 seconds for 2,000 samples on one core; linear in `samples`.
    """
    generators = iter(np.random.default_rng(seed).spawn(4))
    rows = [
        *calibrate_differences(next(generators), samples, sizes, level, cells),
        *calibrate_shares(next(generators), samples, sizes, level),
        *calibrate_peaks(next(generators), max(1, samples // 5), sizes, level),
        *calibrate_times(next(generators), max(1, samples // 5), sizes, level),
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def calibrate_differences(
    generator: np.random.Generator,
    samples: int,
    sizes: Sequence[int] = SIZES,
    level: float = LEVEL,
    cells: int = 1,
    sources: dict[str, Source] = SOURCES,
) -> Iterator[dict[str, Any]]:
    """Rows for direction (beyond the margin, beyond zero), equivalence, non-inferiority, sign test, plain mean.

    Effects are 0, half, one and two margins; non-inferiority is asked at the effect less two margins, so that its
    bar is met once.  The sign test has no interval of the mean, the plain mean (`mean_interval`) no decision.
    """
    for name, source in sources.items():
        margin, unit = source.margin, source.unit
        for n in sizes:
            for effect in (margin * factor for factor in EFFECTS):
                d = source.draw(generator, samples, n, effect)
                at = {"data": name, "n": n, "effect": effect, "nominal": 1 - (1 - level) / cells, "samples": samples}
                tail = (1 - level) / cells / 2
                covered = {"coverage": _coverage(difference_interval(d, at["nominal"], unit), effect)}
                for kind, beyond in (("direction", "margin"), ("direction beyond zero", "zero")):
                    states = direction_states(d, margin, level, cells, beyond, unit)
                    bar = margin if beyond == "margin" else 0.0
                    # At the bar itself, and without an effect, a wrong answer lies on either side.
                    allowed = tail * (2 if effect in (0, bar) else 1)
                    yield _row(kind, states, _wrong_directions(effect, bar, margin), allowed, **at, **covered)
                wrong = {EQUIVALENT} if effect >= margin else {FAILS}
                yield _row(
                    "equivalence", equivalence_states(d, margin, level, cells, unit), wrong, tail, **at, **covered
                )
                if unit is None:
                    shifted = {**at, **covered, "effect": effect - 2 * margin}
                    wrong = {HOLDS} if effect < margin else {FAILS} if effect > margin else {HOLDS, FAILS}
                    states = non_inferiority_states(d - 2 * margin, margin, level, cells)
                    yield _row("non-inferiority", states, wrong, tail * len(wrong), **shifted)
                yield from _sign_test_rows(name, d, effect, level, cells, at)
                plain = _coverage(mean_interval(d, at["nominal"], draws=1000), effect)
                yield {"kind": "plain mean", **at, "coverage": plain}


def calibrate_shares(
    generator: np.random.Generator, samples: int, sizes: Sequence[int] = SIZES, level: float = LEVEL
) -> Iterator[dict[str, Any]]:
    """Rows for shares of groups: 40 groups in each of n seeds, independent or with intraclass correlation 0.1."""
    per_seed = 40
    for n in sizes:
        for effect in (0.5, 0.9, 0.99):
            for name, correlation in (("independent groups", 0.0), ("groups alike within seeds", 0.1)):
                rate = np.full((samples, n), effect)
                if correlation:
                    rate = generator.beta(*(p * (1 / correlation - 1) for p in (effect, 1 - effect)), size=rate.shape)
                k = generator.binomial(per_seed, rate)
                at = {"data": name, "n": n, "effect": effect, "nominal": level, "samples": samples}
                totals = np.full_like(k, per_seed)
                yield {
                    "kind": "clustered share",
                    **at,
                    "coverage": _coverage(clustered_share(k, totals, level), effect),
                }
                for kind, exact in (("Wilson share", False), ("Clopper-Pearson share", True)):
                    counts, repeats = np.unique(k.sum(axis=1), return_counts=True)
                    inside = [_coverage(share(int(count), per_seed * n, level, exact), effect) for count in counts]
                    yield {"kind": kind, **at, "coverage": float(np.average(inside, weights=repeats))}


def calibrate_peaks(
    generator: np.random.Generator, samples: int, sizes: Sequence[int] = SIZES, level: float = LEVEL, draws: int = 500
) -> Iterator[dict[str, Any]]:
    """Rows for two methods whose best mean over five rates is the same, with curves of several shapes.

    Each run is its rate's mean, plus a normal part that all runs of a seed share, plus a normal part of its own.
    """
    flat, peaked, sharp = np.zeros(5), np.array([-3.0, -1, 0, -1, -3]), np.array([-9.0, -9, 0, -9, -9])
    shapes = {"flat, flat": (flat, flat), "peaked, peaked": (peaked, peaked), "flat, sharp": (flat, sharp)}
    for name, curves in shapes.items():
        for n in sizes:
            hits = []
            for _ in range(samples):
                noise = generator.normal(size=n) + generator.normal(size=(2, 5, n))
                peaks = peak_of_curves(np.stack(curves)[..., None] + noise, draws)
                hits.append(_coverage(peaks.difference(0, 1, level), 0.0))
            at = {"data": name, "n": n, "effect": 0.0, "nominal": level, "samples": samples}
            yield {"kind": "peak of curves", **at, "coverage": float(np.mean(hits))}


def calibrate_times(
    generator: np.random.Generator, samples: int, sizes: Sequence[int] = SIZES, level: float = LEVEL, draws: int = 500
) -> Iterator[dict[str, Any]]:
    """Rows for the ratio of restricted mean times: exponential times of mean 40 and 80 or 120, horizon 200."""
    horizon = 200.0

    def mean(scale: float) -> float:  # of min(T, horizon), T exponential
        return scale * (1 - np.exp(-horizon / scale))

    for slow in (80.0, 120.0):
        effect = mean(40.0) / mean(slow)
        for n in sizes:
            x, y = generator.exponential(40.0, (samples, n)), generator.exponential(slow, (samples, n))
            hits = [_coverage(ratio_of_times(a, b, horizon, level, draws), effect) for a, b in zip(x, y)]
            at = {"data": "exponential times", "n": n, "effect": effect, "nominal": level, "samples": samples}
            yield {"kind": "ratio of times", **at, "coverage": float(np.mean(hits))}


def _wrong_directions(effect: float, bar: float, margin: float) -> set[str]:
    wrong = {FAILS}
    if effect <= bar:
        wrong.add(HOLDS)
    if effect >= margin:
        wrong.add(EQUIVALENT)
    return wrong


def _sign_test_rows(
    name: str, d: np.ndarray, effect: float, level: float, cells: int, at: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The sign test is about the median: with skewed data and no mean effect its answer is not defined as wrong."""
    counts = np.stack([(d > 0).sum(axis=1), (d < 0).sum(axis=1), (d == 0).sum(axis=1)], axis=1)
    kinds, inverse = np.unique(counts, axis=0, return_inverse=True)
    words = [sign_test(np.repeat([1.0, -1.0, 0.0], kind), level, cells).state for kind in kinds]
    states = np.array(words)[inverse.ravel()]
    wrong = {FAILS} if effect else {HOLDS, FAILS}
    skewed = name.startswith("skewed")
    yield _row("sign test", states, set() if skewed else wrong, (1 - level) / cells, **at, coverage=np.nan)


def _row(kind: str, states: np.ndarray, wrong: set[str], allowed: float, **rest: Any) -> dict[str, Any]:
    rates = {state: float((states == state).mean()) for state in (HOLDS, FAILS, EQUIVALENT, UNDECIDED)}
    return {"kind": kind, **rates, "wrong": sum(rates[state] for state in wrong), "allowed": allowed, **rest}


def _coverage(estimate: Estimate, truth: float) -> float:
    return float(np.mean((np.asarray(estimate.low) <= truth) & (truth <= np.asarray(estimate.high))))
