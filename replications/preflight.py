"""Checks in the first minute of a run whose models and data come from a hub or a directory of one's own.

Whether every model and data set can be had and is pinned, whether the columns are there, which gold answers do not
grade themselves as right, whether a benchmark's file is whole, what training prompts share with every benchmark, and
whether the disk suffices. `replicate run` does this by itself before the first job and keeps the findings in
`preflight.json` beside the results, and in their record; `replicate check PAPER --profile NAME --data` does it alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from grpo_replications.replications import estimate
from grpo_replications.replications.preflight_sources import LOCAL, NOT_PINNED, Source, find_data, find_model
from grpo_replications.replications.preflight_vllm import without_vllm
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.preflight import PREFLIGHT, found_before
from grpo_replications.shared.harness.profiles import Profile
from grpo_replications.shared.models.catalog import hub_unreachable
from grpo_replications.shared.planning import training_cost as cost

RATES = ("solve_rates", "rates")  # settings that may name a data set of solve rates on the hub
HUB = "hub:"
SHOWN = 5  # gold answers and examples on the screen; the record has all golds


@dataclass
class Findings:
    """What was found; a run starts only without `problems`."""

    problems: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)
    overlaps: list[dict[str, Any]] = field(default_factory=list)
    disk: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As it stands in `preflight.json`."""
        return {
            "problems": self.problems,
            "sources": [one.as_json() for one in self.sources],
            "not_pinned": [one.name for one in self.sources if one.pinned == NOT_PINNED],
            "data": self.data,
            "overlap": self.overlaps,
            "disk": self.disk,
        }


@dataclass
class Needs:
    """What the experiments of a profile load."""

    revisions: dict[str, str] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    benchmarks: list[str] = field(default_factory=list)
    puzzles: dict[str, list[int]] = field(default_factory=dict)  # source: numbers of people
    rates: list[str] = field(default_factory=list)


def needs_of(paper: Paper, profile: Profile) -> Needs:
    """Models and data in the settings of every cell, each once; ReplicationError for two commits of one."""
    needs = Needs()
    for plan in profile.plans.values():
        experiment = paper.experiment(plan.experiment)
        for cell in plan.cells:
            settings = experiment.parse(cell, paper.where(profile.name, plan.experiment))
            for name, revision in (getattr(settings, "revisions", None) or {}).items():
                if needs.revisions.setdefault(name, revision) != revision:
                    raise ReplicationError(f"Profile {profile.name} asks for two commits of {name}; name one.")
            _add(needs.models, getattr(settings, "model", None))
            _add(needs.datasets, getattr(settings, "dataset", None))
            for entry in getattr(settings, "benchmarks", None) or ():
                _add(needs.benchmarks, entry)
            if getattr(settings, "public", None):
                for people in settings.people:
                    _add(needs.puzzles.setdefault(settings.public, []), people)
            for key in RATES:
                value = getattr(settings, key, None)
                if isinstance(value, str) and value.startswith(HUB):
                    _add(needs.rates, value.removeprefix(HUB))
    return needs


def _not_to_be_had(sources: list[Source]) -> list[str]:
    """What is wrong with models and data sets; those that a silent hub does not give are told in one line."""
    lines = [one.problem for one in dict.fromkeys(sources) if one.problem and not one.unreachable]
    silent = list(dict.fromkeys(one for one in sources if one.unreachable))
    if silent:
        listed = ", ".join(one.what for one in silent)
        lines.append(hub_unreachable(listed[0].upper() + listed[1:], ConnectionError(silent[0].unreachable)))
    return lines


def _add(names: list[Any], name: Any) -> None:
    if name not in (None, *names):
        names.append(name)


