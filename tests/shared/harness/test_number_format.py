"""Digits for people: one number of decimals for a value and its interval, and nothing that rounding makes false."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_replications.shared.harness.number_format import in_digits
from grpo_replications.shared.harness.outcomes import number_with_interval
from grpo_replications.shared.statistics.estimates import Estimate

NUMBERS = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(st.lists(NUMBERS, min_size=3, max_size=3))
def test_a_value_stays_inside_its_interval_however_it_is_rounded(numbers: list[float]) -> None:
    low, value, high = sorted(numbers)
    digits = in_digits(value, low, high)
    shown, shown_low, shown_high = (float(one.plain) for one in digits)
    assert shown_low <= shown <= shown_high
    assert len({len(one.mantissa.partition(".")[2]) for one in digits}) == 1


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((3.333, 2.66, 4.017), ["3.33", "2.66", "4.02"]),
        ((3.48641, 3.4820, 3.4911), ["3.4864", "3.4820", "3.4911"]),
        ((0.049, 0.0004, 0.1), ["0.0490", "0.0004", "0.1000"]),  # an end that is not zero does not read as zero
        ((-1e-4, -0.5, 0.5), ["0.00", "-0.50", "0.50"]),
        ((3e-5, 1e-5, 9e-5), ["3.0e-5", "1.0e-5", "9.0e-5"]),
        ((1.0, 1.0, 1.0), ["1.000", "1.000", "1.000"]),
        ((2.97539771e-14,), ["2.975e-14"]),
        ((9.9996e-4,), ["1e-3"]),
        ((215608.0,), ["215,608"]),
        ((0.25,), ["0.25"]),
        ((0.0,), ["0"]),
    ],
)
def test_decimals_follow_the_interval(numbers: tuple[float, ...], shown: list[str]) -> None:
    assert [one.text for one in in_digits(*numbers)] == shown


def test_latex_and_siunitx_get_the_same_number() -> None:
    (tiny,) = in_digits(-3.908e-14)
    assert (tiny.latex, tiny.plain) == (r"-3.908\times10^{-14}", "-3.908e-14")
    (many,) = in_digits(215608)
    assert (many.latex, many.plain) == (r"215\,608", "215608")
    assert [in_digits(value, signed=True)[0].text for value in (4.9, -4.9, 0)] == ["+4.9", "-4.9", "0"]


def test_unknown_intervals_are_called_unknown() -> None:
    assert number_with_interval(Estimate(0.5, -math.inf, math.inf, 1)) == "0.5 [interval unknown], n = 1"
    assert number_with_interval(Estimate(math.nan, math.nan, math.nan, 0)) == "unknown"
    assert number_with_interval(Estimate(0.16677, 0.15, 0.18, 9), n=False) == "0.167 [0.150, 0.180]"
