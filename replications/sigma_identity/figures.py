"""Measurements -> figures of this replication; nothing is run again. A function returns None where data is missing."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from grpo_replications.replications.sigma_identity import (
    controlled_figures,
    dynamic_figures,
    open_figures,
    real_figures,
    relabelling_figures,
    tables_figures,
)

FIGURES: dict[str, Callable[[pd.DataFrame], Figure | None]] = {
    **tables_figures.FIGURES,
    **controlled_figures.FIGURES,
    "dynamic_sampling": dynamic_figures.dynamic_sampling,
    "real_gradients": real_figures.real_gradients,
    "beyond_theorem": real_figures.beyond_theorem,
    **open_figures.FIGURES,
    **relabelling_figures.FIGURES,
}
