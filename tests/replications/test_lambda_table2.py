"""The printed Table 2: transcription, counts, and the meaning of its +-, each checked by hand or by another route."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from grpo_replications.replications.lambda_grpo.settings import NoSettings
from grpo_replications.replications.lambda_grpo.table2_intervals import (
    PROBLEMS,
    Cell,
    Pair,
    beyond_both_intervals,
    beyond_combined_interval,
    difference_p_value,
    holm_rejections,
    pairs,
    read_table,
    standard_error,
    table2_intervals,
)
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.harness.papers import Paper

QWEN, LLAMA = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "meta-llama/Llama-3.2-1B-Instruct"


def values(tmp_path: Path) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in table2_intervals(NoSettings(), 0, JobContext(tmp_path))}


def cell(model: str, beta: float | None, method: str, benchmark: str) -> Cell:
    found = [c for c in read_table() if (c.model, c.beta, c.method, c.benchmark) == (model, beta, method, benchmark)]
    assert len(found) == 1
    return found[0]


def pair(ours: int, grpo: int, ours_interval: int, grpo_interval: int) -> Pair:
    template = Cell("m", 0.0, "lambda-grpo", "MATH-500", ours, ours_interval)
    return Pair(template, replace(template, accuracy=grpo, interval=grpo_interval), template)


def test_transcription() -> None:
    table = read_table()
    assert len(table) == 60
    assert {c.benchmark for c in table} == {*PROBLEMS, "avg"}
    assert (cell(QWEN, None, "base", "AIME24").accuracy, cell(QWEN, None, "base", "AIME24").interval) == (2000, 743)
    assert cell(QWEN, 0.0, "lambda-grpo", "OlympiadBench").accuracy == 5348
    assert cell(LLAMA, 0.04, "lambda-grpo", "avg").accuracy == 973
    assert cell(LLAMA, 0.0, "grpo", "AIME24") == Cell(LLAMA, 0.0, "grpo", "AIME24", 0, 0)
    assert len(list(pairs(table))) == 20


def test_counts_of_the_paper(tmp_path: Path) -> None:
    found = values(tmp_path)
    assert (found["cells"], found["cells_above_grpo"], found["cells_above_base"]) == (20, 15, 14)
    assert (found["cells_equal_to_grpo"], found["cells_equal_to_base"]) == (1, 4)
    assert found["averages_off"] == 0
    assert found["accuracies_not_counts_of_problems"] == 0


def test_differences_beyond_the_intervals(tmp_path: Path) -> None:
    found = values(tmp_path)
    beyond = [p for p in pairs(read_table()) if beyond_both_intervals(p)]
    assert [(p.ours.model, p.ours.beta, p.ours.benchmark, p.difference > 0) for p in beyond] == [
        (QWEN, 0.0, "MATH-500", True),
        (QWEN, 0.0, "OlympiadBench", True),
        (QWEN, 0.04, "MATH-500", False),
    ]
    assert found["cells_exceeding_both_intervals"] == 3
    assert found["cells_exceeding_both_intervals_in_favor"] == 2
    assert found["cells_exceeding_combined"] == 9
    assert found["differences_significant"] == found["differences_significant_after_holm"] == 2


def test_touching_intervals_do_not_exceed_each_other() -> None:
    assert not beyond_both_intervals(pair(2560, 2180, 195, 185))  # .0380 against .0195 + .0185, equal as printed
    assert beyond_both_intervals(pair(2561, 2180, 195, 185))
    assert beyond_both_intervals(pair(2180, 2561, 195, 185))
    assert not beyond_combined_interval(pair(50, 0, 30, 40))
    assert beyond_combined_interval(pair(51, 0, 30, 40))


def test_printed_intervals_are_standard_errors(tmp_path: Path) -> None:
    by_hand = math.sqrt(0.2 * 0.8 / 29)
    assert standard_error(cell(QWEN, None, "base", "AIME24")) == pytest.approx(10_000 * by_hand)
    assert round(by_hand, 4) == 0.0743
    found = values(tmp_path)
    assert found["intervals_printed"] == 46
    assert found["intervals_off_standard_error"] == 3
    assert found["stated_interval_is_standard_error_median_deviation"] < 1e-4
    assert found["stated_interval_over_95_interval"] == pytest.approx(1 / 1.96, abs=0.01)
    off = [c for c in read_table() if c.interval and abs(c.interval - standard_error(c)) > 0.6]
    assert [(c.model, c.beta, c.method, c.benchmark) for c in off] == [
        (LLAMA, 0.0, "grpo", "Minerva"),
        (LLAMA, 0.0, "grpo", "OlympiadBench"),
        (LLAMA, 0.0, "lambda-grpo", "OlympiadBench"),
    ]


def test_olympiadbench_has_675_problems_and_not_674() -> None:
    printed = [c.accuracy for c in read_table() if c.benchmark == "OlympiadBench"]

    def counts(n: int) -> int:
        return sum(abs(round(a / 10_000 * n) / n * 10_000 - a) <= 0.5 for a in printed)

    assert counts(675) == len(printed) == 10
    assert counts(674) == 0


def test_p_value_against_the_chi_square_test() -> None:
    for comparison in pairs(read_table()):
        n = PROBLEMS[comparison.ours.benchmark]
        right = [comparison.ours.share * n, comparison.grpo.share * n]
        if comparison.difference == 0:
            assert difference_p_value(comparison) == 1.0
            continue
        table = [[r, n - r] for r in right]
        expected = stats.chi2_contingency(table, correction=False).pvalue
        assert difference_p_value(comparison) == pytest.approx(expected, rel=1e-9)


def test_four_pairs_of_runs_are_what_the_table_compares(tmp_path: Path) -> None:
    """Means of five differences each, and Student's t over the four, by hand from the printed averages."""
    found = values(tmp_path)
    averages = {(c.model, c.beta, c.method): c.share for c in read_table() if c.benchmark == "avg"}
    by_hand = [
        averages[model, beta, "lambda-grpo"] - averages[model, beta, "grpo"]
        for model, beta, method in averages
        if method == "grpo"
    ]
    assert found["run_pairs"] == len(by_hand) == 4
    assert found["run_pair_mean_difference"] == pytest.approx(np.mean(by_hand), abs=1e-4)
    t = np.mean(by_hand) / (np.std(by_hand, ddof=1) / 2)
    assert found["run_pair_t"] == pytest.approx(t, abs=0.01)
    assert found["run_pair_p_value"] == pytest.approx(2 * stats.t.sf(t, 3), abs=1e-3)
    assert found["against_base_significant_gains"] == 0 and found["against_base_grpo_significant_losses"] == 2
    assert found["significant_leads_elsewhere"] == 0


