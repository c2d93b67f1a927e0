"""The tables of departures on the papers' pages hold the values of `profiles.toml`, and leave out none that differs.

A row of such a table names experiments in its first cell, as code. Code of the form `key = value` in the cell of a
profile is a setting: in every experiment of the row that the profile has, the values that its cells give this setting
are those in the cell, no more and no fewer. `seeds` is the number of seeds.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profiles import Plan, setting

ROOT = Path(__file__).parents[2]
TITLE = "## Departures from the paper's setting"
HEAD = ["setting", "paper", "its code", "profile `paper`", "profile `authors-code`", "why"]
PROFILES = ("paper", "authors-code")
PAPERS = ("lambda_grpo", "grpo_sg", "sigma_identity")
UNSET = "unset"


@lru_cache
def paper(name: str) -> Paper:
    return Paper.load(ROOT / "replications" / name)


def table(name: str) -> list[list[str]]:
    """The cells of the table's rows, without its head."""
    page = (ROOT / "replications" / name / "README.md").read_text(encoding="utf-8")
    section = page.split(TITLE + "\n", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip().strip("|") for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]
    assert rows[0] == HEAD
    return rows[2:]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def stated(cell: str) -> dict[str, set[str]]:
    """Every setting of a cell with its values, as JSON."""
    found: dict[str, set[str]] = {}
    for span in code(cell):
        key, equals, value = span.partition(" = ")
        if equals:
            found.setdefault(key, set()).add(json.dumps(tomllib.loads(f"value = {value}")["value"]))
    return found


def actual(name: str, plan: Plan, key: str) -> set[str]:
    """The values of a setting over an experiment's cells, those of the settings' defaults among them."""
    if key == "seeds":
        return {str(len(plan.seeds_of(i))) for i in range(len(plan.cells))}
    defaults = paper(name).experiment(plan.experiment).settings.defaults()
    values = [setting(cell, key) for cell in plan.cells]
    return {json.dumps(setting(defaults, key) if value is None else value) for value in values}


@pytest.mark.parametrize("name", PAPERS)
def test_every_value_of_the_table_is_that_of_the_profile(name: str) -> None:
    wrong = []
    for row in table(name):
        for profile, cell in zip(PROFILES, row[3:5], strict=True):
            plans = paper(name).profile(profile).plans
            known = [one for one in code(row[0]) if one in paper(name).experiments]
            assert known, f"no experiment in: {row[0]}"
            for key, values in stated(cell).items():
                found = {one: actual(name, plans[one], key) for one in known if one in plans}
                assert found, f"{profile} has none of {known}, and the table gives {key}"
                wrong += [f"{profile}, {one}: {key} is {v}, not {values}" for one, v in found.items() if v != values]
    assert not wrong, "\n".join(wrong)


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    parts = [flat(v, f"{prefix}{k}.") if isinstance(v, dict) else {f"{prefix}{k}": v} for k, v in table.items()]
    return {key: value for part in parts for key, value in part.items()}


@pytest.mark.parametrize("name", PAPERS)
def test_every_setting_in_which_the_two_profiles_differ_is_in_the_table(name: str) -> None:
    plans = [paper(name).profile(profile).plans for profile in PROFILES]
    rows = [(code(row[0]), stated(row[3]) | stated(row[4])) for row in table(name)]
    missing = []
    for experiment in plans[0].keys() & plans[1].keys():
        cells = [[flat(cell) for cell in one[experiment].cells] for one in plans]
        keys = {key for cell in cells[0] + cells[1] for key in cell}
        for key in sorted(keys):
            values = [{json.dumps(cell.get(key, UNSET)) for cell in one} for one in cells]
            named = any(experiment in experiments and key in settings for experiments, settings in rows)
            missing += [f"{experiment}: {key}"] if values[0] != values[1] and not named else []
    assert not missing, "\n".join(missing)


def test_no_profile_chooses_a_checkpoint_on_a_test_set() -> None:
    for name in PAPERS:
        for profile in paper(name).profiles.values():
            for plan in profile.plans.values():
                for cell in plan.cells:
                    where = f"{name}, {profile.name}, {plan.experiment}"
                    assert "dataset" not in cell or cell.get("validation", "held-out") == "held-out", where
