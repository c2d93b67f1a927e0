"""Experiment `dynamic-sampling`: the trainer's silent groups, redraws and samples spent against their closed forms.

The task makes every solve rate known. A policy that can say L or R only (`synthetic.tree_task`) answers one of
2**depth - 1 prompts with a path of `depth` tokens. Prompt k accepts k of the 2**depth paths: the first k in order where
k is odd, the last k where it is even. Its solve rate p, the probability of these paths, is computed exactly from the
policy before each step, near k / 2**depth at the start. TRL then samples groups of G with 0/1 rewards, and given the
policy they are independent, so that with P = p^G + (1-p)^G and at most r redraws (paper, silent-group rate and DAPO)

    P(silent at the first draw) = P,  P(drawn more than j times) = P^j (j <= r),  P(exhausted) = P^(r+1).

With new prompts for silent groups, M the mean of P over the training set takes the place of every factor but the first.
Every step draws each prompt once, so the predictions need no knowledge of which group had which prompt at first.

What would make the check fail: redraws that look at other rewards than the loss does, that keep a silent group or
redraw one that is not, that lose or double a draw in the count, that sample from another policy than the step's. The
controls predict with 2G, with G - 1 and, for new prompts, with the formula for the same prompt.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from grpo_replications.replications.sigma_identity.settings import DynamicSamplingSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.theory.closed_forms import silent_rate
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.run import run_training
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.synthetic.tree_task import LEFT, PATH, RIGHT, accepts, leaf_of, path_ids, path_model


class Counts(NamedTuple):
    """What one step did with its groups, measured or expected: sums over the groups."""

    first_silent: float
    draws: float
    exhausted: float


def dynamic_sampling(settings: DynamicSamplingSettings, seed: int, context: JobContext) -> list[Row]:
    """Train with `max_redraws` redraws of silent groups and compare the counts with their expectations.

    Metrics of a run: `first_silent`, `draws`, `exhausted` (per group) with `_predicted`, `_error` (measured less
    predicted) and, of the first two, `_z` (total error over its standard deviation given the policies; of `draws` only
    where something is redrawn); the controls `first_silent_z_double`, `first_silent_error_one_less` and, for new
    prompts, `draws_error_same_prompt`; `accounting_error` (absolute differences between the trainer's step metrics and
    its group log, summed); `samples_ratio` (samples spent over those without redraws); `mean_solve_rate` (exact, over
    prompts and steps). By step, averaged over `window` steps: `first_silent`, `draws`, `solve_rate` and predictions.
    """
    depth, size, bound = settings.depth, settings.group_size, settings.max_redraws
    train = threshold_dataset(depth)
    model, tokenizer = path_model("random-small", seed)
    run = run_training(
        TrainingSettings.of(settings, prompts_per_step=len(train), max_new_tokens=depth),
        seed,
        train,
        [threshold_reward(depth)],
        directory=context.directory,
        model=model,
        tokenizer=tokenizer,
        observe=lambda policy, _: solve_rates(policy, depth),
        observe_every=1,
        progress=context.progress,
    )
    rates = [np.array(list(seen.values())) for step, seen in run.observations if step < settings.steps]
    measured = list(_measured(run.group_log, len(rates)))
    new_prompts = settings.redraw == "prompts"
    rows = _comparison(measured, rates, size, bound, new_prompts)
    spent = [entry["groups/samples_spent"] for entry in run.history]
    exhausted = [entry["groups/exhausted"] * len(train) for entry in run.history]
    accounting = sum(abs(value - size * counts.draws) for value, counts in zip(spent, measured, strict=True))
    if bound:
        accounting += sum(abs(x - counts.exhausted) for x, counts in zip(np.round(exhausted, 3), measured, strict=True))
    rows += [
        row("accounting_error", accounting),
        row("samples_ratio", sum(spent) / (len(spent) * len(train) * size)),
        row("mean_solve_rate", statistics.fmean(float(rate.mean()) for rate in rates)),
    ]
    return rows + _curves(measured, rates, size, bound, new_prompts, settings.window)


# --- the task ---------------------------------------------------------------------------------------------------------


def threshold_dataset(depth: int) -> Any:
    """The prompts k = 1 ... 2**depth - 1, each the binary digits of k as L and R, with k in column `right_leaves`."""
    from datasets import Dataset

    numbers = range(1, 2**depth)
    return Dataset.from_dict({"prompt": [_prompt(k, depth) for k in numbers], "right_leaves": list(numbers)})


def threshold_reward(depth: int) -> Any:
    """TRL reward function: 1 for a path among the prompt's right leaves, 0 for any other."""

    def right(completion_ids: list[list[int]], right_leaves: list[int], **_: Any) -> list[float]:
        return [float(accepts(k, leaf_of(ids, depth), depth)) for ids, k in zip(completion_ids, right_leaves)]

    return right


@torch.no_grad()
def solve_rates(model: Any, depth: int) -> dict[str, float]:
    """Exact solve rate of each prompt, in the order of the data set: one forward pass over every prompt and path."""
    leaves, numbers = range(2**depth), range(1, 2**depth)
    rows = [[PATH, *path_ids(k, depth), *path_ids(leaf, depth)] for k in numbers for leaf in leaves]
    ids = torch.tensor(rows, device=model.device)
    logps = model(input_ids=ids).logits[:, depth:-1].double().log_softmax(dim=-1)
    paths = logps.gather(2, ids[:, depth + 1 :].unsqueeze(2)).squeeze(2).sum(dim=1).exp()
    probabilities = paths.view(len(numbers), len(leaves)).cpu().numpy()
    accepted = np.array([[accepts(k, leaf, depth) for leaf in leaves] for k in numbers])
    rates = np.minimum((probabilities * accepted).sum(axis=1), 1.0)  # the sum of all paths may round above 1
    return dict(zip((_prompt(k, depth) for k in numbers), rates.tolist(), strict=True))


