"""The command line `replicate`: its own commands, those of `paper_commands`, and those of `tools`."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from grpo_replications.replications import cite, paper_commands, tools
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.claims import OURS, PAPER
from grpo_replications.shared.harness.papers import Paper, discover

ROOT = Path(__file__).resolve().parents[1]
PAPERS = Path(__file__).resolve().parent
RESULTS_VARIABLE = "REPLICATE_RESULTS"
DEFAULT_PROFILE = "quick"
BENCH_MODULES = ("grpo_replications.shared.harness.bench", "grpo_replications.synthetic.bench")
EXAMPLES = """
examples:
  replicate list
  replicate run lambda-grpo                                  every experiment of the quick profile
  replicate run lambda-grpo --profile full --only table1     some experiments of another profile
  replicate report                                           the report again, from what is on disk
  replicate cite sigma-dapo-samples                          a number as a sentence, with its origin
  replicate new-paper my-paper                               a new paper, as an example to change
  replicate check my-paper                                   what is wrong with it, before anything runs
  replicate plan-group-size --solve-rates big-math           group sizes for problems of your own
  replicate diagnose outputs/my-run                          silent groups and drifts in a run of your own

A run that was interrupted, or even killed, is finished by the same command; finished jobs are not repeated.
Results go to results/, or to the directory that REPLICATE_RESULTS names.
"""


def main(arguments: Sequence[str] | None = None, papers: Path = PAPERS) -> int:
    """Run one command; returns the exit code: 0, 1 where something failed, 2 for a wrong request, 130 for Ctrl-C.

    141 where nobody reads the output any more, as in `replicate list | head -1`.
    """
    try:
        try:
            return _command(list(sys.argv[1:] if arguments is None else arguments), papers)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's own last flush would fail again
        return 128 + signal.SIGPIPE


def _command(arguments: list[str], papers: Path) -> int:
    console = Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", 120)))
    options = _parser().parse_args(arguments)
    options.command = shlex.join(["replicate", *arguments])
    options.papers = papers
    try:
        return options.action(options, console)
    except ReplicationError as error:
        Console(stderr=True).print(f"[red]error:[/red] {_escaped(str(error))}", soft_wrap=True, highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("\nInterrupted; finished jobs are kept. Run the same command to resume.")
        return 130


def results_directory() -> Path:
    """Where results are written: `REPLICATE_RESULTS`, or `results` in the checkout."""
    return Path(os.environ.get(RESULTS_VARIABLE) or ROOT / "results").resolve()


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
    run.add_argument("--seeds", type=int, metavar="N", help="run seeds 0..N-1; changes nothing else")
    run.add_argument("--workers", type=int, metavar="N", help="processes side by side; does not change any result")
    run.add_argument("--fresh", action="store_true", help="forget finished jobs of these experiments and start again")
    run.add_argument("--executor", default="local", metavar="local|ray", help="where the jobs run (default: local)")
    for name, action, text in (
        ("verdicts", _verdicts, "judge the claims again from the measurements on disk"),
        ("figures", _figures, "draw the figures again from the measurements on disk"),
        ("report", _report, "write the report again from what is on disk"),
    ):
        again = command(name, action, text)
        again.add_argument("paper", metavar="PAPER", nargs="?", help="one paper (default: all)")
        again.add_argument("--profile", help="one profile (default: all that have results)")
        if name == "verdicts":
            again.add_argument("--json", action="store_true", help="for programs: claims, answers and checks")
    model = command("model", _model, "fetch and prepare a language model, once")
    model.add_argument("name", metavar="NAME", nargs="?", default="embedded", help="which one (default: %(default)s)")
    command("bench", _bench, "measure the speed targets on this machine")
    paper_commands.add_commands(commands, results_directory)
    cite.add_command(commands, results_directory)
    calibration = command("calibrate", _calibrate, "measure how often the rules of judging are wrong, then the report")
    calibration.add_argument("--samples", type=int, default=2000, metavar="N", help="studies (default: %(default)s)")
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


def _run(options: argparse.Namespace, console: Console) -> int:
    from grpo_replications.shared.harness.runs import Options, run_profile

    paper = find_paper(options.paper, options.papers)
    discover(options.papers)  # a mistake in another paper would stop the report: say so before the run, not after it
    results = results_directory()
    chosen = Options(
        options.only, options.seeds, options.workers, options.fresh, options.executor, command=options.command
    )
    result = run_profile(paper, options.profile, results, ROOT, console, chosen)
    _judge(paper, options.profile, results)
    drawn = _draw(paper, options.profile, results, console)
    report = _write_report(paper, options.papers, results)
    _print_claims(paper, options.profile, results, console)
    console.print(
        f"Report: {_shown(report)}; this profile: {_shown(result.directory)}", soft_wrap=True, highlight=False
    )
    if result.failures:
        console.print(
            f"[red]{len(result.failures)} job(s) failed[/red]; the errors are in "
            f"{_shown(result.directory / 'jobs')}/*.error.txt. Finished jobs are kept: run the same command to resume.",
            soft_wrap=True,
            highlight=False,
        )
    return 1 if result.failures or not drawn else 0


def _verdicts(options: argparse.Namespace, console: Console) -> int:
    results = results_directory()
    on_disk = _on_disk(options, results)
    for paper, profile in on_disk:
        _judge(paper, profile, results)
        if options.json:
            continue
        console.print(f"[bold]{paper.slug}, profile {profile}[/bold]")
        _print_claims(paper, profile, results, console)
    if options.json:
        from grpo_replications.replications.listings import verdicts_json

        print(verdicts_json(on_disk, results))
    return 0


def _figures(options: argparse.Namespace, console: Console) -> int:
    results = results_directory()
    return 0 if all([_draw(paper, name, results, console) for paper, name in _on_disk(options, results)]) else 1


def _report(options: argparse.Namespace, console: Console) -> int:
    results = results_directory()
    paper = find_paper(options.paper, options.papers) if options.paper else None
    console.print(f"Report: {_shown(_write_report(paper, options.papers, results))}", soft_wrap=True, highlight=False)
    return 0


def _model(options: argparse.Namespace, console: Console) -> int:
    from grpo_replications.shared.models.catalog import prepare

    console.print(f"{options.name} is ready: {prepare(options.name)}", soft_wrap=True, highlight=False)
    return 0


def _bench(options: argparse.Namespace, console: Console) -> int:
    """Run every measurement that `shared.harness.bench` and `synthetic.bench` name; 1 where a target is missed."""
    from grpo_replications.shared.harness.bench import print_table

    benches = {}
    for name in BENCH_MODULES:
        benches.update(getattr(importlib.import_module(name), "BENCHES", {}))
    return 0 if print_table(benches) else 1


def _on_disk(options: argparse.Namespace, results: Path) -> list[tuple[Paper, str]]:
    """Papers and profiles that have measurements, narrowed to what was asked for."""
    from grpo_replications.shared.harness.measurements import MEASUREMENTS

    papers = [find_paper(options.paper, options.papers)] if options.paper else discover(options.papers)
    if options.profile:
        for paper in papers:
            paper.profile(options.profile)
    found = [
        (paper, profile)
        for paper in papers
        for profile in paper.profiles
        if options.profile in (None, profile) and (results / paper.name / profile / MEASUREMENTS).exists()
    ]
    if not found:
        raise ReplicationError(
            f"Nothing has been measured yet under {results}; start with: replicate run {papers[0].slug}"
        )
    return found


def _calibrate(options: argparse.Namespace, console: Console) -> int:
    from grpo_replications.shared.harness.calibration_table import write_calibration

    path = write_calibration(results_directory(), options.samples)
    report = _write_report(None, options.papers, results_directory())
    console.print(f"Calibration: {_shown(path)}; report: {_shown(report)}", soft_wrap=True, highlight=False)
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


def _draw(paper: Paper, profile: str, results: Path, console: Console) -> bool:
    from grpo_replications.shared.harness.figures import draw_figures

    failures = draw_figures(paper, profile, results / paper.name / profile)
    for name, message in failures.items():
        console.print(f"[red]figure {name} failed:[/red] {_escaped(message)}", soft_wrap=True, highlight=False)
    return not failures


def _write_report(paper: Paper | None, papers: Path, results: Path) -> Path:
    from grpo_replications.shared.harness.report import build_report

    known = discover(papers)
    if paper is not None and paper.directory not in [one.directory for one in known]:
        known.append(paper)
    return build_report(known, results, ROOT if results == (ROOT / "results").resolve() else None)


def _titled(paper: Paper) -> str:
    return paper.facts.title + (f", arXiv:{paper.facts.arxiv}" if paper.facts.arxiv else "")


def _shown(path: Path) -> str:
    """A path as short as it can be from where the user stands."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")


if __name__ == "__main__":
    sys.exit(main())
