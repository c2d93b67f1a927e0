"""claims.toml: a misspelt or meaningless claim is refused, with its file and its id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ReplicationError
from shared.harness.claims import Claim, load_claims
from shared.harness.profiles import load_profiles

PROFILES = """
[quick.e]
seeds = 5
steps = 3
[quick.e.grid]
method = ["new", "old"]
lr = [0.5, 1]
[full.e]
seeds = 5
[full.e.grid]
method = ["new", "old"]
lr = [0.5, 1]
[full.f]
seeds = 1
"""
GOOD = {
    "id": '"p/a"',
    "statement": '"s"',
    "where": '"w"',
    "source": '"paper"',
    "kind": '"at_least"',
    "criterion": '"c"',
    "experiment": '"e"',
    "profiles": '["quick"]',
    "metric": '"m"',
    "value": "0.5",
}
Load = Callable[..., tuple[Any, tuple[Claim, ...]]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    (tmp_path / "profiles.toml").write_text(PROFILES)

    def load(head: str = 'paper = "p"\ntitle = "t"', times: int = 1, **keys: str | None) -> Any:
        entries = {key: value for key, value in {**GOOD, **keys}.items() if value is not None}
        text = "\n[[claim]]\n" + "\n".join(f"{key} = {value}" for key, value in entries.items())
        (tmp_path / "claims.toml").write_text(head + text * times)
        return load_claims(tmp_path / "claims.toml", load_profiles(tmp_path / "profiles.toml"))

    return load


def test_a_good_claim_is_read(load: Load) -> None:
    facts, (one,) = load(select='{ lr = 1, step = "last" }', conditions='["method"]', headline="true", group='"g"')
    assert facts.slug == "p" and one.select == {"lr": 1, "step": "last"} and one.conditions == ("method",)
    assert one.headline and one.group == "g" and one.value == 0.5


DIRECTION = {
    "kind": '"direction"',
    "value": None,
    "better": '{ method = "new" }',
    "worse": '{ method = "old" }',
}
EXACT = {"kind": '"exact"', "value": None}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"metric": None}, "missing metric"),
        ({"value": None}, "missing value"),
        ({"kind": '"roughly"'}, "kind must be one of exact"),
        ({"kind": '"interval"'}, "missing paper_seeds"),
        ({"tolerance": "1"}, "knows no key tolerance"),
        ({"creterion": '"x"'}, "knows no key creterion"),
        ({"value": "nan"}, "'value' must be a number"),
        ({"value": '"0.5"'}, "'value' must be a number"),
        ({"criterion": '""'}, "'criterion' must be text"),
        ({"source": '"them"'}, "source must be one of paper, ours"),
        ({"profiles": "[]"}, "nothing could ever test it"),
        ({"profiles": '["quack"]'}, "no profile 'quack'"),
        ({"experiment": '"f"'}, "profile 'quick' has no experiment 'f'"),
        ({"experiment": '"z"'}, "no profile has an experiment 'z'"),
        ({"reduce": '"median"'}, "reduce must be mean, max or min"),
        ({"min_seeds": "1"}, "one seed has no spread"),
        ({"min_seeds": "5.5"}, "whole number"),
        ({"select": "{ steps = 3 }"}, "'steps' is in no grid and no cells of e"),
        ({"select": "{ lr = 7 }"}, "no combination of settings of e has"),
        ({"select": '{ step = "first" }'}, 'step must be a number or "last"'),
        ({"conditions": '["speed"]'}, "'speed' is in no grid"),
        ({**EXACT, "tolerance": "-1"}, "must not be negative"),
        ({**EXACT, "reduce": '"max"'}, "knows no reduce"),
        ({**EXACT, "expect": '"success"'}, 'can only be "violation"'),
        ({**EXACT, "expect": '"violation"'}, "needs a minimum above 0"),
        ({**EXACT, "expect": '"violation"', "minimum": "0"}, "needs a minimum above 0"),
        ({**EXACT, "expect": '"violation"', "minimum": "1", "tolerance": "1"}, "and no tolerance"),
        ({**EXACT, "minimum": "1"}, 'minimum needs expect = "violation"'),
        ({"kind": '"interval"', "paper_seeds": "0"}, "paper_seeds must be a whole number"),
        ({"kind": '"interval"', "paper_seeds": "5", "max_width": "0"}, "max_width must be above 0"),
        ({**DIRECTION, "worse": '{ method = "new" }'}, "better and worse select the same rows"),
        ({**DIRECTION, "worse": '{ method = "newer" }'}, "no combination of settings of e has"),
        ({**DIRECTION, "conditions": '["method"]'}, "cannot be a condition"),
    ],
)
def test_mistakes_in_claims_are_named_with_file_and_id(load: Load, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ReplicationError, match=message) as error:
        load(**keys)
    assert "claims.toml, claim p/a" in str(error.value)


def test_mistakes_around_claims_are_named(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="the id p/a is used twice"):
        load(times=2)
    with pytest.raises(ReplicationError, match="claim number 1: missing id"):
        load(id=None)
    with pytest.raises(ReplicationError, match="unknown key yaer"):
        load(head='paper = "p"\ntitle = "t"\nyaer = 2025')
    with pytest.raises(ReplicationError, match="'title' is missing"):
        load(head='paper = "p"')
    (tmp_path / "claims.toml").write_text('paper = "p"\ntitle = "t"')
    with pytest.raises(ReplicationError, match="no \\[\\[claim\\]\\]"):
        load_claims(tmp_path / "claims.toml", {})
