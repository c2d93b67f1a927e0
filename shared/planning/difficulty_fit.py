"""What a log of groups tells about the spread of difficulty, and whether completions of a group are independent.

A group of G completions has k right. If completions are independent given the prompt, k is Binomial(G, p) with the
prompt's solve rate p, and over prompts the counts are a mixture of binomials. What can be learned from counts alone:

- **Smaller groups.** The silent rate at G' <= G is counted, not modeled: the share of subsets of G' completions that
  are all right or all wrong, C(k,G')/C(G,G') + C(G-k,G')/C(G,G'). It needs no independence.
- **The group's own size and larger.** A group's own counts hold no second opinion on its silent rate. A Beta
  distribution over p (`fit_beta`) smooths and extrapolates; it is a family, and may not fit (`misfit`). What takes no
  family is in `rate_forecast`.
- **Independence.** Completions that are alike beyond their prompt's difficulty cannot be told from difficulties that
  differ, as long as each prompt is seen once: both give the same counts (de Finetti). Only counts that no mixture of
  binomials gives refute independence then (`mixture_test`): those that vary less than any, or that leave values of k
  out, as copies in pairs do. Where a prompt was sampled in several groups under nearly the same policy, the totals of
  its groups must divide among them by chance (`recurrence_test`): that is an exact test, and a prediction of the silent
  rate from the same prompts' other completions. Learning moves solve rates between two visits; what a common speed in
  logits explains is taken out before the spread is judged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln, roots_jacobi
from scipy.stats import chi2

from grpo_replications.shared.planning.solve_rates import SolveRates
from grpo_replications.shared.statistics.estimates import Estimate, default_generator
from grpo_replications.shared.theory.closed_forms import sigma

LEVEL = 0.95
LARGEST_GROUP = 4096  # sizes above are not searched
_NODES = 200  # of the quadrature
_CELLS = 41  # of the grid over mean and correlation, each
_RELEVANT = 12.0  # cells whose log-likelihood is this far below the best hold nothing of the posterior


@dataclass(frozen=True)
class Counts:
    """How many groups had k right, `by_k` (G + 1,), and how many were silent of unknown kind.

    The unknown are groups whose first draw was silent and was thrown away by a redraw.
    """

    by_k: np.ndarray
    silent_unknown: int = 0

    @property
    def group_size(self) -> int:
        """G."""
        return len(self.by_k) - 1

    @property
    def groups(self) -> int:
        """All groups, those of unknown kind included."""
        return int(self.by_k.sum()) + self.silent_unknown

    def silent_share(self, size: int) -> float:
        """Share of silent subsets of `size` <= G completions: unbiased for the silent rate at that size."""
        if not 1 <= size <= self.group_size:
            raise ValueError(f"size must lie in 1..{self.group_size}, not {size}")
        k = np.arange(self.group_size + 1)
        share = np.exp(log_subset(k, self.group_size, size)) + np.exp(
            log_subset(self.group_size - k, self.group_size, size)
        )
        return float((self.by_k @ np.minimum(share, 1.0) + self.silent_unknown) / self.groups)


@dataclass(frozen=True)
class BetaFit:
    """Posterior of a Beta distribution of solve rates: parameters `alpha`, `beta` and weights (c,), sum 1.

    The prior is uniform in the mean alpha / (alpha + beta) and in the correlation 1 / (alpha + beta + 1) of two
    completions of a random prompt. Every method gives the posterior mean (of a group size: median) with its central
    95 % interval, and `n` groups. The interval covers the finite number of groups, not a family that does not fit.
    """

    alpha: np.ndarray
    beta: np.ndarray
    weight: np.ndarray
    groups: int

    def solve_rate(self) -> Estimate:
        """Mean solve rate."""
        return self._estimate(self.alpha / (self.alpha + self.beta))

    def silent_rate(self, size: int) -> Estimate:
        """E[p^G + (1-p)^G]."""
        return self._estimate(self._silent_rate(size))

    def fidelity(self, size: int) -> Estimate:
        """Fidelity of the whole set: E[sigma(k, G)] / E[sqrt(p (1-p))], GRPO's mean update over its limit (Prop. 2).

        Unlike the mean of each prompt's fidelity, it weighs a prompt by the update it can give at all.
        """
        return self._estimate(self._fidelity(size))

    def smallest_group_size(self, fidelity: float) -> Estimate:
        """Smallest G whose `fidelity` reaches `fidelity`: median and interval; inf above LARGEST_GROUP."""
        return self._smallest(lambda size: self._fidelity(size) >= fidelity)

    def smallest_group_size_for_silence(self, share: float) -> Estimate:
        """Smallest G whose silent rate is at most `share`; inf above LARGEST_GROUP."""
        return self._smallest(lambda size: self._silent_rate(size) <= share)

    def _silent_rate(self, size: int) -> np.ndarray:
        log_b = betaln(self.alpha, self.beta)
        right = np.exp(betaln(self.alpha + size, self.beta) - log_b)
        return right + np.exp(betaln(self.alpha, self.beta + size) - log_b)

    def _fidelity(self, size: int) -> np.ndarray:
        log_b = betaln(self.alpha, self.beta)
        limit = np.exp(betaln(self.alpha + 0.5, self.beta + 0.5) - log_b)
        pmf = np.exp(log_beta_binomial(size, self.alpha, self.beta))
        return pmf @ sigma(np.arange(size + 1), size) / limit

    def _smallest(self, enough: Callable[[int], np.ndarray]) -> Estimate:
        return smallest_size(lambda size: float(self.weight @ enough(size)), self.groups)

    def rates(self, source: str) -> SolveRates:
        """The central Beta distribution as solve rates with weights, by Gauss-Jacobi quadrature.

        Exact for the silent rate and for every polynomial of degree below 400 in the rate. The central distribution is
        the one of posterior mean solve rate and correlation; `counts` sum to the fit's groups.
        """
        total = self.alpha + self.beta
        mean, correlation = self.weight @ (self.alpha / total), self.weight @ (1 / (total + 1))
        precision = (1 - correlation) / correlation
        nodes, weights = roots_jacobi(_NODES, (1 - mean) * precision - 1, mean * precision - 1)
        return SolveRates((nodes + 1) / 2, weights / weights.sum() * self.groups, None, source)

    def _estimate(self, values: np.ndarray) -> Estimate:
        order = np.argsort(values)
        mass = np.cumsum(self.weight[order])
        low, high = (values[order][np.searchsorted(mass, q)] for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        mean = float(self.weight @ values)
        return Estimate(mean, min(float(low), mean), max(float(high), mean), self.groups)


def smallest_size(share_enough: Callable[[int], float], groups: int, largest: int = LARGEST_GROUP) -> Estimate:
    """Smallest G that is enough, over draws of a distribution: median, central 95 %; inf above `largest`.

    `share_enough(G)`: share of the draws for which G is enough, which must not fall with G. "The size needed is at most
    G" and "G is enough" are one event, so quantiles come by bisection.
    """
    share_enough = functools.cache(share_enough)  # the three searches begin alike
    ends = []
    for probability in (0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2):
        low, high = 1, 2
        while low < largest and share_enough(min(high, largest)) < probability:
            low, high = min(high, largest), 2 * high
        if low >= largest:
            ends.append(math.inf)
            continue
        high = min(high, largest)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if share_enough(middle) >= probability else (middle, high)
        ends.append(float(high))
    return Estimate(*ends, groups)


@dataclass(frozen=True)
class MixtureTest:
    """Can the counts be a mixture of binomials at all? `p_value` is conservative; small: they cannot."""

    statistic: float
    p_value: float


@dataclass(frozen=True)
class RecurrenceTest:
    """Groups of the same prompt within a window of steps, against an independent division of their completions.

    `silent`: observed share; `predicted`: expected share given each prompt's total, with the central 95 % of what
    chance would give. `spread`: variance of k among a prompt's groups over its value for independent completions.
    `still_spread`: the same after learning at one common speed, in logits a step, is taken out by least squares.
    `moved`: mean change of the solve rate from a cluster's first group to its last, with a normal interval over
    clusters. p-values are two-sided and exact up to simulation. `clusters`: prompts, or windows of one.
    """

    groups: int
    clusters: int
    window: float
    silent: float
    predicted: Estimate
    silent_p_value: float
    spread: float
    spread_p_value: float
    still_spread: float
    still_spread_p_value: float
    moved: Estimate


def log_beta_binomial(size: int, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """log P(k) for k = 0..G of a Beta-binomial: (c,), (c,) to (c, G + 1).

    From P(0) on by the ratios of neighbours: one logarithm for each, where the Beta function would take six.
    """
    k, alpha, beta = np.arange(size), alpha[:, None], beta[:, None]
    ratios = (size - k) * (alpha + k) / ((k + 1) * (beta + (size - 1 - k)))
    first = betaln(alpha, beta + size) - betaln(alpha, beta)
    return np.hstack([first, first + np.cumsum(np.log(ratios), axis=1)])


def fit_beta(counts: Counts) -> BetaFit:
    """Posterior of a Beta distribution of solve rates from counts of right completions.

    A grid over mean and correlation is narrowed until it fits the posterior. Time about 2e4 x G operations, whatever
    the number of groups.
    """
    if counts.groups == 0:
        raise ValueError("no group to fit")
    box = np.array([[0.0, 1.0], [0.0, 1.0]])
    for _ in range(12):
        axes = [low + (high - low) * (np.arange(_CELLS) + 0.5) / _CELLS for low, high in box]
        mean, correlation = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        precision = (1 - correlation) / correlation
        alpha, beta = mean * precision, (1 - mean) * precision
        log_pmf = log_beta_binomial(counts.group_size, alpha, beta)
        likelihood = log_pmf @ counts.by_k
        if counts.silent_unknown:
            likelihood += counts.silent_unknown * np.logaddexp(log_pmf[:, 0], log_pmf[:, -1])
        relevant = likelihood > likelihood.max() - _RELEVANT
        narrow = box.copy()
        for axis, values in enumerate((mean, correlation)):
            cell = (box[axis, 1] - box[axis, 0]) / _CELLS
            narrow[axis] = (
                max(box[axis, 0], values[relevant].min() - cell),
                min(box[axis, 1], values[relevant].max() + cell),
            )
        if np.all(np.ptp(narrow, axis=1) > 0.8 * np.ptp(box, axis=1)):
            break
        box = narrow
    weight = np.exp(likelihood[relevant] - likelihood.max())
    return BetaFit(alpha[relevant], beta[relevant], weight / weight.sum(), counts.groups)


def misfit(counts: Counts, fit: BetaFit) -> float:
    """p-value of Pearson's test that the Beta fit describes the counts; nan where too few cells can be expected full.

    Neighboring k are joined until each cell expects at least 5 groups; two parameters were fitted.
    """
    expected = fit.weight @ np.exp(log_beta_binomial(counts.group_size, fit.alpha, fit.beta)) * counts.by_k.sum()
    cells: list[list[float]] = [[0.0, 0.0]]
    for observed, mean in zip(counts.by_k, expected):
        if cells[-1][1] >= 5:
            cells.append([0.0, 0.0])
        cells[-1][0] += observed
        cells[-1][1] += mean
    if len(cells) > 1 and cells[-1][1] < 5:
        rest = cells.pop()
        cells[-1] = [cells[-1][0] + rest[0], cells[-1][1] + rest[1]]
    freedom = len(cells) - 3
    if freedom < 1:
        return math.nan
    return float(chi2.sf(sum((o - e) ** 2 / e for o, e in cells), freedom))


def mixture_test(counts: Counts, iterations: int = 3000) -> MixtureTest:
    """Likelihood ratio of free counts against the best mixture of binomials (EM over 201 solve rates).

    The p-value, from chi-squared with G degrees of freedom, is too large rather than too small: the mixture has
    parameters of its own, and what EM has yet to gain is bounded (Lindsay 1983) and given to the mixture.
    """
    size, n = counts.group_size, counts.by_k.sum()
    if n == 0:
        return MixtureTest(0.0, 1.0)
    p = np.linspace(0.0, 1.0, 201)
    k = np.arange(size + 1)
    choose = np.exp(gammaln(size + 1) - gammaln(k + 1) - gammaln(size - k + 1))
    pmf = choose * p[:, None] ** k * (1 - p[:, None]) ** (size - k)
    share = counts.by_k / n
    seen = share > 0
    weight = np.full(len(p), 1 / len(p))
    gain = np.ones(len(p))
    for _ in range(iterations):
        gain = pmf[:, seen] @ (share[seen] / (weight @ pmf[:, seen]))
        if gain.max() - 1 < 1e-3 / n:
            break
        weight = weight * gain
        weight /= weight.sum()
    fitted = weight @ pmf[:, seen]
    left = max(float((pmf[:, seen] @ (share[seen] / fitted)).max()) - 1, 0.0)
    statistic = max(0.0, 2 * n * (float(share[seen] @ np.log(share[seen] / fitted)) - left))
    return MixtureTest(float(statistic), float(chi2.sf(statistic, size)))


def recurrence_test(
    steps: np.ndarray, prompts: np.ndarray, k: np.ndarray, size: int, window: float, draws: int = 2000
) -> RecurrenceTest | None:
    """Compare groups of one prompt at most `window` steps apart; None where no prompt recurs within it.

    `steps`, `prompts`, `k`: (n,). Given a cluster's total K of m G completions, each division among its m groups
    is as likely as any other if completions are independent and the solve rate did not move within the window. A spread
    above 1 means completions alike within a group, or a solve rate that moved; below 1, completions that avoid each
    other. Time grows as draws x groups, with fewer draws (1,000) for very many groups.
    """
    clusters = list(_clusters(steps, prompts, window))
    if not clusters:
        return None
    rows = np.concatenate(clusters)
    draws = min(draws, max(1000, int(2e7 / len(rows))))
    generator = default_generator()
    silent_draws, spread_draws, along_draws = np.zeros(draws), np.zeros(draws), np.zeros(draws)
    silent = spread = along = course = expected_silent = expected_spread = 0.0
    for members in clusters:
        m, total = len(members), int(k[members].sum())
        both = np.exp(log_subset(np.array([total, m * size - total]), m * size, size)).sum()
        expected_silent += m * min(float(both), 1.0)
        rate = total / (m * size)
        expected_spread += m * size * rate * (1 - rate) * (m * size - size) / (m * size - 1)
        # A logit that rises by c a step moves k by about c G p (1 - p) a step.
        expected_move = size * rate * (1 - rate) * (steps[members] - steps[members].mean())
        course += float(expected_move @ expected_move)
        divided = generator.multivariate_hypergeometric([size] * m, total, size=draws)
        silent_draws += ((divided == 0) | (divided == size)).sum(axis=1)
        spread_draws += ((divided - total / m) ** 2).sum(axis=1)
        along_draws += divided @ expected_move
        silent += float(((k[members] == 0) | (k[members] == size)).sum())
        spread += float(((k[members] - total / m) ** 2).sum())
        along += float(k[members] @ expected_move)
    course = max(course, np.finfo(float).tiny)
    still, still_draws = spread - along**2 / course, spread_draws - along_draws**2 / course
    moved = np.array([(k[members[-1]] - k[members[0]]) / size for members in clusters])
    error = 1.96 * moved.std(ddof=1) / math.sqrt(len(moved)) if len(moved) > 1 else math.inf
    low, high = np.quantile(silent_draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) / len(rows)
    mean = expected_silent / len(rows)
    return RecurrenceTest(
        groups=len(rows),
        clusters=len(clusters),
        window=window,
        silent=silent / len(rows),
        predicted=Estimate(mean, min(float(low), mean), max(float(high), mean), len(rows)),
        silent_p_value=_two_sided(silent, silent_draws),
        spread=spread / expected_spread if expected_spread else math.nan,
        spread_p_value=_two_sided(spread, spread_draws),
        still_spread=still / expected_spread if expected_spread else math.nan,
        still_spread_p_value=_two_sided(still, still_draws),
        moved=Estimate(float(moved.mean()), float(moved.mean() - error), float(moved.mean() + error), len(moved)),
    )


def usual_gap(steps: np.ndarray, prompts: np.ndarray) -> float:
    """Median number of steps from one group of a prompt to its next; 0 where no prompt recurs. (n,), (n,) to a number.

    As a window it compares neighboring visits only, so that a policy that learns moves least between them.
    """
    order = np.lexsort((steps, prompts))
    same = np.diff(prompts[order]) == 0
    return float(np.median(np.diff(steps[order])[same])) if same.any() else 0.0


def _clusters(steps: np.ndarray, prompts: np.ndarray, window: float) -> Iterable[np.ndarray]:
    """Groups of one prompt, in order, cut so that none is more than `window` steps after the first; two or more."""
    order = np.lexsort((steps, prompts))
    start = 0
    for i in range(1, len(order) + 1):
        if (
            i == len(order)
            or prompts[order[i]] != prompts[order[start]]
            or steps[order[i]] - steps[order[start]] > window
        ):
            if i - start > 1:
                yield order[start:i]
            start = i


def _two_sided(observed: float, draws: np.ndarray) -> float:
    slack = 1e-9 * (1 + abs(observed))  # equal up to the order of summation is equal
    above, below = (draws >= observed - slack).sum(), (draws <= observed + slack).sum()
    return float(min(1.0, 2 * (min(above, below) + 1) / (len(draws) + 1)))


def log_subset(k: np.ndarray, n: int, size: int) -> np.ndarray:
    """log of C(k, size) / C(n, size), the chance that `size` drawn of n all are among k; -inf for k < size."""
    k = np.asarray(k, dtype=np.float64)
    inside = np.maximum(k, size)
    value = gammaln(inside + 1) - gammaln(inside - size + 1) - gammaln(n + 1) + gammaln(n - size + 1)
    return np.where(k >= size, value, -np.inf)
