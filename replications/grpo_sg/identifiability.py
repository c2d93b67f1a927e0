"""Experiment `identifiability`: the raw logit is no function of the policy, so neither is a weight of the raw logit.

Adding a constant c to every logit of a position, as a head with a constant bias does, leaves the policy as it was; so
does multiplying the logits by s and sampling at temperature s. Sharpness-guided weights of the raw logit (Le, Ngo Van
& Le, arXiv:2511.00066v4, equation 20) move with both. Measured on completions that a model samples for additions:

- weights under shifts and scales: mean change, shares at the bounds, total variation between their distributions;
- the GRPO gradient of one group under them: how far it turns, in units of how far the weights turn it at c = 0, s = 1
  (`effect_*`: 0 leaves the method's direction, 1 is as far from it as plain GRPO is);
- the other two signals, log-probability and probability: with the paper's constants every weight is exactly 1,
  whatever the token. At matched distribution of the weights they are one signal, for only ranks matter then, and it is
  compared with the raw logit by rank and by the gradient's direction.

What a shift does to *training* is another experiment; `shift_head` makes the shifted model for it.

Legend of shapes: N tokens, G completions of one group, T tokens of the longest, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grpo_replications.replications.grpo_sg.settings import IdentifiabilitySettings, SampledGroups
from grpo_replications.replications.grpo_sg.token_gradients import spearman
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.sampling import Sample, sample_completions
from grpo_replications.shared.tasks.addition import addition_problems, addition_reward
from grpo_replications.shared.theory.confidence_weights import matched_weights, sharpness_weights
from grpo_replications.shared.theory.groups import grpo_advantages
from grpo_replications.shared.training.raw_logits import head_scaling, watching_selected_logits

LOWER, UPPER = 1.0, 1.4
"""Bounds of the weights in the paper's setting."""

_WAVES = 6  # rounds of prompts in which a group with right and wrong completions must turn up
_PIECE = 2**16


# --- a model whose logits are shifted ---------------------------------------------------------------------------------


def shift_head(model: Any, c: float) -> Any:
    """Add `c` to every logit of `model`, in place, and return it: the same policy with other raw logits.

    The head gets a constant bias that is not trained, which TRL's fused head and `shared.training.raw_logits` both see;
    parameters, gradients of log-probabilities and number of trained parameters stay as they were. Repeated calls add
    up. A model type without a head bias drops it when the weights are saved and loaded again: a reference rebuilt from
    disk is not shifted, and is the same policy. Raises ReplicationError where logits are soft-capped, which would
    change the policy, or where there is no linear head.
    """
    head = model.get_output_embeddings()
    scale, softcap = head_scaling(model.config)
    if softcap is not None or not isinstance(head, nn.Linear):
        raise ReplicationError("Logits can be shifted only where a linear head gives them without a soft cap.")
    with torch.no_grad():
        if head.bias is None:
            head.bias = nn.Parameter(head.weight.new_zeros(head.weight.size(0)), requires_grad=False)
        head.bias += c / scale
    return model


# --- weights ----------------------------------------------------------------------------------------------------------


def weight_shares(weights: np.ndarray, lower: float = LOWER, upper: float = UPPER) -> dict[str, float]:
    """Shares of weights (N,) at the lower bound, at the upper bound and between."""
    low, high = float((weights <= lower).mean()), float((weights >= upper).mean())
    return {"share_lower": low, "share_upper": high, "share_between": 1.0 - low - high}


def total_variation(x: np.ndarray, y: np.ndarray, lower: float = LOWER, upper: float = UPPER, bins: int = 20) -> float:
    """Total variation distance between two samples of weights: 0 alike, 1 disjoint.

    The bounds are values of their own; the open interval between them is cut into `bins` of equal width.
    """

    def histogram(weights: np.ndarray) -> np.ndarray:
        inside = weights[(weights > lower) & (weights < upper)]
        counts = np.histogram(inside, bins=bins, range=(lower, upper))[0]
        return np.array([(weights <= lower).sum(), *counts, (weights >= upper).sum()]) / len(weights)

    return float(np.abs(histogram(x) - histogram(y)).sum() / 2)


