"""What is wrong with a paper, found before anything runs: claims, profiles, experiments, figures, page, libraries.

Every mistake is one line with its file and what to do about it; all of them are told at once, as far as one does not
hide another (a profile that cannot be read hides what its claims ask of it).
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from grpo_replications.shared.errors import Problems, ReplicationError
from grpo_replications.shared.harness.claims import load_claims
from grpo_replications.shared.harness.paper_modules import import_from
from grpo_replications.shared.harness.papers import CLAIMS_FILE, PROFILES_FILE, Paper

PAGE = "README.md"
PARTS = ("findings", "claims")  # generated parts of a page: claims with their checks, or the claims alone


def definition_problems(directory: Path) -> list[str]:
    """Mistakes that would cost a run: in claims, profiles, experiments, their settings, and the figures' code.

    Imports `experiments.py` and `figures.py`. Cost: checks x profiles x cells.
    """
    problems = Problems()
    paper = Paper(directory)
    with problems.noted():
        Paper.load(directory)
    profiles = None
    with problems.noted():
        profiles = paper.profiles
    with problems.noted():
        load_claims(directory / CLAIMS_FILE, profiles)
    if _imports(paper, "experiments", problems) and profiles is not None:
        with problems.noted():
            paper.check_settings()
    _imports(paper, "figures", problems)
    return problems.messages


def library_problems(paper: Paper) -> list[str]:
    """What only the libraries know to be wrong in the settings, such as a TRL override; imports them."""
    problems = Problems()
    for profile in paper.profiles.values():
        for plan in profile.plans.values():
            where = paper.where(profile.name, plan.experiment)
            for cell in plan.cells:
                settings = paper.experiment(plan.experiment).parse(cell, where)
                try:
                    settings.check()
                except ReplicationError as error:
                    problems.add(f"{where}: {str(error).removeprefix(f'{where}: ')}")
    return problems.messages


def loose_ends(paper: Paper, measured: dict[str, dict[str, set[str]]]) -> list[str]:
    """What runs, but leads nowhere: unused experiments, unmeasured metrics, unregistered figures, missing marks.

    The paper has no `definition_problems`. `measured` holds the metrics of every experiment of every profile that has
    measurements on disk.
    """
    problems = Problems()
    used = {name for profile in paper.profiles.values() for name in profile.plans}
    for name in paper.experiments:
        if name not in used:
            problems.add(
                f"{paper.directory / 'experiments.py'}: no profile runs the experiment '{name}'; write "
                f"[smoke.{name}] in {PROFILES_FILE}, or take it out of EXPERIMENTS."
            )
    _check_metrics(paper, measured, problems)
    _check_figures(paper, problems)
    _check_page(paper, problems)
    return problems.messages


def _imports(paper: Paper, stem: str, problems: Problems) -> bool:
    """Whether a registry of the paper can be imported; what keeps it from that is noted."""
    try:
        getattr(paper, stem)
    except ReplicationError as error:
        problems.add(str(error))
    except Exception as error:  # code that was just written may fail in any way
        text = " ".join(str(error).split())
        problems.add(f"{paper.directory / stem}.py cannot be imported: {type(error).__name__}: {text}")
    else:
        return True
    return False


def _check_metrics(paper: Paper, measured: dict[str, dict[str, set[str]]], problems: Problems) -> None:
    """Hold every check's metric against what its profiles have measured, or, where they have not run, any other."""
    for check in paper.checks:
        if check.not_run_reason:
            continue
        ran = [name for name in measured if check.experiment in measured[name]]
        ran = [name for name in ran if name in check.profiles] or ran
        metrics = set().union(*(measured[name][check.experiment] for name in ran))
        if ran and check.metric not in metrics:
            problems.add(
                f"{paper.directory / CLAIMS_FILE}, check {check.id}: {check.experiment} has measured no "
                f"'{check.metric}' in {', '.join(ran)}; it has: {', '.join(sorted(metrics))}."
            )


def _check_figures(paper: Paper, problems: Problems) -> None:
    front = paper.facts.front
    if front is not None and front.picture not in paper.figures:
        problems.add(
            f"{paper.directory / CLAIMS_FILE}, [front]: picture is {front.picture}, which FIGURES of figures.py does "
            f"not draw; it draws: {', '.join(paper.figures) or 'none'}."
        )
    for name in sorted(set(paper.facts.figures) - set(paper.figures)):
        problems.add(
            f"{paper.directory / CLAIMS_FILE}, [figures]: FIGURES of figures.py has no {name}; it has: "
            f"{', '.join(paper.figures) or 'none'}."
        )
    if not paper.figures:
        return
    module = import_from(paper.directory, "figures")
    for name, function in inspect.getmembers(module, inspect.isfunction):
        own = function.__module__ == module.__name__ and not name.startswith("_")
        draws = "Figure" in str(function.__annotations__.get("return", ""))
        if own and draws and function not in paper.figures.values():
            problems.add(
                f'{paper.directory / "figures.py"}: FIGURES lacks {name}, so nothing draws it; write "{name}": {name} '
                "there, or put _ before its name."
            )


def _check_page(paper: Paper, problems: Problems) -> None:
    page = paper.directory / PAGE
    parts = {
        part: (f"<!-- generated:{part}-{paper.slug} -->", f"<!-- /generated:{part}-{paper.slug} -->") for part in PARTS
    }
    marks = parts[PARTS[0]]
    if not page.is_file():
        problems.add(f"{page} does not exist; write the paper's page, with the lines {marks[0]} and {marks[1]}.")
        return
    text = page.read_text(encoding="utf-8")
    if not any(-1 < text.find(opening) < text.find(closing) for opening, closing in parts.values()):
        problems.add(f"{page}: the report needs the lines {marks[0]} and {marks[1]}, in this order, to fill in.")
    named = re.findall(r"`([\w-]+)`", text)
    # `open` on a page stands for all experiments whose names begin so, as after ONLY=.
    missing = [name for name in paper.experiments if not any(name.startswith(word) for word in named)]
    if missing:
        problems.add(f"{page}: says nothing of `{'`, `'.join(missing)}`; add a row each to the table of what we run.")
    for folder, figure in re.findall(r"/([\w-]+)/[\w-]+/figures/([\w.-]+?)\.(?:png|pdf)", text):
        if folder == paper.name and figure not in paper.figures:
            problems.add(
                f"{page}: shows the figure {figure}, which FIGURES of figures.py does not draw; it draws: "
                f"{', '.join(paper.figures) or 'none'}."
            )
