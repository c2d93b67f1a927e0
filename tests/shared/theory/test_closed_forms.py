"""Closed forms: exact arithmetic, every printed number of the paper's tables, extremes, and errors.

Two references that share nothing with the code: fractions for the sums themselves (square roots by integer square root
to 200 bits), and, for groups of 10,000, decimals of 80 digits.
"""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_replications.shared.theory.closed_forms import (
    attenuation,
    difficulty_weight,
    expected_update,
    fidelity,
    gradient_mass_shares,
    group_size_law,
    sigma,
    silent_fraction,
    silent_fraction_without_replacement,
    silent_rate,
    silent_rate_branches,
    smallest_group_size,
)
from grpo_replications.shared.theory.groups import dr_grpo_advantages, group_std, grpo_advantages, rloo_advantages

TOLERANCE = 1e-12
RATES = (1e-12, 1e-6, 0.05, 0.1, 0.3, 0.5, 0.7, 0.95, 1 - 1e-6)
SIZES = (2, 3, 8, 16, 64, 257)
BITS = 200

# The paper's table: p, fidelity, exact smallest size, the law's size as printed.
GROUP_SIZES = [
    (0.5, 0.90, 7, 5),
    (0.5, 0.95, 11, 10),
    (0.5, 0.99, 51, 50),
    (0.3, 0.90, 9, 6),
    (0.3, 0.95, 14, 12),
    (0.3, 0.99, 61, 60),
    (0.1, 0.90, 22, 14),
    (0.1, 0.95, 36, 28),
    (0.1, 0.99, 144, 139),
    (0.05, 0.90, 42, 26),
    (0.05, 0.95, 69, 53),
    (0.05, 0.99, 273, 263),
]