def examine(paper: Paper, profile: Profile, results: Path, whole: bool = True) -> Findings:
    """Everything that can be wrong with a profile's models, data and disk. `whole`: benchmarks must be complete."""
    needs, found = needs_of(paper, profile), Findings()
    for name in needs.models:
        found.sources.append(find_model(name, needs.revisions.get(name)))
    for name in needs.rates:
        found.sources.append(find_data(name, needs.revisions.get(name), _own_file(name)))
    training = {name: texts for name in needs.datasets if (texts := _maths(name, needs, found)) is not None}
    tests = {entry: texts for entry in needs.benchmarks if (texts := _test(entry, needs, found, whole)) is not None}
    for name, texts in training.items():
        for entry, problems in tests.items():
            found.overlaps.append(_maths_overlap(name, texts, entry, problems))
    for name, people in needs.puzzles.items():
        _puzzle_data(name, people, needs, found)
    found.problems = [*_not_to_be_had(found.sources), *found.problems]
    found.problems += _changed(found.sources, results)
    _disk(paper, profile, results, found)
    return found


# --- data -------------------------------------------------------------------------------------------------------------


def _own_file(name: str, *others: str) -> Path | None:
    from grpo_replications.shared.tasks.math import local_file

    return local_file(name, others)


def _maths(name: str, needs: Needs, found: Findings) -> list[str] | None:
    """The problems of a training set, its golds noted; None where it cannot be read."""
    from grpo_replications.shared.sources import pinned
    from grpo_replications.shared.tasks.math import read_problems

    source = find_data(name, needs.revisions.get(name), _own_file(name))
    found.sources.append(source)
    if source.problem:
        return None
    try:
        problems = read_problems(pinned(name, needs.revisions))
    except ReplicationError as error:
        found.problems.append(str(error))
        return None
    found.data.append(_golds(name, "training", problems.rows, problems.unusable))
    return [problem for problem, _ in problems.rows]


def _test(entry: str, needs: Needs, found: Findings, whole: bool) -> list[str] | None:
    """The problems of a benchmark, its golds noted and its number checked; None where it cannot be read."""
    from grpo_replications.shared.tasks import benchmarks
    from grpo_replications.shared.tasks.math import BENCHMARKS, benchmark_source, gradable

    name, given = benchmark_source(entry)
    try:
        if benchmarks.people_of(name) is not None:
            path, _ = benchmarks.puzzle_file(name, given, needs.revisions)
            found.sources.append(find_data(given or benchmarks.PUZZLES, None, path))
            rows = benchmarks.puzzles(name, given, needs.revisions)
            found.data.append({"name": name, "use": "benchmark", "problems": len(rows), "unusable": []})
            expected, texts = benchmarks.PUZZLES_EACH, [prompt[-1]["content"] for prompt in rows["prompt"]]
        else:
            known = BENCHMARKS.get(name)
            home = given or (known.hub if known else name)
            own = _own_file(home, *(() if given else (name,)))
            source = find_data(home, needs.revisions.get(home), own)
            found.sources.append(source)
            if source.problem:
                return None
            problems, _ = gradable(name, given, None, needs.revisions)
            found.data.append(_golds(name, "benchmark", problems.rows, problems.unusable))
            expected, texts = known.problems if known else None, [problem for problem, _ in problems.rows]
    except ReplicationError as error:
        found.problems.append(f"{name}: {error}")
        return None
    if whole and expected is not None and len(texts) != expected:
        where = found.sources[-1].where
        found.problems.append(
            f"{name} has {expected} problems, and {where} holds {len(texts)}: "
            + (f"it ends after line {len(texts)}. Was it cut off? " if len(texts) < expected else "")
            + 'Fetch it again, or give a file of your own another name (benchmarks = ["my-test=path"]).'
        )
    return texts


def _golds(name: str, use: str, rows: Sequence[tuple[str, str]], unusable: dict[str, str]) -> dict[str, Any]:
    refused = [
        {"row": number, "gold": gold[:200], "reason": unusable[gold][:300]}
        for number, (_, gold) in enumerate(rows)
        if gold in unusable
    ]
    return {"name": name, "use": use, "problems": len(rows), "unusable": refused}


def _maths_overlap(training: str, texts: list[str], test: str, problems: list[str]) -> dict[str, Any]:
    from grpo_replications.shared.tasks.overlap import overlap

    return {"training": training, "test": test.partition("=")[0], **overlap(problems, texts).as_json()}


