"""Table 1 with a tabular policy: where lambda-GRPO beats GRPO on the synthetic tree, and where it does not.

The paper states depth, rewards, group size, steps, the metric and GPT-2's learning rate (1e-5; at 5e-5 neither method
converges), but not optimizer, KL or whether the target is redrawn per seed; and a rate of GPT-2's means nothing to a
table. So `table1_tabular` measures one cell of a map over optimizer and learning rate, and `table1_best` gives
each method the rate that suits it. The target is redrawn for every seed, which changes nothing in law: the table
starts symmetric. The paper's numbers are placed among ours, but a table and GPT-2 are not comparable.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grpo_replications.replications.lambda_grpo.settings import (
    Table1BestSettings,
    Table1Settings,
    Table1TabularSettings,
)
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.statistics.estimates import (
    Estimate,
    bootstrap,
    k_seed_mean_distribution,
    paired_difference,
)
from grpo_replications.synthetic.binary_tree import BinaryTree, TabularResult, run_tabular

PAPER_TABLE = Path(__file__).with_name("paper_table1.csv")
PAPER_SEEDS = 5
PAPER_DECIMALS = 4
PAPER_STEPS = {"depth": 4, "group_size": 16, "steps": 250, "last": 50}
"""What the paper states; only runs with these settings are held against its numbers."""

SELECTION_OFFSET = 100_000
"""First seed of the runs that choose a learning rate, so that they share no random number with the runs reported."""

DECIMALS = 6
"""Target frequencies are reported to six decimals: two seeds closer than that are tied, neither is better."""


def table1_tabular(settings: Table1TabularSettings, seeds: range, context: JobContext) -> list[Row]:
    """One cell of the map: a row of Table 1, a method, an optimizer and a learning rate, all seeds at once.

    Args:
        settings: see `synthetic.binary_tree.run_tabular`.
        seeds: the seeds to run.
        context: the job's progress.

    Returns:
        `target_frequency` per seed; for the cell: `update_norm` (mean length of the change of the logits, over
        steps and seeds), `silent_share` (of all groups) and, where the paper has a number for the cell,
        `paper_quantile` with `five_seed_mean_low` and `five_seed_mean_high` (see `five_seed_mean_quantile`);
        for lambda-grpo-matched with plain SGD, where steps are matched in length, `explained_share` with
        `explained_share_low` and `_high`, unless the methods do not differ (see `explained_share`; the two other
        methods are run once more for it, on the same seeds).

    Raises:
        ReplicationError: a setting is out of range.
    """
    result, frequencies = _train(settings, settings.lr, seeds)
    context.progress(1.0)
    return [
        *_frequency_rows(seeds, frequencies),
        {"metric": "update_norm", "value": float(result.update_norm.mean())},
        {"metric": "silent_share", "value": float(result.silent.mean())},
        *_paper_rows(settings, frequencies),
        *_explained_rows(settings, seeds, frequencies),
    ]


def table1_best(settings: Table1BestSettings, seeds: range, context: JobContext) -> list[Row]:
    """A row of Table 1 for a method and an optimizer at the learning rate that suits them best.

    The rate is the one of `lrs` with the highest mean target frequency over `selection_seeds` seeds that start at
    `SELECTION_OFFSET`; what is reported comes from other seeds, so choosing does not flatter the result.

    Args:
        settings: as in `table1_tabular`, with lrs in place of lr.
        seeds: the seeds to report; all below SELECTION_OFFSET.
        context: the job's progress.

    Returns:
        `target_frequency` per seed; for the cell `chosen_lr`, `edge` (1 if that rate is the grid's lowest or
        highest, so that a better one may lie outside), `selection_mean` and the paper's quantile as in
        `table1_tabular`.

    Raises:
        ReplicationError: a setting is out of range.
    """
    lrs = settings.lrs
    if max(seeds) >= SELECTION_OFFSET:
        raise ReplicationError(f"table1-best: seeds must lie below {SELECTION_OFFSET}; got seeds up to {max(seeds)}.")
    selection_seeds = range(SELECTION_OFFSET, SELECTION_OFFSET + settings.selection_seeds)
    means = []
    for lr in lrs:
        means.append(float(_train(settings, lr, selection_seeds)[1].mean()))
        context.progress(len(means) / (len(lrs) + 1))
    best = int(np.argmax(means))
    _, frequencies = _train(settings, lrs[best], seeds)
    context.progress(1.0)
    return [
        *_frequency_rows(seeds, frequencies),
        {"metric": "chosen_lr", "value": lrs[best]},
        {"metric": "edge", "value": float(best in (0, len(lrs) - 1))},
        {"metric": "selection_mean", "value": means[best]},
        *_paper_rows(settings, frequencies),
    ]


class SeedMeanQuantile(NamedTuple):
    """Where a paper's number falls among the means of k of our seeds, and the central 95 % of those means."""

    quantile: float
    low: float
    high: float


