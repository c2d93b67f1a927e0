"""The command line `replicate`: its own commands, those of `paper_commands`, and those of `tools`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from grpo_replications.replications import (
    cite,
    compare,
    estimate,
    gpu_check,
    paper_commands,
    status,
    tools,
    verify,
    view,
)
from grpo_replications.replications.places import (
    COMMITTED,
    OWN,
    ROOT,
    add_data_option,
    add_results_option,
    committed_results,
    results_directory,
    run_target,
    use_data_directory,
)
from grpo_replications.replications.run_summary import RunSummary, print_part_summary, print_run_summary, shown
from grpo_replications.replications.termination import EXIT_CODE, Terminated, say_terminated, terminated_by_signal
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.claims import OURS, PAPER
from grpo_replications.shared.harness.papers import Paper, discover

PAPERS = Path(__file__).resolve().parent
DEFAULT_PROFILE = "quick"
SUITE = ("gguf", "jinja2", "matplotlib", "pandas", "pyarrow")  # what the extra of that name installs
BENCH_MODULES = (
    "grpo_replications.shared.harness.bench",
    "grpo_replications.synthetic.bench",
    "grpo_replications.replications.step_bench",
)
EXAMPLES = """
examples:
  replicate list
  replicate run lambda-grpo                                  every experiment of the quick profile
  replicate run lambda-grpo --profile full --only table1     some experiments of another profile
  replicate status                                           how far runs are, from another shell
  replicate compare                                          the committed results against your own runs
  replicate verify lambda-grpo                               some committed jobs measured again: the same here?
  replicate estimate lambda-grpo --profile paper --gpu h100  what it would cost, before anything starts
  replicate check lambda-grpo --profile paper --data         its models, data and disk, before anything starts
  replicate run lambda-grpo --profile paper --rehearse       every step of it on a CPU, with stand-in models
  replicate report                                           the report again, from what is on disk
  replicate cite sigma-dapo-samples                          a number as a sentence, with its origin
  replicate view                                             the report in a browser
  replicate new-paper my-paper                               a new paper, as an example to change
  replicate check my-paper                                   what is wrong with it, before anything runs
  replicate plan-group-size --solve-rates big-math           group sizes for problems of your own
  replicate diagnose outputs/my-run                          silent groups and drifts in a run of your own

A run that was interrupted, or even killed, is finished by the same command; finished jobs are not repeated.
Your own runs go to results-mine/; --results DIR or REPLICATE_RESULTS names another directory. Only --update-committed
changes results/, the committed results.
"""


def main(arguments: Sequence[str] | None = None, papers: Path = PAPERS) -> int:
    """Run one command; returns the exit code: 0, 1 where something failed, 2 for a wrong request, 130 for Ctrl-C.

    143 for SIGTERM, 141 where nobody reads the output any more, as in `replicate list | head -1`.
    """
    try:
        try:
            return _command(list(sys.argv[1:] if arguments is None else arguments), papers)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's own last flush would fail again
        return 128 + signal.SIGPIPE


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let `main` answer it; rich itself would exit with 1, as if something had failed."""
        raise BrokenPipeError


def _command(arguments: list[str], papers: Path) -> int:
    console = _Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", 120)))
    options = _parser().parse_args(arguments)
    options.command = shlex.join(["replicate", *arguments])
    options.papers = papers
    try:
        with terminated_by_signal():
            return options.action(options, console)
    except ReplicationError as error:
        Console(stderr=True).print(f"[red]error:[/red] {_escaped(str(error))}", soft_wrap=True, highlight=False)
        return error.exit_code
    except Terminated:
        say_terminated(options)
        return EXIT_CODE
    except KeyboardInterrupt:
        console.print("\nInterrupted; finished jobs are kept. Run the same command to resume.")
        return 130


