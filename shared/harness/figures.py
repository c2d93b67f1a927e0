"""Measurements on disk -> a paper's figures."""

from __future__ import annotations

from pathlib import Path

from grpo_replications.shared.harness.measurements import MEASUREMENTS, TIMINGS, load_measurements
from grpo_replications.shared.harness.papers import Paper


def draw_figures(paper: Paper, profile: str, directory: Path) -> dict[str, str]:
    """Draw every figure of the paper into `directory/figures` and return the errors of those that failed.

    A figure function gets the frame of `shared.harness.measurements.load_measurements`; its `attrs` hold
    `profile`, `timings` (the path of timings) and `paper` (check id -> the number that the paper prints).  It
    returns None where the frame does not hold what it draws; a file left by an earlier run is then removed.
    """
    if not paper.figures:
        return {}
    from grpo_replications.shared.harness.plots import save, style

    frame = load_measurements(directory / MEASUREMENTS)
    frame.attrs = {
        "profile": profile,
        "timings": str(directory / TIMINGS),
        "paper": {check.id: check.paper_value for check in paper.checks if check.paper_value is not None},
    }
    failures = {}
    for name, function in paper.figures.items():
        target = directory / "figures" / name
        for ending in (".png", ".pdf"):
            target.with_name(name + ending).unlink(missing_ok=True)
        style()
        try:
            figure = function(frame)
        except Exception as error:  # one broken figure must not cost the others, nor the verdicts
            failures[name] = f"{type(error).__name__}: {error}"
            continue
        if figure is not None:
            save(figure, target)
    return failures