def moved_weights(raw: np.ndarray, shifts: Sequence[float], scales: Sequence[float]) -> dict[str, np.ndarray]:
    """Weights of raw logits (N,) after a shift of all logits, `shift_<c>`, or a multiplication, `scale_<s>`."""
    shifted = {f"shift_{c:g}": sharpness_weights(raw + c) for c in shifts}
    return shifted | {f"scale_{s:g}": sharpness_weights(raw * s) for s in scales}


def weight_rows(
    raw: np.ndarray, logp: np.ndarray, shifts: Sequence[float], scales: Sequence[float]
) -> dict[str, float]:
    """Everything about weights that needs no gradient, from raw logits and log-probabilities (N,) of sampled tokens."""
    w = sharpness_weights(raw)
    matched = matched_weights(torch.from_numpy(logp), torch.from_numpy(w)).numpy()
    values = {
        "tokens": float(len(raw)),
        "logit_min": float(raw.min()),
        "logit_median": float(np.median(raw)),
        "logit_max": float(raw.max()),
        "mean_weight": float(w.mean()),
        "spearman_logit_logprob": spearman(raw, logp),
        "spearman_logprob_probability": spearman(logp, np.exp(logp)),
        "matched_weight_change": float(np.abs(matched - w).mean()),
        # The gap between the top logit and the cut at which a weight leaves its lower bound, 9 ln 3: what makes all
        # inert.
        "shift_to_all_lower": float(9 * math.log(3) - raw.max()),
        "shift_to_all_upper": float(9 * math.log(19) - raw.min()),
        **weight_shares(w),
    }
    for name, moved in moved_weights(raw, shifts, scales).items():
        values |= {f"{key}_{name}": share for key, share in weight_shares(moved).items()}
        values[f"mean_weight_{name}"] = float(moved.mean())
        values[f"weight_change_{name}"] = float(np.abs(moved - w).mean())
        values[f"variation_{name}"] = total_variation(moved, w)
    return values


def inert_signals(raw: np.ndarray, logp: np.ndarray) -> dict[str, float]:
    """The paper's constants on each signal: largest deviation of any weight from 1, and the formula's own numbers.

    Probabilities from 0 to 1 and log-probabilities down to -1000 on a fine grid are checked besides the sampled tokens.
    The control is the least deviation of the weights of raw logits at or above 10, which must not be 0.
    """
    probability = np.concatenate([np.linspace(0, 1, 10_001), np.exp(logp)])
    logps = np.concatenate([np.linspace(-1000, 0, 10_001), -np.logspace(-12, 2, 1_001), logp])
    unclipped = sharpness_weights(probability, lower=-10.0, upper=10.0)
    spread = sharpness_weights(raw[raw >= 10]) - 1
    return {
        "probability_weight_deviation": float(np.abs(sharpness_weights(probability) - 1).max()),
        "logprob_weight_deviation": float(np.abs(sharpness_weights(logps) - 1).max()),
        "probability_above_0.56": float(max(0.0, unclipped.max() - 0.56)),
        "logprob_above_0.5": float(max(0.0, sharpness_weights(logps, lower=-10.0, upper=10.0).max() - 0.5)),
        "weight_at_logit_10": float(sharpness_weights(10.0)),
        "weight_at_logit_30": float(sharpness_weights(30.0)),
        **({"control_logit_weight_deviation": float(spread.min())} if len(spread) else {}),
    }


# --- gradients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """One group of completions of a prompt as token ids, with their rewards (G,)."""

    prompt: tuple[int, ...]
    completions: list[tuple[int, ...]]
    rewards: np.ndarray

    @property
    def mixed(self) -> bool:
        return bool(self.rewards.min() < self.rewards.max())


def group_of(sample: Sample, rewards: np.ndarray) -> Group:
    """The group of a sample, one entry per draw; `rewards` are those of its distinct completions."""
    return Group(sample.prompt_ids, [sample.completions[d] for d in sample.draws], rewards[sample.draws])


