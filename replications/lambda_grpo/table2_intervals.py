"""What the printed Table 2 says by itself: counts, the meaning of its +-, and how many differences exceed chance.

No model is run. A row of the table is one training run, and its +- comes from the benchmarks' finite size, so nothing
printed covers the spread over training seeds: a difference that exceeds it may still be one lucky run. The 20 cells
hold four pairs of runs, which is why no test counts cells.
Comparisons between cells are made in units of the last printed digit, where they are exact.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scipy import stats

from grpo_replications.replications.lambda_grpo.settings import NoSettings
from grpo_replications.shared.harness.jobs import JobContext, Row

PAPER_TABLE = Path(__file__).with_name("paper_table2.csv")
DIGIT = 10_000  # the table prints four decimals
PROBLEMS = {"AIME24": 30, "MATH-500": 500, "AMC23": 40, "Minerva": 272, "OlympiadBench": 675}
"""Benchmark sizes. OlympiadBench: the printed accuracies are multiples of 1/675 (the text-only English mathematics
subset as published has 675 problems), none of them of 1/674."""

Z95 = 1.959963984540054  # two-sided 95 % point of the normal distribution


@dataclass(frozen=True)
class Cell:
    """One printed accuracy and its interval, in units of the last digit; `average` cells carry no interval."""

    model: str
    beta: float | None
    method: str
    benchmark: str
    accuracy: int
    interval: int

    @property
    def share(self) -> float:
        """The accuracy as a number between 0 and 1."""
        return self.accuracy / DIGIT


@dataclass(frozen=True)
class Pair:
    """lambda-GRPO, GRPO and the base model on one benchmark with one beta: one of the 20 comparisons."""

    ours: Cell
    grpo: Cell
    base: Cell

    @property
    def difference(self) -> int:
        """lambda-GRPO minus GRPO, in units of the last digit."""
        return self.ours.accuracy - self.grpo.accuracy


def table2_intervals(settings: NoSettings, seed: int, context: JobContext) -> list[Row]:
    """All counts of this module as rows; nothing is random, so the seed changes nothing.

    `cells_*` count the 20 comparisons. `cells_exceeding_*` are the comparisons, in either direction, whose difference
    exceeds the sum (`both_intervals`) or the root of the sum of squares (`combined_interval`) of the two printed +-;
    `*_in_favor` those of them where lambda-GRPO is the higher. `differences_significant*`: two-sided test of two
    independent proportions at 5 %, alone and with Holm's correction for 20 tests. `against_base_*`: the same test of
    lambda-GRPO and of GRPO against the base model. `run_pair_*`: the four pairs of training runs, each the mean of its
    five benchmarks, which is as many independent comparisons as the table has.
    """
    cells = list(read_table())
    comparisons = list(pairs(cells))
    values = {
        **_counts(comparisons),
        **_against_base(comparisons),
        **_run_pairs(comparisons),
        **_printed_intervals(cells),
        **_averages(cells),
    }
    context.progress(1.0)
    return [{"metric": name, "value": float(value)} for name, value in values.items()]


@lru_cache(maxsize=1)
def read_table() -> tuple[Cell, ...]:
    """Every cell of the printed table, averages included."""
    with PAPER_TABLE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return tuple(
            Cell(
                row["model"],
                float(row["beta"]) if row["beta"] else None,
                row["method"],
                row["benchmark"],
                round(float(row["accuracy"]) * DIGIT),
                round(float(row["interval"] or 0) * DIGIT),
            )
            for row in rows
        )


def pairs(cells: Iterable[Cell]) -> Iterator[Pair]:
    """The 20 comparisons, in the printed order."""
    by_key = {(cell.model, cell.beta, cell.method, cell.benchmark): cell for cell in cells}
    for (model, beta, method, benchmark), cell in by_key.items():
        if method == "lambda-grpo" and benchmark != "avg":
            yield Pair(cell, by_key[model, beta, "grpo", benchmark], by_key[model, None, "base", benchmark])


def beyond_both_intervals(pair: Pair) -> bool:
    """Whether the two printed intervals do not even touch: |difference| > sum of the two +-."""
    return abs(pair.difference) > pair.ours.interval + pair.grpo.interval


def beyond_combined_interval(pair: Pair) -> bool:
    """Whether |difference| exceeds the +- of a difference of independent cells, sqrt(a^2 + b^2)."""
    return pair.difference**2 > pair.ours.interval**2 + pair.grpo.interval**2


def z_value(x: Cell, y: Cell) -> float:
    """Pooled z of equal proportions, x above y, as if the two cells had been tested on separate problems.

    Both were tested on the same problems, which a paired test would use; the table does not allow one.
    """
    n = PROBLEMS[x.benchmark]
    pooled = (x.share + y.share) / 2
    if x.accuracy == y.accuracy or pooled in (0.0, 1.0):
        return 0.0
    return (x.share - y.share) / math.sqrt(2 * pooled * (1 - pooled) / n)


def difference_p_value(pair: Pair) -> float:
    """Two-sided p-value of equal proportions of lambda-GRPO and GRPO; see `z_value`."""
    return math.erfc(abs(z_value(pair.ours, pair.grpo)) / math.sqrt(2))


def holm_rejections(p_values: list[float], level: float = 0.05) -> int:
    """Number of hypotheses rejected by Holm's step-down procedure, which holds the family's error rate."""
    ordered = sorted(p_values)
    for position, p in enumerate(ordered):
        if p > level / (len(ordered) - position):
            return position
    return len(ordered)


def run_pair_differences(comparisons: Iterable[Pair]) -> dict[tuple[str, float | None], float]:
    """lambda-GRPO minus GRPO, averaged over the benchmarks, of each pair of training runs (model and beta)."""
    differences: dict[tuple[str, float | None], list[float]] = {}
    for pair in comparisons:
        differences.setdefault((pair.ours.model, pair.ours.beta), []).append(pair.difference / DIGIT)
    return {key: sum(values) / len(values) for key, values in differences.items()}


def standard_error(cell: Cell) -> float:
    """Standard error over the benchmark's problems, sqrt(p (1 - p) / (n - 1)), in units of the last digit."""
    return DIGIT * math.sqrt(cell.share * (1 - cell.share) / (PROBLEMS[cell.benchmark] - 1))


