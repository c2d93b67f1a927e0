"""For adding a paper: `replicate new-paper` lays one out, `replicate check` says what is wrong with one."""

from __future__ import annotations

import argparse
import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from rich.console import Console

from grpo_replications.replications.places import add_data_option, use_data_directory
from grpo_replications.shared.errors import Problems, ReplicationError
from grpo_replications.shared.harness.paper_modules import package_name, packages_of
from grpo_replications.shared.harness.papers import CLAIMS_FILE, Paper, check_apart
from grpo_replications.shared.words import counted

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = Path(__file__).resolve().parent / "template"
ENDING = ".template"
NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"


def add_commands(commands: Any, results_directory: Any) -> None:
    """Add both commands to the sub-parsers `commands` of a parser; `results_directory()` is where results lie."""
    text = "lay out a new paper: an example with claims, profiles, an experiment and a figure that runs as it is"
    new = commands.add_parser("new-paper", help=text, description=text[0].upper() + text[1:] + ".")
    new.add_argument("name", metavar="NAME", help="lower-case words joined by hyphens, as in lambda-grpo")
    new.add_argument("--directory", type=Path, metavar="DIR", help="lay it out in DIR (default: with the other papers)")
    new.add_argument("--title", help="the paper's title (default: made of its name)")
    new.set_defaults(action=_new_paper)
    text = "say what is wrong with a paper, before anything runs"
    check = commands.add_parser("check", help=text, description=text[0].upper() + text[1:] + ".")
    check.add_argument("paper", metavar="PAPER", nargs="?", help="a paper's name or directory (default: all)")
    check.add_argument("--profile", default="paper", help="with --data: which profile (default: %(default)s)")
    check.add_argument("--only", metavar="EXP", help="with --data: only this experiment, or those starting with it")
    check.add_argument("--data", action="store_true", help="models, data and disk of a profile, as before a run")
    add_data_option(check)
    check.set_defaults(action=lambda options, console: _check(options, console, results_directory()))


def new_paper(name: str, parent: Path, title: str | None = None) -> Path:
    """Write the example paper as `parent/<name with _>`, and return this directory.

    Raises ReplicationError for a name that no paper may have, and where there is something of that name already.
    """
    if not re.fullmatch(NAME, name):
        raise ReplicationError(
            f"A paper's name is made of lower-case words joined by hyphens (lambda-grpo), not '{name}'."
        )
    module = name.replace("-", "_")
    directory = parent.resolve() / module
    if directory.exists():
        raise ReplicationError(f"{directory} exists already; choose another name, or remove it.")
    package = package_name([directory, *packages_of(directory.parent)])
    if keyword.iskeyword(module) or ("." not in package and find_spec(module) is not None):
        raise ReplicationError(f"Python has a module or a keyword '{module}' already; choose another name.")
    # The targets of the Makefile are those of the papers beside it.
    inside = directory.parent == ROOT / "replications"
    words = {
        "paper": name,
        "package": package,
        "title": title or name.replace("-", " ").capitalize(),
        "command": f"make replicate-{name}" if inside else f"replicate run {module}",
        "full": f"make replicate-{name} PROFILE=full" if inside else f"replicate run {module} --profile full",
    }
    if any(character in words["title"] for character in '"\\\n'):
        raise ReplicationError('A title may not hold ", \\ or a line break.')
    texts = {path.name.removesuffix(ENDING): path.read_text(encoding="utf-8") for path in TEMPLATE.glob(f"*{ENDING}")}
    directory.mkdir(parents=True)
    for file, text in texts.items():
        (directory / file).write_text(Template(text).substitute(words), encoding="utf-8")
    return directory


def _new_paper(options: argparse.Namespace, console: Console) -> int:
    if options.directory is None and not (ROOT / "pyproject.toml").is_file():
        raise ReplicationError(
            "This is an installed copy, not a checkout: say where the paper goes by --directory DIR."
        )
    for directory in _directories(options.papers):
        if directory.name == options.name.replace("-", "_"):
            raise ReplicationError(f"There is a paper '{options.name}' already, in {directory}; choose another name.")
    directory = new_paper(options.name, options.directory or options.papers, options.title)
    place = options.name if directory.parent == options.papers.resolve() else str(directory)
    console.print(f"{directory} holds an example that runs as it is:", highlight=False, soft_wrap=True)
    for file in sorted(directory.iterdir()):
        console.print(f"  {file.name}", highlight=False)
    for command in (f"check {place}", f"run {place} --profile smoke", f"run {place}"):
        console.print(f"next: replicate {command}", highlight=False, soft_wrap=True)
    return 0