def _puzzle_data(name: str, people: list[int], needs: Needs, found: Findings) -> None:
    """Public puzzles: what the training side, and the folder as it is published, share with the evaluation puzzles."""
    from grpo_replications.shared.sources import pinned
    from grpo_replications.shared.tasks.benchmarks import puzzle_file
    from grpo_replications.shared.tasks.knights_and_knaves import read_puzzles
    from grpo_replications.shared.tasks.overlap import puzzle_overlap
    from grpo_replications.shared.tasks.puzzles.public import public_files

    source = find_data(name, needs.revisions.get(name), Path(name) if Path(name).is_dir() else None)
    found.sources.append(source)
    if source.problem:
        return
    folder, training, tests = [], [], []
    try:
        for count in sorted(people):
            path, rows = next(public_files(pinned(name, needs.revisions), "train", [count]))
            read = read_puzzles(path)
            if len(read) != 1000:
                found.problems.append(f"{path} holds {len(read)} puzzles and not 1000. Was it cut off? Fetch it again.")
            folder += read
            training += read[rows]
            path, rows = puzzle_file(f"KK-{count}", None, needs.revisions)
            tests += read_puzzles(path)[rows]
    except ReplicationError as error:
        found.problems.append(str(error))
        return
    found.data.append({"name": name, "use": "training", "problems": len(training), "unusable": []})
    for what, puzzles in ((name, training), (f"{name}, the whole folder (AR-Lopti's code trains on it)", folder)):
        found.overlaps.append(
            {"training": what, "test": "evaluation puzzles", **puzzle_overlap(tests, puzzles).as_json()}
        )


# --- changes, disk ----------------------------------------------------------------------------------------------------


def _changed(sources: list[Source], results: Path) -> Iterator[str]:
    """What is not what it was when jobs of this profile ran: half of the results must not come from other data."""
    if not any((results / "jobs").glob("*.json")):
        return
    earlier = {(one["kind"], one["name"]): one for one in found_before(results).get("sources", [])}
    for source in sources:
        before = earlier.get((source.kind, source.name))
        if before and before["identity"] and source.identity and before["identity"] != source.identity:
            yield (
                f"{source.name} is not what finished jobs were made with ({before['identity']} then, "
                f'{source.identity} now). Pin it, revisions = {{ "{source.name}" = "{before["identity"]}" }}, bring '
                "the old files back, or start again with --fresh and another --results."
            )


def _disk(paper: Paper, profile: Profile, results: Path, found: Findings) -> None:
    """Compare what the jobs and the models take with what is free where they go."""
    from huggingface_hub.constants import HF_HUB_CACHE

    assume, running, kept = cost.Assumptions(), 0.0, 0.0
    for plan in profile.plans.values():
        try:
            works = [(one.work, one.jobs) for one in estimate.cells_of(paper, plan, profile.name) if one.work]
        except ReplicationError:  # a model of unknown size
            continue
        disks = [(cost.disk(work, assume), jobs) for work, jobs in works]
        running = max([running, *(one.running * min(plan.workers, jobs) for one, jobs in disks)])
        kept += sum(one.kept * jobs for one, jobs in disks)
    fetched = float(sum(one.size for one in found.sources))
    here, cache = _existing(results), _existing(Path(HF_HUB_CACHE))
    same = here.stat().st_dev == cache.stat().st_dev
    found.disk = {"results_bytes": running + kept, "models_bytes": fetched, "free_bytes": shutil.disk_usage(here).free}
    for needed, place, what in (
        (running + kept + (fetched if same else 0.0), here, "checkpoints, logs and models"),
        (0.0 if same else fetched, cache, "models"),
    ):
        free = shutil.disk_usage(place).free
        if needed > free:
            found.problems.append(
                f"The run needs about {needed / 1e9:.1f} GB at {place} for {what}, and {free / 1e9:.1f} GB are free. "
                "Free some space, or name another directory (--results; HF_HOME for models)."
            )


def _existing(path: Path) -> Path:
    return next(one for one in (path, *path.resolve().parents) if one.exists())


# --- screen and record ------------------------------------------------------------------------------------------------


