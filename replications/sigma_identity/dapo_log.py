"""DAPO's log of the share of prompts with 32 of 32 right, against the all-correct branch E[p^32] (Section on DAPO).

The paper starts from the Big-Math solve rates and warps every rate by a temperature, p -> p^(1/T), with T growing from
1 to the value that gives the observed plateau, on one timescale tau: the all-correct share is then E[p^(32/T)]. The
text leaves three things open. The script of the authors' figure decides them
(`replications.sigma_identity.dapo_log_authors`); here is how much hangs on them, all other readings fitted:

`growth`   how T grows with training step t from 1 to its end H: `exponential` T = 1 + (H-1)(1 - exp(-t/tau)),
             `geometric` the same for log T, `reciprocal` for 1/T, `linear` T = 1 + (H-1) t/tau up to H
`start`    `all` rates (k = 0 stays 0 and k = 64 stays 1 under any warp), the `interior` 0 < p < 1, or the
             interior `clipped` to [.02, .98], as in the paper's controlled run
`plateau`  H from a `fixed` plateau of .57 (one free parameter), or the plateau `fitted` too, up to .9 (two)

Fits are least squares over a grid of candidates; the grids' steps change R^2 by less than 1e-3. Intervals are 95 %
percentile intervals of two bootstraps: of pairs (step, share), and of residuals added to the fitted curve. Residuals
of neighbouring steps are alike, which both ignore, so the intervals are too narrow if anything.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from grpo_replications.replications.sigma_identity.settings import DapoLogGenericSettings, DapoLogSettings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.planning.solve_rates import BIG_MATH, SolveRates, load_solve_rates

DATA = Path(__file__).with_name("data") / "dapo_accuracy1_fraction.csv"
EVALUATION_SAMPLES = 32
PAPER_PLATEAU, PAPER_R2 = 0.57, 0.92
PLATEAU_POINTS = 10  # the plateau that is measured: mean of so many last points
CLIP = (0.02, 0.98)
INTERVAL = (0.025, 0.975)
TIMESCALES = np.geomspace(50.0, 50_000.0, 1200)
COARSE_TIMESCALES = TIMESCALES[::4]
PLATEAUS = np.arange(45, 91) / 100
_TABLE = np.concatenate([[0.0], np.geomspace(1e-4, np.log(1e5), 20_000)])  # log T of the tabulated share
_BLOCK = 4_000_000

GROWTHS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    # time: t / tau; end: log H. Each gives log T.
    "exponential": lambda time, end: np.log1p(np.expm1(end) * -np.expm1(-time)),
    "geometric": lambda time, end: end * -np.expm1(-time),
    "reciprocal": lambda time, end: -np.log(np.exp(-end) - np.expm1(-end) * np.exp(-time)),
    "linear": lambda time, end: np.log1p(np.expm1(end) * np.minimum(time, 1.0)),
}
SATURATING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exponential": lambda time: -np.expm1(-time),
    "hyperbolic": lambda time: time / (1 + time),
}


@dataclass(frozen=True)
class Candidates:
    """Curves to choose from: `curves` (m, n points) with their parameters (m,); `scaled` ones fit a factor too."""

    curves: np.ndarray
    timescale: np.ndarray
    plateau: np.ndarray
    log_temperature: np.ndarray
    scaled: bool = False


@dataclass(frozen=True)
class Fit:
    """The best candidate: its curve (n,), R^2 and parameters."""

    curve: np.ndarray
    r_squared: float
    timescale: float
    plateau: float
    temperature: float


def dapo_log(settings: DapoLogSettings, seed: int, context: JobContext) -> list[Row]:
    """One reading of the one-timescale fit: R^2 with both intervals, parameters, and the fitted curve by step.

    `generic_better_share`: share of the resampled sets of pairs on which the saturating exponential has the higher R^2.
    `paper_r2_outside`: how far the paper's R^2 lies outside the interval from pairs, 0 if inside.
    """
    steps, shares = read_log()
    growth, start, plateau = settings.growth, settings.start, settings.plateau
    candidates = warp_candidates(growth, start, plateau, steps)
    draws = settings.draws
    rows = _summary(candidates, shares, steps, draws, seed)
    context.progress(0.7)
    weights = _pair_weights(len(shares), draws, seed)
    own = best(candidates, shares, weights)[1]
    low, high = np.quantile(own, INTERVAL)
    generic = best(saturating_candidates("exponential", steps), shares, weights)[1]
    values = {
        "generic_better_share": float((generic > own).mean()),
        "paper_r2_outside": max(0.0, float(low) - PAPER_R2, PAPER_R2 - float(high)),
        "plateau_mean_last_ten": float(shares[-PLATEAU_POINTS:].mean()),
        "start_share": float(all_correct_share(start, np.zeros(1))[0]),
    }
    return rows + [{"metric": name, "value": value} for name, value in values.items()]


def dapo_log_generic(settings: DapoLogGenericSettings, seed: int, context: JobContext) -> list[Row]:
    """The generic curve that knows nothing of solve rates: a (1 - exp(-t/tau)) or a t / (t + tau)."""
    steps, shares = read_log()
    rows = _summary(saturating_candidates(settings.form, steps), shares, steps, settings.draws, seed)
    context.progress(1.0)
    return rows


@lru_cache(maxsize=1)
def read_log() -> tuple[np.ndarray, np.ndarray]:
    """The 60 points of DAPO's figure: training steps (60,) and all-correct shares (60,)."""
    with DATA.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return np.array([float(row["step"]) for row in rows]), np.array(
        [float(row["all_correct_fraction"]) for row in rows]
    )


