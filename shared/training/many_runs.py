"""GRPO on many small transformers at once: a simulator whose update is that of the suite's trainer, S runs in a step.

The objective is the trainer's, token weights included: they are placed by the same `Weighting`, on the same groups. A
test holds the gradients against the trainer's. Departures from a run through TRL:

1. Every run of a stack has the same shapes: prompts of one length in a rollout, completions of one length (masked where
   they have ended), one method and one loss. Seeds and learning rates may differ from run to run.
2. A rollout is one optimizer step, or several over the whole of it (`num_iterations`), never micro-batches. Means over
   "the batch", as in `rescale`, are over one run's rollout.
3. Completions are drawn by an inverse distribution function from a stream of the run's own seed.

Shape legend: S runs, B prompts, G completions of a prompt, R = B G completions of a run, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import torch
from torch import Tensor

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models.many_transformers import ModelStack
from grpo_replications.shared.theory.groups import dr_grpo_advantages, grpo_advantages, is_silent
from grpo_replications.shared.theory.process_sets import process_set_sizes
from grpo_replications.shared.theory.weighting import PlacedWeights, RolloutBatch, Sharpness, TokenBatch
from grpo_replications.shared.training.token_weights import TokenWeight, Weighting, as_weighting

LOSS_TYPES = ("dapo", "bnpo", "grpo", "dr_grpo")
OPTIMIZERS = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD}
_SCALES = {"group": grpo_advantages, "none": dr_grpo_advantages}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What the trainer's settings of the same names say; `method` is a name, a function on rollouts or a `Weighting`.

    `epsilon`: how far a ratio may leave 1 before it is clipped. `max_grad_norm`: 0 for no clipping; each run has its
    own norm. `loss_type`: "dapo" and "bnpo" divide the sum over tokens by their number, "grpo" averages each completion
    first, "dr_grpo" divides by R T. Raises ReplicationError for a value that is unknown or cannot be had here.
    """

    method: str | TokenWeight | Weighting | None = None
    loss_type: str = "dapo"
    scale_rewards: str = "group"
    temperature: float = 1.0
    epsilon: float = 0.2
    beta: float = 0.0
    num_iterations: int = 1
    max_grad_norm: float = 1.0
    optimizer: str = "adam"

    def __post_init__(self) -> None:
        choices = {"loss_type": LOSS_TYPES, "scale_rewards": tuple(_SCALES), "optimizer": tuple(OPTIMIZERS)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ReplicationError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}.")
        bounds = {"temperature": 0, "num_iterations": 0.5, "max_grad_norm": -1e-300, "beta": -1e-300, "epsilon": 0}
        for name, bound in bounds.items():
            if not getattr(self, name) > bound:
                raise ReplicationError(f"{name} is out of range: {getattr(self, name)}.")

    @property
    def weighting(self) -> Weighting | None:
        """The method's weights and their places; None for plain GRPO."""
        return as_weighting(self.method)

    @property
    def passes(self) -> int:
        """Optimizer steps on each rollout: Lopti makes two, other methods `num_iterations`."""
        weighting = self.weighting
        return 2 if weighting is not None and weighting.isolation is not None else self.num_iterations


OBJECTIVE_KEYS = tuple(field.name for field in fields(Objective))
"""Names of the settings that make an `Objective`."""


@dataclass(frozen=True)
class Rollout:
    """What every run has sampled: `completions` (S, B, G, T), `mask` of the same shape, `rewards` (S, B, G).

    `logits(models)` computes (S, B, G, T, V), the logits of these completions' tokens under any models; it is called
    anew for every update and must let gradients through.
    """

    completions: Tensor
    mask: Tensor
    rewards: Tensor
    logits: Callable[[ModelStack], Tensor]


@dataclass(frozen=True)
class UpdateMetrics:
    """Of one optimizer step, one value per run, (S,): the gradient's norm before clipping, the share of silent groups,
    the mean reward and the share of tokens whose term is clipped."""

    grad_norm: Tensor
    silent: Tensor
    reward: Tensor
    clipped: Tensor