def before_run(
    paper: Paper, profile: str, results: Path, console: Console, only: str | None, whole: bool = True, here: bool = True
) -> None:
    """Check a profile that needs the hub, print and keep what was found; ReplicationError where a run could not end.

    `here`: the jobs run on this machine, which must then be able to sample as they ask for.
    """
    if paper.profile(profile).requires != "hub":
        return
    directory = results / paper.name / profile
    found = check_data(paper, profile, directory, console, only, whole)
    if here:
        found.problems += without_vllm(paper, paper.profile(profile).with_overrides(only, None, None))
    if found.problems:
        raise ReplicationError(
            "\n".join(found.problems)
            + f"\nNothing was started. The same checks alone: replicate check {paper.slug} --profile {profile} --data"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        kept = found.as_json()
        now = {(one.kind, one.name) for one in found.sources}
        earlier = found_before(directory).get("sources", [])
        kept["sources"] += [one for one in earlier if (one["kind"], one["name"]) not in now]
        write_atomic(directory / PREFLIGHT, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ReplicationError(f"Cannot write to {directory}: {error.strerror or error}. Free some space.") from error


def check_data(
    paper: Paper, profile: str, directory: Path, console: Console, only: str | None = None, whole: bool = True
) -> Findings:
    """Examine the chosen experiments of a profile and print what was found, problems excepted."""
    chosen = paper.profile(profile).with_overrides(only)
    console.print(f"[bold]{paper.slug}, profile {profile}[/bold]: models, data and disk", highlight=False)
    found = examine(paper, chosen, directory, whole)
    _print_sources(found, console)
    _print_golds(found, console)
    _print_overlaps(found, console)
    needed, free = found.disk["results_bytes"] + found.disk["models_bytes"], found.disk["free_bytes"]
    console.print(f"Disk: about {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free.", highlight=False)
    return found


def _print_sources(found: Findings, console: Console) -> None:
    table = Table(title="models and data", title_justify="left")
    for name in ("kind", "name", "found", "commit or digest", "pinned"):
        table.add_column(name, overflow="fold")
    for one in dict.fromkeys(found.sources):
        problem = "[red]cannot be had[/red]" if one.problem else one.where
        table.add_row(one.kind, one.name, problem, one.identity[:23], "" if one.problem else one.pinned)
    console.print(table)
    loose = {one.name: one.identity for one in found.sources if one.pinned == NOT_PINNED and one.identity}
    if loose:
        pairs = ", ".join(f'"{name}" = "{identity}"' for name, identity in loose.items())
        console.print(
            f"Not pinned: {', '.join(loose)}. The record has the commits of today; to pin them, write in each "
            f"experiment's table of profiles.toml: revisions = {{ {pairs} }}",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip
    if any(one.pinned == LOCAL for one in found.sources):
        console.print("Local files have no commit; the record has their digests.", highlight=False)


def _print_golds(found: Findings, console: Console) -> None:
    for one in found.data:
        bad = one["unusable"]
        left_out = f"{len(bad)} left out, whose gold answer does not grade itself as right:"
        words = left_out if bad else "all golds usable"
        console.print(
            f"{one['name']} ({one['use']}): {one['problems']:,} problems, {words}",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip
        for gold in bad[:SHOWN]:
            line = f"  row {gold['row']}: {gold['reason']}"
            console.print(line, soft_wrap=True, highlight=False, markup=False)
        if len(bad) > SHOWN:
            console.print(f"  and {len(bad) - SHOWN} more, in the record", highlight=False)


def _print_overlaps(found: Findings, console: Console) -> None:
    for one in found.overlaps:
        shared = f"{one['exact']} as they are"
        if one["renamed"] is not None:
            shared += f", {one['renamed']} up to the names of people"
        if one["runs"] is not None:
            shared += f", {one['runs']} with {one['run']} words in a row"
        text = f"Of {one['tested']} problems of {one['test']}, {one['trained']:,} of {one['training']} hold {shared}."
        style = "yellow" if one["exact"] or one["renamed"] else None
        console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)
        for example in one["examples"][:SHOWN]:
            console.print(
                f"  test row {example['test_row']}, training row {example['training_row']}: {example['text'][:100]}",
                soft_wrap=True, highlight=False, markup=False,
            )  # fmt: skip