def _check(options: argparse.Namespace, console: Console, results: Path) -> int:
    everywhere = _directories(options.papers)
    directories = [_directory(options.paper, everywhere)] if options.paper else everywhere
    if not directories:
        raise ReplicationError(f"There is no paper in {options.papers}; start with: replicate new-paper NAME")
    if options.data:
        return _check_data(options, directories, console, results)
    number = 0
    for directory in directories:
        problems = problems_of(directory, [one for one in everywhere if one != directory], results)
        number += len(problems)
        for problem in problems:
            console.print(f"[red]problem:[/red] {problem.replace('[', chr(92) + '[')}", soft_wrap=True, highlight=False)
        if not problems:
            _print_jobs(Paper.load(directory), console)
    if number:
        console.print(f"[red]{number} problem(s)[/red]", highlight=False)
    return 1 if number else 0


def _check_data(options: argparse.Namespace, directories: list[Path], console: Console, results: Path) -> int:
    """Models, data and disk of one profile of each paper that has it."""
    from grpo_replications.replications.preflight import check_data

    use_data_directory(options)
    if options.paper:
        Paper.load(directories[0]).profile(options.profile)
    number = 0
    for paper in map(Paper.load, directories):
        if options.profile not in paper.profiles:
            continue
        found = check_data(paper, options.profile, results / paper.name / options.profile, console, options.only)
        number += len(found.problems)
        for problem in found.problems:
            console.print(f"problem: {problem}", style="red", markup=False, soft_wrap=True, highlight=False)
    return 1 if number else 0


def problems_of(directory: Path, others: list[Path], results: Path) -> list[str]:
    """Every mistake of the paper in `directory`, a line each; `others` are the directories of the other papers."""
    from grpo_replications.shared.harness.measurements import MEASUREMENTS, metrics_measured
    from grpo_replications.shared.harness.number_ids import id_problems
    from grpo_replications.shared.harness.paper_checks import definition_problems, library_problems, loose_ends

    problems = Problems()
    for problem in definition_problems(directory):
        problems.add(problem)
    if problems.messages:
        return problems.messages
    paper = Paper.load(directory)
    for other in others:
        try:
            neighbor = Paper.load(other)
        except ReplicationError:
            continue  # told where that paper is checked
        with problems.noted():
            check_apart([neighbor, paper])
    measured = {name: metrics_measured(results / paper.name / name / MEASUREMENTS) for name in paper.profiles}
    ids = id_problems(paper.directory.parent, [paper])
    for problem in (*loose_ends(paper, measured), *library_problems(paper), *ids):
        problems.add(problem)
    citation = ROOT / "CITATION.cff"
    ours = paper.facts.arxiv and paper.directory.parent == ROOT / "replications" and citation.is_file()
    if ours and f"arXiv:{paper.facts.arxiv}" not in citation.read_text(encoding="utf-8"):
        problems.add(f'{citation}: no reference has notes: "arXiv:{paper.facts.arxiv}"; add the paper there.')
    return problems.messages


def _print_jobs(paper: Paper, console: Console) -> None:
    """How many jobs each profile has, and how many checks it judges."""
    from grpo_replications.shared.harness.runs import jobs_of

    console.print(f"[bold]{paper.slug}[/bold]: no problem found", highlight=False)
    for profile in paper.profiles.values():
        jobs = sum(len(jobs_of(plan, paper.experiment(plan.experiment))) for plan in profile.plans.values())
        judged = sum(profile.name in check.profiles and not check.not_run_reason for check in paper.checks)
        budget = f", up to {profile.budget_minutes:g} min" if profile.budget_minutes else ""
        console.print(
            f"  {profile.name}: {counted(jobs, 'job')} of {', '.join(profile.plans)}{budget}; judges {judged} of "
            f"{len(paper.checks)} checks",
            highlight=False,
        )


def _directories(papers: Path) -> list[Path]:
    return [path.parent.resolve() for path in sorted(papers.glob(f"*/{CLAIMS_FILE}"))]


def _directory(name: str, known: list[Path]) -> Path:
    """The directory of a paper by its name, its directory's name, or its path, whether it can be read or not."""
    for directory in known:
        if directory.name == name.replace("-", "_"):
            return directory
    if (Path(name) / CLAIMS_FILE).is_file():
        return Path(name).resolve()
    names = ", ".join(directory.name.replace("_", "-") for directory in known)
    raise ReplicationError(
        f"There is no paper '{name}', and no directory {name} with a {CLAIMS_FILE}; there are: {names}."
    )