def root(value: int | Fraction) -> Fraction:
    """The square root, to 200 bits after the point."""
    scaled = Fraction(value) * (1 << (2 * BITS))
    return Fraction(math.isqrt(scaled.numerator // scaled.denominator), 1 << BITS)


def exact_update(p: float, size: int) -> Fraction:
    """(1/G) sum over 0 < k < G of C(G,k) p^k (1-p)^(G-k) sqrt(k (G-k)), the float p taken as the fraction it is."""
    right = Fraction(p)
    terms = (math.comb(size, k) * right**k * (1 - right) ** (size - k) * root(k * (size - k)) for k in range(1, size))
    return sum(terms, Fraction(0)) / size


def exact_silent(p: float, size: int) -> Fraction:
    return Fraction(p) ** size + (1 - Fraction(p)) ** size


def relative_error(value: float, exact: Fraction) -> float:
    return abs(float((Fraction(float(value)) - exact) / exact))


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("size", SIZES)
def test_expected_updates_against_fractions(p: float, size: int) -> None:
    update, silent = exact_update(p, size), exact_silent(p, size)
    rate = Fraction(p)
    assert relative_error(expected_update(p, size, "grpo"), update) < TOLERANCE
    assert relative_error(fidelity(p, size), update / root(rate * (1 - rate))) < TOLERANCE
    assert relative_error(expected_update(p, size, "dr-grpo"), rate * (1 - rate) * (1 - Fraction(1, size))) < TOLERANCE
    assert relative_error(expected_update(p, size, "rloo"), rate * (1 - rate)) < TOLERANCE
    assert relative_error(expected_update(p, size, "dapo"), update / (1 - silent)) < TOLERANCE
    for redraws in (0, 1, 3, 20):
        bounded = update * (1 - silent ** (redraws + 1)) / (1 - silent)
        assert relative_error(expected_update(p, size, "dapo", redraws), bounded) < TOLERANCE


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("size", (1, *SIZES))
def test_silent_rates_against_fractions(p: float, size: int) -> None:
    branches = silent_rate_branches(p, size)
    assert relative_error(silent_rate(p, size), exact_silent(p, size)) < TOLERANCE
    for value, exact in ((branches.all_right, Fraction(p) ** size), (branches.all_wrong, (1 - Fraction(p)) ** size)):
        if exact > Fraction(np.finfo(float).tiny):  # below, float64 itself has fewer digits
            assert relative_error(value, exact) < TOLERANCE
        else:
            assert value <= np.finfo(float).tiny


@pytest.mark.parametrize("p", (1e-6, 0.05, 0.5, 1 - 1e-6))
def test_ten_thousand_completions_against_decimals(p: float) -> None:
    size = 10_000
    with decimal.localcontext(decimal.Context(prec=80)):
        right = decimal.Decimal(p)
        wrong = 1 - right
        weight, update = wrong**size, decimal.Decimal(0)
        for k in range(1, size):
            weight = weight * (size - k + 1) / k * right / wrong
            update += weight * decimal.Decimal(k * (size - k)).sqrt()
        update /= size
        limit, silent = (right * wrong).sqrt(), right**size + wrong**size
        pairs = (
            (expected_update(p, size, "grpo"), update),
            (fidelity(p, size), update / limit),
            (expected_update(p, size, "dapo", 3), update * (1 - silent**4) / (1 - silent)),
            (silent_rate(p, size) if silent > 1e-300 else None, silent),
        )
        for value, exact in pairs:
            assert value is None or abs(decimal.Decimal(float(value)) / exact - 1) < TOLERANCE


def test_a_wrong_digit_would_show() -> None:
    """The comparison notices an error of 2e-12 in p, and the naive power of a rounded 1 - p."""
    update = exact_update(0.05, 16)
    assert relative_error(expected_update(0.05 * (1 + 4e-12), 16, "grpo"), update) > TOLERANCE
    p, size = 1e-12 / 3, 10**7
    naive, exact = (1 - p) ** size, 1 - size * Fraction(p)
    assert relative_error(naive, exact) > 1e-10
    assert relative_error(silent_rate(p, size), exact) < 1e-11  # the expansion's own error is (G p)^2 / 2


@pytest.mark.parametrize(("p", "target", "smallest", "law"), GROUP_SIZES)
def test_group_sizes_of_the_paper(p: float, target: float, smallest: int, law: int) -> None:
    for rate in (p, 1 - p):
        assert smallest_group_size(rate, target) == smallest
        assert round(group_size_law(rate, 1 - target)) == law
        assert fidelity(rate, smallest) >= target > fidelity(rate, smallest - 1)


def test_numbers_in_the_text() -> None:
    assert round(fidelity(0.5, 8), 4) == 0.9278
    assert round(fidelity(0.05, 8), 4) == 0.5390
    assert round(attenuation(0.05, 8), 2) == 0.67
    assert difficulty_weight(0.5) == 2
    assert round(difficulty_weight(0.05), 1) == 4.6


@pytest.mark.parametrize("size", [1, 2, 3, 8, 64])
def test_sigma_is_the_groups_population_deviation_and_not_the_misprint(size: int) -> None:
    k = np.arange(size + 1)
    rewards = (np.arange(size) < k[:, np.newaxis]).astype(float)
    np.testing.assert_allclose(sigma(k, size), group_std(rewards, ddof=0), rtol=1e-14)
    misprint = np.sqrt(k * (size - k) / size)
    mixed = (k > 0) & (k < size)
    assert not np.isclose(sigma(k, size), misprint)[mixed].any()
    assert sigma(0, size) == 0 == sigma(size, size)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_expected_updates_by_enumerating_groups(size: int, p: float) -> None:
    """Every outcome of a group with its probability, the project's advantages and the scores y - p."""
    outcomes = np.array(list(itertools.product((0.0, 1.0), repeat=size)))
    probability = np.prod(np.where(outcomes == 1, p, 1 - p), axis=1)
    advantages = {
        "grpo": grpo_advantages(outcomes, ddof=0, eps=0.0),
        "dr-grpo": dr_grpo_advantages(outcomes),
        "rloo": rloo_advantages(outcomes),
    }
    for method, advantage in advantages.items():
        update = (advantage * (outcomes - p)).mean(axis=1)
        assert probability @ update == pytest.approx(expected_update(p, size, method), rel=1e-13)
    mixed = (outcomes.min(axis=1) == 0) & (outcomes.max(axis=1) == 1)
    update = (advantages["grpo"] * (outcomes - p)).mean(axis=1)
    assert probability[mixed] @ update[mixed] / probability[mixed].sum() == pytest.approx(
        expected_update(p, size, "dapo"), rel=1e-13
    )


def test_large_groups_are_cheap_and_continuous() -> None:
    """At 1e7 completions the sum agrees with the expansion, and nothing jumps where the expansion takes over."""
    assert fidelity(0.5, 10**7) == pytest.approx(attenuation(0.5, 10**7), abs=1e-13)
    size = 4e7  # G p (1-p) = 1e7 at p = 1/2
    assert fidelity(0.5, size + 400) - fidelity(0.5, size) == pytest.approx(400 / (2 * size**2), rel=0.1)
    assert fidelity(0.5, 2**53) == 1
    assert fidelity(1e-6, 10**7) == pytest.approx(fidelity(1 - 1e-6, 10**7), rel=1e-9)  # 1 - 1e-6 is rounded


def test_fidelity_increases_with_the_group_size() -> None:
    sizes = np.arange(1, 3000)
    for p in (1e-6, 0.01, 0.3, 0.5, 0.9):
        assert np.all(np.diff(fidelity(p, sizes)) > 0)
        assert fidelity(p, 1) == 0


@settings(max_examples=40, deadline=None)
@given(p=st.floats(1e-4, 1 - 1e-4), target=st.floats(0.05, 0.999))
def test_smallest_group_size_is_the_smallest(p: float, target: float) -> None:
    size = smallest_group_size(p, target)
    assert size >= 2
    assert fidelity(p, size) >= target - 1e-14
    assert size == 2 or fidelity(p, size - 1) < target + 1e-14


@settings(max_examples=60, deadline=None)
@given(p=st.floats(0, 1), size=st.integers(1, 5000))
def test_ranges_and_symmetry(p: float, size: int) -> None:
    assert 0 <= fidelity(p, size) <= 1
    assert 0 <= silent_rate(p, size) <= 1
    update = expected_update(p, size, "grpo")
    for redraws in (0, 1, 5):
        more = expected_update(p, size, "dapo", redraws)
        assert update * (1 - 1e-14) <= more <= update * (redraws + 1) * (1 + 1e-14)
    if p >= 0.5:  # then 1 - p is exact
        assert fidelity(p, size) == fidelity(1 - p, size)


def test_smallest_group_size_at_extremes() -> None:
    assert smallest_group_size(0.5, 0.5) == 2
    size = smallest_group_size(1e-6, 0.99)
    assert size == smallest_group_size(1e-6, [0.5, 0.99])[1]
    assert fidelity(1e-6, size) >= 0.99 > fidelity(1e-6, size - 1)
    # 1 - phi is compared, so a loss far below float64's spacing at 1 is still told apart.
    assert smallest_group_size(0.5, 1 - 1e-9) == pytest.approx(1 / (2e-9), rel=1e-6)


def test_end_points() -> None:
    ends = [0, 1]
    for method in ("grpo", "dr-grpo", "rloo", "dapo"):
        assert list(expected_update(ends, 8, method)) == [0, 0]
        assert expected_update(0.3, 1, method) == 0
    assert list(expected_update(ends, 8, "dapo", 3)) == [0, 0]
    assert list(fidelity(ends, 8)) == [0, 0]
    assert list(silent_rate(ends, 8)) == [1, 1]
    assert silent_rate(0.3, 1) == 1
    assert [tuple(pair) for pair in zip(*silent_rate_branches(ends, 8))] == [(0, 1), (1, 0)]
    assert np.isposinf(difficulty_weight(ends)).all()
    assert np.isposinf(group_size_law(ends, 0.1)).all()
    assert np.isneginf(attenuation(ends, 8)).all()


def test_dapo_without_bound_on_hard_prompts_keeps_its_limit() -> None:
    """As p goes to 0, a mixed group has exactly one right: E[g | mixed] goes to sqrt(G - 1) / G."""
    assert expected_update(1e-13, 8, "dapo") == pytest.approx(math.sqrt(7) / 8, rel=1e-11)
    assert expected_update(1 - 2**-43, 8, "dapo") == pytest.approx(math.sqrt(7) / 8, rel=1e-11)


def test_broadcasting_and_scalars() -> None:
    rates, sizes = np.array([[0.1], [0.5], [0.9]]), [2, 8]
    functions: list[Callable] = [
        fidelity,
        attenuation,
        silent_rate,
        lambda p, size: expected_update(p, size, "grpo"),
        lambda p, size: expected_update(p, size, "dr_grpo"),
        lambda p, size: expected_update(p, size, "dapo", 2),
        lambda p, size: silent_rate_branches(p, size).all_wrong,
    ]
    for function in functions:
        table = function(rates, sizes)
        assert table.shape == (3, 2) and table.dtype == np.float64
        for row, column in np.ndindex(3, 2):
            scalar = function(float(rates[row, 0]), sizes[column])
            assert np.ndim(scalar) == 0 and float(scalar) == table[row, column]
    assert smallest_group_size([[0.1], [0.5]], [0.9, 0.99]).tolist() == [[22, 144], [7, 51]]
    assert sigma([0, 1, 2], 2).tolist() == [0, 0.5, 0]
    assert expected_update(0.5, 2, "grpo") == expected_update(0.5, 2.0, "grpo") == 0.25
    assert fidelity([], 8).shape == (0,)


def test_silent_fractions_by_hand() -> None:
    assert silent_fraction([0, 0.5, 1], [1, 2, 1], 2) == pytest.approx((1 + 2 * 0.5 + 1) / 4)
    assert silent_fraction(0.5, 1, [2, 4]).tolist() == [0.5, 0.125]
    k = np.arange(5)
    shares = silent_fraction_without_replacement(k, 4, np.ones(5), [1, 2, 3, 4])
    exact = [
        sum(Fraction(math.comb(right, size) + math.comb(4 - right, size), math.comb(4, size)) for right in range(5)) / 5
        for size in (1, 2, 3, 4)
    ]
    np.testing.assert_allclose(shares, [float(value) for value in exact], rtol=1e-14)


def test_without_replacement_against_fractions_and_as_an_unbiased_estimate() -> None:
    k, n = 57, 64
    for size in (2, 4, 16, 57):
        exact = Fraction(math.comb(k, size) + math.comb(n - k, size), math.comb(n, size))
        assert relative_error(silent_fraction_without_replacement(k, n, 1, size), exact) < TOLERANCE
    p, n, size = 0.8, 12, 5
    right = np.arange(n + 1)
    probability = np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in right])
    assert silent_fraction_without_replacement(right, n, probability, size) == pytest.approx(silent_rate(p, size))
    assert silent_fraction(right / n, probability, size) > silent_rate(p, size) + 0.01  # plugging in k/n is biased


