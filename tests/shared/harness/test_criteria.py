"""Criteria are written before the run, and the record shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grpo_replications.shared.harness.checks import Check
from grpo_replications.shared.harness.criteria import (
    NEWER,
    NOT_RECORDED,
    OLDER,
    PARTLY_NEWER,
    WORDS,
    criterion_hash,
    criterion_newer,
    keep_criteria,
    read_kept,
)
from grpo_replications.shared.harness.measurements import CSV_COLUMNS, MEASUREMENTS, write_measurements
from grpo_replications.shared.harness.outcomes import evaluate_profile, read_verdicts, write_verdicts
from grpo_replications.shared.harness.papers import Paper
from tests.shared.harness.test_verdicts import check, direction


def record(directory: Path) -> dict:
    return {"experiments": {name: {"criteria": kept} for name, kept in read_kept(directory).items()}}


@pytest.mark.parametrize(
    "changes",
    [
        {"margin": 0.5},
        {"beyond": "zero", "margin": 0.1},
        {"metric": "other"},
        {"select": {"lr": 1}},
        {"conditions": ("lr",)},
        {"min_seeds": 9},
        {"higher_is_better": False},
        {"worse_factor": 2.0},
    ],
)
def test_whatever_decides_changes_the_hash(changes: dict) -> None:
    assert criterion_hash(direction(**changes)) != criterion_hash(direction())


def test_the_words_around_a_criterion_do_not() -> None:
    other = direction(
        statement="t", where="x", criterion="c", unit="v", definition="e", answers="support", paper_value=3.0
    )
    assert criterion_hash(other) == criterion_hash(direction())
    printed = [criterion_hash(check("interval", value=value, paper_seeds=5)) for value in (1.0, 2.0)]
    assert printed[0] != printed[1]  # where the paper's number is what is tested


def test_a_criterion_edited_after_the_run_is_newer(tmp_path: Path) -> None:
    before, edited = direction(), direction(margin=0.5)
    keep_criteria([before], "quick", tmp_path, {"e": 0}, "2026-01-01")
    assert criterion_newer(before, record(tmp_path)) == OLDER
    assert criterion_newer(edited, record(tmp_path)) == NEWER
    keep_criteria([edited], "quick", tmp_path, {}, "2026-01-02")  # nothing was left to run
    assert criterion_newer(edited, record(tmp_path)) == NEWER
    keep_criteria([edited], "quick", tmp_path, {"e": 3}, "2026-01-03")  # more seeds, three jobs were there
    assert criterion_newer(edited, record(tmp_path)) == PARTLY_NEWER
    assert criterion_newer(before, record(tmp_path)) == OLDER
    keep_criteria([edited], "quick", tmp_path, {"e": 0}, "2026-01-04")  # all of it again
    assert criterion_newer(edited, record(tmp_path)) == OLDER
    assert criterion_newer(before, record(tmp_path)) == NEWER


def test_results_from_before_the_record_claim_nothing(tmp_path: Path) -> None:
    old = {"experiments": {"e": {"jobs": 3}}}
    assert criterion_newer(direction(), old) == NOT_RECORDED
    assert criterion_newer(direction(post_hoc=True), old) == NEWER
    keep_criteria([direction()], "quick", tmp_path, {"e": 0}, "2026-01-01")
    assert criterion_newer(direction(post_hoc=True), record(tmp_path)) == OLDER  # measured anew under it


def test_only_checks_of_the_experiment_and_the_profile_are_kept(tmp_path: Path) -> None:
    others: list[Check] = [direction(experiment="x"), direction(profiles=("full",))]
    keep_criteria([direction(margin=1.0), *others], "quick", tmp_path, {"e": 0}, "2026-01-01")
    assert [entry["hash"] for entry in read_kept(tmp_path)["e"]] == [criterion_hash(direction(margin=1.0))]


def test_a_verdict_says_by_itself_that_its_criterion_is_newer(toy: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = [
        ["batch", f"lr={lr};method={method}", seed, 10, "score", generator.normal(5 * (method == "new"))]
        for lr in (0.5, 1)
        for method in ("new", "old")
        for seed in range(8)
    ]
    results, paper = tmp_path / "results", Paper.load(toy)
    results.mkdir()
    frame = pd.DataFrame(rows, columns=CSV_COLUMNS)
    write_measurements(frame.astype({"seed": "Int64", "step": "Int64"}), results / MEASUREMENTS)
    keep_criteria(paper.checks, "quick", results, {"batch": 0, "draw": 0}, "2026-01-01")
    (results / "record.json").write_text(pd.io.json.ujson_dumps(record(results)))

    def newer() -> str:
        write_verdicts(Paper.load(toy), evaluate_profile(Paper.load(toy), "quick", results), results)
        lines = {line.check.id: line for line in read_verdicts(Paper.load(toy), "quick", results)}
        return lines["toy-paper/direction"].newer

    assert newer() == ""
    claims = toy / "claims.toml"
    claims.write_text(claims.read_text().replace('conditions = ["lr"]', 'conditions = ["lr"]\nmargin = 0.5'))
    assert newer() == WORDS[NEWER]
