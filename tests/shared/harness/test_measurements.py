"""Measurements on disk: the same bytes for the same results, and a frame that says what it holds."""

from __future__ import annotations

import bz2
import random
from pathlib import Path

import pandas as pd
import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import Job, check_rows
from grpo_replications.shared.harness.measurements import (
    CSV_COLUMNS,
    MEASUREMENTS,
    load_measurements,
    tidy,
    write_measurements,
)


def finished(label: str, seed: int, values: dict[str, float]) -> tuple[Job, dict[str, object]]:
    job = Job("e", 1, {"threads": 1}, label, range(seed, seed + 1), False)
    return job, {"rows": check_rows([{"metric": name, "value": value} for name, value in values.items()], job)}


def test_the_order_of_completion_does_not_show(tmp_path: Path) -> None:
    jobs = [finished(f"lr={lr}", seed, {"b": seed / 3, "a": -0.0}) for lr in (0.5, 10, 2) for seed in range(12)]
    contents = []
    for attempt in range(2):
        random.Random(attempt).shuffle(jobs)
        write_measurements(tidy(jobs)[0], tmp_path / MEASUREMENTS)
        contents.append((tmp_path / MEASUREMENTS).read_bytes())
    assert contents[0] == contents[1]
    lines = bz2.decompress(contents[0]).decode().splitlines()
    assert lines[1] == "e,lr=0.5,0,,a,0" and lines[13] == "e,lr=0.5,0,,b,0" and lines[14] == "e,lr=0.5,1,,b,0.333333333"


def test_numbers_words_and_absent_settings_come_back(tmp_path: Path) -> None:
    jobs = [
        finished("fast=true;lr=0.5;name=sgd", 0, {"m": float("nan")}),
        finished("lr=1", 1, {"m": float("-inf")}),
        finished("", 2, {"m": 1.0}),
    ]
    write_measurements(tidy(jobs)[0], tmp_path / MEASUREMENTS)
    frame = load_measurements(tmp_path / MEASUREMENTS).set_index("seed")
    assert frame["lr"].tolist()[1:] == [0.5, 1.0] and frame["lr"].isna().tolist() == [True, False, False]
    assert frame.loc[0, "fast"] is True and frame.loc[0, "name"] == "sgd"
    assert frame["value"].isna()[0] and frame["value"][1] == float("-inf")


def test_nothing_measured_is_an_empty_table(tmp_path: Path) -> None:
    write_measurements(tidy([])[0], tmp_path / MEASUREMENTS)
    assert load_measurements(tmp_path / MEASUREMENTS).empty


def test_pandas_reads_the_file_as_it_is(tmp_path: Path) -> None:
    write_measurements(tidy([finished("lr=1", 1, {"m": 0.1})])[0], tmp_path / MEASUREMENTS)
    frame = pd.read_csv(tmp_path / MEASUREMENTS)
    assert list(frame.columns) == CSV_COLUMNS and frame["value"].tolist() == [0.1]


WHOLE = bz2.compress(b"experiment,settings,seed,step,metric,value\n" + b"e,lr=1,0,,m,1\n" * 10)


@pytest.mark.parametrize(
    "content",
    [
        bz2.compress(b"experiment,settings\n"),
        bz2.compress(b"a,b,c\n1,2\n3,4,5,6\n"),
        bz2.compress(WHOLE),
        WHOLE[:-9],
        WHOLE[:40] + b"\0\0\0" + WHOLE[43:],
        b"experiment,settings,seed,step,metric,value\n",
        b"",
    ],
    ids=["columns", "rows", "not a table", "cut off", "changed bytes", "not compressed", "empty"],
)
def test_damaged_measurements_are_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / MEASUREMENTS
    path.write_bytes(content)
    with pytest.raises(ReplicationError, match=MEASUREMENTS):
        load_measurements(path)


def test_absent_measurements_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="run the profile first"):
        load_measurements(tmp_path / MEASUREMENTS)
