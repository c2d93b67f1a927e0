"""Silent rates and group sizes from a log's counts: the mixture of solve rates that fits best, as far as it reaches.

Two fits. The *mixture* takes no shape for the distribution of solve rates (`shared.theory.binomial_mixtures`), with a
bootstrap over groups. Counts of groups of G determine a distribution's first G moments and no more, so the further a
size lies above G, the less they decide: REACH is how far the study of forecasts went, in which the mixture's intervals
held (replications/sigma_identity, "Forecasts of silent shares"). The *Beta fit* (`difficulty_fit`) assumes a shape. It
is narrow at any size, and wrong where difficulties have another shape: in that study its intervals hardly ever held at
four times the log's group size. It serves where the mixture does not: beyond REACH, for few or small groups, and where
silent groups of unknown kind were thrown away. Every answer says which of the two it comes from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grpo_replications.shared.planning.difficulty_fit import (
    LARGEST_GROUP,
    LEVEL,
    BetaFit,
    Counts,
    fit_beta,
    smallest_size,
)
from grpo_replications.shared.planning.solve_rates import SolveRates
from grpo_replications.shared.statistics.estimates import Estimate, default_generator
from grpo_replications.shared.theory.binomial_mixtures import fit_rates_of_each, rate_grid
from grpo_replications.shared.theory.closed_forms import expected_update

REACH = 4  # times the log's group size
FEWEST_GROUPS = 30  # a bootstrap over fewer says little
FEWEST_MIXED = 10  # groups with both right and wrong completions
SMALLEST_GROUP = 4  # counts of smaller groups know three moments at most
MIXTURE, BETA = "mixture", "Beta fit"
_DRAWS = 200
_GRID_POINTS = 101
_TOLERANCE = 1e-6  # of a group's mean log-likelihood


@dataclass(frozen=True)
class MixtureFit:
    """Solve rates (m,), the weights (m,) that fit the counts best, and those (draws, m) of resampled groups.

    Estimates are those of the best weights, a group size the bootstrap's median, with the central 95 % of the
    bootstrap over `groups`. The interval covers the finite number of groups.
    """

    rates: np.ndarray
    weights: np.ndarray
    resampled: np.ndarray
    groups: int

    def solve_rate(self) -> Estimate:
        """Mean solve rate."""
        return self._estimate(self.rates @ self.weights, self.resampled @ self.rates)

    def silent_rate(self, size: int) -> Estimate:
        """E[p^G + (1-p)^G]."""
        silent = self.rates**size + (1 - self.rates) ** size
        return self._estimate(silent @ self.weights, self.resampled @ silent)

    def fidelity(self, size: int) -> Estimate:
        """GRPO's mean update over its limit, as `BetaFit.fidelity`."""
        return self._estimate(self._fidelity(self.weights[None], size)[0], self._fidelity(self.resampled, size))

    def smallest_group_size(self, fidelity: float, largest: int) -> Estimate:
        """Smallest G whose fidelity reaches `fidelity`; inf above `largest`."""
        return smallest_size(
            lambda size: float(np.mean(self._fidelity(self.resampled, size) >= fidelity)), self.groups, largest
        )

    def smallest_group_size_for_silence(self, share: float, largest: int) -> Estimate:
        """Smallest G whose silent rate is at most `share`; inf above `largest`."""
        return smallest_size(
            lambda size: float(np.mean(self.resampled @ (self.rates**size + (1 - self.rates) ** size) <= share)),
            *(self.groups, largest),
        )

    def _fidelity(self, weights: np.ndarray, size: int) -> np.ndarray:
        limit = weights @ np.sqrt(self.rates * (1 - self.rates))
        with np.errstate(invalid="ignore"):  # all rates 0 or 1: no update at any size
            return weights @ expected_update(self.rates, size, "grpo") / limit

    def _estimate(self, value: float, resampled: np.ndarray) -> Estimate:
        low, high = np.nanquantile(resampled, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return Estimate(float(value), min(float(low), float(value)), max(float(high), float(value)), self.groups)


def fit_mixture(counts: Counts, draws: int = _DRAWS) -> MixtureFit:
    """The mixture of binomials that fits the counts best, and the bootstrap over groups; ValueError without a group.

    `silent_unknown` groups are left out. Time: some milliseconds for each of `draws` + 1 fits.
    """
    rates = rate_grid(_GRID_POINTS)
    groups = int(counts.by_k.sum())
    resampled = default_generator().multinomial(groups, counts.by_k / max(groups, 1), size=draws)
    best, *again = fit_rates_of_each(np.vstack([counts.by_k, resampled]), rates, _TOLERANCE)
    return MixtureFit(rates, best, np.array(again), groups)


@dataclass(frozen=True)
class RateForecast:
    """Both fits of a log's counts, and which one answers for a group size.

    `mixture` is None where the counts do not support it, and then `why_beta` says why, as the end of a sentence.
    """

    counts: Counts
    mixture: MixtureFit | None
    why_beta: str | None

    @classmethod
    def of(cls, counts: Counts) -> RateForecast:
        """The forecast from these counts; the mixture is used as far as they support it."""
        size, known, mixed = counts.group_size, int(counts.by_k.sum()), int(counts.by_k[1:-1].sum())
        why = None
        if counts.silent_unknown:
            why = "silent groups were redrawn and their first draws are not in the log"
        elif size < SMALLEST_GROUP:
            why = f"groups of {size} say too little about the shape of difficulties"
        elif known < FEWEST_GROUPS:
            why = f"{known} groups are too few to leave the shape of difficulties open"
        elif mixed < FEWEST_MIXED:
            why = f"only {mixed} groups have both right and wrong completions"
        if why is not None:
            return cls(counts, None, why)
        try:
            return cls(counts, fit_mixture(counts), None)
        except ValueError as error:  # the search has no limit that is known to do for all counts
            return cls(counts, None, str(error))

    @cached_property
    def beta(self) -> BetaFit:
        """The Beta fit, made when it is first asked."""
        return fit_beta(self.counts)

    @property
    def reach(self) -> int:
        """The largest group size for which the mixture answers; 0 where it never does."""
        return 0 if self.mixture is None else REACH * self.counts.group_size

    def method(self, size: float) -> str:
        """MIXTURE or BETA: which fit answers for `size`."""
        return MIXTURE if size <= self.reach else BETA

    def silent_rate(self, size: int) -> Estimate:
        """E[p^G + (1-p)^G] from the fit that answers for `size`."""
        return (self.mixture if size <= self.reach else self.beta).silent_rate(size)

    def fidelity(self, size: int) -> Estimate:
        """Fidelity of the whole set from the fit that answers for `size`."""
        return (self.mixture if size <= self.reach else self.beta).fidelity(size)

    def smallest_group_size(self, fidelity: float) -> Estimate:
        """Smallest G whose fidelity reaches `fidelity`: from the mixture within its reach, else from the Beta fit."""
        found = self.mixture and self.mixture.smallest_group_size(fidelity, self.reach)
        return found if found is not None and math.isfinite(found.value) else self.beta.smallest_group_size(fidelity)

    def smallest_group_size_for_silence(self, share: float) -> Estimate:
        """Smallest G whose silent rate is at most `share`, by the same rule."""
        found = self.mixture and self.mixture.smallest_group_size_for_silence(share, self.reach)
        if found is not None and math.isfinite(found.value):
            return found
        return self.beta.smallest_group_size_for_silence(share)

    def method_of_size(self, size: Estimate) -> str:
        """Which fit a smallest group size came from."""
        return self.method(size.value)

    def rates(self, source: str) -> SolveRates:
        """The fitted distribution as solve rates with weights: the mixture's, or the Beta fit's without one."""
        if self.mixture is None:
            return self.beta.rates(source)
        used = self.mixture.weights > 0
        return SolveRates(self.mixture.rates[used], self.mixture.weights[used] * self.mixture.groups, None, source)

    @property
    def largest(self) -> int:
        """The largest group size that `rates` may be asked about."""
        return self.reach or LARGEST_GROUP
