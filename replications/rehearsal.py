"""`replicate run PAPER --profile paper --rehearse`: every step of a paper's profile on a CPU, in miniature.

Models are stand-ins of the right architecture, data are small files with the same columns, and the sizes in `SIZES`
shrink by one rule: its fourth root, rounded up, takes the place of each. All other settings are the paper's. The run
goes through the checks before it, training with looks at held-out problems, a kill in the middle of a training job and
its continuation, the benchmarks, figures and tables.

What it measures means nothing, and cannot be taken for results: it lies in a directory and under a profile of its own
name (`paper-rehearsal`), that no command but this one reads; its record, figures and tables say that it is a rehearsal;
the rules of judging are tried and their verdicts thrown away.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from grpo_replications.replications import preflight
from grpo_replications.replications.places import ROOT
from grpo_replications.replications.rehearsal_data import make_stand_ins
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.assembly import jobs_of
from grpo_replications.shared.harness.jobs import Job, write_atomic
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profiles import Plan, Profile
from grpo_replications.shared.harness.records import RECORD, read_record
from grpo_replications.shared.harness.runs import Options, Result, run_profile
from grpo_replications.shared.sources import DATA

ENDING = "-rehearsal"
MARK = "REHEARSAL: stand-in models, no results"
STAND_INS = "stand-ins"
SEEDS = 2  # of the first setting where benchmarks are measured, the fewest that have an interval over runs; else one
SIZES = (
    *("steps", "rollouts", "window", "last", "eval_every", "save_every", "prompts_per_step", "group_size"),
    *("max_new_tokens", "eval_max_new_tokens", "train_size", "validation_size", "eval_batch_size"),
    *("prompts", "score_batch", "sketch_rank", "max_rows", "group_sizes"),
)
SAMPLES = ("reference_samples", "fresh_samples", "scored_samples")  # which have to hold several groups
ROWS = ("model", "method", "beta")  # settings of which every combination is rehearsed; of the others the first
KILLED_WORKER = "ignore:resource_tracker:UserWarning"
"""A filter of warnings for the processes that remove what the killed worker left: they would warn that it left some."""
RULE = (
    f"{', '.join(SIZES)}: the fourth root of the profile's value, rounded up ({', '.join(SAMPLES)}: the square root); "
    f"micro-batches as large as in the profile; of an experiment's settings one for each {', '.join(ROWS)}, {SEEDS} "
    "seeds of the first where benchmarks are measured and one of the others; one process; vLLM where there is one; "
    "without a GPU float32 in all but an experiment's last setting; nothing that trains no model"
)


def root(value: int) -> int:
    """The fourth root of a size, rounded up."""
    return math.ceil(round(value ** (1 / 4), 9))


def smaller(size: int | list[int]) -> int | list[int]:
    """A size by the rule, or a list of sizes, of which equal ones are one."""
    return sorted({root(one) for one in size}) if isinstance(size, list) else root(size)


@dataclass(frozen=True)
class RehearsedPaper(Paper):
    """A paper with one profile more: the rehearsal of the profile `of`, called `<of>-rehearsal`."""

    of: str = "paper"
    left_out: tuple[str, ...] = ()  # experiments that are not rehearsed

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """Every profile by name, and the rehearsal."""
        written = Paper(self.directory).profiles
        name = self.of + ENDING
        return {**written, name: shrunk(Paper(self.directory), written[self.of], name, self.left_out)}


def shrunk(paper: Paper, profile: Profile, name: str, left_out: tuple[str, ...] = ()) -> Profile:
    """A profile by the rule above, under another name; experiments without a model are left out."""
    plans = {}
    for plan in profile.plans.values():
        cells: dict[tuple[str, ...], dict[str, Any]] = {}
        for cell in plan.cells:
            cells.setdefault(tuple(str(cell.get(key)) for key in ROWS), cell)
        where = paper.where(profile.name, plan.experiment)
        parsed = [(cell, paper.experiment(plan.experiment).parse(cell, where)) for cell in cells.values()]
        if plan.experiment in left_out or not all(hasattr(settings, "group_size") for _, settings in parsed):
            continue
        if all(getattr(settings, "model", None) for _, settings in parsed):
            last = len(parsed) - 1
            chosen = tuple(_shrunk(cell, settings, place == last) for place, (cell, settings) in enumerate(parsed))
            first = SEEDS if all(hasattr(settings, "benchmarks") for _, settings in parsed) else 1
            seeds = (first, *[1] * last)
            plans[plan.experiment] = replace(plan, seeds=first, workers=1, cells=chosen, cell_seeds=seeds)
    if not plans:
        raise ReplicationError(f"Nothing of profile {profile.name} can be rehearsed: no experiment trains a model.")
    return Profile(name, f"{MARK}. Every step of profile {profile.name} in miniature", None, "hub", plans)


def _shrunk(cell: dict[str, Any], settings: Any, last: bool) -> dict[str, Any]:
    """A cell with its sizes shrunk and its micro-batch as it was; the last of its experiment in its own precision.

    A processor without arithmetic in 16 bits takes four times as long for bfloat16, so one cell has to do.
    """
    from grpo_replications.shared.models.vllm_engine import has_gpu, vllm_problem

    changed = {**cell, **{key: smaller(cell[key]) for key in SIZES if cell.get(key)}}
    changed |= {key: math.isqrt(cell[key] - 1) + 1 for key in SAMPLES if cell.get(key)}
    if hasattr(settings, "processes"):
        changed["processes"] = 1
    if vllm_problem("a rehearsal", "nothing"):
        changed |= {"use_vllm": False} if cell.get("use_vllm") else {}
        changed |= {"eval_engine": "transformers"} if "eval_engine" in cell else {}
    if "precision" in cell and not last and not has_gpu():
        changed["precision"] = "float32"
    if changed.get("save_every"):
        window = _window(settings)
        changed["save_every"] = window * math.ceil(changed["save_every"] / window)
    before = settings.prompts_per_step * settings.group_size
    micro = max(1, before // (settings.gradient_accumulation_steps * getattr(settings, "processes", 1)))
    after = changed.get("prompts_per_step", settings.prompts_per_step) * changed.get("group_size", settings.group_size)
    changed["gradient_accumulation_steps"] = after // math.gcd(after, min(micro, after))
    return changed


def _window(settings: Any) -> int:
    """Optimizer steps after which a run of any of the settings' methods may be saved: those of one rollout."""
    from grpo_replications.shared.training.settings import MethodSettings
    from grpo_replications.shared.training.token_weights import passes

    methods = [one for one in getattr(settings, "methods", None) or [settings.method] if one != "base"]
    return math.lcm(*(passes(MethodSettings.of(settings, method=one)) for one in methods))