def find_paper(name: str, papers: Path) -> Paper:
    """A paper by its name on the command line (`lambda-grpo`), its directory's name, or a path to its directory."""
    for directory in (papers / name.replace("-", "_"), Path(name)):
        if (directory / "claims.toml").is_file():
            return Paper.load(directory)
    known = discover(papers)
    for paper in known:
        if paper.slug == name:
            return paper
    raise ReplicationError(f"There is no paper '{name}'; there are: {', '.join(paper.slug for paper in known)}.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="replicate",
        description="Replicate papers on GRPO: run their experiments, judge their claims, draw and report.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, action: Callable[[argparse.Namespace, Console], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(action=action)
        return sub

    listed = command("list", _list, "list the papers, their profiles and their experiments")
    listed.add_argument("--json", action="store_true", help="for programs")
    run = command("run", _run, "run a paper's experiments, then verdicts, figures and report")
    run.add_argument("paper", metavar="PAPER", help="a paper's name, as 'replicate list' gives it")
    run.add_argument("--profile", default=DEFAULT_PROFILE, help="how much to run (default: %(default)s)")
    run.add_argument("--only", metavar="EXP", help="only the experiment of this name, or those starting with it")
    run.add_argument("--seeds", metavar="N|A-B", help="run seeds 0..N-1, or A..B; changes nothing else")
    run.add_argument("--workers", type=int, metavar="N", help="processes side by side; does not change any result")
    run.add_argument("--fresh", action="store_true", help="forget finished jobs of these experiments and start again")
    run.add_argument("--executor", default="local", metavar="local|ray", help="where the jobs run (default: local)")
    run.add_argument("--address", metavar="ADDR", help="of a Ray cluster, for --executor ray (default: found by Ray)")
    run.add_argument(
        "--part", metavar="K/N", help="only the K-th of N shares of the jobs; a run without it ends it all"
    )
    run.add_argument("--track", default="none", metavar="wandb|tensorboard|none", help="curves of running jobs")
    run.add_argument("--rehearse", action="store_true", help="every step of a hub profile on a CPU, with stand-ins")
    add_data_option(run)
    add_results_option(run, f"{OWN}/")
    run.add_argument("--update-committed", action="store_true", help=f"write to {COMMITTED}/ and the read-me files")
    amount = run.add_mutually_exclusive_group()
    run.add_argument("--measure-only", action="store_true", help="stop after the measurements: no verdicts, no figures")
    amount.add_argument("--quiet", action="store_true", help="print nothing but errors")
    amount.add_argument("--verbose", action="store_true", help="also print the answer to every claim")
    amount.add_argument("--json", action="store_true", help="print the summary as JSON; progress goes to stderr")
    for name, action, text in (
        ("verdicts", _verdicts, "judge the claims again from the measurements on disk"),
        ("figures", _figures, "draw the figures again from the measurements on disk"),
        ("report", _report, "write the report again from what is on disk"),
    ):
        again = command(name, action, text)
        again.add_argument("paper", metavar="PAPER", nargs="?", help="one paper (default: all)")
        again.add_argument("--profile", help="one profile (default: all that have results)")
        add_results_option(again, f"{COMMITTED}/ of a checkout")
        if name == "verdicts":
            again.add_argument("--json", action="store_true", help="for programs: claims, answers and checks")
    status.add_command(commands)
    compare.add_command(commands)
    verify.add_command(commands, find_paper, DEFAULT_PROFILE)
    model = command("model", _model, "fetch and prepare a language model, once")
    model.add_argument("name", metavar="NAME", nargs="?", default="embedded", help="which one (default: %(default)s)")
    command("bench", _bench, "measure the speed targets on this machine")
    gpu_check.add_command(commands)
    paper_commands.add_commands(commands, results_directory)
    cite.add_command(commands, results_directory)
    estimate.add_command(commands, lambda options: find_paper(options.paper, options.papers), results_directory)
    view.add_commands(commands, results_directory)
    calibration = command("calibrate", _calibrate, "measure how often the rules of judging are wrong, then the report")
    calibration.add_argument("--samples", type=int, default=2000, metavar="N", help="studies (default: %(default)s)")
    add_results_option(calibration, f"{COMMITTED}/ of a checkout")
    tools.add_commands(commands)
    return parser


def _list(options: argparse.Namespace, console: Console) -> int:
    if options.json:
        from grpo_replications.replications.listings import papers_json

        print(papers_json(discover(options.papers)))
        return 0
    for paper in discover(options.papers):
        console.print(f"[bold]{paper.slug}[/bold]  {_titled(paper)}", highlight=False)
        number = Counter(claim.source for claim in paper.claims)
        console.print(
            f"  {number[PAPER]} claims of the paper, {number[OURS]} of our own, {len(paper.checks)} checks",
            highlight=False,
        )
        for profile in paper.profiles.values():
            budget = f" (up to {profile.budget_minutes:g} min)" if profile.budget_minutes else ""
            needs = f", needs {profile.requires}" if profile.requires else ""
            console.print(
                f"  [cyan]{profile.name}[/cyan]  {_escaped(profile.description)}{budget}{needs}", highlight=False
            )
            console.print(f"    {', '.join(profile.plans)}", style="dim", highlight=False)
    return 0


def _check_suite() -> None:
    """Say what to install where the trainer alone is installed, before a run stumbles over it."""
    missing = [name for name in SUITE if importlib.util.find_spec(name) is None]
    if missing:
        raise ReplicationError(
            f"{', '.join(missing)} is not installed; for the replications: pip install 'grpo-replications[suite]'"
        )


def _run(options: argparse.Namespace, console: Console) -> int:
    _check_suite()
    from grpo_replications.replications import preflight
    from grpo_replications.shared.harness.parts import Part
    from grpo_replications.shared.harness.runs import Options, run_profile

    paper = find_paper(options.paper, options.papers)
    discover(options.papers)  # a mistake in another paper would stop the report: say so before the run, not after it
    results = run_target(options)
    if options.quiet or options.json:
        console = Console(stderr=True, quiet=options.quiet)
    committed = committed_results()
    chosen = Options(
        options.only,
        options.seeds,
        options.workers,
        options.fresh,
        options.executor,
        options.address,
        Part.parse(options.part) if options.part else None,
        command=options.command,
        track=options.track,
        timed_by=committed / paper.name / options.profile if committed else None,
    )
    use_data_directory(options)
    if options.rehearse:
        from grpo_replications.replications.rehearsal import rehearse

        return rehearse(paper, options, results, console, lambda *place: _draw(*place[:3], console, place[3]))
    elsewhere = options.executor != "local"
    estimate.before_run(paper, options.profile, committed or results, console, options.only, options.seeds, elsewhere)
    preflight.before_run(paper, options.profile, results, console, options.only, here=not elsewhere)
    result = run_profile(paper, options.profile, results, ROOT, console, chosen)
    drawn = True
    if chosen.part is not None:
        print_part_summary(console, str(chosen.part), result.jobs, len(result.failures), options.json)
    elif options.measure_only:
        console.print(f"Measured: {shown(result.directory)}. `replicate verdicts`, `figures` and `report` do the rest.")
    else:
        _judge(paper, options.profile, results)
        drawn = _draw(paper, options.profile, results, console)
        report = _write_report(paper, options.papers, results)
        _summarize(options, console, paper, results, report, len(result.failures))
    if result.failures:
        Console(stderr=options.quiet or options.json).print(
            f"[red]{len(result.failures)} job(s) failed[/red]; the errors are in "
            f"{shown(result.directory / 'jobs')}/*.error.txt. Finished jobs are kept: run the same command to resume.",
            soft_wrap=True,
            highlight=False,
        )
    return 1 if result.failures or not drawn else 0


def _summarize(
    options: argparse.Namespace, console: Console, paper: Paper, results: Path, report: Path, failures: int
) -> None:
    """Print how the run came out, as text or JSON."""
    from grpo_replications.shared.harness.claim_tables import counts
    from grpo_replications.shared.harness.outcomes import claim_outcomes, read_verdicts
    from grpo_replications.shared.harness.verdicts import NOT_RUN

    if options.quiet:
        return
    profile = options.profile
    lines = read_verdicts(paper, profile, results / paper.name / profile)
    counted, judged = counts(claim_outcomes(paper, lines)), sum(line.verdict != NOT_RUN for line in lines)
    against = compare.against_committed(paper.name, profile, results)
    summary = RunSummary(paper, profile, results, report, counted, judged, against, failures)
    if options.json:
        print(tools.to_json(summary.as_json()))
        return
    if options.verbose:
        _print_claims(paper, profile, results, console)
    print_run_summary(console, summary)


def _verdicts(options: argparse.Namespace, console: Console) -> int:
    from grpo_replications.shared.harness.partial import results_so_far

    results = results_directory(options)
    with ExitStack() as held:
        judged = []
        for paper, profile in _on_disk(options, results, unfinished=True):
            place, missing = held.enter_context(results_so_far(paper, profile, results))
            _judge(paper, profile, place)
            judged.append((paper, profile, place, missing))
            if options.json:
                continue
            console.print(f"[bold]{paper.slug}, profile {profile}[/bold]")
            if missing is not None:
                console.print(str(missing), style="yellow", markup=False, highlight=False, soft_wrap=True)
            _print_claims(paper, profile, place, console)
        if options.json:
            from grpo_replications.replications.listings import verdicts_json

            print(verdicts_json(judged))
    return 0


def _figures(options: argparse.Namespace, console: Console) -> int:
    _check_suite()
    results = results_directory(options)
    return 0 if all([_draw(paper, name, results, console) for paper, name in _on_disk(options, results)]) else 1


def _report(options: argparse.Namespace, console: Console) -> int:
    results = results_directory(options)
    paper = find_paper(options.paper, options.papers) if options.paper else None
    console.print(f"Report: {shown(_write_report(paper, options.papers, results))}", soft_wrap=True, highlight=False)
    return 0


def _model(options: argparse.Namespace, console: Console) -> int:
    from grpo_replications.shared.models.catalog import prepare

    _check_suite()
    console.print(f"{options.name} is ready: {prepare(options.name)}", soft_wrap=True, highlight=False)
    return 0


def _bench(options: argparse.Namespace, console: Console) -> int:
    """Run every measurement that `shared.harness.bench` and `synthetic.bench` name; 1 where a target is missed."""
    from grpo_replications.shared.harness.bench import print_table

    benches = {}
    for name in BENCH_MODULES:
        benches.update(getattr(importlib.import_module(name), "BENCHES", {}))
    return 0 if print_table(benches) else 1


def _on_disk(options: argparse.Namespace, results: Path, unfinished: bool = False) -> list[tuple[Paper, str]]:
    """Papers and profiles that have measurements, or jobs of an `unfinished` run, narrowed to what was asked for."""
    from grpo_replications.shared.harness.measurements import MEASUREMENTS
    from grpo_replications.shared.harness.partial import is_unfinished

    def measured(directory: Path) -> bool:
        return (directory / MEASUREMENTS).exists() or (unfinished and is_unfinished(directory))

    papers = [find_paper(options.paper, options.papers)] if options.paper else discover(options.papers)
    if options.profile:
        for paper in papers:
            paper.profile(options.profile)
    found = [
        (paper, profile)
        for paper in papers
        for profile in paper.profiles
        if options.profile in (None, profile) and measured(results / paper.name / profile)
    ]
    if not found:
        raise ReplicationError(
            f"Nothing has been measured yet under {results}; start with: replicate run {papers[0].slug}"
        )
    return found


def _calibrate(options: argparse.Namespace, console: Console) -> int:
    from grpo_replications.shared.harness.calibration_table import write_calibration

    results = results_directory(options)
    path = write_calibration(results, options.samples)
    report = _write_report(None, options.papers, results)
    console.print(f"Calibration: {shown(path)}; report: {shown(report)}", soft_wrap=True, highlight=False)
    return 0


def _judge(paper: Paper, profile: str, results: Path) -> None:
    from grpo_replications.shared.harness.outcomes import evaluate_profile, write_verdicts

    directory = results / paper.name / profile
    write_verdicts(paper, evaluate_profile(paper, profile, directory), directory)


def _print_claims(paper: Paper, profile: str, results: Path, console: Console) -> None:
    from grpo_replications.shared.harness.claim_tables import counts
    from grpo_replications.shared.harness.outcomes import claim_outcomes, read_verdicts
    from grpo_replications.shared.harness.rendering import print_claims

    outcomes = claim_outcomes(paper, read_verdicts(paper, profile, results / paper.name / profile))
    print_claims(console, outcomes, counts(outcomes))


def _draw(paper: Paper, profile: str, results: Path, console: Console, mark: str = "") -> bool:
    from grpo_replications.shared.harness.figures import draw_figures
    from grpo_replications.shared.harness.paper_tables import write_tables

    directory = results / paper.name / profile
    failures = draw_figures(paper, profile, directory, mark)
    for text in write_tables(paper, directory, mark).values():
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for name, message in failures.items():
        console.print(f"[red]figure {name} failed:[/red] {_escaped(message)}", soft_wrap=True, highlight=False)
    return not failures


def _write_report(paper: Paper | None, papers: Path, results: Path) -> Path:
    from grpo_replications.shared.harness.report import build_report

    known = discover(papers)
    if paper is not None and paper.directory not in [one.directory for one in known]:
        known.append(paper)
    if results == committed_results():
        return build_report(known, results, ROOT)
    return build_report([one for one in known if (results / one.name).is_dir()], results)


def _titled(paper: Paper) -> str:
    return paper.facts.title + (f", arXiv:{paper.facts.arxiv}" if paper.facts.arxiv else "")


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


if __name__ == "__main__":
    sys.exit(main())