def test_gradient_mass_shares_by_hand() -> None:
    rates, counts, edges = [0.0, 0.1, 0.5, 0.95], [5, 1, 2, 1], [0, 0.3, 0.9, 1]
    mass = np.array([0.09, 2 * 0.25, 0.0475])
    np.testing.assert_allclose(gradient_mass_shares(rates, counts, edges, "dr-grpo"), mass / mass.sum(), rtol=1e-14)
    root_mass = np.array([0.3, 2 * 0.5, math.sqrt(0.0475)])
    np.testing.assert_allclose(
        gradient_mass_shares(rates, counts, edges, "grpo"), root_mass / root_mass.sum(), rtol=1e-14
    )
    finite = np.array([expected_update(0.1, 8, "grpo"), 2 * expected_update(0.5, 8, "grpo"), 0.0])
    finite[2] = expected_update(0.95, 8, "grpo")
    np.testing.assert_allclose(gradient_mass_shares(rates, counts, edges, "grpo", 8), finite / finite.sum(), rtol=1e-14)
    assert gradient_mass_shares(rates, counts, 10, "grpo").shape == (10,)
    assert gradient_mass_shares(rates, counts, [0.4, 0.6], "dr-grpo")[0] == pytest.approx(0.5 / mass.sum())
    large = gradient_mass_shares(rates, counts, edges, "grpo", 10**7)
    np.testing.assert_allclose(large, root_mass / root_mass.sum(), rtol=1e-6)
    for method, redraws in (("rloo", None), ("dapo", 3), ("dr-grpo", None)):
        assert gradient_mass_shares(rates, counts, edges, method, 8, redraws).sum() == pytest.approx(1)


