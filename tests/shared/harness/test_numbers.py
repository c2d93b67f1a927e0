"""A record says everything about a number that a reader who cites it needs, and survives the file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.checks import CHECK
from grpo_replications.shared.harness.judging import central_kind
from grpo_replications.shared.harness.numbers import (
    NUMBER_COLUMNS,
    Number,
    profile_numbers,
    read_numbers,
    selection_of,
    statistic_of,
    write_numbers,
)
from grpo_replications.shared.harness.outcomes import CellLine, CheckLine, write_csv
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.verdicts import command_for
from grpo_replications.shared.statistics.estimates import Estimate

RECORD = {
    "machine": {"cpu": "A CPU", "cores": 2, "gpus": []},
    "experiments": {"batch": {"commits": {"0a": 1, "9b+": 3}, "machines": ["One CPU"]}},
}


def numbers(toy: Path, estimate: Estimate, check: str = "toy-paper/direction", won=(8, 0, 2)) -> list[Number]:
    """The records of one cell of a check of the toy paper."""
    paper = Paper.load(toy)
    chosen = next(one for one in paper.checks if one.id == check)
    cell = CellLine("lr=0.5", "holds", estimate, "0-9", won, 0.01, "")
    command = command_for("toy-paper", "quick", "batch")
    line = CheckLine(chosen, "quick", "reproduced", estimate, "", "", command, (cell,), "yes")
    return profile_numbers(paper, "quick", RECORD, [line])


def test_a_record_says_what_a_citation_needs(toy: Path) -> None:
    number, won = numbers(toy, Estimate(1.0, 0.9, 1.1, 10, "bootstrap"))
    assert number.id == "toy-paper/direction[lr=0.5]@quick" and number.profile == "quick"
    assert (number.unit, number.statistic, number.n, number.n_of, number.seeds) == (
        *("points", "mean difference"),
        *(10, "seeds", "0-9"),
    )
    assert number.interval == "95 % CI, bootstrap" and number.is_confidence_interval
    assert number.definition == "score, new minus old"
    assert number.selection == "step=last; method=new minus method=old"
    assert (number.paper_value, number.threshold) == (1.0, None)
    assert "scaled analogue" in number.caveat and "criterion written after" in number.caveat
    assert "2 commits" in number.caveat and "uncommitted" in number.caveat
    assert number.machine == "One CPU, 2 cores, no GPU"
    assert number.regenerate == "git checkout 9b && make replicate-toy-paper PROFILE=quick ONLY=batch ARGS=--fresh"
    assert won.id == "toy-paper/direction[lr=0.5]:won@quick"
    assert (won.value, won.n, won.unit, won.statistic, won.paper_value) == (1.0, 8, "share of seeds", "share", None)
    assert won.low is not None and won.low < 1


def test_no_interval_is_made_up_and_a_central_range_is_no_confidence_interval(toy: Path) -> None:
    (single,) = numbers(toy, Estimate(1.0, -math.inf, math.inf, 1), won=None)
    assert (single.low, single.high, single.interval) == (None, None, "unknown")
    (exact,) = numbers(toy, Estimate(1.0, math.nan, math.nan, 1), won=None)
    assert (exact.low, exact.high, exact.interval) == (None, None, "")
    (central,) = numbers(toy, Estimate(1.0, 0.9, 1.1, 40, central_kind(5)), won=None)
    assert central.interval == "central 95 % of means of 5 runs" and not central.is_confidence_interval
    assert numbers(toy, Estimate(math.nan, math.nan, math.nan, 0), won=None) == []


def test_records_survive_the_file(toy: Path, tmp_path: Path) -> None:
    found = numbers(toy, Estimate(1.0, 0.9, 1.1, 10, "bootstrap"))
    found.append(replace(found[0], id="x@full", low=None, high=None, paper_value=None))
    write_numbers(tmp_path / "numbers.csv", found)
    read = read_numbers(tmp_path / "numbers.csv")
    assert [replace(one, low=0, high=0) for one in read] == [replace(one, low=0, high=0) for one in found]
    assert read[-1].low is None and read[0].low == 0.9
    write_csv(tmp_path / "old.csv", [*NUMBER_COLUMNS[:-1]], [["x"] * (len(NUMBER_COLUMNS) - 1)])
    with pytest.raises(ReplicationError, match=f"no column {NUMBER_COLUMNS[-1]}"):
        read_numbers(tmp_path / "old.csv")
    with pytest.raises(ReplicationError, match="replicate report"):
        read_numbers(tmp_path / "absent.csv")


def test_the_statistic_and_the_rows_are_named() -> None:
    common = {
        **{"claim": "p/c", "source": "paper", "id": "p/x", "statement": "s", "where": "w", "answers": "here"},
        **{"experiment": "e", "profiles": ("full",), "metric": "m", "unit": "u", "definition": "d"},
    }
    sides = {"better": {"method": ["a", "b"]}, "worse": {"method": "c"}}

    def made(kind: str, **keys):
        return CHECK.validate_python({**common, "kind": kind, **keys})

    time = made("time", horizon=100.0, select={"lr": 0.5}, **sides)
    assert (statistic_of(time), selection_of(time)) == ("ratio of mean times", "lr=0.5; method=a|b over method=c")
    half = made("direction", worse_factor=0.5, **sides)
    assert selection_of(half) == "method=a|b minus 0.5 times method=c"
    assert statistic_of(made("peak", **sides)) == "difference of best means"
    assert statistic_of(made("exact")) == "maximum"
    assert statistic_of(made("exact", expect="violation", minimum=0.1)) == "minimum"
    assert statistic_of(made("at_least", threshold=1.0)) == "mean"
