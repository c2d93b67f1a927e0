"""profiles.toml: mistakes are named, and cells, grid and fixed settings combine as documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import Experiment
from grpo_replications.shared.harness.profiles import load_profiles, parse_value
from grpo_replications.shared.harness.runs import jobs_of
from grpo_replications.shared.settings import Settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[quick]\nbudget = 3\n[quick.e]\nseeds = 1", "unknown key 'budget'"),
        ("[quick]\nbudget_minutes = 'x'\n[quick.e]\nseeds = 1", "wrong type"),
        ("[quick]\ndescription = 'x'", "no experiment"),
        ("[quick]\nrequires = 'luck'\n[quick.e]\nseeds = 1", "requires must be one of gpu, hub"),
        ("seeds = 3", "outside any profile"),
        ("[quick.e]\nlr = 1", "'seeds' is missing"),
        ("[quick.e]\nseeds = 0", "a number of seeds of at least 1.* not 0"),
        ("[quick.e]\nseeds = true", "a number of seeds of at least 1.* not True"),
        ("[quick.e]\nseeds = '9-3'", "the first and the last.* not '9-3'"),
        ("[quick.e]\nseeds = 1\nworkers = 1.5", "'workers' must be a whole number"),
        ("[quick.e]\nseeds = 1\nseed = 4", "reserved name"),
        ("[quick.e]\nseeds = 1\nlr = nan", "not a finite number"),
        ("[quick.e]\nseeds = 1\n[quick.e.grid]\nlr = 1", "a list of at least one value"),
        ("[quick.e]\nseeds = 1\n[quick.e.grid]\nlr = []", "a list of at least one value"),
        ("[quick.e]\nseeds = 1\n[quick.e.grid]\nlr = [1, 1]", "written twice"),
        ("[quick.e]\nseeds = 1\n[quick.e.grid]\nlr = ['1']", "without quotes"),
        ("[quick.e]\nseeds = 1\n[quick.e.grid]\nname = ['a;b']", "may not contain"),
        ("[quick.e]\nseeds = 1\ncells = 3", "cells must be written"),
        ("[quick.e]\nseeds = 1\n[quick.e.grid]\nlr = [1]\n[[quick.e.cells]]\nlr = 2", "both grid and cells"),
        ("[quick.e", "not valid TOML"),
    ],
)
def test_mistakes_in_profiles_are_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(ReplicationError, match=message) as error:
        load_profiles(path)
    assert str(path) in str(error.value)


def test_cells_are_merged_over_fixed_settings_and_crossed_with_the_grid(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(
        "[quick.e]\nseeds = 2\nsteps = 5\n[quick.e.grid]\nlr = [0.5, 1]\nfast = [true]\n"
        "[[quick.e.cells]]\nsteps = 6\n[[quick.e.cells]]\nname = 'x'\n"
    )
    plan = load_profiles(path)["quick"].plans["e"]
    assert [plan.label(cell) for cell in plan.cells] == [
        "fast=true;lr=0.5;steps=6",
        "fast=true;lr=1;steps=6",
        "fast=true;lr=0.5;name=x;steps=5",
        "fast=true;lr=1;name=x;steps=5",
    ]
    assert plan.cells[0] == {"threads": 1, "steps": 6, "lr": 0.5, "fast": True}
    together = jobs_of(plan, Experiment(print, "", Settings, seeds_at_once=True))
    apart = jobs_of(plan, Experiment(print, "", Settings))
    assert (len(together), len(apart)) == (4, 8)
    assert {len(job.seeds) for job in together} == {2} and {len(job.seeds) for job in apart} == {1}


@pytest.mark.parametrize(("text", "value"), [("true", True), ("3", 3), ("0.5", 0.5), ("1e-05", 1e-5), ("sgd", "sgd")])
def test_values_are_read_back(text: str, value: object) -> None:
    assert parse_value(text) == value and type(parse_value(text)) is type(value)


def test_seeds_may_begin_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text("[quick.e]\nseeds = '64-66'\n[quick.e.grid]\nlr = [1, 2]\n")
    profile = load_profiles(path)["quick"]
    apart, together = (Experiment(print, "", Settings, seeds_at_once=once) for once in (False, True))
    assert [job.seeds for job in jobs_of(profile.plans["e"], together)] == [range(64, 67)] * 2
    assert [job.seeds.start for job in jobs_of(profile.plans["e"], apart)] == [64, 65, 66] * 2
    assert str(jobs_of(profile.plans["e"], together)[0]).endswith("seeds 64-66)")
    asked = [job.seeds.start for job in jobs_of(profile.with_overrides(seeds="7-8").plans["e"], apart)]
    assert asked == [7, 8, 7, 8]
    assert jobs_of(profile.with_overrides(seeds="2").plans["e"], together)[0].seeds == range(2)


def test_a_cell_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(
        "[quick.e]\nseeds = 2\n[quick.e.grid]\nlr = [1, 2]\n"
        "[[quick.e.cells]]\nsize = 1\nseeds = 5\n[[quick.e.cells]]\nsize = 9\n"
    )
    profile = load_profiles(path)["quick"]
    experiment = Experiment(lambda *_: [], "e", Settings)
    jobs = jobs_of(profile.plans["e"], experiment)
    counts = {(job.settings["size"], job.settings["lr"]): 0 for job in jobs}
    for job in jobs:
        counts[job.settings["size"], job.settings["lr"]] += 1
    assert counts == {(1, 1): 5, (1, 2): 5, (9, 1): 2, (9, 2): 2}
    assert all("seeds" not in job.settings for job in jobs)
    assert len(jobs_of(profile.with_overrides(seeds=3).plans["e"], experiment)) == 12