def five_seed_mean_quantile(
    values: np.ndarray, paper_value: float, k: int = PAPER_SEEDS, draws: int = 20_000, seed: int = 0
) -> SeedMeanQuantile:
    """Quantile of a paper's number in the distribution of k-seed means drawn from our seeds.

    The quantile is P(mean < paper) + P(mean = paper) / 2, the means rounded to the paper's four decimals: a policy's
    target probability is never 0, and the paper's 0.0000 only says that it is below 0.00005. With a quantile near 0 or
    1, a study with k seeds and our settings would hardly have reported that number.

    Args:
        values: one value per seed, shape (S,).
        paper_value: the number to place.
        k: seeds behind it.
        draws: resampled means.
        seed: of the resampling.
    """
    means = k_seed_mean_distribution(values, k, draws, np.random.default_rng(seed)).round(PAPER_DECIMALS)
    low, high = np.quantile(means, [0.025, 0.975])
    below, equal = np.mean(means < paper_value), np.mean(means == paper_value)
    return SeedMeanQuantile(float(below + equal / 2), float(low), float(high))


def explained_share(
    grpo: np.ndarray, lambda_grpo: np.ndarray, matched: np.ndarray, draws: int = 2_000, seed: int = 0
) -> Estimate:
    """How much of lambda-GRPO's difference from GRPO at one learning rate its step size explains, over paired seeds.

    With d = mean(lambda_grpo - grpo) and m = mean(matched - grpo), where `matched` takes lambda-GRPO's direction at
    GRPO's step size, the share is 1 - m / d. It is 0 if the whole difference is still there at equal step size, 1 if
    it is gone, above 1 if the sign has turned, and negative if the difference grew: then the shorter steps hid part of
    it. The interval is the 95 % percentile bootstrap over seeds.

    Returns nan with an infinite interval where d's own 95 % interval contains 0: there is nothing to explain.

    Args:
        grpo, lambda_grpo, matched: target frequencies of the same seeds in the same order, each (S,).
        draws: bootstrap resamples.
        seed: of the resampling.
    """
    pairs = np.stack([np.subtract(lambda_grpo, grpo), np.subtract(matched, grpo)])
    difference = paired_difference(lambda_grpo, grpo, draws=draws, generator=np.random.default_rng(seed))
    if not (difference.low > 0 or difference.high < 0):
        return Estimate(math.nan, -math.inf, math.inf, pairs.shape[1])
    resampled = bootstrap(pairs, lambda sample: sample.mean(axis=-1), draws, np.random.default_rng(seed))
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample may hold no difference at all
        shares = 1.0 - resampled[:, 1] / resampled[:, 0]
    low, high = np.nanquantile(shares, [0.025, 0.975])
    d, m = pairs.mean(axis=1)
    return Estimate(float(1.0 - m / d), float(low), float(high), pairs.shape[1])


@cache
def paper_table() -> dict[tuple[int, float, str], float]:
    """The paper's Table 1: (n, r_neg, method) -> mean target frequency."""
    lines = [line for line in PAPER_TABLE.read_text().splitlines() if not line.startswith("#")]
    return {
        (int(row["n"]), float(row["r_neg"]), method): float(row[column])
        for row in csv.DictReader(lines)
        for method, column in (("grpo", "grpo"), ("lambda-grpo", "lambda_grpo"))
    }


def _train(settings: Table1Settings, lr: float, seeds: Sequence[int]) -> tuple[TabularResult, np.ndarray]:
    """Run a cell's seeds: their trajectories and their target frequencies (S,)."""
    try:
        result = run_tabular(
            BinaryTree(settings.depth, settings.n, prefix_reward=settings.r_neg),
            settings.method,
            settings.optimizer,
            lr,
            group_size=settings.group_size,
            steps=settings.steps,
            seeds=seeds,
            ddof=settings.ddof,
            eps=settings.eps,
            beta=settings.beta,
        )
        return result, result.target_frequency(settings.last)
    except ValueError as error:
        raise ReplicationError(f"Table 1 on the synthetic tree: {error}. Correct it in profiles.toml.") from error


def _frequency_rows(seeds: Sequence[int], frequencies: np.ndarray) -> list[Row]:
    return [
        {"metric": "target_frequency", "seed": int(seed), "value": round(float(value), DECIMALS)}
        for seed, value in zip(seeds, frequencies, strict=True)
    ]


def _paper_rows(settings: Table1Settings, frequencies: np.ndarray) -> list[Row]:
    """The paper's number among our five-seed means; none where the paper reports no run with these settings."""
    paper = paper_table().get((settings.n, float(settings.r_neg), settings.method))
    if paper is None or _steps_of(settings) != PAPER_STEPS:
        return []
    placed = five_seed_mean_quantile(frequencies, paper)
    return [
        {"metric": "paper_quantile", "value": placed.quantile},
        {"metric": "five_seed_mean_low", "value": placed.low},
        {"metric": "five_seed_mean_high", "value": placed.high},
    ]


def _steps_of(settings: Table1Settings) -> dict[str, int]:
    return {
        "depth": settings.depth,
        "group_size": settings.group_size,
        "steps": settings.steps,
        "last": settings.last,
    }


def _explained_rows(settings: Table1TabularSettings, seeds: range, matched: np.ndarray) -> list[Row]:
    """How much of the difference between the methods their step size explains, where that can be said."""
    if settings.method != "lambda-grpo-matched" or settings.optimizer != "sgd" or len(seeds) < 2:
        return []
    grpo, ours = (_train(settings.changed(method=name), settings.lr, seeds)[1] for name in ("grpo", "lambda-grpo"))
    share = explained_share(grpo.round(DECIMALS), ours.round(DECIMALS), matched.round(DECIMALS))
    if math.isnan(share.value):
        return []
    names = ("explained_share", "explained_share_low", "explained_share_high")
    return [
        {"metric": name, "value": value}
        for name, value in zip(names, (share.value, share.low, share.high), strict=True)
    ]
