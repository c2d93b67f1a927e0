"""Closed forms in the solve rate p and the group size G: silent groups, expected updates, fidelity, gradient mass.

Rewards are binary, a group has G completions of which k are right, and sigma is the group's *population* standard
deviation. Bay & Yearick, arXiv:2607.00152; the numbers of equations and statements are theirs.

Every function broadcasts its numeric arguments as numpy does (p of shape (n, 1) against G of shape (m,) gives (n, m)),
computes in float64 and gives a float64 array, or a scalar for scalars. Rates outside [0, 1], group sizes that are no
whole number of at least 1, NaN and infinity raise ValueError. G = 1 is allowed: such a group is always silent.

Sums over k run over a window around the binomial's mean that leaves out less than 1e-25 of its mass. Weights are
cumulative products of the ratios of neighbours, normalized by their sum, so that no error of a log-gamma enters. By
symmetry the smaller of p and 1 - p is used, and 1 - p is exact for p >= 1/2. Cost of one pair (p, G): time
O(min(G, 100 + 22 sqrt(G p (1 - p)))), at most 70,000 terms, because above G p (1 - p) = 1e7 the expansion in its
inverse is exact to the last digit. Equal pairs are computed once; memory stays below 0.3 GB plus the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

METHODS = ("grpo", "dr-grpo", "rloo", "dapo")
LARGEST_SIZE = 2**53  # above it, float64 does not hold every whole number
_TAIL = 60.0  # the window leaves out tails below exp(-60)
_EXPANSION_FROM = 1e7  # G p (1 - p) from which the expansion's next term is below 1e-20
_BLOCK = 2_000_000  # binomial weights held in memory at once


class SilentRates(NamedTuple):
    """Probabilities that all completions of a group are right, and that all are wrong: two arrays."""

    all_right: np.ndarray | float
    all_wrong: np.ndarray | float


def sigma(k: ArrayLike, G: ArrayLike) -> np.ndarray | float:
    """Population standard deviation of a group with k of G right: sqrt(k (G - k)) / G.

    The whole root is divided by G; sqrt(k (G - k) / G), seen in summaries, is a misprint. k is a whole number from 0 to
    G, else ValueError. 0 for silent groups, hence for G = 1.
    """
    right, size = as_integer(k, "k", 0), _group_size(G)
    if np.any(right > size):
        raise ValueError("k must not exceed G")
    return to_scalar(_sigma(right, size))


def silent_rate(p: ArrayLike, G: ArrayLike) -> np.ndarray | float:
    """Probability that a group is silent, P = p^G + (1 - p)^G. Accurate relative to itself until it underflows."""
    all_right, all_wrong = silent_rate_branches(p, G)
    return to_scalar(np.minimum(np.add(all_right, all_wrong), 1.0))


def silent_rate_branches(p: ArrayLike, G: ArrayLike) -> SilentRates:
    """The two branches of the silent rate apart: all right p^G, all wrong (1 - p)^G."""
    rate, size = np.broadcast_arrays(_rate(p), _group_size(G))
    with np.errstate(divide="ignore", under="ignore"):
        # 1 - p is rounded for p < 1/2, and a power of G would multiply that error by G.
        all_wrong = np.where((rate < 0.5) & (size > 1), np.exp(size * np.log1p(-rate)), (1 - rate) ** size)
        return SilentRates(to_scalar(rate**size), to_scalar(all_wrong))


def expected_update(p: ArrayLike, G: ArrayLike, method: str, redraws: int | None = None) -> np.ndarray | float:
    """Expected update E[g] of a Bernoulli-logit prompt with solve rate p, in units of the logit's gradient.

    "grpo" (Prop. 2): (1/G) sum_{k=1}^{G-1} C(G,k) p^k (1-p)^(G-k) sqrt(k (G-k)).
    "dr-grpo": p (1-p) (1 - 1/G).  "rloo": p (1-p), for G = 1 zero.
    "dapo": GRPO with silent groups drawn again up to `redraws` more times, E_grpo (1 - P^(redraws+1)) / (1 - P) with
    the silent rate P; `None` is without bound, E_grpo / (1 - P). Where every group is silent (p = 0, p = 1, G = 1) no
    number of draws gives an update, and it is 0.
    Underscores in the method's name count as hyphens. The cost of the sum is in the module's docstring.
    """
    method = _method(method, redraws)
    rate, size = np.broadcast_arrays(_rate(p), _group_size(G))
    if method == "dr-grpo":
        return to_scalar(rate * (1 - rate) * (1 - 1 / size))
    if method == "rloo":
        return to_scalar(np.where(size > 1, rate * (1 - rate), 0.0))
    update = _over_pairs(_expected_sigma, rate, size)
    return to_scalar(update if method == "grpo" else update * _draws(rate, size, redraws))


def fidelity(p: ArrayLike, G: ArrayLike) -> np.ndarray | float:
    """phi(G, p) = E[g] / sqrt(p (1 - p)): GRPO's expected update as a share of its limit for infinite G.

    It increases with G: the mean of a growing group, read backwards, is a martingale, and sqrt(x (1 - x)) is concave.
    For p = 0 and p = 1 the limit, 0. The cost is in the module's docstring.
    """
    rate, size = np.broadcast_arrays(_rate(p), _group_size(G))
    update, limit = _over_pairs(_expected_sigma, rate, size), np.sqrt(rate * (1 - rate))
    return to_scalar(np.divide(update, limit, out=np.zeros_like(update), where=limit > 0))


def attenuation(p: ArrayLike, G: ArrayLike) -> np.ndarray | float:
    """First-order expansion of the fidelity, 1 - 1 / (8 G p (1-p)) (Cor. 1).

    Poor where G p (1-p) is not large: negative below 1/8, and -inf for p = 0 and p = 1.
    """
    rate, size = _rate(p), _group_size(G)
    with np.errstate(divide="ignore"):
        return to_scalar(1 - 1 / (8 * size * rate * (1 - rate)))


def smallest_group_size(p: ArrayLike, fidelity: ArrayLike) -> np.ndarray | int:
    """Exact smallest G >= 2 with phi(G, p) >= fidelity, int64; found by doubling and halving, since phi increases.

    0 < p < 1 and 0 < fidelity < 1, else ValueError: no finite group has fidelity 1, and none any at p = 0 or 1. Also
    ValueError where more than 2^53 completions would be needed. Compared is 1 - phi, which is known to 12 digits
    relative to itself. Cost: 2 log2(G) evaluations of phi for all elements at once.
    """
    rate, target = np.broadcast_arrays(_rate(p), np.asarray(as_finite_float(fidelity, "fidelity")))
    if not np.all((target > 0) & (target < 1)):
        raise ValueError("fidelity must lie above 0 and below 1: no finite group reaches 1")
    if not np.all((rate > 0) & (rate < 1)):
        raise ValueError("p must lie above 0 and below 1: a prompt never or always solved has no gradient at any G")
    allowed = 1 - target
    below, size = np.ones(rate.shape), np.full(rate.shape, 2.0)
    while np.any(short := _over_pairs(_infidelity, rate, size) > allowed):
        below, size = np.where(short, size, below), np.where(short, 2 * size, size)
        if np.any(size > LARGEST_SIZE):
            raise ValueError("more than 2^53 completions would be needed; ask for less fidelity")
    while np.any(size - below > 1):
        middle = np.floor((below + size) / 2)
        short = _over_pairs(_infidelity, rate, middle) > allowed
        below, size = np.where(short, middle, below), np.where(short, size, middle)
    return to_scalar(size.astype(np.int64))


def group_size_law(p: ArrayLike, epsilon: ArrayLike) -> np.ndarray | float:
    """G* = 1 / (8 epsilon p (1-p)), the group size for fidelity 1 - epsilon (Cor. 2), not rounded.

    0 < epsilon < 1, else ValueError. Infinite for p = 0 and p = 1. It falls short of the exact smallest size; for
    that see `smallest_group_size`.
    """
    rate, loss = _rate(p), as_finite_float(epsilon, "epsilon")
    if not np.all((loss > 0) & (loss < 1)):
        raise ValueError("epsilon must lie above 0 and below 1")
    with np.errstate(divide="ignore"):
        return to_scalar(1 / (8 * loss * rate * (1 - rate)))


def difficulty_weight(p: ArrayLike) -> np.ndarray | float:
    """w(p) = 1 / sqrt(p (1-p)) = d/dp 2 arcsin sqrt(p): GRPO's gradient over Dr. GRPO's for large G.

    Infinite for p = 0 and p = 1.
    """
    rate = _rate(p)
    with np.errstate(divide="ignore"):
        return to_scalar(1 / np.sqrt(rate * (1 - rate)))


def silent_fraction(p: ArrayLike, counts: ArrayLike, G: ArrayLike) -> np.ndarray | float:
    """Expected share of silent groups over a data set: `counts` (n,) prompts with solve rates p (n,); shape of G.

    The rates are taken as exact. With estimates from few rollouts it comes out too high, because the silent rate is
    convex in p; `silent_fraction_without_replacement` has no such bias. Cost: n x number of group sizes.
    """
    rate, weight = _histogram(_rate(p), counts, "p")
    return to_scalar(silent_rate(rate, np.asarray(G)[..., np.newaxis]) @ weight)


def silent_fraction_without_replacement(
    k: ArrayLike, n: ArrayLike, counts: ArrayLike, G: ArrayLike
) -> np.ndarray | float:
    """Expected share of silent groups, each drawn without replacement from the n rollouts of its prompt; shape of G.

    `counts` (m,) prompts have k (m,) of n (a number or (m,)) rollouts right: C(k,G)/C(n,G) + C(n-k,G)/C(n,G), the
    unbiased estimate of p^G + (1-p)^G. ValueError for k > n and for G > n. Cost: m x the largest G.
    """
    right, weight = _histogram(as_integer(k, "k", 0), counts, "k")
    total = np.broadcast_to(as_integer(n, "n", 1), right.shape)
    size = _group_size(G)
    if np.any(right > total):
        raise ValueError("k must not exceed n")
    if np.any(size > total.min()):
        raise ValueError(f"G must not exceed the {int(total.min())} rollouts there are to draw from")
    all_right, all_wrong = np.ones(right.shape), np.ones(right.shape)
    by_size = {}
    for drawn in range(int(size.max())):
        all_right = all_right * np.maximum(right - drawn, 0) / (total - drawn)
        all_wrong = all_wrong * np.maximum(total - right - drawn, 0) / (total - drawn)
        by_size[drawn + 1] = float((all_right + all_wrong) @ weight)
    # A group of one is silent; k/n + (n-k)/n may be rounded away from 1.
    by_size[1] = 1.0
    return to_scalar(np.vectorize(by_size.__getitem__, otypes=[np.float64])(size))


def gradient_mass_shares(
    p: ArrayLike,
    counts: ArrayLike,
    edges: ArrayLike,
    method: str,
    G: int | None = None,
    redraws: int | None = None,
) -> np.ndarray:
    """Share of all expected gradient that falls on each difficulty bin, (number of bins,).

    `counts` (n,) prompts have solve rates p (n,). `edges` (bins + 1,) increase; a bin holds its lower edge, the
    last also its upper. A whole number is that many equal bins of [0, 1]. Prompts outside the edges count in the total
    only. `G=None` is the limit of infinite groups: sqrt(p (1-p)) for "grpo" and "dapo", p (1-p) for "dr-grpo" and
    "rloo"; else `expected_update` at G. ValueError if no prompt has any gradient. Cost: n evaluations of it.
    """
    rate, weight = _histogram(_rate(p), counts, "p")
    bounds = _edges(edges)
    if np.ndim(G) != 0:
        raise ValueError("G must be a single group size")
    if G is not None:
        mass = expected_update(rate, G, method, redraws) * weight
    else:
        limit = rate * (1 - rate)
        mass = (np.sqrt(limit) if _method(method, redraws) in ("grpo", "dapo") else limit) * weight
    if not mass.sum() > 0:
        raise ValueError("no prompt has any gradient: every solve rate is 0 or 1, or G is 1")
    return np.histogram(rate, bins=bounds, weights=mass)[0] / mass.sum()


def _expected_sigma(q: np.ndarray, size: np.ndarray) -> np.ndarray:
    """E[sigma(k, G)] for k ~ Binomial(G, q), (n,) and (n,) to (n,): GRPO's expected update."""
    limit = np.sqrt(q * (1 - q))
    return _binomial_mean(lambda k, q, size: _sigma(k, size), limit * (1 - _expansion(q, size)), q, size)