def rehearse(
    paper: Paper, options: argparse.Namespace, results: Path, console: Console, draw: Callable[..., bool]
) -> int:
    """Rehearse a profile and print what came out; 0 where every step went through.

    `draw(paper, profile, results, mark)` draws figures and tables. The same command goes on where a rehearsal was
    killed; with `--fresh` it starts again. Raises ReplicationError as a run of the profile does.
    """
    start, used = time.monotonic(), _cpu_seconds()
    if options.executor != "local":
        raise ReplicationError("A rehearsal runs on this machine: leave --executor away.")
    if options.profile.endswith(ENDING) or paper.profile(options.profile).requires != "hub":
        raise ReplicationError(f"--rehearse is for profiles that need the hub, such as paper; not {options.profile}.")
    rehearsed = RehearsedPaper(paper.directory, options.profile, _not_rehearsed(paper, options.profile))
    name = options.profile + ENDING
    directory = results / paper.name / name
    chosen = rehearsed.profile(name).with_overrides(options.only, options.seeds)
    console.print(f"[bold]{MARK}[/bold]\n{RULE}.", soft_wrap=True, highlight=False)
    needs = preflight.needs_of(rehearsed, rehearsed.profile(name))
    make_stand_ins(needs, directory / STAND_INS, root, *_puzzle_settings(rehearsed.profile(name)))
    warned = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), KILLED_WORKER]))
    with _environment({DATA: str(directory / STAND_INS), "PYTHONWARNINGS": warned}):
        preflight.before_run(rehearsed, name, results, console, options.only, whole=False)
        kill = _Kill(_killable(rehearsed, chosen), directory / "jobs")
        asked = Options(options.only, options.seeds, options.workers, options.fresh, command=options.command)
        with kill:
            result = run_profile(rehearsed, name, results, ROOT, console, asked)
        facts = {"rule": RULE, "killed": kill.report(lambda job: _undisturbed(rehearsed, name, job, console))}
    judged = _tried_verdicts(paper, options.profile, directory)
    _mark_record(directory / RECORD, facts)
    drawn = draw(rehearsed, name, results, MARK)
    _say(result, facts["killed"], judged, directory, console)
    seconds = (time.monotonic() - start, _cpu_seconds() - used)
    console.print(f"{MARK}. {seconds[0]:.0f} s, of which {seconds[1]:.0f} s of CPU.", highlight=False)
    same = facts["killed"] is None or facts["killed"]["same_as_undisturbed"]
    return 0 if drawn and not result.failures and same else 1


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """These variables for this process and those that it starts; what they were afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _puzzle_settings(profile: Profile) -> tuple[str, list[str]]:
    """The system message of a profile's puzzles, and the models that are trained on them."""
    cells = [cell for plan in profile.plans.values() for cell in plan.cells if cell.get("public")]
    return next((cell["system_message"] for cell in cells), ""), [cell["model"] for cell in cells]