def start_rates(start: str) -> SolveRates:
    """Big-Math's solve rates as the warp's start: `all`, `interior` or `clipped`."""
    rates = load_solve_rates(BIG_MATH)
    if start == "all":
        return rates
    if start not in ("interior", "clipped"):
        raise ReplicationError(f"start must be all, interior or clipped, not {start!r}.")
    inner = rates.within()
    if start == "interior":
        return inner
    return SolveRates(np.clip(inner.rates, *CLIP), inner.counts, inner.samples, f"{inner.source}, clipped")


def all_correct_share(start: str, log_temperature: np.ndarray) -> np.ndarray:
    """E[p^(32/T)] over the start's rates: log T (...) to (...), from a table with an error below 1e-6."""
    return np.interp(log_temperature, _TABLE, _share_table(start))


@lru_cache(maxsize=3)
def _share_table(start: str) -> np.ndarray:
    rates = start_rates(start)
    powers = rates.rates ** (EVALUATION_SAMPLES * np.exp(-_TABLE))[:, np.newaxis]
    return powers @ (rates.counts / rates.counts.sum())


def log_temperature_at(start: str, share: np.ndarray) -> np.ndarray:
    """The log T at which the all-correct share is reached: (...) to (...); the share increases with T."""
    table = _share_table(start)
    if np.any(np.asarray(share) > table[-1]):
        raise ReplicationError(f"With the start '{start}' no temperature gives an all-correct share of {share}.")
    return np.interp(share, table, _TABLE)


def warp_candidates(growth: str, start: str, plateau: str, steps: np.ndarray) -> Candidates:
    """Curves E[p^(32/T(t))] over the grid of timescales, and of plateaus if the plateau is fitted."""
    if growth not in GROWTHS:
        raise ReplicationError(f"growth must be one of {', '.join(GROWTHS)}, not {growth!r}.")
    if plateau not in ("fixed", "fitted"):
        raise ReplicationError(f"plateau must be fixed or fitted, not {plateau!r}.")
    fixed = plateau == "fixed"
    ends, times = np.meshgrid(
        [PAPER_PLATEAU] if fixed else PLATEAUS, TIMESCALES if fixed else COARSE_TIMESCALES, indexing="ij"
    )
    ends, times = ends.ravel(), times.ravel()
    log_end = log_temperature_at(start, ends)
    log_temperature = GROWTHS[growth](steps / times[:, np.newaxis], log_end[:, np.newaxis])
    return Candidates(all_correct_share(start, log_temperature), times, ends, log_end)


