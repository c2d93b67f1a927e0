"""`replicate verify`: some committed jobs measured again from the present source, and held against the committed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from grpo_replications.replications import places
from grpo_replications.replications.places import (
    COMMITTED,
    add_data_option,
    add_results_option,
    own_results,
    results_directory,
    run_target,
    use_data_directory,
)
from grpo_replications.replications.run_summary import shown
from grpo_replications.replications.tools import to_json
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.words import counted

if TYPE_CHECKING:
    from grpo_replications.shared.harness.measuring_again import Drawing
    from grpo_replications.shared.harness.papers import Paper
    from grpo_replications.shared.harness.verification import JobCheck

SCRATCH = "verify"  # in the directory of one's own results
_TEXT = """
Measure some of the committed jobs again, from the present source on this machine, with the settings and seeds of the
record, and hold each against the committed measurements. The jobs are drawn at random: one of every experiment that the
budget allows, the cheapest first, then any others. Times are not compared.

A job is identical (the same bytes), within rounding (no value differs by more than 1e-6 of its size, or, below 0.1, by
more than 1e-7; by 1e-12 where precision is float64), or different; then the value that differs most is named. Training
in float32 multiplies the rounding of another processor, so a difference need not come from the code: the line says on
which processor and from which commit the committed value is.
Jobs in bfloat16 are drawn on a processor without instructions for it only where --only names them.

The budget counts what the jobs took when they were committed; after three times the budget (of processor time) and a
minute, jobs that are not finished are stopped. A run that was interrupted or stopped is finished by the same command.
Models that are made once and kept are taken from the cache; an empty REPLICATE_CACHE makes them again.

Exit code: 0 where no job differs, 1 where one differs or fails or none is finished, 2 for a wrong request.
"""
_EXAMPLES = """
examples:
  replicate verify lambda-grpo                                 20 jobs of the quick profile, within 10 minutes
  replicate verify lambda-grpo --profile full --budget 30      of the full one, within half an hour
  replicate verify sigma-identity --profile full --only dapo-log --seed 7
"""


def add_command(commands: Any, find_paper: Callable[[str, Path], Paper], default_profile: str) -> None:
    """Add `verify` to the sub-parsers `commands`; `find_paper(name, papers)` is the paper of that name."""
    parser = commands.add_parser(
        "verify",
        help="measure some of the committed jobs again: are the numbers the same here?",
        description=_TEXT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paper", metavar="PAPER", help="a paper's name, as 'replicate list' gives it")
    parser.add_argument("--profile", default=default_profile, help="whose results (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=20, metavar="N", help="draw at most N jobs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--only", metavar="EXP", help="only the experiment of this name, or those starting with it")
    parser.add_argument(
        "--budget",
        type=float,
        default=10.0,
        metavar="MINUTES",
        help="what the drawn jobs may take by the record (default: %(default)g)",
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes side by side (default: 1)")
    add_data_option(parser)
    add_results_option(parser, f"{COMMITTED}/ of a checkout")
    parser.add_argument(
        "--update-committed", action="store_true", help=f"keep the outcome in {COMMITTED}/, for the report to show"
    )
    parser.add_argument("--json", action="store_true", help="for programs: every job with its outcome")
    parser.set_defaults(action=lambda options, console: _verify(options, console, find_paper))


def _verify(options: argparse.Namespace, console: Console, find_paper: Callable[[str, Path], Paper]) -> int:
    from grpo_replications.shared.harness.measuring_again import Request, draw_from, measure_again
    from grpo_replications.shared.harness.verification import sentence, write_verification

    if options.update_committed and options.only:
        raise ReplicationError("What is kept is drawn from all experiments; --update-committed goes without --only.")
    paper = find_paper(options.paper, options.papers)
    results = run_target(options) if options.update_committed else results_directory(options)
    use_data_directory(options)
    request = Request(options.jobs, options.seed, options.budget, options.only, options.workers)
    drawing = draw_from(paper, options.profile, results, request)
    quiet = Console(quiet=True) if options.json else console
    _announce(quiet, drawing)

    def say(check: JobCheck) -> None:
        _print(quiet, _line(check))

    verification = measure_again(drawing, own_results() / SCRATCH, places.ROOT, say)
    if options.json:
        print(to_json(verification.as_json()))
    _print(quiet, sentence(verification), style="bold")
    if options.update_committed and verification.compared:
        path = write_verification(drawing.directory, verification)
        _print(quiet, f"Kept: {shown(path)}; `replicate report` writes it on the pages.")
    return 0 if verification.agrees and verification.compared else 1


def _announce(console: Console, drawing: Drawing) -> None:
    from grpo_replications.shared.harness.progress import duration

    _print(
        console,
        f"{drawing.paper.slug}, {drawing.profile}: {len(drawing.drawn)} of {counted(drawing.found.jobs, 'job')} drawn "
        f"(seed {drawing.request.seed}), which took {duration(drawing.seconds)} by the record.",
    )


def _line(check: JobCheck) -> str:
    """One job in one line: outcome, name, what differs."""
    from grpo_replications.shared.harness.verification import DIFFERENT, FAILED, IDENTICAL, STOPPED

    if check.outcome in (FAILED, STOPPED):
        return f"{check.outcome:<15} {check.name}{f': {check.note}' if check.note else ''}"
    values = counted(check.values, "value")
    if check.outcome == IDENTICAL:
        return f"{check.outcome:<15} {check.name}: {values}"
    by = "by no finite amount" if check.relative is None else f"by at most {check.relative:.2g} of its size"
    text = f"{check.outcome:<15} {check.name}: {check.differ} of {values} differ, {by}; {check.largest}"
    return f"{text}; {check.note}" if check.outcome == DIFFERENT and check.note else text


def _print(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
