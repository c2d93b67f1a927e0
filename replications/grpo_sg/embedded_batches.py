"""The same groups under every weighting, for a language model: how long a group's gradient is and where it points.

Weights have the default constants and mean 1 over a group's tokens. The yardstick for angles is the angle between plain
GRPO's gradients of two groups.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from grpo_replications.replications.grpo_sg.identifiability import GroupGradient, inner, sampled_groups
from grpo_replications.replications.grpo_sg.settings import SampledGroups
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.theory.confidence_weights import (
    advantage_reweighting,
    reversed_weights,
    sharpness_weights,
)


def same_batch_embedded(settings: SampledGroups, seed: int, context: JobContext) -> list[Row]:
    """The gradients of a seed's mixed groups; metrics are means over these groups.

    `norm_ratio/<method>`: norm over plain GRPO's; `norm_over_ar/sharpness`: over Advantage Reweighting's;
    `angle/<method>`: degrees to GRPO's; `angle/sharpness-ar`: between these two; `angle/groups`: between GRPO's
    gradients of a group and the next; `angle_over_groups/<...>`: the former over the latter, none where only one group
    is mixed. `mixed_groups`: their number. At most four gradients are held, each as large as the model.
    """
    model, tokenizer = catalog.load(settings.model)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    groups = [group for group in sampled_groups(model, tokenizer, settings, seed) if group.mixed]
    found: dict[str, list[float]] = {}
    previous = None
    for number, group in enumerate(groups):
        gradient = GroupGradient(model, group)
        weights = weightings(gradient.raw, gradient.logp)
        plain, guided, reweighted = (
            gradient(w) for w in (np.ones_like(gradient.raw), weights["sharpness"], weights["advantage-reweighting"])
        )
        plain_norm, guided_norm, reweighted_norm = (math.sqrt(inner(x, x)) for x in (plain, guided, reweighted))
        values = {
            "norm_ratio/sharpness": guided_norm / plain_norm,
            "norm_ratio/advantage-reweighting": reweighted_norm / plain_norm,
            "norm_over_ar/sharpness": guided_norm / reweighted_norm,
            "angle/sharpness": degrees(inner(guided, plain) / (guided_norm * plain_norm)),
            "angle/advantage-reweighting": degrees(inner(reweighted, plain) / (reweighted_norm * plain_norm)),
            "angle/sharpness-ar": degrees(inner(guided, reweighted) / (guided_norm * reweighted_norm)),
        }
        del guided, reweighted
        for name in ("advantage-reweighting-0.3", "sharpness-reverse"):
            other = gradient(weights[name])
            norm = math.sqrt(inner(other, other))
            values |= {f"norm_ratio/{name}": norm / plain_norm}
            values |= {f"angle/{name}": degrees(inner(other, plain) / (norm * plain_norm))}
            del other
        if previous is not None:
            values["angle/groups"] = degrees(inner(previous[0], plain) / (previous[1] * plain_norm))
        previous = (plain, plain_norm)
        for name, value in values.items():
            found.setdefault(name, []).append(value)
        context.progress((number + 1) / len(groups))
    means = {name: float(np.mean(values)) for name, values in found.items()}
    if "angle/groups" in means:
        for name in ("sharpness", "advantage-reweighting", "sharpness-ar"):
            means[f"angle_over_groups/{name}"] = means[f"angle/{name}"] / means["angle/groups"]
    return [*(row(name, value) for name, value in means.items()), row("mixed_groups", float(len(groups)))]


def weightings(raw: np.ndarray, logp: np.ndarray) -> dict[str, np.ndarray]:
    """Weights of mean 1 of a group's tokens, from raw logits and log-probabilities (N,), by method."""
    probability = np.exp(np.minimum(logp, 0.0))
    sharp = sharpness_weights(raw)
    weights = {
        "sharpness": sharp,
        "sharpness-reverse": reversed_weights(sharp),
        "advantage-reweighting": advantage_reweighting(probability, 0.2),
        "advantage-reweighting-0.3": advantage_reweighting(probability, 0.3),
    }
    return {name: values / values.mean() for name, values in weights.items()}


def degrees(cosine: float) -> float:
    """The angle of a cosine, which rounding may have put beyond 1."""
    return math.degrees(math.acos(min(1.0, max(-1.0, cosine))))
