"""Measurements on disk -> a paper's figures and their captions."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.captions import CAPTIONS, Caption, read_captions, write_captions
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.measurements import MEASUREMENTS, TIMINGS, load_measurements
from grpo_replications.shared.harness.papers import Paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".pdf", ".txt")


class Unfinished(ReplicationError):
    """What was asked for is right, but could not be done to its end."""

    exit_code = 1


def draw_figures(paper: Paper, profile: str, directory: Path, mark: str = "") -> dict[str, str]:
    """Draw every figure of the paper into `directory/figures` and return the errors of those that failed.

    A figure function gets the frame of `shared.harness.measurements.load_measurements`; its `attrs` hold
    `profile`, `timings` (the path of timings) and `paper` (check id -> the number that the paper prints).  It
    returns None where the frame does not hold what it draws; a file left by an earlier run is then removed.
    The caption goes beside each figure as a text, and all of them, also for LaTeX and with what was measured on
    the figure, to `figures/captions.json`. `mark` is written across every figure and before its caption.
    Raises `Unfinished` where a file
    cannot be written; the figures before it are kept, and so is the old one.
    """
    if not paper.figures:
        return {}
    from grpo_replications.shared.harness.plots import save, style

    frame = load_measurements(directory / MEASUREMENTS)
    frame.attrs = {
        "profile": profile,
        "timings": str(directory / TIMINGS),
        "paper": paper.printed,
    }
    target = directory / "figures"
    failures: dict[str, str] = {}
    captions = {name: one for name, one in read_captions(target).items() if name in paper.figures}
    for place, (name, function) in enumerate(paper.figures.items()):
        style()
        words = None
        try:
            if (figure := function(frame)) is not None:
                words = _laid_out(figure, function, mark)
        except Exception as error:  # one broken figure must not cost the others, nor the verdicts
            failures[name] = f"{type(error).__name__}: {error}"
        captions.pop(name, None)
        if words is None:
            for ending in ENDINGS:
                (target / f"{name}{ending}").unlink(missing_ok=True)
            continue
        try:
            save(figure, target / name)
            write_atomic(target / f"{name}.txt", words.text + "\n")
        except OSError as error:
            with suppress(OSError):  # the disk may take the captions no more than the figure
                write_captions(captions, target)
            raise Unfinished(_cannot_write(paper, profile, target / name, error, place)) from None
        captions[name] = words
    if captions:
        write_captions(captions, target)
    else:
        (target / CAPTIONS).unlink(missing_ok=True)
    return failures


def _laid_out(figure: Figure, function: Callable[..., Any], mark: str) -> Caption:
    """Lay a figure out; its caption, or that of its function's first lines, with what was measured on it."""
    from grpo_replications.shared.harness.figure_layout import faults, finish, smallest_type

    finish(figure)
    width, height = (round(float(inches), 2) for inches in figure.get_size_inches())
    words = getattr(figure, "caption", None) or Caption((function.__doc__ or "").strip().split("\n\n")[0])
    measured = words.measured(width, height, smallest_type(figure), faults(figure))
    if mark:
        look = {"color": "red", "alpha": 0.35, "size": 28, "rotation": 30, "ha": "center", "va": "center"}
        figure.text(0.5, 0.5, mark.partition(":")[0], **look)
        measured = replace(measured, shows=f"{mark}. {measured.shows}")
    return measured


def _cannot_write(paper: Paper, profile: str, path: Path, error: OSError, finished: int) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "Free some space" if full else "Make the directory writable"
    return (
        f"The figure {path.name} of {paper.slug} ({profile}) cannot be written to {path.parent}: "
        f"{error.strerror or error}. The {finished} figures before it are kept. {remedy}, then run: "
        f"replicate figures {paper.slug} --profile {profile}"
    )
