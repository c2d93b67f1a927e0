"""Small transformers taught on right answers up to a given solve rate: many at once, each kept in the model cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models.many_transformers import ManyTransformers

Measure = Callable[[ManyTransformers, Sequence[int]], Tensor]
"""Of models and their seeds: a loss (S,) or a solve rate (S,)."""


def kept_starts(
    folder: str, fresh: ManyTransformers, seeds: Sequence[int], teach: Callable[[Sequence[int]], ManyTransformers]
) -> ManyTransformers:
    """The taught model of each seed, from the model cache, where `teach` puts those that it does not hold.

    `folder`: where they lie, with `-<seed>` at the end. `fresh`: an untaught model, whose architecture they have.
    """
    from safetensors.torch import load_file, save_file

    from grpo_replications.shared.models import catalog

    folders = {seed: f"{folder}-{seed}" for seed in seeds}
    missing = [s for s in seeds if not (catalog.cache_directory() / folders[s] / "model.safetensors").exists()]
    if missing:
        made = teach(missing)
        for i, seed in enumerate(missing):
            one = {name: value[i].detach().clone() for name, value in made.parameters.items()}

            def build(work: Path, one: dict[str, Tensor] = one) -> Path:
                (work / "model").mkdir()
                save_file(one, work / "model" / "model.safetensors")
                return work / "model"

            catalog.made_once(folders[seed], build)
    files = [load_file(catalog.cache_directory() / folders[seed] / "model.safetensors") for seed in seeds]
    stacked = {name: torch.stack([file[name] for file in files]) for name in fresh.parameters}
    return ManyTransformers(fresh.architecture, stacked, fresh.bias)


def taught(
    models: ManyTransformers, seeds: Sequence[int], settings: Mapping[str, Any], losses: Measure, rates: Measure
) -> ManyTransformers:
    """The models after Adam on `losses`, each as it was when `rates` first found it at `start_rate`.

    `settings`: `start_rate`, `pretrain_lr`, `pretrain_every` (steps from one look to the next) and
    `pretrain_max_steps`. A model that has reached `start_rate` is left out of further steps. Raises ReplicationError if
    one has not after `pretrain_max_steps`.
    """
    done: dict[int, dict[str, Tensor]] = {}
    learning, names = list(seeds), list(models.parameters)
    optimizer = _adam(models, settings["pretrain_lr"])
    for step in range(settings["pretrain_max_steps"] + 1):
        if step % settings["pretrain_every"] == 0:
            reached = rates(models, learning)
            keep = []
            for i, seed in enumerate(learning):
                if reached[i] >= settings["start_rate"]:
                    done[seed] = {name: value[i].detach().clone() for name, value in models.parameters.items()}
                else:
                    keep.append(i)
            if len(keep) < len(learning):
                learning = [learning[i] for i in keep]
                if not learning:
                    stacked = {name: torch.stack([done[seed][name] for seed in seeds]) for name in names}
                    return ManyTransformers(models.architecture, stacked, models.bias)
                models, optimizer = _only(models, optimizer, keep, settings["pretrain_lr"])
        gradients = torch.autograd.grad(losses(models, learning).sum(), models.trainable())
        for parameter, gradient in zip(models.trainable(), gradients, strict=True):
            parameter.grad = gradient.contiguous()
        optimizer.step()
    raise ReplicationError(
        f"The models of seeds {learning} do not reach a solve rate of {settings['start_rate']} in "
        f"{settings['pretrain_max_steps']} steps. Raise pretrain_max_steps or width, or lower start_rate."
    )


def lesson_of(settings: Any) -> dict[str, float]:
    """Size of a model and how it is taught, from settings of an experiment; what is taught is the task's to add."""
    return {
        "width": settings.width,
        "layers": settings.layers,
        "heads": settings.heads,
        "inner": settings.inner,
        "start_rate": settings.start_rate,
        "pretrain_lr": settings.pretrain_lr,
        "pretrain_batch": settings.pretrain_batch,
        "pretrain_every": settings.pretrain_every,
        "pretrain_max_steps": settings.pretrain_max_steps,
    }


def digest_of(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Sixteen digits that stand for the settings of these names and the version of torch."""
    identity = {key: settings[key] for key in keys} | {"format": 1, "torch": torch.__version__}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _adam(models: ManyTransformers, lr: float) -> torch.optim.AdamW:
    for parameter in models.trainable():
        parameter.requires_grad_(True)
    return torch.optim.AdamW(models.trainable(), lr=lr, weight_decay=0.0, fused=True)


def _only(
    models: ManyTransformers, optimizer: torch.optim.AdamW, kept: Sequence[int], lr: float
) -> tuple[ManyTransformers, torch.optim.AdamW]:
    """Some of the models, with the optimizer where it was for them."""
    fewer = models.select(kept)
    moved = _adam(fewer, lr)
    for old, new in zip(models.trainable(), fewer.trainable(), strict=True):
        state = optimizer.state[old]
        if state:
            moved.state[new] = {name: value if value.ndim == 0 else value[kept] for name, value in state.items()}
    return fewer, moved
