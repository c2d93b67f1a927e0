"""What a comparison of two results calls a difference, how it measures it, and the reasons it gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from grpo_replications.shared.harness.compare import Comparison, compare, standard_errors
from grpo_replications.shared.harness.compare_figures import _png, shared_axis
from grpo_replications.shared.harness.compare_paper import paper_values
from grpo_replications.shared.harness.compare_text import summary, verdict_in_one_line
from grpo_replications.shared.harness.measurements import CSV_COLUMNS, MEASUREMENTS, write_measurements
from grpo_replications.shared.harness.snapshots import CRITERION, JudgedCheck, Number, Snapshot

Change = Callable[[JudgedCheck], JudgedCheck]


def check(name: str = "p/score", experiment: str = "train", **changes: Any) -> JudgedCheck:
    number = Number(name, name, "score", 1.0, 0.0, 2.0, 8, "0-7", "holds")
    criterion = {**dict.fromkeys(CRITERION, ""), "kind": "at_least", "threshold": "0.5", "criterion": "words"}
    own = JudgedCheck(
        name, "p/claim", "published", "reproduced", "points", experiment, 8, "", criterion, {"": number}, False
    )
    return replace(own, **changes)


def moved(own: JudgedCheck, **changes: Any) -> JudgedCheck:
    return replace(own, numbers={"": replace(own.numbers[""], **changes)})


def side(directory: Path, *checks: JudgedCheck, profile: str = "quick", **record: Any) -> Snapshot:
    experiments = {one.experiment: {"jobs_finished": 1, "seeds": "0-7"} for one in checks}
    return Snapshot(
        directory.name,
        "p",
        profile,
        directory,
        {"experiments": experiments, **record},
        {one.id: one for one in checks},
        {},
        frozenset(experiments),
    )


@pytest.fixture
def against(tmp_path: Path) -> Callable[..., Comparison]:
    def run(*after: JudgedCheck, before: tuple[JudgedCheck, ...] = (check(),)) -> Comparison:
        return compare(side(tmp_path / "a", *before), side(tmp_path / "b", *after))

    return run


def test_equal_results_are_identical(against: Callable[..., Comparison]) -> None:
    found = against(check())
    assert not found.differs and found.counted == 1 and not found.verdicts
    assert verdict_in_one_line(found) == "identical: 1 number, 1 verdict, timings aside"


def test_a_moved_number_is_measured_in_combined_standard_errors(against: Callable[..., Comparison]) -> None:
    found = against(moved(check(), value=2.0, low=1.0, high=3.0))
    (pair,) = found.moved
    # Both standard errors are 1 / 1.96, so that of the difference is sqrt(2) / 1.96.
    assert pair.standard_errors == pytest.approx(1.959964 / math.sqrt(2)) and pair.overlap and found.differs
    assert against(moved(check(), value=9.0, low=8.0, high=10.0)).moved[0].overlap is False
    assert math.isnan(against(moved(check(), high=math.inf)).moved[0].standard_errors)


def test_a_range_of_possible_means_is_no_standard_error(against: Callable[..., Comparison]) -> None:
    criterion = {**check().criterion, "kind": "interval"}
    before, after = check(criterion=criterion), moved(check(criterion=criterion), value=1.5)
    assert math.isnan(against(after, before=(before,)).moved[0].standard_errors)
    assert standard_errors(before.numbers[""], after.numbers[""]) > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda own: replace(own, criterion={**own.criterion, "threshold": "0.9"}), "threshold 0.5 → 0.9"),
        (lambda own: replace(own, n=12), "n 8 → 12"),
        (lambda own: moved(own, value=1.5), "number moved by +0.69 combined standard errors"),
        (lambda own: moved(own, low=0.5), "number moved in its interval only"),
        (lambda own: own, "the rules of judging changed"),
    ],
)
def test_a_changed_verdict_comes_with_its_reason(
    against: Callable[..., Comparison], change: Change, reason: str
) -> None:
    found = against(change(replace(check(), verdict="inconclusive")))
    (verdict,) = found.changed
    assert (verdict.a, verdict.b) == ("reproduced", "inconclusive") and reason in "; ".join(verdict.reasons)
    assert len(verdict.reasons) == 1 and found.differs


def test_timings_are_no_difference(against: Callable[..., Comparison]) -> None:
    found = against(replace(moved(check(), value=5.0), verdict="not reproduced", timing=True))
    assert not found.differs and len(found.timings) == 1 and found.counted == 0


def test_what_only_one_side_has_measured_is_listed_and_no_difference(against: Callable[..., Comparison]) -> None:
    other = check("p/other", "other")
    assert not against(check(), before=(check(), other)).differs
    assert against(check(), before=(check(), other)).only_a == ("other",)
    lone = against(check(), check("p/new"))  # a check that was added for an experiment of both
    assert lone.lone_b == ("p/new",) and lone.differs and "1 check judged only in b" in verdict_in_one_line(lone)


def test_measured_rows_are_compared_where_bytes_differ(tmp_path: Path) -> None:
    rows = [["train", "lr=1", seed, 10, "score", 1.0] for seed in range(3)]
    for name, value in (("a", 2.0), ("b", 2.2)):
        (tmp_path / name).mkdir()
        frame = pd.DataFrame([*rows, ["train", "lr=1", 3, 10, "score", value]], columns=CSV_COLUMNS)
        write_measurements(frame, tmp_path / name / MEASUREMENTS)
    found = compare(side(tmp_path / "a", check()), side(tmp_path / "b", check()))
    assert found.rows is not None and found.differs
    (changes,) = found.rows
    assert (changes.rows, changes.differ, changes.only_a) == (4, 1, 0) and changes.relative == pytest.approx(0.1 / 1.1)
    assert "1 of 4 rows differ" in dict(summary(found))["measurements"]
    assert compare(side(tmp_path / "a", check()), side(tmp_path / "a", check())).identical_bytes


def test_settings_seeds_machine_and_packages_are_told(tmp_path: Path) -> None:
    def record(seeds: str, lr: list[float], torch: str) -> dict[str, Any]:
        entry = {"jobs_finished": 1, "seeds": seeds, "settings": [{"lr": one} for one in lr], "commits": {"c" * 40: 1}}
        return {"experiments": {"train": entry}, "packages": {"torch": torch}, "machine": {"cpu": "X", "cores": 2}}

    a, b = side(tmp_path / "a", check()), side(tmp_path / "b", check())
    a = replace(a, record=record("0-7", [1, 2], "2.13"))
    found = dict(summary(compare(a, replace(b, record=record("0-3", [1], "2.12")))))
    assert found["settings"] == "train: seeds 0-7 | 0-3; lr 1, 2 | 1"
    assert found["torch"] == "2.13 | 2.12" and found["machine"] == "X, 2 cores, no GPU" and found["commit"] == "c" * 12


def test_the_machine_is_that_of_the_experiments_not_of_the_record(tmp_path: Path) -> None:
    ran = {"one": ["A"], "two": ["A"], "three": ["A", "B"]}
    record = {
        "experiments": {name: {"jobs_finished": 1, "machines": machines} for name, machines in ran.items()},
        "machine": {"cpu": "B", "cores": 2, "gpus": []},
    }
    here = replace(side(tmp_path / "a", check()), record=record)
    there = replace(here, record={**record, "machine": {**record["machine"], "cores": 4}})
    assert (
        dict(summary(compare(here, there)))["machine"]
        == "A and B (three), 2 cores, no GPU | A and B (three), 4 cores, no GPU"
    )


@pytest.mark.filterwarnings("error")
def test_long_names_leave_room_for_the_axis(against: Callable[..., Comparison]) -> None:
    number = replace(check().numbers[""], name=f"p/score[{'setting=value;' * 14}]")
    pairs = against(check(numbers={"": number}), before=(check(numbers={"": number}),)).numbers
    assert len(_png(shared_axis(pairs, "claim", ("a", "b")))) > 1000


def test_the_papers_value_is_inside_or_not(tmp_path: Path) -> None:
    def with_paper(own: JudgedCheck, value: str, **criterion: str) -> JudgedCheck:
        return replace(own, criterion={**own.criterion, "paper_value": value, **criterion})

    checks = (
        with_paper(check("p/in"), "1.5"),
        with_paper(check("p/out"), "3"),
        with_paper(moved(check("p/exact"), low=math.nan, high=math.nan), "1.01", kind="exact"),
        with_paper(moved(check("p/unknown"), low=-math.inf, high=math.inf), "1"),
        check("p/none"),
    )
    found = {one.ours.name: one.inside for one in paper_values(side(tmp_path, *checks))}
    assert found == {"p/in": True, "p/out": False, "p/exact": True, "p/unknown": None}