def _infidelity(q: np.ndarray, size: np.ndarray) -> np.ndarray:
    """1 - phi without cancellation: (1/G + E[(sigma / s - 1)^2]) / 2 with s^2 = q (1-q), since E[sigma^2] is known."""

    def squared(k: np.ndarray, q: np.ndarray, size: np.ndarray) -> np.ndarray:
        limit = np.sqrt(q * (1 - q))
        excess = (k - size * q) / size * ((size - k - size * q) / size)  # sigma^2 - s^2, factored
        return (excess / (limit * (_sigma(k, size) + limit))) ** 2

    expansion = _expansion(q, size)
    return 0.5 * (1 / size + _binomial_mean(squared, 2 * expansion - 1 / size, q, size))


def _expansion(q: np.ndarray, size: np.ndarray) -> np.ndarray:
    """1 - phi to second order in 1 / v, v = G q (1-q): Cor. 1 with the next term of the delta method.

    Meant for large v; below 1, where it means nothing, it is finite.
    """
    v = np.maximum(size * q * (1 - q), 1.0)
    return 1 / (8 * v) + (7 - 16 * q * (1 - q)) / (128 * v * v)


def _binomial_mean(
    value: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    large: np.ndarray,
    q: np.ndarray,
    size: np.ndarray,
) -> np.ndarray:
    """E[value(k, q, G)] for k ~ Binomial(G, q), all (n,); `large` (n,) is taken where G q (1-q) is very large.

    The reach of the window is Bernstein's: tails below exp(-60) on either side. See the module's docstring for cost.
    """
    mean, variance = size * q, size * q * (1 - q)
    result = np.array(large, dtype=np.float64)
    reach = _TAIL / 3 + np.sqrt((_TAIL / 3) ** 2 + 2 * _TAIL * variance)
    low, high = np.maximum(0, np.floor(mean - reach)), np.minimum(size, np.ceil(mean + reach))
    width = (high - low + 1).astype(np.int64)
    waiting = np.flatnonzero(variance <= _EXPANSION_FROM)
    waiting = waiting[np.argsort(-width[waiting], kind="stable")]
    while waiting.size:
        columns = width[waiting[0]]  # the widest of the block; the others sum a few negligible terms more
        rows, waiting = np.split(waiting, [max(1, _BLOCK // columns)])
        chosen_q, chosen_size = q[rows, np.newaxis], size[rows, np.newaxis]
        k = low[rows, np.newaxis] + np.arange(columns)
        ratio = np.maximum(chosen_size - k[:, 1:] + 1, 0) / k[:, 1:] * (chosen_q / (1 - chosen_q))
        weight = np.cumprod(np.concatenate([np.ones((len(rows), 1)), ratio], axis=1), axis=1)
        values = value(np.minimum(k, chosen_size), chosen_q, chosen_size)
        result[rows] = (weight * values).sum(axis=1) / weight.sum(axis=1)
    return result


def _over_pairs(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray], rate: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """function(min(p, 1-p), G) for arrays of one shape, evaluated once for equal pairs."""
    smaller = np.minimum(rate, 1 - rate)
    pairs, back = np.unique(smaller + 1j * size, return_inverse=True)
    return function(pairs.real.copy(), pairs.imag.copy())[back].reshape(rate.shape)


def _draws(rate: np.ndarray, size: np.ndarray, redraws: int | None) -> np.ndarray:
    """(1 - P^(redraws+1)) / (1 - P), or 1 / (1 - P) without bound; 0 there for prompts whose groups are all silent."""
    q = np.minimum(rate, 1 - rate)
    mixed = np.where(size > 1, -np.expm1(size * np.log1p(-q)) - q**size, 0.0)  # 1 - P
    if redraws is None:
        return np.divide(1.0, mixed, out=np.zeros_like(mixed), where=mixed > 0)
    silent = np.asarray(silent_rate(rate, size))
    with np.errstate(divide="ignore"):
        log_silent = np.where(mixed < 0.5, np.log1p(-mixed), np.log(silent))
    return np.divide(
        -np.expm1((redraws + 1) * log_silent), mixed, out=np.full_like(mixed, redraws + 1.0), where=mixed > 0
    )


def _sigma(k: np.ndarray, size: np.ndarray) -> np.ndarray:
    return np.sqrt(k * (size - k)) / size


def _method(method: str, redraws: int | None) -> str:
    name = method.replace("_", "-") if isinstance(method, str) else method
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if redraws is not None and name != "dapo":
        raise ValueError(f"only dapo draws silent groups again: {name} knows no redraws")
    if redraws is not None and as_integer(redraws, "redraws", 0).ndim:
        raise ValueError("redraws must be a single number")
    return name


def _edges(edges: ArrayLike) -> np.ndarray:
    if np.ndim(edges) == 0:
        bins = int(as_integer(edges, "the number of bins", 1))
        return np.arange(bins + 1) / bins
    bounds = as_finite_float(edges, "edges")
    if bounds.ndim != 1 or len(bounds) < 2 or not np.all(np.diff(bounds) > 0):
        raise ValueError("edges must be at least two increasing numbers")
    return bounds


def _histogram(values: np.ndarray, counts: ArrayLike, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Values (n,) and their weights (n,), which sum to 1."""
    values, number = np.atleast_1d(values), np.atleast_1d(as_finite_float(counts, "counts"))
    if values.ndim != 1 or values.shape != number.shape:
        raise ValueError(f"{name} and counts must be of one length, not of shapes {values.shape} and {number.shape}")
    if np.any(number < 0) or not number.sum() > 0:
        raise ValueError("counts must not be negative, nor all zero")
    return values, number / number.sum()


def _rate(p: ArrayLike) -> np.ndarray:
    rate = as_finite_float(p, "p")
    if np.any((rate < 0) | (rate > 1)):
        raise ValueError("p must lie between 0 and 1")
    return rate


def _group_size(G: ArrayLike) -> np.ndarray:
    return as_integer(G, "G", 1)


def as_integer(values: ArrayLike, name: str, least: int) -> np.ndarray:
    """Whole numbers as float64; they may come as floats such as 8.0."""
    array = as_finite_float(values, name)
    if np.any((array != np.floor(array)) | (array < least) | (array > LARGEST_SIZE)):
        raise ValueError(f"{name} must be a whole number of at least {least} and at most 2^53")
    return array


def as_finite_float(values: ArrayLike, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "bifuO":
            raise TypeError(f"dtype {array.dtype}")
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be real numbers ({error})") from None
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite: NaN or infinity found")
    return array


def to_scalar(values: ArrayLike) -> np.ndarray | float:
    """A scalar for an array of no dimension."""
    return np.asarray(values)[()]
