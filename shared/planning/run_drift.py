"""How a run changed: entropy and length from its first to its last fifth, and spikes of the gradient norm.

Drifts compare means, with Welch's interval over steps (over groups where a fifth has fewer than 5 steps). The interval
covers what this run sampled, not what another run would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_replications.shared.planning.run_log import RunLog
from grpo_replications.shared.statistics.estimates import Estimate, unpaired_difference

PARTS = 5
SPIKE = 3.0  # robust standard deviations above the median
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class Drift:
    """Mean in the first and in the last fifth, and last minus first with its interval over `unit`."""

    unit: str
    of: str
    first: float
    last: float
    change: Estimate


@dataclass(frozen=True)
class GradientNorms:
    """Gradient norms of the trainer's history: `spikes` lie more than 3 robust deviations above the median."""

    steps: int
    median: float
    robust_deviation: float
    largest: float
    spikes: int
    spike_steps: list[int]
    not_finite: int


def parts_of_training(steps: np.ndarray, parts: int = PARTS) -> list[np.ndarray]:
    """Rows of up to `parts` consecutive parts with about equally many groups, (n,) sorted steps; no step is divided."""
    starts = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))  # first row of each step
    wanted = len(steps) * np.arange(1, parts) / parts
    nearest = starts[np.abs(starts[None, :] - wanted[:, None]).argmin(axis=1)]
    return [rows for rows in np.split(np.arange(len(steps)), np.unique(nearest)) if len(rows)]


def gradient_norms(history: list[dict[str, Any]]) -> GradientNorms | None:
    """Spikes among the gradient norms of a trainer's history; None where it has none.

    A robust deviation is 1.4826 x the median distance from the median. Where more than half of the norms are equal it
    is zero, and every norm above the median counts.
    """
    found = [(entry["step"], entry["grad_norm"]) for entry in history if _is_number(entry.get("grad_norm"))]
    norms = np.array([float(norm) for _, norm in found])
    finite = np.isfinite(norms)
    if not finite.any():
        return None
    median = float(np.median(norms[finite]))
    deviation = float(_MAD_TO_SIGMA * np.median(np.abs(norms[finite] - median)))
    spikes = [step for (step, norm) in found if math.isfinite(norm) and norm > median + SPIKE * deviation]
    return GradientNorms(
        len(found), median, deviation, float(norms[finite].max()), len(spikes), spikes, int((~finite).sum())
    )


def entropy_drift(log: RunLog) -> Drift | None:
    """Token entropy, from the groups, or from the trainer's history where groups have none."""
    if log.entropy is not None and np.isfinite(log.entropy).any():
        return drift(log.steps, log.entropy, "nats")
    return _history_drift(log, "entropy", "nats")


def length_drift(log: RunLog) -> Drift | None:
    """Length in tokens, from the groups or the trainer's history; in characters where neither knows tokens."""
    in_log = None if log.lengths is None else drift(log.steps, log.lengths.mean(axis=1), log.length_unit)
    if log.length_unit == "tokens" and in_log is not None:
        return in_log
    return _history_drift(log, "completions/mean_length", "tokens") or in_log


def _history_drift(log: RunLog, key: str, of: str) -> Drift | None:
    entries = [(entry["step"], entry[key]) for entry in log.history if _is_number(entry.get(key))]
    if not entries:
        return None
    steps, values = (np.array(column, dtype=np.float64) for column in zip(*sorted(entries)))
    return drift(steps, values, of)


def drift(steps: np.ndarray, values: np.ndarray, of: str) -> Drift | None:
    """Change of the mean from the first to the last fifth: sorted steps (n,), values (n,) with NaN left out.

    None where there are fewer than two steps with a value.
    """
    known = np.isfinite(values)
    blocks = parts_of_training(steps[known]) if known.any() else []
    if len(blocks) < 2:
        return None
    first, last = ((steps[known][rows], values[known][rows]) for rows in (blocks[0], blocks[-1]))
    by_step = [np.array([v[s == step].mean() for step in np.unique(s)]) for s, v in (first, last)]
    over_steps = min(map(len, by_step)) >= PARTS or all(len(a) == len(s) for a, (s, _) in zip(by_step, (first, last)))
    samples = by_step if over_steps else [first[1], last[1]]
    change = unpaired_difference(samples[1], samples[0])
    return Drift("steps" if over_steps else "groups", of, float(samples[0].mean()), float(samples[1].mean()), change)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
