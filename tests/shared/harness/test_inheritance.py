"""`like` in profiles: what is inherited, what is replaced, what is left out, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.profiles import Profile, load_profiles

BASE = """
[quick]
description = "first"
budget_minutes = 3
[quick.a]
seeds = 2
lr = 0.1
size = 4
grid = { n = [1, 2] }
[quick.b]
seeds = 1
kind = "x"
[quick.c]
seeds = 1
"""


def profiles(text: str, path: Path) -> dict[str, Profile]:
    (path / "profiles.toml").write_text(BASE + text)
    return load_profiles(path / "profiles.toml")


def cells(profile: Profile, experiment: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in cell.items() if key != "threads"} for cell in profile.plans[experiment].cells]


def test_a_profile_writes_only_its_differences(tmp_path: Path) -> None:
    text = (
        '[full]\nlike = "quick"\nc = false\n[full.a]\nseeds = 9\nlr = 0.2\ngrid = { n = [3] }\n[full.new]\nseeds = 1\n'
    )
    full = profiles(text, tmp_path)["full"]
    assert cells(full, "a") == [{"lr": 0.2, "size": 4, "n": 3}] and full.plans["a"].seeds == 9
    assert cells(full, "b") == [{"kind": "x"}]
    assert "c" not in full.plans and "new" in full.plans
    assert (full.description, full.budget_minutes) == ("", None), "what is said of one profile is not said of another"


def test_an_inherited_table_equals_one_written_out(tmp_path: Path) -> None:
    written = "[whole.a]\nseeds = 5\nlr = 0.1\nsize = 4\ngrid = { n = [1, 2] }\n"
    inherited = '[full]\nlike = "quick"\n[full.a]\nseeds = 5\n'
    both = profiles(f"[whole]\n{written}{inherited}", tmp_path)
    assert both["full"].plans["a"] == both["whole"].plans["a"]


def test_experiments_run_as_written_and_others_keep_their_place(tmp_path: Path) -> None:
    text = '[full]\nlike = "quick"\n[full.new]\nseeds = 1\n[full.c]\nseeds = 2\n[full.a]\nseeds = 3\n'
    assert list(profiles(text, tmp_path)["full"].plans) == ["new", "c", "a", "b"]


def test_an_experiment_is_like_a_sibling_or_one_of_another_profile(tmp_path: Path) -> None:
    text = """
[full]
like = "quick"
[full.b]
like = "a"
without = ["grid", "size"]
kind = "y"
[full.d]
like = "quick.b"
"""
    full = profiles(text, tmp_path)["full"]
    assert cells(full, "b") == [{"lr": 0.1, "kind": "y"}] and full.plans["b"].seeds == 2
    assert cells(full, "d") == [{"kind": "x"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[full]\nlike = "quik"\n', r"\[full\]: like = 'quik' is no profile; there are: quick, full"),
        ("[full]\nlike = 1\n", "like = 1 is no profile"),
        ('[full]\nlike = "full"\n', "like leads back to it"),
        ('[full]\nlike = "gpu"\n[gpu]\nlike = "full"\n', "like leads back to it: full -> gpu -> full"),
        ('[full.x]\nlike = "y"\nseeds = 1\n[full.y]\nlike = "x"\n', "leads back to it: full.x -> full.y -> full.x"),
        ('[full.x]\nlike = "z"\nseeds = 1\n', r"\[full.x\]: like = 'z' is no experiment; there are: x"),
        ('[full.x]\nlike = "quick.z"\nseeds = 1\n', "no experiment; there are: a, b, c"),
        ('[full]\nlike = "quick"\nz = false\n', "z = false leaves out an experiment that is not there"),
        ('[full.x]\nlike = "quick.a"\nwithout = ["lrr"]\n', "without names 'lrr', which is not there"),
        ('[full]\nlike = "quick"\na = false\nb = false\nc = false\n', "the profile has no experiment"),
    ],
)
def test_mistakes_are_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match=message):
        profiles(text, tmp_path)


def test_grid_and_cells_reach_into_a_table(tmp_path: Path) -> None:
    text = """
[full.x]
seeds = 1
trl = { epsilon = 0.2, weight_decay = 0.1 }
[[full.x.cells]]
method = "p"
[[full.x.cells]]
method = "q"
trl.weight_decay = 0.3
[full.x.grid]
"trl.epsilon_high" = [0.2, 0.28]
"""
    plan = profiles(text, tmp_path)["full"].plans["x"]
    assert [plan.label(cell) for cell in plan.cells] == [
        "method=p;trl.epsilon_high=0.2;trl.weight_decay=0.1",
        "method=p;trl.epsilon_high=0.28;trl.weight_decay=0.1",
        "method=q;trl.epsilon_high=0.2;trl.weight_decay=0.3",
        "method=q;trl.epsilon_high=0.28;trl.weight_decay=0.3",
    ]
    assert [cell["trl"]["weight_decay"] for cell in plan.cells] == [0.1, 0.1, 0.3, 0.3]
    assert all(cell["trl"]["epsilon"] == 0.2 for cell in plan.cells)
    (tmp_path / "other").mkdir()
    dotted = profiles(text.replace('"trl.epsilon_high"', "trl.epsilon_high"), tmp_path / "other")["full"].plans["x"]
    assert dotted == plan
