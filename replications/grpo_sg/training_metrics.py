"""What is measured of a training run, whatever the model: gradient norms, rewards, weights, and what it cost.

Steps of a run are counted in rollouts, so that a method with two optimizer steps on every rollout (Lopti) is compared
at equal samples; its optimizer steps are counted beside them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_replications.shared.harness.jobs import Row, row
from grpo_replications.shared.planning.run_drift import gradient_norms
from grpo_replications.shared.training.run import sampling_correction

AUDIT = ("mean", "share_lower", "share_upper", "share_between", "correlation", "inert", "share_isolated")
"""Metrics of the weight audit that a run reports, averaged over its optimizer steps."""


def run_rows(history: Sequence[dict[str, Any]], planned: int, window: int) -> list[Row]:
    """All rows that a trainer's history gives; `planned` completions should have been sampled.

    Without step: those of `smoothness`, `weights`, `budget` and `sampling_correction`. By step (in rollouts):
    `grad_norm`, `reward` and `entropy`, each the mean over the `window` rollouts that begin there.
    """
    summary = {**smoothness(history), **weights(history), **budget(history, planned)}
    summary |= sampling_correction(history)
    rows = [row(name, value) for name, value in summary.items() if math.isfinite(value)]
    for name in ("grad_norm", "reward", "entropy"):
        rows += [row(name, value, step) for step, value in windows(history, name, window)]
    return rows


def smoothness(history: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How smooth a run was, over its optimizer steps, and its rewards, over its rollouts.

    `grad_norm_median`, `grad_norm_tail` (99th percentile over median) and `grad_norm_spikes` (steps more than three
    robust deviations above the median) are of norms before clipping. `reward_mean`, which is the area under the curve
    per rollout; `reward_last`, of the last fifth; `reward_roughness`, the standard deviation of the change from one
    rollout to the next over sqrt(2): the noise around a slow trend, whatever the trend. `entropy_last`, of the last
    fifth. `kl_start`, with a KL term: its estimate at the first step, where policy and reference are the same.
    """
    norms = np.array([entry["grad_norm"] for entry in history], dtype=np.float64)
    rewards = np.array([entry["reward"] for entry in history if "reward" in entry], dtype=np.float64)
    entropies = [entry["entropy"] for entry in history if "entropy" in entry]
    median = float(np.median(norms))
    return {
        "grad_norm_median": median,
        "grad_norm_tail": float(np.quantile(norms, 0.99)) / median if median > 0 else math.nan,
        "grad_norm_spikes": float(gradient_norms(list(history)).spikes),
        "reward_mean": float(rewards.mean()),
        "reward_last": float(rewards[-max(1, len(rewards) // 5) :].mean()),
        "reward_roughness": float(np.diff(rewards).std() / math.sqrt(2)) if len(rewards) > 2 else math.nan,
        "kl_start": history[0].get("kl", math.nan),
        "entropy_last": statistics.fmean(entropies[-max(1, len(entropies) // 5) :]) if entropies else math.nan,
    }


def weights(history: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The weight audit's metrics, each `weight_<name>`, averaged over the optimizer steps that have them."""
    result = {}
    for name in AUDIT:
        values = [entry[f"token_weights/{name}"] for entry in history if f"token_weights/{name}" in entry]
        if values:
            result[f"weight_{name}"] = statistics.fmean(values)
    return result


def budget(history: Sequence[dict[str, Any]], planned: int) -> dict[str, float]:
    """What a run cost: `rollouts`, `completions`, `optimizer_steps`, and `steps_per_rollout` of the latter.

    `budget_gap`: completions sampled minus `planned`, 0 where every method of a comparison has the same samples.
    """
    completions = history[-1]["budget/completions"]
    return {
        "rollouts": history[-1]["budget/rollouts"],
        "completions": completions,
        "budget_gap": completions - planned,
        "optimizer_steps": float(len(history)),
        "steps_per_rollout": len(history) / history[-1]["budget/rollouts"],
    }


def windows(history: Sequence[dict[str, Any]], name: str, window: int) -> list[tuple[int, float]]:
    """(first rollout, mean of `name`) of each `window` rollouts; optimizer steps of one rollout count alike."""
    groups: dict[int, list[float]] = {}
    for entry in history:
        if name in entry:
            groups.setdefault((int(entry["budget/rollouts"]) - 1) // window * window, []).append(entry[name])
    return [(start, statistics.fmean(values)) for start, values in sorted(groups.items())]