def _counts(comparisons: list[Pair]) -> dict[str, float]:
    both = [pair for pair in comparisons if beyond_both_intervals(pair)]
    combined = [pair for pair in comparisons if beyond_combined_interval(pair)]
    p_values = [difference_p_value(pair) for pair in comparisons]
    significant = [pair for pair, p in zip(comparisons, p_values) if p < 0.05]
    wins = sum(pair.difference > 0 for pair in comparisons)
    return {
        "cells": len(comparisons),
        "cells_above_grpo": wins,
        "cells_equal_to_grpo": sum(pair.difference == 0 for pair in comparisons),
        "cells_above_base": sum(pair.ours.accuracy > pair.base.accuracy for pair in comparisons),
        "cells_equal_to_base": sum(pair.ours.accuracy == pair.base.accuracy for pair in comparisons),
        "cells_exceeding_both_intervals": len(both),
        "cells_exceeding_both_intervals_in_favor": sum(pair.difference > 0 for pair in both),
        "cells_exceeding_combined": len(combined),
        "cells_exceeding_combined_in_favor": sum(pair.difference > 0 for pair in combined),
        "differences_significant": len(significant),
        "differences_significant_in_favor": sum(pair.difference > 0 for pair in significant),
        "differences_significant_after_holm": holm_rejections(p_values),
        "significant_where_grpo_fell_below_base": sum(p.grpo.accuracy < p.base.accuracy for p in significant),
        "significant_leads_elsewhere": sum(
            pair.difference > 0 and pair.grpo.accuracy >= pair.base.accuracy for pair in significant
        ),
        "chance_of_one_significant_lead": 1 - 0.95**wins,
    }


def _against_base(comparisons: list[Pair]) -> dict[str, float]:
    """Both methods against the base model, cell by cell."""
    ours = [z_value(pair.ours, pair.base) for pair in comparisons]
    grpo = [z_value(pair.grpo, pair.base) for pair in comparisons]
    return {
        "against_base_significant_gains": sum(z > Z95 for z in ours),
        "against_base_largest_z": max(ours),
        "against_base_grpo_significant_losses": sum(z < -Z95 for z in grpo),
        "against_base_grpo_lowest_z": min(grpo),
    }


def _run_pairs(comparisons: list[Pair]) -> dict[str, float]:
    """Student's t over the pairs of training runs."""
    differences = list(run_pair_differences(comparisons).values())
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(0.95)
    return {
        "run_pairs": len(differences),
        "run_pair_mean_difference": sum(differences) / len(differences),
        "run_pair_difference_low": interval.low,
        "run_pair_difference_high": interval.high,
        "run_pair_t": test.statistic,
        "run_pair_p_value": test.pvalue,
    }


def _printed_intervals(cells: list[Cell]) -> dict[str, float]:
    """How the printed +- compare with one standard error; cells with accuracy 0 print none and are left out."""
    printed = [cell for cell in cells if cell.interval]
    deviations = [abs(cell.interval - standard_error(cell)) for cell in printed]
    off = [deviation for deviation in deviations if deviation > 0.6]  # half a digit of rounding, and the accuracy's own
    return {
        "intervals_printed": len(printed),
        "intervals_equal_to_standard_error": len(printed) - len(off),
        "intervals_off_standard_error": len(off),
        "stated_interval_is_standard_error_max_deviation": max(deviations) / DIGIT,
        "stated_interval_is_standard_error_median_deviation": sorted(deviations)[len(deviations) // 2] / DIGIT,
        "stated_interval_over_95_interval": sum(c.interval / (Z95 * standard_error(c)) for c in printed) / len(printed),
        "accuracies_not_counts_of_problems": sum(not _is_count(c) for c in cells if c.benchmark != "avg"),
    }


def _is_count(cell: Cell) -> bool:
    """Whether the printed accuracy is a whole number of right answers over the benchmark's size, rounded."""
    n = PROBLEMS[cell.benchmark]
    return abs(round(cell.share * n) / n * DIGIT - cell.accuracy) <= 0.5 + 1e-9


def _averages(cells: list[Cell]) -> dict[str, float]:
    """Largest distance between a printed average and its row's mean; rows that are off by more than rounding."""
    rows: dict[tuple[str, float | None, str], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.model, cell.beta, cell.method), {})[cell.benchmark] = cell
    deviations = [
        abs(row["avg"].accuracy - sum(row[name].accuracy for name in PROBLEMS) / len(PROBLEMS)) for row in rows.values()
    ]
    return {
        "averages_max_deviation": max(deviations) / DIGIT,
        "averages_off": sum(deviation > 0.5 + 1e-9 for deviation in deviations),
    }
