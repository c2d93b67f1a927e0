"""The figure of our own Table 2: a panel for each model and beta, beside the paper's numbers."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from grpo_replications.replications.lambda_grpo.result_tables import MEAN, cell_estimates, printed_cells
from grpo_replications.replications.lambda_grpo.table2_intervals import DIGIT
from grpo_replications.shared.harness.plots import GREY, caption, look, panels, paper_mark, points_with_interval, titled

METHODS = ("base", "grpo", "lambda-grpo")


def table2(frame: pd.DataFrame) -> Figure | None:
    """Accuracies of the base model, GRPO and λ-GRPO on the benchmarks, with intervals over runs and over problems."""
    rows = frame[(frame["experiment"] == "table2") & frame["step"].isna()]
    if rows.empty:
        return None
    trained = rows[rows["method"] != "base"]
    if trained.empty:
        return None
    names = [name.removeprefix("accuracy/") for name in rows["metric"].unique() if name.startswith("accuracy/")]
    groups = list(trained.groupby(["model", "beta"], sort=False).groups)
    figure, axes = panels(len(groups), 1, height=1.3, sharex=True)
    printed, runs = printed_cells(), 0
    for axis, (model, beta) in zip(axes[:, 0], groups, strict=True):
        for place, method in enumerate(METHODS):
            own = rows[(rows["model"] == model) & (rows["method"] == method)]
            own = own if method == "base" else own[own["beta"] == beta]
            if own.empty:
                continue
            style = look(method)
            at = [number + 0.25 * (place - 1) for number in range(len(names))]
            pairs = [cell_estimates(own, name) for name in names]
            points_with_interval(axis, at, [one for _, one in pairs], "", GREY, "none", (0.0, 1.0), across=True)
            over_runs = [one for one, _ in pairs]
            points_with_interval(axis, at, over_runs, style.label, style.color, style.marker, (0.0, 1.0), across=True)
            runs = max(runs, over_runs[0].n)
            for y, name in zip(at, names, strict=True):
                cell = printed.get((model, None if method == "base" else float(beta), method, name))
                if cell is not None:
                    paper_mark(axis, cell.accuracy / DIGIT, y, "paper" if (y, place) == (at[0], 0) else None)
        axis.set_yticks(range(len(names)), ["mean" if name == MEAN else name for name in names])
        axis.set_ylim(len(names) - 0.5, -0.5)
    titled(axes, *(f"{model.split('/')[-1].removeprefix('DeepSeek-R1-')}, β = {beta:g}" for model, beta in groups))
    axes[-1, 0].set_xlabel("share of problems solved")
    axes[0, 0].legend()
    return caption(
        figure,
        "Accuracies of our own Table 2 on five benchmarks and their mean.",
        "Diamonds: the paper's Table 2, one run a cell.",
        f"n = {runs} training runs at most; coloured bars: 95 % intervals of the mean over runs; grey bars: 95 % "
        "intervals over a benchmark's problems, for one run.",
    )