def _prompt(k: int, depth: int) -> str:
    return " ".join(["<path>", *({LEFT: "L", RIGHT: "R"}[token] for token in path_ids(k, depth))])


# --- predictions ------------------------------------------------------------------------------------------------------


def drawn_more_often(silent: np.ndarray, max_redraws: int, new_prompts: bool = False) -> np.ndarray:
    """P(a group is drawn more than j times), j = 1 ... r: silent rates P (M,) of the prompts to (r, M)."""
    later = np.full_like(silent, silent.mean()) if new_prompts else silent
    return silent * later ** np.arange(max_redraws)[:, None]


def expected_counts(rates: np.ndarray, group_size: int, max_redraws: int, new_prompts: bool = False) -> Counts:
    """Expected sums over one group per prompt, given the solve rates (M,).

    Draws of the same prompt: sum of (1 - P^(r+1)) / (1 - P), written as 1 + P + ... + P^r, which holds at P = 1 too.
    """
    silent = silent_rate(rates, group_size)
    tails = drawn_more_often(silent, max_redraws + 1, new_prompts)
    return Counts(silent.sum(), len(rates) + tails[:-1].sum(), tails[-1].sum())


def count_variances(rates: np.ndarray, group_size: int, max_redraws: int, new_prompts: bool = False) -> Counts:
    """Variances of the sums, groups independent of each other: E[D^2] = 1 + sum over j of (2j + 1) P(D > j).

    New prompts are drawn without replacement within a round, which makes the true variance slightly smaller.
    """
    silent = silent_rate(rates, group_size)
    tails = drawn_more_often(silent, max_redraws + 1, new_prompts)
    weights = 2 * np.arange(1, max_redraws + 1)[:, None] + 1
    draws = 1 + (weights * tails[:-1]).sum(axis=0) - (1 + tails[:-1].sum(axis=0)) ** 2
    return Counts((silent * (1 - silent)).sum(), draws.sum(), (tails[-1] * (1 - tails[-1])).sum())


def _comparison(measured: list[Counts], rates: list[np.ndarray], size: int, bound: int, new_prompts: bool) -> list[Row]:
    """Measured and predicted totals over a run, and the controls."""
    groups = sum(map(len, rates))
    totals = _total(measured)
    expected = _total([expected_counts(rate, size, bound, new_prompts) for rate in rates])
    spread = _total([count_variances(rate, size, bound, new_prompts) for rate in rates])
    rows: list[Row] = []
    for name in Counts._fields[: 3 if bound else 1]:
        x, mean, variance = (getattr(counts, name) for counts in (totals, expected, spread))
        rows += [
            row(name, x / groups),
            row(f"{name}_predicted", mean / groups),
            row(f"{name}_error", (x - mean) / groups),
        ]
        if name != "exhausted":  # too rare in some runs for a normal approximation
            rows.append(row(f"{name}_z", (x - mean) / variance**0.5))
    double = _total([expected_counts(rate, 2 * size, bound) for rate in rates]).first_silent
    double_spread = _total([count_variances(rate, 2 * size, bound) for rate in rates]).first_silent
    one_less = _total([expected_counts(rate, size - 1, bound) for rate in rates]).first_silent
    rows += [
        row("first_silent_z_double", (totals.first_silent - double) / double_spread**0.5),
        row("first_silent_error_one_less", (totals.first_silent - one_less) / groups),
    ]
    if new_prompts:
        same = _total([expected_counts(rate, size, bound) for rate in rates]).draws
        rows.append(row("draws_error_same_prompt", (totals.draws - same) / groups))
    return rows


def _curves(
    measured: list[Counts], rates: list[np.ndarray], size: int, bound: int, new_prompts: bool, window: int
) -> list[Row]:
    """Counts per group and their predictions over training, averaged over windows of steps."""
    rows: list[Row] = []
    for start in range(0, len(rates), window):
        own = rates[start : start + window]
        groups = sum(map(len, own))
        seen = _total(measured[start : start + window])
        expected = _total([expected_counts(rate, size, bound, new_prompts) for rate in own])
        rows.append(row("solve_rate", float(np.concatenate(own).mean()), start))
        for name in ("first_silent", "draws"):
            rows.append(row(f"{name}_curve", getattr(seen, name) / groups, start))
            rows.append(row(f"{name}_curve_predicted", getattr(expected, name) / groups, start))
    return rows


def _measured(log: Any, steps: int) -> Iterator[Counts]:
    """Counts of each step from the group log; a group was silent at first if it was redrawn or is silent now."""
    by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for group in read_group_log(log):
        by_step[group["step"] - 1].append(group)
    for step in range(steps):
        groups = by_step[step]
        yield Counts(
            sum(group["draws"] > 1 or group["silent"] is not None for group in groups),
            sum(group["draws"] for group in groups),
            sum(group["silent"] is not None for group in groups),
        )


def _total(counts: list[Counts]) -> Counts:
    return Counts(*(float(sum(values)) for values in zip(*counts, strict=True)))