def _not_rehearsed(paper: Paper, profile: str) -> tuple[str, ...]:
    """Experiments whose models have no stand-in."""
    from grpo_replications.shared.models.stand_ins import kind_of

    absent = []
    for plan in paper.profile(profile).plans.values():
        try:
            for cell in plan.cells:
                if "model" in cell:
                    kind_of(cell["model"])
        except ReplicationError:
            absent.append(plan.experiment)
    return tuple(absent)


def _tried_verdicts(paper: Paper, profile: str, directory: Path) -> int:
    """How many checks the rules of judging come to a verdict on; the verdicts themselves are thrown away."""
    from grpo_replications.shared.harness.outcomes import evaluate_profile
    from grpo_replications.shared.harness.verdicts import NOT_RUN

    return sum(verdict.verdict != NOT_RUN for verdict in evaluate_profile(paper, profile, directory))


def _mark_record(path: Path, facts: dict[str, Any]) -> None:
    record = read_record(path.parent)
    write_atomic(path, json.dumps({"rehearsal": MARK, **record, "rehearsal_facts": facts}, indent=1) + "\n")


def _say(result: Result, killed: dict[str, Any] | None, judged: int, directory: Path, console: Console) -> None:
    if killed is not None:
        same = "the same rows and group log as" if killed["same_as_undisturbed"] else "[red]not the same as[/red]"
        console.print(
            f"Killed in step {killed['in_step']}: {killed['job']}; it went on from step {killed['resumed_from']} and "
            f"left {same} an undisturbed job.",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
    for job, message in result.failures:
        console.print(f"{job} failed: {message}", style="red", markup=False, soft_wrap=True)
    console.print(
        f"The rules of judging were tried on {judged} checks; a rehearsal yields no verdicts. Files: {directory}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip


def _cpu_seconds() -> float:
    """Processor time of this process and of those of its children that have ended or still run."""
    import psutil

    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue
    return total


# --- a kill in the middle of a training job ---------------------------------------------------------------------------


def _killable(paper: Paper, profile: Profile) -> list[Job]:
    """Jobs of the first seed that train with checkpoints; those that go on to benchmarks, if there are any."""
    jobs = [
        job
        for plan in profile.plans.values()
        for job in jobs_of(plan, paper.experiment(plan.experiment))
        if job.settings.get("save_every") and job.settings.get("method") not in (None, "base") and job.seeds.start == 0
    ]
    return [job for job in jobs if "benchmarks" in job.settings] or jobs


class _Kill:
    """While it is entered, it kills the worker of one training job, once, after a random step."""

    def __init__(self, jobs: list[Job], directory: Path) -> None:
        self.directory, self.note = directory, directory / ".killed.json"
        self.jobs = {job.stem: job for job in jobs if not (directory / f"{job.stem}.json").exists()}
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        if not self.note.exists():
            self.thread.start()

    def __exit__(self, *_: Any) -> None:
        self.over.set()

    def _watch(self) -> None:
        drawn = random.SystemRandom()
        after = {stem: drawn.randint(*_between(job.settings)) for stem, job in self.jobs.items()}
        while not self.over.wait(0.02):
            for stem, job in self.jobs.items():
                steps = _steps_done(self.directory / stem)
                if steps < after[stem] or (self.directory / f"{stem}.json").exists():
                    continue
                worker = _process_of(self.directory / f"{stem}.log")
                if worker is None:
                    continue
                os.kill(worker, signal.SIGKILL)
                saved = _newest(self.directory / stem)
                said = {"stem": stem, "job": str(job), "in_step": steps, "resumed_from": saved}
                self.note.write_text(json.dumps(said))
                return

    def report(self, undisturbed: Callable[[Job], tuple[Any, str]]) -> dict[str, Any] | None:
        """What was killed and whether it then measured what it would have; None where nothing was."""
        if not self.note.exists():
            return None
        said = json.loads(self.note.read_text())
        job = self.jobs.get(said["stem"])
        if job is not None:
            own = _left_by(job, self.directory)
            said["same_as_undisturbed"] = own == undisturbed(job)
            self.note.write_text(json.dumps(said))
        return {key: value for key, value in said.items() if key != "stem"} if "same_as_undisturbed" in said else None


def _undisturbed(paper: RehearsedPaper, name: str, job: Job, console: Console) -> tuple[Any, str]:
    """What the same job leaves when nobody kills it, in a directory that is removed."""
    profile = paper.profile(name)
    plan = replace(profile.plans[job.experiment], cells=(job.settings,), seeds=1, cell_seeds=())
    alone = _OnePlan(paper.directory, paper.of, paper.left_out, plan)
    with tempfile.TemporaryDirectory(prefix="undisturbed-") as scratch:
        quiet = Console(quiet=True, stderr=True)
        result = run_profile(alone, name, Path(scratch), ROOT, quiet, Options(command="undisturbed"))
        return _left_by(job, result.directory / "jobs")


@dataclass(frozen=True)
class _OnePlan(RehearsedPaper):
    """A rehearsed paper of which one plan runs."""

    plan: Plan | None = None

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        name = self.of + ENDING
        profiles = RehearsedPaper(self.directory, self.of, self.left_out).profiles
        assert self.plan is not None
        return {**profiles, name: replace(profiles[name], plans={self.plan.experiment: self.plan})}


def _left_by(job: Job, jobs: Path) -> tuple[Any, str]:
    """The rows of a finished job, those of time excepted, and its group log."""
    rows = json.loads((jobs / f"{job.stem}.json").read_text())["rows"]
    timing = rows.pop("timing")
    kept = {key: [value for value, timed in zip(rows[key], timing, strict=True) if not timed] for key in rows}
    log = jobs / job.stem / "groups.jsonl"
    return kept, log.read_text() if log.exists() else ""


def _between(settings: dict[str, Any]) -> tuple[int, int]:
    """The steps in which a job may be killed: after its first checkpoint, before its last step."""
    steps = settings.get("steps") or settings["rollouts"]
    first = min(settings["save_every"] + 1, steps)
    return first, max(first, steps - 1)


def _steps_done(directory: Path) -> int:
    """The newest optimizer step in a job's group log."""
    try:
        text = (directory / "groups.jsonl").read_text(encoding="utf-8")
        return max((json.loads(line)["step"] for line in text.splitlines() if line.endswith("}")), default=0)
    except (OSError, ValueError, KeyError):
        return 0


def _newest(directory: Path) -> int:
    from grpo_replications.shared.saved_runs import FOLDER, newest_checkpoint

    saved = newest_checkpoint(directory / FOLDER)
    return 0 if saved is None else saved[1]


def _process_of(log: Path) -> int | None:
    """The process below this one that writes to a job's log."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            if any(Path(file.path) == log.resolve() for file in child.open_files()):
                return child.pid
        except psutil.Error:
            continue
    return None