def group_logps(model: Any, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities (G, T) with gradient, raw logits (G, T) without, mask (G, T) of the tokens that exist."""
    lengths = torch.tensor([len(ids) for ids in group.completions])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = torch.tensor([token for completion in group.completions for token in completion])
    prompt = torch.tensor(group.prompt).expand(len(ids), -1)
    ids, mask = ids.to(model.device), mask.to(model.device)
    inputs = torch.cat([prompt.to(model.device), ids], dim=1)
    with watching_selected_logits(model, ids) as found:
        # Padding stands behind everything that counts, so that no causal attention reaches it.
        logits = model(input_ids=inputs, use_cache=False, logits_to_keep=ids.size(1) + 1).logits[:, :-1]
    logps = logits.log_softmax(dim=2).gather(2, ids.unsqueeze(2)).squeeze(2)
    return logps, found[0], mask


class GroupGradient:
    """The GRPO gradient of one group as a function of its token weights: one forward pass, one backward pass each.

    `raw` and `logp` are those of the group's tokens, (N,) float64, in the order in which `__call__` takes weights.
    """

    def __init__(self, model: Any, group: Group) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        logps, raw, mask = group_logps(model, group)
        rewards = torch.from_numpy(group.rewards)
        advantages = grpo_advantages(rewards).to(logps).unsqueeze(1).expand(mask.shape)
        self._logps, self._advantages = logps[mask], advantages[mask]
        self.raw, self.logp = (x[mask].detach().cpu().double().numpy() for x in (raw, logps))

    def __call__(self, weights: np.ndarray) -> list[Tensor]:
        """sum_t w_t A_t grad log pi(o_t) / N, one tensor per parameter; `weights` (N,)."""
        coefficients = torch.from_numpy(weights).to(self._logps) * self._advantages / len(weights)
        return list(torch.autograd.grad((coefficients * self._logps).sum(), self.parameters, retain_graph=True))


def inner(x: list[Tensor], y: list[Tensor]) -> float:
    """Inner product of two vectors of parameters: short pieces in their own precision, their sum in float64."""
    pieces = [
        p @ q
        for a, b in zip(x, y, strict=True)
        for p, q in zip(a.flatten().split(_PIECE), b.flatten().split(_PIECE), strict=True)
    ]
    return float(torch.stack(pieces).double().sum())


def effect(cosine_moved: float, cosine_plain: float) -> float:
    """How far a direction moved, in units of how far plain GRPO is: |u' - u| / |u_plain - u| of unit vectors."""
    whole = 1 - cosine_plain
    return math.sqrt(max(0.0, 1 - cosine_moved) / whole) if whole > 0 else math.nan


def gradient_rows(gradient: GroupGradient, shifts: Sequence[float], scales: Sequence[float]) -> dict[str, float]:
    """Cosines and effects of the gradients of one group under moved and matched weights; three gradients in memory.

    Weights that are all equal need no pass of their own: their gradient has the direction of the plain one.
    """
    w = sharpness_weights(gradient.raw)
    matched = matched_weights(torch.from_numpy(gradient.logp), torch.from_numpy(w)).numpy()
    plain, guided = gradient(np.ones_like(w)), gradient(w)
    plain_norm, guided_norm = (math.sqrt(inner(x, x)) for x in (plain, guided))
    to_plain = inner(guided, plain) / (guided_norm * plain_norm)
    values = {
        "cosine_plain": to_plain,
        "norm_ratio_raw": guided_norm / plain_norm,
        "norm_ratio_mean1": guided_norm / plain_norm / float(w.mean()),
        "group_tokens": float(len(w)),
    }
    for name, moved in {**moved_weights(gradient.raw, shifts, scales), "matched": matched}.items():
        if np.ptp(moved) == 0:
            values[f"cosine_{name}"], values[f"cosine_plain_{name}"] = to_plain, 1.0
        else:
            other = gradient(moved)
            norm = math.sqrt(inner(other, other))
            values[f"cosine_{name}"] = inner(guided, other) / (guided_norm * norm)
            values[f"cosine_plain_{name}"] = inner(plain, other) / (plain_norm * norm)
            del other  # before the next one is made: each is as large as the model
        values[f"effect_{name}"] = effect(values[f"cosine_{name}"], to_plain)
    return {name: value for name, value in values.items() if math.isfinite(value)}


# --- the experiment ---------------------------------------------------------------------------------------------------


def identifiability(settings: IdentifiabilitySettings, seed: int, context: JobContext) -> list[Row]:
    """Weights of a seed's sampled tokens under shifts and scales, and the gradient of its first mixed group.

    Settings: `prompts` and `group_size` per seed; `shifts` and `scales` for the weights, `gradient_shifts` and
    `gradient_scales` for the gradients; `reward` "addition", or "parity" (of the token ids' sum) for a model that
    cannot add. Metrics: `weight_rows`, `inert_signals`, `gradient_rows`, and what `shift_head` does to the model
    itself: `policy_change`, the largest change of a log-probability, and `raw_shift_error`, of a raw logit beyond the
    shift.
    """
    model, tokenizer = catalog.load(settings.model)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    groups = sampled_groups(model, tokenizer, settings, seed)
    context.progress(0.4)
    tokens = [_token_numbers(model, group) for group in groups]
    raw, logp = (np.concatenate(column) for column in zip(*tokens, strict=True))
    values = weight_rows(raw, logp, settings.shifts, settings.scales) | inert_signals(raw, logp)
    place = next(i for i, group in enumerate(groups) if group.mixed)
    chosen = groups[place]
    # The largest shift upwards: subtracting may lose no digit in float32, and the check would see no rounding.
    values |= _head_shift(model, chosen, *tokens[place], max(settings.shifts))
    context.progress(0.5)
    values |= gradient_rows(GroupGradient(model, chosen), settings.gradient_shifts, settings.gradient_scales)
    values["groups"] = float(len(groups))
    return [{"metric": name, "value": value} for name, value in values.items()]


def _token_numbers(model: Any, group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Raw logits and log-probabilities of a group's tokens, (N,) float64 each."""
    with torch.no_grad():
        logps, raw, mask = group_logps(model, group)
    return raw[mask].cpu().double().numpy(), logps[mask].cpu().double().numpy()


def _head_shift(model: Any, group: Group, raw: np.ndarray, logp: np.ndarray, c: float) -> dict[str, float]:
    """What the model shifted by `c` gives for a group against what it gave before; leaves it with a bias of 0."""
    shifted_raw, shifted_logp = _token_numbers(shift_head(model, c), group)
    shift_head(model, -c)
    return {
        "policy_change": float(np.abs(shifted_logp - logp).max()),
        "raw_shift_error": float(np.abs(shifted_raw - raw - c).max()),
    }


def sampled_groups(model: Any, tokenizer: Any, settings: SampledGroups, seed: int) -> list[Group]:
    """Groups of the seed's prompts; more prompts are drawn, a bounded number of times, until some group is mixed."""
    count = settings.prompts
    problems = addition_problems(
        count * _WAVES,
        seed=seed,
        low=settings.low,
        high=settings.high,
        system_message=settings.system_message,
    )
    generator = torch.Generator().manual_seed(2_511_500 + seed)
    groups: list[Group] = []
    while not any(group.mixed for group in groups):
        wave = problems[len(groups) : len(groups) + count]
        if not wave:
            raise ReplicationError(
                f"All {len(groups)} groups were silent, so that no gradient exists. Make low and high smaller, "
                "group_size larger, or choose reward = 'parity' for a model that cannot add."
            )
        samples = sample_completions(
            model,
            tokenizer,
            [problem["prompt"] for problem in wave],
            settings.group_size,
            max_new_tokens=settings.max_new_tokens,
            generator=generator,
        )
        for problem, sample in zip(wave, samples, strict=True):
            groups.append(group_of(sample, _rewards(sample, tokenizer, problem["answer"], settings.reward)))
    return groups


def _rewards(sample: Sample, tokenizer: Any, answer: str, reward: str) -> np.ndarray:
    if reward == "parity":
        return np.array([sum(ids) % 2 for ids in sample.completions], dtype=np.float64)
    if reward != "addition":
        raise ValueError(f'reward must be "addition" or "parity", not {reward!r}')
    texts = sample.texts(tokenizer)
    return np.array(addition_reward(texts, [answer] * len(texts)))