NAN = float("nan")


@pytest.mark.parametrize(
    "call",
    [
        lambda: silent_rate(-1e-9, 8),
        lambda: silent_rate(1 + 1e-9, 8),
        lambda: silent_rate(NAN, 8),
        lambda: silent_rate("0.5", 8),
        lambda: silent_rate(0.5 + 0j, 8),
        lambda: silent_rate(0.5, 0),
        lambda: silent_rate(0.5, 2.5),
        lambda: silent_rate(0.5, NAN),
        lambda: silent_rate(0.5, 2**60),
        lambda: silent_rate([0.1, 0.2], [2, 3, 4]),
        lambda: attenuation(0.5, 0),
        lambda: sigma(9, 8),
        lambda: sigma(1.5, 8),
        lambda: expected_update(0.5, 8, "ppo"),
        lambda: expected_update(0.5, 8, "grpo", redraws=3),
        lambda: expected_update(0.5, 8, "dapo", redraws=-1),
        lambda: smallest_group_size(0.0, 0.9),
        lambda: smallest_group_size(0.5, 1.0),
        lambda: smallest_group_size(0.5, 0.0),
        lambda: smallest_group_size(1e-12, 1 - 1e-12),
        lambda: group_size_law(0.5, 0.0),
        lambda: silent_fraction([0.5], [1, 2], 8),
        lambda: silent_fraction([0.5], [-1], 8),
        lambda: silent_fraction([0.5], [0], 8),
        lambda: silent_fraction_without_replacement([5], 4, [1], 2),
        lambda: silent_fraction_without_replacement([2], 4, [1], 5),
        lambda: gradient_mass_shares([0.0, 1.0], [1, 1], 10, "grpo"),
        lambda: gradient_mass_shares([0.5], [1], [0.5, 0.2], "grpo"),
        lambda: gradient_mass_shares([0.5, 0.6], [1, 1], 10, "grpo", [8, 16]),
    ],
)
def test_bad_arguments_are_value_errors(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        call()
