"""The squared length of one sampled group's gradient: what of it is signal and what noise.

A prompt's completions are independent. Right ones have scores with mean E[s | right] and total variance v+ (the trace
of their covariance), wrong ones E[s | wrong] and v-. With Delta = E[s | right] - E[s | wrong] and Theorem 1 of Bay &
Yearick (arXiv:2607.00152), g = sigma (sbar+ - sbar-), it follows for a group of G with k right, without any further
assumption, that

    E[||g||^2 | k] = sigma(k, G)^2 ||Delta||^2 + ((G - k) v+ + k v-) / G^2.

Since E[s] = 0, the two means are not free: E[s | right] = (1 - p) Delta, E[s | wrong] = -p Delta, and Delta is the
gradient of logit p.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from grpo_replications.shared.theory.closed_forms import sigma, to_scalar


def expected_squared_norm(
    k: ArrayLike, G: ArrayLike, delta_squared: ArrayLike, spread_right: ArrayLike, spread_wrong: ArrayLike
) -> np.ndarray | float:
    """E[||g||^2 | k] of GRPO's gradient of one group; all arguments broadcast.

    `delta_squared` is ||Delta||^2, `spread_right` and `spread_wrong` are v+ and v-. A silent group has no gradient: 0
    for k = 0 and k = G. An estimate of ||Delta||^2 may be negative, and so may the result. Raises ValueError for a k
    that is no whole number from 0 to G.
    """
    deviation = np.asarray(sigma(k, G))
    right, size = np.asarray(k, dtype=np.float64), np.asarray(G, dtype=np.float64)
    noise = ((size - right) * spread_right + right * spread_wrong) / size**2
    squared = deviation**2 * np.asarray(delta_squared, dtype=np.float64) + noise
    return to_scalar(np.where(deviation > 0, squared, 0.0))


def size_where_signal_leads(delta_squared: ArrayLike, spread: ArrayLike) -> np.ndarray | float:
    """G from which an evenly split group holds more signal than noise: 4 n^2 / ||Delta||^2, n^2 = v+ = v-.

    Not rounded; infinite where ||Delta||^2 is not positive.
    """
    delta, noise = np.broadcast_arrays(np.asarray(delta_squared, float), np.asarray(spread, float))
    return to_scalar(np.divide(4 * noise, delta, out=np.full(delta.shape, np.inf), where=delta > 0))