@dataclass
class _Known:
    """What the updates on one rollout share; `old` is known from the first one on. (S, R, T), but advantages (S, R)."""

    mask: Tensor
    advantages: Tensor
    reference: Tensor | None
    weights: Tensor | None  # (S R, T)
    old: Tensor | None = None


class ManyRuns:
    """S runs of one objective; `step(rollout)` makes the updates on one rollout of each.

    `models` are trained in place. `lr`: one learning rate, or one per model. `reference`: the reference policies, where
    `beta` is above 0; by default the models as they are now.
    A run depends on its own seed and learning rate alone: on one thread a stack of any size gives it the same bits.
    Cost of an update: a forward and a backward pass over the rollout, and a pass over the parameters and the state of
    the optimizer, which a stack of some tens of small models keeps near the processor.
    """

    def __init__(
        self,
        models: ModelStack,
        objective: Objective,
        lr: float | Sequence[float],
        reference: ModelStack | None = None,
    ) -> None:
        self.models, self.objective, self.weighting = models, objective, objective.weighting
        self.reference = (reference or models.copy()) if objective.beta else None
        rates = [float(lr)] * len(models) if isinstance(lr, (int, float)) else [float(rate) for rate in lr]
        if len(rates) != len(models):
            raise ReplicationError(f"{len(rates)} learning rates for {len(models)} models: give one, or one per model.")
        for parameter in models.trainable():
            parameter.requires_grad_(True)
        # One parameter group for each stretch of models of one rate: views on the stacks, which share their memory.
        self._stretches: list[tuple[slice, list[Tensor]]] = []
        starts = [s for s in range(len(rates)) if s == 0 or rates[s] != rates[s - 1]] + [len(rates)]
        groups = []
        for start, stop in pairwise(starts):
            views = [parameter.detach()[start:stop] for parameter in models.trainable()]
            self._stretches.append((slice(start, stop), views))
            groups.append({"params": views, "lr": rates[start]})
        self._optimizer = OPTIMIZERS[objective.optimizer](groups, weight_decay=0.0, fused=True)

    def step(self, rollout: Rollout) -> list[UpdateMetrics]:
        """Every update on one rollout; raises ReplicationError before the step if a run's gradient is not finite."""
        known, made = self._prepared(rollout), []
        for visit in range(self.objective.passes):
            gradients, clipped = self._gradients(rollout, known, visit)
            rewards = rollout.rewards
            silent = is_silent(rewards).double().mean(dim=1)
            made.append(UpdateMetrics(self._apply(gradients), silent, rewards.mean(dim=(1, 2)), clipped))
        return made

    def gradients(self, rollout: Rollout, sampler: ModelStack | None = None, visit: int = 0) -> list[Tensor]:
        """Gradients of each run's loss on a rollout, in the order of `models.trainable()`; nothing is changed.

        `sampler`: the policies that sampled it, by default the models as they are; `visit`: number of the update.
        """
        known = self._prepared(rollout)
        if sampler is not None:
            with torch.no_grad():
                known.old = self._logps(rollout, sampler)[0]
        return self._gradients(rollout, known, visit)[0]

    @torch.no_grad()
    def _prepared(self, rollout: Rollout) -> _Known:
        runs, _, _, tokens = rollout.completions.shape
        rewards = rollout.rewards.double()
        return _Known(
            rollout.mask.reshape(runs, -1, tokens).bool(),
            _SCALES[self.objective.scale_rewards](rewards).view(runs, -1).to(self.models.dtype),
            self._logps(rollout, self.reference)[0] if self.reference is not None else None,
            self._rollout_weights(rollout),
        )

    def _gradients(self, rollout: Rollout, known: _Known, visit: int) -> tuple[list[Tensor], Tensor]:
        """Gradients of update number `visit`, and the share of each run's tokens that it clips."""
        logps, raw, entropies = self._logps(rollout, self.models)
        if known.old is None:
            known.old = logps.detach()
        batch = TokenBatch(
            logps.detach().flatten(0, 1),
            known.old.flatten(0, 1),
            raw.flatten(0, 1),
            known.weights,
            known.mask.flatten(0, 1),
            torch.full((logps[..., 0].numel(),), visit),
        )
        placed = placed_weights(self.weighting, batch, len(self.models))
        if self.weighting is not None and self.weighting.top_entropy_quantile is not None:
            placed = on_most_entropic(placed, entropies, known.mask, self.weighting.top_entropy_quantile)
        arguments = (known.old, known.advantages, known.mask, placed)
        losses = objective_values(self.objective, logps, *arguments, reference=known.reference)
        clipped = clipped_share(self.objective, logps.detach(), *arguments)
        return list(torch.autograd.grad(losses.sum(), self.models.trainable())), clipped

    def _logps(self, rollout: Rollout, models: ModelStack) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the completions' tokens and entropies before them, both at the temperature, and the
        tokens' raw logits: (log-probabilities, raw logits, entropies), (S, R, T) each; only the first with a gradient.
        """
        logits = rollout.logits(models).flatten(1, 2)
        ids = rollout.completions.flatten(1, 2).unsqueeze(3)
        logps = (logits / self.objective.temperature).log_softmax(dim=-1)
        constant = logps.detach()
        entropies = -(constant.exp() * constant).sum(dim=-1)
        return logps.gather(3, ids).squeeze(3), logits.detach().gather(3, ids).squeeze(3), entropies

    def _rollout_weights(self, rollout: Rollout) -> Tensor | None:
        if self.weighting is None or self.weighting.rollout_weight is None:
            return None
        group_size, tokens = rollout.completions.shape[2:]
        ids, mask = rollout.completions.reshape(-1, tokens), rollout.mask.reshape(-1, tokens).bool()
        sizes = process_set_sizes(ids, mask, group_size)
        return self.weighting.rollout_weight(RolloutBatch(ids, mask, sizes, rollout.rewards.reshape(-1), group_size))

    def _apply(self, gradients: Sequence[Tensor]) -> Tensor:
        """Clip each run's gradient by its own norm, make the optimizer's step, return the norms before clipping."""
        norms = run_norms(gradients)
        if not torch.isfinite(norms).all():
            broken = torch.nonzero(~torch.isfinite(norms)).flatten().tolist()
            raise ReplicationError(f"The gradient of run(s) {broken} of this stack is not finite; nothing was changed. "
                                   "Lower the learning rate, or look at the rewards.")  # fmt: skip
        if self.objective.max_grad_norm:
            factor = (self.objective.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))
        for stretch, views in self._stretches:
            for view, gradient in zip(views, gradients, strict=True):
                # The fused optimizers go through memory and do not look at strides.
                view.grad = gradient[stretch].contiguous()
        self._optimizer.step()
        return norms


def run_norms(gradients: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of each run's gradient, (S,), over parameters (S, ...)."""
    squares = [torch.linalg.vector_norm(gradient.flatten(1), dim=1).square() for gradient in gradients]
    return sum(squares[1:], start=squares[0]).sqrt()  # one after another: the same bits whatever S is


