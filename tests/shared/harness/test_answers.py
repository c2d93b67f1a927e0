"""The answer to a claim follows from its deciding checks by its rule."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_replications.shared.harness.answers import NO_EFFECT, answer, combined
from grpo_replications.shared.harness.verdicts import (
    CONDITIONAL,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    VERDICTS,
)

RUN = [verdict for verdict in VERDICTS if verdict not in (NOT_RUN, EQUIVALENT)]


def line(verdict: str, reason: str = "r", statement: str = "S.", newer: str = "") -> Any:
    check = SimpleNamespace(statement=statement)
    return SimpleNamespace(
        verdict=verdict,
        reason=reason,
        command="make it",
        ours="1 (u)",
        conditions="",
        check=check,
        newer=newer,
        cells=(),
    )


@pytest.mark.parametrize(
    ("rule", "verdicts", "expected"),
    [
        ("all", [REPRODUCED, REPRODUCED], REPRODUCED),
        ("all", [REPRODUCED, NOT_REPRODUCED], CONDITIONAL),
        ("all", [REPRODUCED, INCONCLUSIVE], CONDITIONAL),
        ("all", [CONDITIONAL, CONDITIONAL], CONDITIONAL),
        ("all", [NOT_REPRODUCED, INCONCLUSIVE], NOT_REPRODUCED),
        ("all", [INCONCLUSIVE, INCONCLUSIVE], INCONCLUSIVE),
        ("both", [REPRODUCED, REPRODUCED], REPRODUCED),
        ("both", [REPRODUCED, NOT_REPRODUCED], NOT_REPRODUCED),
        ("both", [REPRODUCED, INCONCLUSIVE], INCONCLUSIVE),
        ("both", [REPRODUCED, CONDITIONAL], CONDITIONAL),
        ("any", [REPRODUCED, NOT_REPRODUCED], REPRODUCED),
        ("any", [CONDITIONAL, NOT_REPRODUCED], CONDITIONAL),
        ("any", [INCONCLUSIVE, NOT_REPRODUCED], INCONCLUSIVE),
        ("any", [NOT_REPRODUCED, NOT_REPRODUCED], NOT_REPRODUCED),
    ],
)
def test_rules(rule: str, verdicts: list[str], expected: str) -> None:
    assert combined(verdicts, rule) == expected


@pytest.mark.parametrize("rule", ["all", "both", "any"])
def test_every_rule_agrees_on_one_check_and_does_not_depend_on_the_order(rule: str) -> None:
    for verdict in RUN:
        assert combined([verdict], rule) == verdict
    for verdicts in itertools.product(RUN, repeat=3):
        assert len({combined(list(order), rule) for order in itertools.permutations(verdicts)}) == 1


@pytest.mark.parametrize("rule", ["all", "both", "any"])
def test_no_effect_that_matters_counts_against_a_claim_like_a_reversal(rule: str) -> None:
    for verdicts in map(list, itertools.product([*RUN, EQUIVALENT], repeat=3)):
        reversed_ = [NOT_REPRODUCED if verdict == EQUIVALENT else verdict for verdict in verdicts]
        assert combined(verdicts, rule) == combined(reversed_, rule)


def test_the_answer_says_no_effect_of_the_checks_that_show_it_alone() -> None:
    every = answer([line(EQUIVALENT), line(EQUIVALENT)], "all")
    some = answer([line(EQUIVALENT), line(INCONCLUSIVE)], "all")
    reversal = answer([line(NOT_REPRODUCED), line(NOT_REPRODUCED)], "all")
    assert every is not None and some is not None and reversal is not None
    assert every.verdict == some.verdict == reversal.verdict == NOT_REPRODUCED
    assert every.text.startswith(NO_EFFECT) and NO_EFFECT not in reversal.text
    assert f"1 equivalent ({NO_EFFECT}), 1 inconclusive" in some.text


def test_the_answer_says_how_many_criteria_are_newer_than_their_measurements() -> None:
    old, late = line(REPRODUCED), line(REPRODUCED, newer="criterion written later")
    for lines, text in (
        ([late], "; criterion written later"),
        ([old, late, late], "; 2 with a criterion written later"),
    ):
        found = answer(lines, "all")
        assert found is not None and found.text.endswith(text)
    plain = answer([old, line(NOT_RUN, newer="criterion written later")], "all")
    assert plain is not None and "written" not in plain.text


def test_rules_are_ordered_by_how_much_they_ask() -> None:
    """What a conjunction reproduces every rule reproduces; what a single reading refutes every rule refutes."""
    for verdicts in map(list, itertools.product(RUN, repeat=3)):
        if combined(verdicts, "both") == REPRODUCED:
            assert combined(verdicts, "all") == combined(verdicts, "any") == REPRODUCED
        if combined(verdicts, "any") == NOT_REPRODUCED:
            assert combined(verdicts, "all") == combined(verdicts, "both") == NOT_REPRODUCED


def test_no_check_gives_no_answer() -> None:
    assert answer([], "all") is None


def test_nothing_run_is_not_run_with_every_reason_and_a_command() -> None:
    given = answer([line(NOT_RUN, "needs a GPU"), line(NOT_RUN, "needs a day"), line(NOT_RUN, "needs a GPU")], "all")
    assert given is not None and given.verdict == NOT_RUN and (given.checks, given.run) == (3, 0)
    assert given.text == "needs a GPU; needs a day" and given.command == "make it"


def test_checks_that_were_not_run_are_counted_and_decide_nothing() -> None:
    given = answer([line(REPRODUCED), line(REPRODUCED), line(NOT_RUN)], "all")
    assert given is not None and given.verdict == REPRODUCED
    assert (given.checks, given.run, given.command) == (3, 2, "make it")
    assert "2 of 3 checks" in given.text and "1 not run" in given.text


def test_a_single_check_shows_its_number_and_any_says_which_reading_holds() -> None:
    single = answer([line(REPRODUCED)], "all")
    assert single is not None and single.text == "1 (u)" and single.command == ""
    readings = answer([line(NOT_REPRODUCED, statement="A."), line(REPRODUCED, statement="B.")], "any")
    assert readings is not None and "B" in readings.text and "A" not in readings.text