def saturating_candidates(form: str, steps: np.ndarray) -> Candidates:
    """Curves that rise from 0 to 1 over the grid of timescales; their factor, the plateau, is fitted."""
    if form not in SATURATING:
        raise ReplicationError(f"form must be one of {', '.join(SATURATING)}, not {form!r}.")
    nothing = np.full(len(TIMESCALES), np.nan)
    return Candidates(SATURATING[form](steps / TIMESCALES[:, np.newaxis]), TIMESCALES, nothing, nothing, scaled=True)


def best(candidates: Candidates, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares choice for each of d weighted sets of points: index of the candidate (d,) and R^2 (d,).

    `targets` (n,) or (d, n), `weights` (d, n). Cost: d x m x n for m candidates, in blocks of bounded memory.
    """
    targets = np.broadcast_to(targets, weights.shape)
    curves = candidates.curves
    size = max(1, _BLOCK // len(curves))
    chosen, residual = [], []
    for start in range(0, len(weights), size):
        w, y = weights[start : start + size], targets[start : start + size]
        cross, square = (w * y) @ curves.T, w @ (curves * curves).T
        loss = (w * y * y).sum(axis=1)[:, np.newaxis]
        loss = loss - cross**2 / square if candidates.scaled else loss - 2 * cross + square
        chosen.append(loss.argmin(axis=1))
        residual.append(loss.min(axis=1))
    mean = (weights * targets).sum(axis=1) / weights.sum(axis=1)
    total = (weights * (targets - mean[:, np.newaxis]) ** 2).sum(axis=1)
    return np.concatenate(chosen), 1 - np.concatenate(residual) / total


def fit(candidates: Candidates, shares: np.ndarray) -> Fit:
    """The candidate closest to the points (n,)."""
    index = int(best(candidates, shares, np.ones((1, len(shares))))[0][0])
    curve = candidates.curves[index]
    factor = float(curve @ shares / (curve @ curve)) if candidates.scaled else 1.0
    curve = factor * curve
    spread = ((shares - shares.mean()) ** 2).sum()
    return Fit(
        curve,
        float(1 - ((shares - curve) ** 2).sum() / spread),
        float(candidates.timescale[index]),
        factor if candidates.scaled else float(candidates.plateau[index]),
        float(np.exp(candidates.log_temperature[index])),
    )


def bootstrap_intervals(candidates: Candidates, shares: np.ndarray, draws: int, seed: int) -> dict[str, np.ndarray]:
    """95 % percentile intervals of R^2, (2,) each, every draw fitted anew: `pairs` and `residuals`.

    Residuals are centred before they are drawn.
    """
    found = fit(candidates, shares)
    residuals = shares - found.curve
    generator = np.random.default_rng([seed, 1])
    drawn = found.curve + generator.choice(residuals - residuals.mean(), size=(draws, len(shares)))
    samples = {
        "pairs": best(candidates, shares, _pair_weights(len(shares), draws, seed))[1],
        "residuals": best(candidates, drawn, np.ones_like(drawn))[1],
    }
    return {name: np.quantile(values, INTERVAL) for name, values in samples.items()}


def _pair_weights(n: int, draws: int, seed: int) -> np.ndarray:
    """How often each of n points is drawn in each of `draws` resamples, (draws, n); the same for every curve."""
    return np.random.default_rng([seed, 0]).multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64)


def _summary(candidates: Candidates, shares: np.ndarray, steps: np.ndarray, draws: int, seed: int) -> list[Row]:
    found = fit(candidates, shares)
    values = {"r2": found.r_squared, "timescale": found.timescale, "plateau": found.plateau}
    if not candidates.scaled:
        values["temperature"] = found.temperature
    for name, (low, high) in bootstrap_intervals(candidates, shares, draws, seed).items():
        values |= {f"r2_low_{name}": float(low), f"r2_high_{name}": float(high)}
    rows: list[Row] = [{"metric": name, "value": value} for name, value in values.items()]
    return rows + [
        {"metric": "fitted_share", "value": float(value), "step": int(step)} for step, value in zip(steps, found.curve)
    ]