def placed_weights(weighting: Weighting | None, batch: TokenBatch, runs: int) -> PlacedWeights:
    """The weights of S runs by place, (S, R, T) each, from a batch whose rows are those of the runs one after another.

    Means and ranks are taken within a run, never across runs.
    """
    if weighting is None:
        return PlacedWeights()

    def mean(values: Tensor, mask: Tensor) -> Tensor:
        by_run, counted = values.view(runs, -1), mask.view(runs, -1)
        average = torch.where(counted, by_run, 0.0).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
        average = torch.where(counted.any(dim=1), average, 1.0)
        return average.repeat_interleave(len(values) // runs).unsqueeze(1)

    if not any(isinstance(factor, Sharpness) and factor.match for factor in weighting.factors):
        return _by_run([weighting.place(batch, mean)], runs)
    # Matched weights are dealt out by rank, so each run is placed alone.
    parts = [value.chunk(runs) if isinstance(value, Tensor) else [None] * runs for value in vars(batch).values()]
    return _by_run([weighting.place(TokenBatch(*part)) for part in zip(*parts, strict=True)], runs)


def on_most_entropic(placed: PlacedWeights, entropies: Tensor, mask: Tensor, share: float) -> PlacedWeights:
    """`placed` with a policy term for the most entropic `share` of each run's tokens only, as TRL's option does.

    `entropies`, `mask`: (S, R, T). A token is kept if its entropy reaches the quantile 1 - share of its run's tokens;
    the KL term stays on all tokens.
    """
    counted = entropies.masked_fill(~mask, torch.nan).flatten(1)
    edges = counted.nanquantile(1 - share, dim=1).view(-1, 1, 1)
    kept = ((entropies >= edges) & mask).to(entropies.dtype)
    return replace(placed, advantage=kept if placed.advantage is None else placed.advantage * kept)


def _by_run(placed: Sequence[PlacedWeights], runs: int) -> PlacedWeights:
    """Weights placed for all runs at once, or for one after another, as (S, R, T)."""

    def together(values: Sequence[Tensor | None]) -> Tensor | None:
        return None if values[0] is None else torch.cat(list(values)).unflatten(0, (runs, -1))

    names = ("gate", "advantage", "ratio", "reference", "isolated", "product")
    return PlacedWeights(**{name: together([getattr(one, name) for one in placed]) for name in names})


def objective_values(
    s: Objective,
    logps: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    placed: PlacedWeights,
    reference: Tensor | None = None,
) -> Tensor:
    """Loss of each run, (S,); advantages (S, R), everything else (S, R, T).

    The mean over tokens of -(policy term - beta KL term): policy term min(r A, clip(r, 1 - epsilon, 1 + epsilon) A),
    KL term by the k3 estimator, with the weights in their places (`shared.theory.weighting`). A token left out by
    isolation adds nothing, yet counts in the mean.
    """
    ratio, gain = _ratio_and_gain(logps, old, advantages, placed)
    terms = torch.minimum(ratio * gain, ratio.clamp(1 - s.epsilon, 1 + s.epsilon) * gain)
    if reference is not None:
        shift = placed.ratio if placed.ratio is not None else 0.0
        reference_shift = placed.reference if placed.reference is not None else 0.0
        distance = (reference + reference_shift) - (logps + shift)
        terms = terms - s.beta * (torch.exp(distance) - distance - 1)
    if placed.gate is not None:
        terms = terms * placed.gate.to(terms.dtype)
    counted = mask if placed.isolated is None else mask & placed.isolated
    terms = torch.where(counted, terms, 0.0)
    lengths = mask.sum(dim=2)
    if s.loss_type == "grpo":
        return -(terms.sum(dim=2) / lengths.clamp(min=1)).mean(dim=1)
    divisor = mask[0].numel() if s.loss_type == "dr_grpo" else lengths.sum(dim=1).clamp(min=1)
    return -terms.sum(dim=(1, 2)) / divisor


def clipped_share(
    s: Objective, logps: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, placed: PlacedWeights
) -> Tensor:
    """Share of each run's tokens whose policy term is clipped, so that its gradient is zero, (S,)."""
    ratio, gain = _ratio_and_gain(logps, old, advantages, placed)
    beyond = ((ratio > 1 + s.epsilon) & (gain > 0)) | ((ratio < 1 - s.epsilon) & (gain < 0))
    return (beyond & mask).sum(dim=(1, 2)) / mask.sum(dim=(1, 2)).clamp(min=1)


def _ratio_and_gain(logps: Tensor, old: Tensor, advantages: Tensor, placed: PlacedWeights) -> tuple[Tensor, Tensor]:
    """Ratio of policies, with the weights inside the clip, and advantage, with those on the policy term."""
    shifted = logps if placed.ratio is None else logps + placed.ratio.to(logps.dtype)
    gain = advantages.unsqueeze(2)
    return torch.exp(shifted - old), gain if placed.advantage is None else gain * placed.advantage.to(gain.dtype)
