"""The same batches under every weighting: how long the gradient is, how heavy its tail, and where it points.

Along a run of plain GRPO each rollout's gradient is taken under every weighting as well, at the same parameters and on
the same samples; only plain GRPO's is followed. Weights have mean 1 over a rollout, tau is fitted to each start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from grpo_replications.replications.grpo_sg.many_weights import METHODS, fitted_taus, weighting
from grpo_replications.replications.grpo_sg.settings import SameBatchSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, seed_row
from grpo_replications.shared.models.many_transformers import SeedStreams
from grpo_replications.shared.theory.weighting import TokenBatch, Weighting
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, Rollout, placed_weights, run_norms
from grpo_replications.synthetic.digit_runs import PromptSupply, rollout_of
from grpo_replications.synthetic.digit_sums import Reward, start_of, starts

WEIGHTED = tuple(method for method in METHODS if method not in ("grpo", "lopti", "80/20"))
"""Methods that give every token a weight; the others leave tokens out."""
RAW = "sharpness-raw"
_STREAM = 23


def many_same_batch(settings: SameBatchSettings, seeds: range, context: JobContext) -> list[Row]:
    """Every seed's run of plain GRPO, with each batch's gradient under every weighting.

    Per seed and weighting, over batches: `norm_ratio/<method>`, median norm over GRPO's of the same batch;
    `norm_over_ar/sharpness`, over that of Advantage Reweighting; `.../sharpness-raw`: without rescaling to mean 1;
    `tail_ratio/<method>`, 99th percentile over median of its norms, over that of GRPO's; `smaller_share/<method>`,
    batches with a smaller norm than GRPO's; `spikes_more/<method>`, batches beyond three robust deviations, minus
    GRPO's number, per 100 batches; `angle/<method>`, median angle in degrees to GRPO's gradient. `angle/sharpness-ar`:
    between sharpness and Advantage Reweighting; `angle/halves`: between GRPO's gradients of the two halves of a batch;
    `angle_over_halves/...`: the ratio of the two medians. Batches whose gradient is zero (every group silent) are left
    out and counted, `batches_left_out`.
    """
    terms, half = settings.terms, settings.prompts_per_step // 2
    models = starts(start_of(settings), seeds)
    taus = fitted_taus(models, seeds, terms)
    run = ManyRuns(models, Objective(), settings.lr)
    weightings = {method: weighting(method, taus) for method in WEIGHTED}
    others = {name: ManyRuns(models, Objective(method=one), settings.lr) for name, one in weightings.items()}
    supply, streams = PromptSupply(seeds, terms), SeedStreams(seeds, _STREAM)
    norms: dict[str, list[Tensor]] = {name: [] for name in ("grpo", *WEIGHTED, RAW)}
    angles: dict[str, list[Tensor]] = {name: [] for name in (*WEIGHTED, "sharpness-ar", "halves")}
    for step in range(settings.rollouts):
        uniforms = streams.uniforms(settings.prompts_per_step, settings.group_size, terms)
        rollout = rollout_of(models, supply.next(settings.prompts_per_step), uniforms, Reward())
        found = {"grpo": run.gradients(rollout), **{name: one.gradients(rollout) for name, one in others.items()}}
        for name, gradients in found.items():
            norms[name].append(run_norms(gradients))
        norms[RAW].append(norms["sharpness"][-1] * mean_weight(weightings["sharpness"], rollout, run))
        for name in WEIGHTED:
            angles[name].append(degrees(found[name], found["grpo"]))
        angles["sharpness-ar"].append(degrees(found["sharpness"], found["advantage-reweighting"]))
        halves = [run.gradients(part_of(rollout, rows)) for rows in (slice(half), slice(half, None))]
        angles["halves"].append(degrees(*halves))
        run.step(rollout)
        context.progress((step + 1) / settings.rollouts)
    lengths = {name: torch.stack(values).numpy() for name, values in norms.items()}
    turned = {name: torch.stack(values).numpy() for name, values in angles.items()}
    return [
        seed_row(name, value, seed)
        for s, seed in enumerate(seeds)
        for name, value in _summary({k: v[:, s] for k, v in lengths.items()}, {k: v[:, s] for k, v in turned.items()})
    ]


def _summary(norms: dict[str, np.ndarray], angles: dict[str, np.ndarray]) -> list[tuple[str, float]]:
    """The metrics of one seed, from norms and angles by batch, (batches,) each."""
    base, moved = norms["grpo"], norms["grpo"] > 0
    found = [("batches_left_out", float((~moved).sum()))]
    kept = {name: values[moved] for name, values in norms.items()}
    for name in (*WEIGHTED, RAW):
        found += [
            (f"norm_ratio/{name}", float(np.median(kept[name] / base[moved]))),
            (f"tail_ratio/{name}", tail(kept[name]) / tail(kept["grpo"])),
            (f"smaller_share/{name}", float((kept[name] < base[moved]).mean())),
            (f"spikes_more/{name}", 100.0 * float((spikes(kept[name]) - spikes(kept["grpo"])) / moved.sum())),
        ]
    found.append(("norm_over_ar/sharpness", float(np.median(kept["sharpness"] / kept["advantage-reweighting"]))))
    medians = {name: float(np.nanmedian(values[moved])) for name, values in angles.items()}
    found += [(f"angle/{name}", value) for name, value in medians.items()]
    found += [(f"angle_over_halves/{name}", medians[name] / medians["halves"]) for name in medians if name != "halves"]
    return found


def tail(norms: np.ndarray) -> float:
    """99th percentile over median."""
    return float(np.quantile(norms, 0.99) / np.median(norms))


def spikes(norms: np.ndarray) -> int:
    """Batches whose norm lies more than three robust standard deviations above the median."""
    median = np.median(norms)
    return int((norms > median + 3 * 1.4826 * np.median(np.abs(norms - median))).sum())


def degrees(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """Angle between the gradients of each run, (S,), over parameters (S, ...); nan where one is zero."""
    products = sum((a.double() * b.double()).flatten(1).sum(dim=1) for a, b in zip(one, other, strict=True))
    lengths = [run_norms([gradient.double() for gradient in gradients]) for gradients in (one, other)]
    return torch.rad2deg(torch.acos((products / (lengths[0] * lengths[1])).clamp(-1, 1)))


def part_of(rollout: Rollout, prompts: slice) -> Rollout:
    """The rollout of some of the prompts alone."""
    fields = {name: getattr(rollout, name)[:, prompts] for name in ("completions", "mask", "rewards")}
    return replace(rollout, **fields, logits=lambda models: rollout.logits(models)[:, prompts])


@torch.no_grad()
def mean_weight(method: Weighting, rollout: Rollout, run: ManyRuns) -> Tensor:
    """Mean over a run's tokens of the weights before they are rescaled, (S,)."""
    logits = rollout.logits(run.models)
    ids = rollout.completions.unsqueeze(4)
    raw = logits.gather(4, ids).squeeze(4).flatten(0, 2)
    logps = logits.log_softmax(dim=-1).gather(4, ids).squeeze(4).flatten(0, 2)
    batch = TokenBatch(logps, logps, raw, None, rollout.mask.flatten(0, 2), torch.zeros(len(raw)))
    weights = placed_weights(replace(method, rescale=False), batch, len(run.models)).advantage
    return weights.mean(dim=(1, 2))
