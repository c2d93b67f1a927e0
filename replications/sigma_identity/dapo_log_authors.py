"""DAPO's log under the authors' own reading: the one that their public figure script fixes.

`replications.sigma_identity.dapo_log` fits every reading of what the paper's text leaves open. The script of the
paper's figure leaves nothing open: it warps all Big-Math rates (never and always solved ones included), lets T grow
exponentially, and ties the curve to both ends of the log,

    T(t) = 1 + (H - 1) (1 - exp(-(t - t_1) / tau)) / (1 - exp(-(t_n - t_1) / tau)),

so that T is 1 at the first logged step t_1 and H at the last, t_n. H gives the mean of the last eight points; tau is
fitted by least squares between 200 and 40,000 steps. The bootstrap draws pairs (step, share) and ties the curve to the
first and the last step of each draw; the figure's band is its central 80 % (10-90 %), and so is our interval of R^2.
The generic curve is the saturating exponential, tied to 0 at the first step.
"""

from __future__ import annotations

import numpy as np

from grpo_replications.replications.sigma_identity.dapo_log import all_correct_share, log_temperature_at, read_log
from grpo_replications.replications.sigma_identity.settings import DapoLogAuthorsSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, row

START = "all"
PLATEAU_POINTS = 8  # of the last logged ones, whose mean is the plateau
INTERVAL = (0.1, 0.9)
TIMESCALES = np.geomspace(200.0, 40_000.0, 400)


def dapo_log_authors(settings: DapoLogAuthorsSettings, seed: int, context: JobContext) -> list[Row]:
    """R^2 with its 10-90 % interval, the generic curve's R^2, parameters, and the fitted curve by step.

    `generic_better_share`: share of the draws on which the generic curve has the higher R^2. Cost: draws x timescales x
    points.
    """
    steps, shares = read_log()
    plateau = float(shares[-PLATEAU_POINTS:].mean())
    log_end = float(log_temperature_at(START, np.array(plateau)))
    curves = anchored_curves(steps, log_end)
    chosen, r_squared = closest(curves, shares)
    generator = np.random.default_rng(seed)
    own, generic = np.empty(settings.draws), np.empty(settings.draws)
    for draw in range(settings.draws):
        context.progress(draw / settings.draws)
        drawn = np.sort(generator.integers(0, len(steps), len(steps)))
        own[draw] = closest(anchored_curves(steps[drawn], log_end), shares[drawn])[1]
        generic[draw] = generic_r_squared(steps[drawn], shares[drawn])
    low, high = np.quantile(own, INTERVAL)
    values = {
        "r2": r_squared,
        "r2_low": float(low),
        "r2_high": float(high),
        "r2_generic": generic_r_squared(steps, shares),
        "timescale": float(TIMESCALES[chosen]),
        "temperature": float(np.exp(log_end)),
        "plateau": plateau,
        "generic_better_share": float((generic > own).mean()),
    }
    rows = [row(name, value) for name, value in values.items()]
    return rows + [row("fitted_share", value, int(step)) for step, value in zip(steps, curves[chosen], strict=True)]


def anchored_curves(steps: np.ndarray, log_end: float) -> np.ndarray:
    """E[p^(32/T(t))] at the increasing steps (n,) by timescale, (timescales, n): T = 1 at the first, H at the last."""
    since, times = steps - steps[0], TIMESCALES[:, np.newaxis]
    grown = np.expm1(-since / times) / np.expm1(-since[-1] / times)
    return all_correct_share(START, np.log1p(np.expm1(log_end) * grown))


def closest(curves: np.ndarray, shares: np.ndarray) -> tuple[int, float]:
    """Index of the curve (m, n) with the least squared distance from the shares (n,), and its R^2."""
    loss = ((curves - shares) ** 2).sum(axis=1)
    chosen = int(loss.argmin())
    return chosen, float(1 - loss[chosen] / ((shares - shares.mean()) ** 2).sum())


def generic_r_squared(steps: np.ndarray, shares: np.ndarray) -> float:
    """R^2 of the best a (1 - exp(-(t - t_1) / tau)), a free."""
    shapes = -np.expm1(-(steps - steps[0]) / TIMESCALES[:, np.newaxis])
    factors = (shapes @ shares) / (shapes**2).sum(axis=1)
    return closest(factors[:, np.newaxis] * shapes, shares)[1]
