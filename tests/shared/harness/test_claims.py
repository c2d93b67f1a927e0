"""claims.toml: a misspelt or meaningless entry is refused, with its file and its id."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.checks import DirectionCheck, ExactCheck, IntervalCheck, ThresholdCheck
from grpo_replications.shared.harness.claims import Claim, load_claims
from grpo_replications.shared.harness.papers import Paper, check_apart, discover
from grpo_replications.shared.harness.profiles import load_profiles

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
HEAD = 'paper = "p"\ntitle = "t"'
CLAIM = {
    "id": '"p/claim"',
    "statement": '"s"',
    "where": '"w"',
    "source": '"paper"',
    "reports": '"r"',
    "here_setting": '"h"',
}
CHECK = {
    "id": '"p/a"',
    "answers": '"here"',
    "statement": '"s"',
    "kind": '"at_least"',
    "experiment": '"e"',
    "profiles": '["quick"]',
    "metric": '"m"',
    "threshold": "0.5",
    "unit": '"u"',
    "definition": '"d"',
}
Load = Callable[..., tuple[Any, tuple[Claim, ...]]]


def lines(good: dict[str, str], changes: dict[str, str | None]) -> str:
    entries = {key: value for key, value in {**good, **changes}.items() if value is not None}
    return "\n".join(f"{key} = {value}" for key, value in entries.items())


@pytest.fixture
def load(tmp_path: Path) -> Load:
    (tmp_path / "profiles.toml").write_text(PROFILES)

    def load(claim: dict[str, str | None] | None = None, head: str = HEAD, common: str = "", **check: Any) -> Any:
        text = f"{head}\n[[claim]]\n{lines(CLAIM, claim or {})}\n{common}\n[[claim.check]]\n{lines(CHECK, check)}\n"
        (tmp_path / "claims.toml").write_text(text)
        return load_claims(tmp_path / "claims.toml", load_profiles(tmp_path / "profiles.toml"))

    return load


DIRECTION = {
    "kind": '"direction"',
    "threshold": None,
    "better": '{ method = "new" }',
    "worse": '{ method = "old" }',
}
EXACT = {"kind": '"exact"', "threshold": None}
INTERVAL = {"kind": '"interval"', "threshold": None, "paper_value": "1", "paper_seeds": "5"}


def test_a_good_claim_is_read_with_its_check(load: Load) -> None:
    facts, (claim,) = load(select='{ lr = 1, step = "last" }', conditions='["method"]')
    (check,) = claim.checks
    assert facts.slug == "p" and claim.deciding("here") == (check,) and not claim.deciding("published")
    assert check.select == {"lr": 1, "step": "last"} and check.conditions == ("method",) and check.threshold == 0.5
    assert (check.claim, check.source, check.where) == ("p/claim", "paper", "w")


@pytest.mark.parametrize(
    ("keys", "kind"),
    [({}, ThresholdCheck), (EXACT, ExactCheck), (DIRECTION, DirectionCheck), (INTERVAL, IntervalCheck)],
)
def test_every_kind_is_read_and_has_a_criterion(load: Load, keys: dict[str, Any], kind: type) -> None:
    (check,) = load(**keys)[1][0].checks
    assert isinstance(check, kind) and check.judged_by
    assert load(**keys, criterion='"as written"')[1][0].checks[0].judged_by == "as written"


def test_the_criterion_in_words_holds_its_numbers(load: Load) -> None:
    (check,) = load(threshold="0.75", kind='"at_most"', strict="true", conditions='["lr"]')[1][0].checks
    assert "0.75" in check.judged_by and "below" in check.judged_by and "lr" in check.judged_by


def test_common_keys_hold_for_checks_that_do_not_set_them(load: Load) -> None:
    (claim,) = load(common='[claim.common]\nunit = "points"\nmetric = "x"', unit=None, metric=None)[1]
    assert (claim.checks[0].unit, claim.checks[0].metric) == ("points", "x")


def test_a_family_is_as_many_checks(load: Load) -> None:
    over = "[{ lr = 0.5, threshold = 1 }, { lr = 1, threshold = 2 }]"
    (claim,) = load(id='"p/lr-{lr}"', threshold=None, select='{ lr = "{lr}" }', over=over)[1]
    assert [(c.id, c.select["lr"], c.threshold) for c in claim.checks] == [("p/lr-0.5", 0.5, 1), ("p/lr-1", 1, 2)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"metric": None}, "missing metric"),
        ({"unit": None}, "missing unit"),
        ({"definition": None}, "missing definition"),
        ({"answers": '"maybe"'}, "'answers'"),
        ({"threshold": None}, "missing threshold"),
        ({"value": "1"}, "unknown key value"),
        ({"kind": '"roughly"'}, "kind must be one of exact"),
        ({"kind": None}, "kind must be one of exact"),
        ({**INTERVAL, "paper_seeds": None}, "missing paper_seeds"),
        ({**INTERVAL, "paper_value": None}, "missing paper_value"),
        ({"tolerance": "1"}, "unknown key tolerance"),
        ({"creterion": '"x"'}, "unknown key creterion"),
        ({"threshold": "nan"}, "'threshold'"),
        ({"threshold": '"0.5"'}, "'threshold'"),
        ({"criterion": '""'}, "'criterion'"),
        ({"profiles": "[]"}, "'profiles'"),
        ({"profiles": '["quack"]'}, "no profile 'quack'"),
        ({"experiment": '"f"'}, "profile 'quick' has no experiment 'f'"),
        ({"experiment": '"z"'}, "no profile has an experiment 'z'"),
        ({"reduce": '"median"'}, "'reduce'"),
        ({"min_seeds": "1"}, "'min_seeds'"),
        ({"min_seeds": "5.5"}, "'min_seeds'"),
        ({"select": "{ steps = 3 }"}, "'steps' is in no grid and no cells of e"),
        ({"select": "{ lr = 7 }"}, "no combination of settings of e has"),
        ({"select": '{ step = "first" }'}, 'step must be a number or "last"'),
        ({"conditions": '["speed"]'}, "'speed' is in no grid"),
        ({**EXACT, "tolerance": "-1"}, "'tolerance'"),
        ({**EXACT, "reduce": '"max"'}, "unknown key reduce"),
        ({**EXACT, "expect": '"success"'}, "'expect'"),
        ({**EXACT, "expect": '"violation"'}, "needs a minimum above 0"),
        ({**EXACT, "expect": '"violation"', "minimum": "0"}, "'minimum'"),
        ({**EXACT, "expect": '"violation"', "minimum": "1", "tolerance": "1"}, "and no tolerance"),
        ({**EXACT, "minimum": "1"}, 'minimum needs expect = "violation"'),
        ({**INTERVAL, "paper_seeds": "0"}, "'paper_seeds'"),
        ({**INTERVAL, "max_width": "0"}, "'max_width'"),
        ({**DIRECTION, "worse": '{ method = "new" }'}, "better and worse select the same rows"),
        ({**DIRECTION, "worse": '{ method = "newer" }'}, "no combination of settings of e has"),
        ({**DIRECTION, "conditions": '["method"]'}, "cannot be a condition"),
        ({"source": '"ours"'}, "claim and source are those of the claim"),
    ],
)
def test_mistakes_in_checks_are_named_with_file_and_id(load: Load, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ReplicationError) as error:
        load(**keys)
    assert "claims.toml" in str(error.value) and "check p/a" in str(error.value) and message in str(error.value)


@pytest.mark.parametrize("name", ["p/100%", "p/a*b", "p/Upper", "p/λ", "p/a b", "p/a,b", "p/a{{x}}"])
def test_an_id_that_latex_or_csv_cannot_carry_is_refused(load: Load, name: str) -> None:
    with pytest.raises(ReplicationError, match=r"may only hold the characters|has no value"):
        load(id=f'"{name}"')


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"statement": None}, "missing statement"),
        ({"source": '"them"'}, "'source'"),
        ({"sauce": '"paper"'}, "unknown key sauce"),
        ({"rule": '"most"'}, "'rule'"),
        ({"reports": None}, "missing reports"),
        ({"here_setting": None}, "missing here_setting"),
        ({"source": '"ours"'}, "only a claim of the paper has reports"),
        ({"source": '"control"', "reports": None}, 'only checks with answers = "control"'),
    ],
)
def test_mistakes_in_claims_are_named_with_file_and_id(load: Load, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ReplicationError) as error:
        load(changes)
    assert "claims.toml, claim p/claim" in str(error.value) and message in str(error.value)


def test_only_some_answers_fit_a_source(load: Load) -> None:
    with pytest.raises(ReplicationError, match="a claim of ours has no check"):
        load({"source": '"ours"', "reports": None}, answers='"published"')
    with pytest.raises(ReplicationError, match="no check decides an answer"):
        load(answers='"support"')
    with pytest.raises(ReplicationError, match="missing published_setting"):
        load(answers='"published"')


def test_mistakes_around_claims_are_named(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="the id p/claim is used twice"):
        load(id='"p/claim"')
    with pytest.raises(ReplicationError, match="the id p/a is used twice"):
        load(over='{ metric = ["m", "n"] }', metric=None)
    with pytest.raises(ReplicationError, match="the id q/a must start with p/"):
        load(id='"q/a"')
    with pytest.raises(ReplicationError, match="claim number 1"):
        load({"id": None})
    with pytest.raises(ReplicationError, match="unknown key yaer"):
        load(head=f"{HEAD}\nyaer = 2025")
    with pytest.raises(ReplicationError, match="missing title"):
        load(head='paper = "p"')
    with pytest.raises(ReplicationError, match="every check sets unit"):
        load(common='[claim.common]\nunit = "u"')
    (tmp_path / "claims.toml").write_text(HEAD)
    with pytest.raises(ReplicationError, match="no \\[\\[claim\\]\\]"):
        load_claims(tmp_path / "claims.toml", {})
    (tmp_path / "claims.toml").write_text(f"{HEAD}\n[[claim]]\n{lines(CLAIM, {})}")
    with pytest.raises(ReplicationError, match=r"no \[\[claim.check\]\]"):
        load_claims(tmp_path / "claims.toml", {})


def test_a_paper_has_the_name_of_its_directory(toy: Path) -> None:
    shutil.copytree(toy, toy.parent / "copy_of_toy")
    with pytest.raises(ReplicationError, match='says paper = "toy-paper"'):
        discover(toy.parent)


def test_two_papers_share_neither_name_nor_id(toy: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "toy_paper"
    shutil.copytree(toy, other)
    with pytest.raises(ReplicationError, match="both use the name"):
        check_apart([Paper.load(toy), Paper.load(other)])


@pytest.mark.parametrize("paper", ["lambda_grpo", "grpo_sg", "sigma_identity"])
def test_the_papers_have_about_eight_claims_of_their_own(paper: str) -> None:
    loaded = Paper.load(Path(__file__).parents[3] / "replications" / paper)
    assert 6 <= sum(claim.source == "paper" for claim in loaded.claims) <= 12
    lines = (loaded.directory / "claims.toml").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 7 * len(loaded.checks)  # one entry a family, and what checks share stated once


def test_the_example_of_the_manual_loads(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[3] / "replications" / "README.md").read_text(encoding="utf-8")
    (example,) = (block for block in re.findall(r"```toml\n(.*?)```", manual, re.S) if "[[claim]]" in block)
    (tmp_path / "claims.toml").write_text(example, encoding="utf-8")
    grid = '[quick.tree.grid]\nn = [1, 2]\nmethod = ["new", "old"]\n'
    (tmp_path / "profiles.toml").write_text(
        f"[quick.tree]\nseeds = 5\n{grid}[full.tree]\nseeds = 5\n{grid.replace('quick', 'full')}"
    )
    facts, (claim,) = load_claims(tmp_path / "claims.toml", load_profiles(tmp_path / "profiles.toml"))
    assert facts.slug == "some-paper" and [check.paper_value for check in claim.checks] == [0.35, 0.1]
