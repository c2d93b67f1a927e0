"""Solve rates: the packaged counts, files of every kind, wrong files, and the hub with and without network."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.planning.solve_rates import BIG_MATH_FILE, SolveRates, load_solve_rates
from grpo_replications.shared.tasks import math as hub_data
from grpo_replications.shared.theory.closed_forms import silent_fraction

HUB_NAME = "hub:open-r1/Big-Math-RL-Verified-Processed"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def pairs(rates: SolveRates) -> list[tuple[float, float]]:
    return list(zip(rates.rates.tolist(), rates.counts.tolist()))


def big_math_column() -> list[float]:
    packaged = load_solve_rates("big-math")
    return np.repeat(packaged.rates, packaged.counts.astype(int)).tolist()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, list]:
    """A hub that answers with the columns put into this dictionary and remembers what was asked for."""
    content: dict[str, list] = {}
    asked: list[str] = []

    def read(identifier: str, split: str) -> Dataset:
        asked.append(f"{identifier} {split}")
        return Dataset.from_dict({name: column for name, column in content.items() if name != "asked"})

    monkeypatch.setattr(hub_data, "read_rows", read)
    monkeypatch.setattr("grpo_replications.shared.planning.solve_rates._hub_answers", lambda name: True)
    content["asked"] = asked
    return content


def test_packaged_histogram() -> None:
    rates = load_solve_rates("big-math")
    assert (rates.problems, rates.samples, len(rates.rates)) == (215_608, 64, 65)
    assert (rates.counts[0], rates.counts[63], rates.counts[64]) == (8661, 8867, 15446)
    np.testing.assert_array_equal(rates.rates, np.arange(65) / 64)
    inner = rates.within()
    assert inner.problems == 215_608 - 8661 - 15446 and 0 not in inner.rates and 1 not in inner.rates
    assert round(float(silent_fraction(rates.rates, rates.counts, 8)), 2) == 0.44
    assert "CC BY 4.0" in BIG_MATH_FILE.read_text() and "arXiv:2607.00152" in BIG_MATH_FILE.read_text()


@pytest.mark.parametrize("column", ["solve_rate", "llama8b_solve_rate", "rate", "p"])
def test_columns_are_found_in_every_kind_of_file(tmp_path: Path, column: str) -> None:
    records = [{"problem": "1+1?", column: rate} for rate in (0.5, 0, 1.0, 0.5)]
    expected = [(0.0, 1.0), (0.5, 2.0), (1.0, 1.0)]
    files = {
        "a.json": json.dumps(records),
        "b.json": json.dumps({column: [0.5, 0, 1.0, 0.5]}),
        "c.json": json.dumps([0.5, 0, 1.0, 0.5]),
        "d.jsonl": "\n".join(json.dumps(record) for record in records) + "\n\n",
        "e.csv": f"# a comment\nproblem,{column}\n" + "\n".join(f'"what, #1?",{r[column]}' for r in records),
        "f.csv": f"\ufeff{column}\r\n0.5\r\n0\r\n1.0\r\n0.5\r\n",
    }
    for name, text in files.items():
        found = load_solve_rates(write(tmp_path / name, text))
        assert pairs(found) == expected and found.samples is None and name in found.source
    pd.DataFrame(records).to_parquet(tmp_path / "g.parquet")
    assert pairs(load_solve_rates(str(tmp_path / "g.parquet"))) == expected


def test_a_column_can_be_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "p,mine\n0.1,0.5\n0.2,0.5\n")
    assert pairs(load_solve_rates(file, column="mine")) == [(0.5, 2.0)]
    assert len(pairs(load_solve_rates(file))) == 2
    with pytest.raises(ReplicationError, match=r"no column 'yours'.*p, mine"):
        load_solve_rates(file, column="yours")


def test_histogram_files(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "# from somewhere\ncorrect_of_4,problems\n4,2\n0,3\n2,0\n1,5\n")
    rates = load_solve_rates(file)
    assert pairs(rates) == [(0.0, 3.0), (0.25, 5.0), (1.0, 2.0)] and rates.samples == 4
    file = write(tmp_path / "b.json", json.dumps({"correct_of_2": [0, 1], "problems": [1, 1]}))
    assert pairs(load_solve_rates(file)) == [(0.0, 1.0), (0.5, 1.0)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "is empty"),
        ("a.json", "[]", "is empty"),
        ("a.jsonl", "\n", "is empty"),
        ("a.csv", "p\n0.5\n\n,\n", "could not be read|row"),
        ("a.csv", "q,p\n1,0.5\n2,\n", "row 2 is missing"),
        ("a.csv", "p\n0.5\nhalf\n", "row 2 is 'half', not a number"),
        ("a.csv", "p\n0,5\n0,7\n", "could not be read"),
        ("a.csv", "p\n12.5\n87.5\n", "row 2 is 87.5, above 1.*percents: divide by 100"),
        ("a.csv", "p\ninf\n", "row 1 is inf"),
        ("a.csv", "p\n-0.1\n", "row 1 is -0.1, below 0"),
        ("a.csv", "score\n0.5\n", "no column of solve rates.*score.*Name the column"),
        ("a.csv", "p,rate\n0.5,0.6\n", "several columns.*rate, p.*Name the column"),
        ("a.json", "{", "could not be read as a json file"),
        ("a.json", '[{"p": 0.5}, {"q": 1}]', "row 2 is missing"),
        ("a.json", '[{"p": [0.5]}]', r"row 1 is \[0.5\], not a number"),
        ("a.jsonl", '{"p": 0.5}\n{"p": \n', "could not be read as a jsonl file"),
        ("a.parquet", "no parquet", "could not be read as a parquet file"),
        ("a.txt", "0.5", "no source of solve rates.*big-math.*hub:ID.*csv"),
        ("a.csv", "correct_of_4,problems\n5,1\n", "more than 4 rollouts"),
        ("a.csv", "correct_of_4,problems\n1,1\n1,2\n", "a value twice"),
        ("a.csv", "correct_of_4,problems\n0.5,1\n", "correct_of_4 in row 1 is 0.5"),
        ("a.csv", "correct_of_4,problems\n1,0\n", "holds no problem"),
    ],
)
def test_wrong_files_get_one_clear_message(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ReplicationError, match=message) as caught:
        load_solve_rates(write(tmp_path / name, text))
    assert "\n" not in str(caught.value)


def test_missing_files_and_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match=r"There is no file .*absent\.csv"):
        load_solve_rates(tmp_path / "absent.csv")
    for name in ("bigmath", "", "open-r1/Big-Math", str(tmp_path)):
        with pytest.raises(ReplicationError, match="no source of solve rates"):
            load_solve_rates(name)
    with pytest.raises(ReplicationError, match="needs the id"):
        load_solve_rates("hub:")


def test_big_math_from_the_hub_equals_the_packaged_counts(hub: dict[str, list]) -> None:
    hub["llama8b_solve_rate"] = big_math_column()
    rates, packaged = load_solve_rates(HUB_NAME), load_solve_rates("big-math")
    assert pairs(rates) == pairs(packaged) and rates.samples == 64 and HUB_NAME in rates.source
    assert hub["asked"] == ["open-r1/Big-Math-RL-Verified-Processed:all train"]


def test_big_math_from_the_hub_that_differs_is_refused(hub: dict[str, list]) -> None:
    column = big_math_column()
    hub["llama8b_solve_rate"] = [0.5, *column[1:]]
    with pytest.raises(ReplicationError, match=r"2 of the 65 counts differ.*k = 0: 8660 instead of 8661, k = 32"):
        load_solve_rates(HUB_NAME)
    hub["llama8b_solve_rate"] = column[:100]
    with pytest.raises(ReplicationError, match="100 problems for 215608"):
        load_solve_rates(f"{HUB_NAME}:level_1")
    hub["llama8b_solve_rate"] = [0.3, *column[1:]]
    with pytest.raises(ReplicationError, match="1 rates are no multiples of 1/64"):
        load_solve_rates(HUB_NAME)


def test_big_math_problems_without_a_rate_are_left_out_loudly(
    hub: dict[str, list], caplog: pytest.LogCaptureFixture
) -> None:
    hub["llama8b_solve_rate"] = [None, *big_math_column(), None]
    with caplog.at_level(logging.WARNING):
        assert load_solve_rates(HUB_NAME).problems == 215_608
    assert "2 problems have no solve rate" in caplog.text


def test_other_hub_data(hub: dict[str, list]) -> None:
    hub["solve_rate"] = [0.25, 0.5, 0.25]
    assert pairs(load_solve_rates("hub:some/data")) == [(0.25, 2.0), (0.5, 1.0)]
    hub["solve_rate"] = [0.25, None]
    with pytest.raises(ReplicationError, match="row 2 is missing"):
        load_solve_rates("hub:some/data")


def test_without_network_the_message_says_how_to_get_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi, constants

    def refuse(self: HfApi, name: str, timeout: float) -> None:
        raise OSError("no route")

    before = constants.HF_HUB_OFFLINE
    monkeypatch.setattr(HfApi, "dataset_info", refuse)
    with pytest.raises(ReplicationError, match=r"Big-Math-RL-Verified-Processed.*hf download --repo-type dataset"):
        load_solve_rates(HUB_NAME)
    assert before == constants.HF_HUB_OFFLINE
