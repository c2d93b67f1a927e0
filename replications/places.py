"""Where results lie: the committed ones of a checkout, and those of one's own runs beside them.

A run of one's own never changes the committed results unless it is told to.  An installed copy has no committed
results; what it makes goes into the directory in which it is called.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.sources import DATA, data_directory

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "REPLICATE_RESULTS"
COMMITTED, OWN = "results", "results-mine"


def is_checkout() -> bool:
    """Whether the suite runs from its source, not from an installed copy."""
    return (ROOT / "pyproject.toml").is_file() and (ROOT / "replications").is_dir()


def committed_results() -> Path | None:
    """The directory of the committed results; None for an installed copy."""
    return (ROOT / COMMITTED).resolve() if is_checkout() else None


def own_results() -> Path:
    """The directory of one's own results: beside the committed ones, or in the working directory."""
    return ((ROOT if is_checkout() else Path.cwd()) / OWN).resolve()


def add_results_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Let a command take `--results DIR`; `default` says in words where results lie without it."""
    parser.add_argument("--results", metavar="DIR", help=f"directory of the results (default: {default})")


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Let a command take `--data-dir DIR`."""
    text = f"models and data sets of your own, looked at before the hub (default: {DATA}, if set)"
    parser.add_argument("--data-dir", metavar="DIR", help=text)


def use_data_directory(options: argparse.Namespace) -> None:
    """Let this process and its workers look at `--data-dir` first; ReplicationError where there is none."""
    if getattr(options, "data_dir", None):
        os.environ[DATA] = str(Path(options.data_dir).expanduser().resolve())
    data_directory()


def run_target(options: argparse.Namespace) -> Path:
    """Where a run writes: `--update-committed`, `--results`, `REPLICATE_RESULTS`, or one's own results."""
    if options.update_committed:
        committed = committed_results()
        if options.results:
            raise ReplicationError("--results and --update-committed name two directories; give one of them.")
        if committed is None:
            raise ReplicationError("This is an installed copy, which has no committed results to update.")
        return committed
    return chosen_results(options) or own_results()


def results_directory(options: argparse.Namespace | None = None) -> Path:
    """What is judged, drawn, reported and cited: as named, else the committed results, or one's own where installed."""
    return chosen_results(options) or committed_results() or own_results()


def chosen_results(options: argparse.Namespace | None) -> Path | None:
    """What `--results` or `REPLICATE_RESULTS` names; None where neither does."""
    named = getattr(options, "results", None) or os.environ.get(VARIABLE)
    return Path(named).resolve() if named else None