def test_holm() -> None:
    assert holm_rejections([0.01, 0.04, 0.03]) == 1
    assert holm_rejections([0.01, 0.02, 0.05]) == 3
    assert holm_rejections([0.2]) == 0


def test_a_changed_number_changes_the_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The counts follow the table: they are not typed."""
    from grpo_replications.replications.lambda_grpo import table2_intervals as module

    changed: Any = tuple(
        replace(c, accuracy=1) if (c.model, c.beta, c.method) == (QWEN, 0.0, "lambda-grpo") and c.interval else c
        for c in read_table()
    )
    monkeypatch.setattr(module, "read_table", lambda: changed)
    found = values(tmp_path)
    assert found["cells_above_grpo"] == 10
    assert found["averages_off"] == 1
    assert found["accuracies_not_counts_of_problems"] == 5


def test_checks_quote_the_printed_table() -> None:
    checks = Paper.load(Path(__file__).parents[2] / "replications" / "lambda_grpo").checks
    cells = [check for check in checks if check.experiment == "table2" and check.kind == "direction"]
    deltas = [check for check in cells if check.metric != "accuracy/mean"]
    assert len(deltas) == 20
    for check in deltas:
        chosen, benchmark = check.select, check.metric.removeprefix("accuracy/")
        ours, grpo = (cell(chosen["model"], chosen["beta"], m, benchmark) for m in ("lambda-grpo", "grpo"))
        assert round(check.paper_value * 10_000) == ours.accuracy - grpo.accuracy
        rank = "above" if ours.accuracy > grpo.accuracy else "equal to" if ours.accuracy == grpo.accuracy else "below"
        assert f"(the printed cell is {rank})" in check.statement
    averages = [check for check in cells if check.metric == "accuracy/mean"]
    assert len(averages) == 4
    for check in averages:
        model, beta = check.select["model"], check.better["beta"]
        gain = cell(model, beta, "lambda-grpo", "avg").accuracy - cell(model, None, "base", "avg").accuracy
        assert round(check.paper_value * 10_000) == gain
