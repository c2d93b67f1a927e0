"""A family stands for exactly the checks that it says, with the types of its values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_replications.shared.harness.families import expand
from grpo_replications.shared.harness.profiles import format_value

KEYS = frozenset({"id", "statement", "select", "metric", "threshold"})


def family(over: Any, **entry: Any) -> list[dict[str, Any]]:
    return expand({"over": over, **entry}, {}, KEYS)


def test_an_entry_without_over_is_one_check_with_the_defaults() -> None:
    assert expand({"id": "a"}, {"metric": "m"}, KEYS) == [{"metric": "m", "id": "a"}]


def test_a_table_of_lists_means_every_combination_in_order() -> None:
    members = family({"n": [1, 2], "m": ["x", "y"]}, id="{n}/{m}")
    assert [member["id"] for member in members] == ["1/x", "1/y", "2/x", "2/y"]


def test_rows_set_several_values_and_combine_with_lists() -> None:
    rows = [{"n": 1, "paper": 0.5}, {"n": 2, "paper": 0.25}]
    assert [m["threshold"] for m in family(rows, id="{n}", threshold="{paper}")] == [0.5, 0.25]
    crossed = family({"row": rows, "m": ["x", "y"]}, id="{n}/{m}", threshold="{paper}")
    assert [(m["id"], m["threshold"]) for m in crossed] == [("1/x", 0.5), ("1/y", 0.5), ("2/x", 0.25), ("2/y", 0.25)]


def test_keys_of_a_check_are_set_without_a_placeholder_and_may_differ_between_rows() -> None:
    members = family([{"id": "a", "metric": "m"}, {"id": "b", "threshold": 1}], statement="s")
    assert members == [{"statement": "s", "id": "a", "metric": "m"}, {"statement": "s", "id": "b", "threshold": 1}]


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text("ab")))
def test_a_text_that_is_nothing_but_a_placeholder_keeps_the_type(value: Any) -> None:
    (member,) = family([{"n": value}], id="v={n}", select={"n": "{n}", "list": ["{n}"]})
    for found in (member["select"]["n"], member["select"]["list"][0]):
        assert found == value and type(found) is type(value)
    assert member["id"] == f"v={format_value(value)}"


def test_other_braces_stand_for_themselves() -> None:
    assert family([{"n": 1}], id="{n}", statement="1{0<k<G} Σ_{v≠o}")[0]["statement"] == "1{0<k<G} Σ_{v≠o}"


@pytest.mark.parametrize(
    ("over", "entry", "message"),
    [
        ([], {"id": "a"}, "over has no values"),
        ({}, {"id": "a"}, "over has no values"),
        ({"n": []}, {"id": "{n}"}, "over has no values"),
        ([1, 2], {"id": "a"}, "a list of tables"),
        ({"n": [1]}, {"id": "{m}"}, "{m} has no value: over sets n"),
        ({"n": [1]}, {"id": "a"}, "over sets n, which is no key of a check and no placeholder uses"),
        ([{"metrik": "m"}], {"id": "a"}, "over sets metrik"),
        ([{"metric": "m"}], {"id": "a", "metric": "n"}, "over sets metric, which the entry sets too"),
        ({"row": [{"n": 1}], "n": [2]}, {"id": "{n}"}, "sets a name twice"),
    ],
)
def test_mistakes_are_named(over: Any, entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        family(over, **entry)
    assert message in str(error.value)


def test_a_placeholder_without_over_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"\{n\} has no value: over sets nothing"):
        expand({"id": "{n}"}, {}, KEYS)
