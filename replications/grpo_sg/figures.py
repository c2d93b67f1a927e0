"""Measurements -> figures of this replication; nothing is run again. A function returns None where data is missing."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from grpo_replications.replications.grpo_sg import gradient_figures, many_figures, training_figures

FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    **gradient_figures.FIGURES,
    **training_figures.FIGURES,
    **many_figures.FIGURES,
}
