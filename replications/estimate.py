"""`replicate estimate`: what a profile costs before it starts, and whether it fits.

Profiles that need a GPU are estimated by arithmetic (`shared.planning.training_cost`), with its assumptions printed;
what runs on a CPU, by the seconds that the same experiments took in results on disk.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profiles import Plan
from grpo_replications.shared.harness.progress import duration
from grpo_replications.shared.planning import training_cost as cost
from grpo_replications.shared.planning.gpus import GPUS, Gpu, gpu_called, gpu_like
from grpo_replications.shared.planning.model_shapes import shape_of
from grpo_replications.shared.training.settings import MethodSettings, UpdateSettings

DEFAULT_GPU = "h100"
ON_GPU = ("gpu", "hub")  # what profiles require that are estimated by arithmetic
ADAPTER_RANK, SMALL_BATCH = 64, 8  # what is suggested where a job does not fit


def add_command(commands: Any, papers_option: Any, results_directory: Any) -> None:
    """Add the command to the sub-parsers `commands`; `papers_option(options)` is the paper that was asked for."""
    text = "say what a profile costs before it starts: jobs, time, memory and disk"
    codes = "Exit code: 0 where every job fits, 1 where one does not fit the GPU, 2 for a wrong request."
    sub = commands.add_parser("estimate", help=text, description=text[0].upper() + text[1:] + ".", epilog=codes)
    sub.add_argument("paper", metavar="PAPER", help="a paper's name, as 'replicate list' gives it")
    sub.add_argument("--profile", default="paper", help="which profile (default: %(default)s)")
    sub.add_argument("--gpu", metavar="NAME", help=f"{', '.join(GPUS)} (default: the one here, or {DEFAULT_GPU})")
    sub.add_argument("--only", metavar="EXP", help="only the experiment of this name, or those starting with it")
    sub.add_argument("--seeds", metavar="N|A-B", help="with seeds 0..N-1, or A..B")
    sub.set_defaults(action=lambda options, console: _estimate(options, console, papers_option, results_directory()))


def _estimate(options: argparse.Namespace, console: Console, papers_option: Any, results: Path) -> int:
    paper = papers_option(options)
    gpu = gpu_called(options.gpu) if options.gpu else gpu_here() or gpu_called(DEFAULT_GPU)
    refused = show_estimate(paper, options.profile, gpu, results, console, options.only, options.seeds)
    for problem in refused:
        console.print(f"[red]does not fit:[/red] {problem}", soft_wrap=True, highlight=False)
    return 1 if refused else 0


def before_run(
    paper: Paper,
    profile: str,
    results: Path,
    console: Console,
    only: str | None,
    seeds: str | None,
    elsewhere: bool = False,
) -> None:
    """Print the estimate of a profile that needs the hub; ReplicationError where the GPU here cannot hold a job.

    `elsewhere`: the jobs run on other machines, whose GPUs are not known here.
    """
    if paper.profile(profile).requires != "hub":
        return
    here = None if elsewhere else gpu_here()
    refused = show_estimate(paper, profile, here or gpu_called(DEFAULT_GPU), results, console, only, seeds)
    if here is not None and refused:
        raise ReplicationError(
            "\n".join(refused) + f"\nNothing was started. The estimate: replicate estimate {paper.slug} "
            f"--profile {profile}; another experiment of the profile: --only EXP."
        )


def gpu_here() -> Gpu | None:
    """The first GPU of this machine, as torch sees it; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return gpu_like(found.name, float(found.total_memory))


@dataclass(frozen=True)
class Cell:
    """Jobs of one kind: an experiment's cell, how often it runs, and its work; None where it needs no GPU."""

    experiment: str
    label: str
    jobs: int
    work: cost.Workload | None
    model: str = ""


def cells_of(paper: Paper, plan: Plan, profile: str) -> Iterator[Cell]:
    """The cells of an experiment with the work of each."""
    experiment = paper.experiment(plan.experiment)
    for position, settings in enumerate(plan.cells):
        parsed = experiment.parse(settings, paper.where(profile, plan.experiment))
        jobs = 1 if experiment.seeds_at_once else len(plan.seeds_of(position))
        yield Cell(
            plan.experiment, plan.label(settings), jobs, workload(parsed), str(getattr(parsed, "model", "") or "")
        )


def workload(settings: Any) -> cost.Workload | None:
    """The work of one job from its settings; None for an experiment that trains no language model by TRL."""
    from grpo_replications.shared.training.token_weights import passes

    if not isinstance(settings, UpdateSettings) or getattr(settings, "model", None) is None:
        return None
    methods = getattr(settings, "methods", None) or [settings.method]
    names = ("num_iterations", "mini_batches", "gradient_accumulation_steps", "trl")
    same = {name: getattr(settings, name) for name in names}
    trained = [MethodSettings(method=method, **same) for method in methods if method != "base"]
    updates = [passes(one) // one.mini_batches for one in trained]  # of each completion, by method
    rollouts, steps = getattr(settings, "rollouts", None), getattr(settings, "steps", None) or 0
    if rollouts is not None:
        steps = rollouts * settings.mini_batches * max(updates, default=1)
    length = settings.max_new_tokens or getattr(settings, "depth", 1)
    processes = getattr(settings, "processes", 1)
    completions = settings.prompts_per_step * settings.group_size
    vllm = settings.trl.get("vllm_gpu_memory_utilization", 0.3) if settings.use_vllm else 0.0
    return cost.Workload(
        shape=shape_of(settings.model),
        steps=steps if trained else 0,
        completions=completions,
        max_tokens=length,
        passes_over_rollout=max(updates, default=1),
        processes=processes,
        micro_batch=max(1, completions // (processes * settings.gradient_accumulation_steps)),
        precision=settings.precision,
        adapter_rank=settings.lora_rank,
        adam=settings.optimizer == "adam",
        reference=settings.beta > 0,
        old_logps=settings.mini_batches > 1 or max(updates, default=1) > 1 or bool(vllm),
        checkpointing=settings.gradient_checkpointing,
        vllm_share=vllm,
        mini_batches=settings.mini_batches,
        saves=bool(settings.save_every),
        keeps_best=bool(trained) and bool(getattr(settings, "benchmarks", None)) and hasattr(settings, "eval_every"),
        runs=max(1, len(trained)),
        evaluations=tuple(_evaluations(settings, length, steps, len(methods), bool(trained))),
    )


def _evaluations(settings: Any, length: int, steps: int, methods: int, trained: bool) -> Iterator[cost.Decoding]:
    """What a job decodes beside its training: held-out problems on the way, and benchmarks at the end."""
    every, batch = getattr(settings, "eval_every", 0) or 0, getattr(settings, "eval_batch_size", 0)
    held_out = (getattr(settings, "validation_size", 0) or 0) * len(getattr(settings, "people", None) or [1])
    if batch and held_out and trained:
        planned = getattr(settings, "rollouts", None) or steps
        looks = planned // every + 1 if every else 1
        yield cost.Decoding(looks * math.ceil(held_out / batch), min(batch, held_out), length)
    rows, samples = getattr(settings, "max_rows", 0), getattr(settings, "reference_samples", 0)
    if rows and samples:
        samples += getattr(settings, "fresh_samples", 0)
        looks = steps // every + 1
        yield cost.Decoding(looks * math.ceil(settings.prompts * samples / rows), rows, length)
    names = [entry.partition("=")[0] for entry in getattr(settings, "benchmarks", None) or []]
    if names:
        from grpo_replications.shared.tasks.math import BENCHMARKS

        problems = [BENCHMARKS[name].problems if name in BENCHMARKS else 500 for name in names]
        batches = sum(math.ceil(number * settings.eval_samples / batch) for number in problems)
        vllm = settings.eval_engine == "vllm"
        yield cost.Decoding(methods * batches, batch, settings.eval_max_new_tokens, vllm)


def show_estimate(
    paper: Paper,
    profile: str,
    gpu: Gpu,
    results: Path,
    console: Console,
    only: str | None = None,
    seeds: str | None = None,
) -> list[str]:
    """Print the estimate of a profile; returns a sentence for each experiment and model that the GPU cannot hold."""
    chosen = paper.profile(profile).with_overrides(only, seeds)
    on_gpu = chosen.requires in ON_GPU
    assume = cost.Assumptions()
    cells = [cell for plan in chosen.plans.values() for cell in cells_of(paper, plan, profile)] if on_gpu else []
    heavy = [cell for cell in cells if cell.work is not None]
    light = [plan for name, plan in chosen.plans.items() if name not in {cell.experiment for cell in heavy}]
    console.print(f"[bold]{paper.slug}, profile {profile}[/bold]: estimate before anything starts", highlight=False)
    refused = _show_gpu(heavy, gpu, assume, console) if heavy else []
    if light:
        _show_cpu(paper, profile, light, results, console)
    return refused


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def _show_gpu(cells: list[Cell], gpu: Gpu, assume: cost.Assumptions, console: Console) -> list[str]:
    table = Table(title=f"on {gpu.name} ({gpu.memory / 1e9:.0f} GB)", title_justify="left")
    for name in ("experiment", "model", "jobs", "GPUs a job", "tokens sampled", "GPU-hours", "a job", "peak"):
        table.add_column(name, justify="left" if name in ("experiment", "model") else "right")
    table.add_column("largest part")
    table.add_column("checkpoints", justify="right")
    hours, disk_kept, disk_running, refused = 0.0, 0.0, 0.0, []
    for (experiment, model), group in _grouped(cells).items():
        times = [cost.seconds(cell.work, gpu, assume).total for cell in group]
        memories = [cost.memory(cell.work, gpu, assume) for cell in group]
        largest = max(memories, key=lambda one: (bool(one.problem), one.total))
        used = sum(t * cell.jobs * cell.work.processes for t, cell in zip(times, group, strict=True)) / 3600
        disks = [cost.disk(cell.work, assume) for cell in group]
        hours += used
        disk_kept += sum(one.kept * cell.jobs for one, cell in zip(disks, group, strict=True))
        disk_running = max(disk_running, *(one.running for one in disks))
        part = max(largest.parts, key=largest.parts.get)
        table.add_row(
            experiment,
            model,
            str(sum(cell.jobs for cell in group)),
            str(max(cell.work.processes for cell in group)),
            _count(sum(cell.jobs * cell.work.sampled * assume.length_share * cell.work.max_tokens for cell in group)),
            f"{used:,.0f}" if used >= 10 else f"{used:.1f}",
            _range(times),
            f"{largest.total / 1e9:.0f} GB",
            f"{part}, {largest.parts[part] / 1e9:.0f} GB",
            f"{max(one.running for one in disks) / 1e9:.1f} GB" if any(one.running for one in disks) else "none",
        )
        problem = _problem(largest, gpu)
        if problem:
            work = group[memories.index(largest)].work
            refused.append(f"{experiment} with {model} on {gpu.name}: {problem}. {_what_fits(work, gpu, assume)}")
    console.print(table)
    models = sum(2.0 * shape_of(model).parameters for model in {cell.model for cell in cells})
    console.print(
        f"In all {sum(cell.jobs for cell in cells)} jobs, {hours:,.0f} GPU-hours ({hours / 24:,.1f} GPU-days); on disk "
        f"{models / 1e9:.0f} GB of models, {disk_running / 1e9:.1f} GB of checkpoints while the largest job runs, "
        f"{disk_kept / 1e9:.1f} GB of logs that stay.",
        soft_wrap=True,
        highlight=False,
    )
    console.print("Assumed (expect a factor of two in time):", highlight=False)
    for line in assume.lines():
        console.print(f"- {line}", soft_wrap=True, highlight=False)
    return refused


def _problem(memory: cost.Memory, gpu: Gpu) -> str:
    if memory.total > gpu.memory:
        parts = sorted(memory.parts.items(), key=lambda one: -one[1])
        listed = ", ".join(f"{name} {size / 1e9:.0f} GB" for name, size in parts if size >= 0.5e9)
        return f"it needs {memory.total / 1e9:.0f} GB ({listed}) and there are {gpu.memory / 1e9:.0f} GB"
    return memory.problem


def _what_fits(work: cost.Workload, gpu: Gpu, assume: cost.Assumptions) -> str:
    """What would fit: another GPU of the list, or as few other settings as it takes on the same one."""
    larger = [name for name, one in GPUS.items() if not _problem(cost.memory(work, one, assume), one)]
    ways = [f"as it is on {' or '.join(larger)}"] if larger else []
    smaller = tuple(replace(one, batch=min(one.batch, SMALL_BATCH)) for one in work.evaluations)
    changes: dict[str, dict[str, Any]] = {
        f"eval_batch_size = {SMALL_BATCH}": {"evaluations": smaller},
        f"gradient_accumulation_steps = {work.completions // work.processes}": {"micro_batch": 1},
        f"lora_rank = {ADAPTER_RANK}": {} if work.adapter_rank else {"adapter_rank": ADAPTER_RANK},
    }
    changes = {text: change for text, change in changes.items() if replace(work, **change) != work}
    for size in range(1, len(changes) + 1):
        fitting = [
            " and ".join(texts)
            for texts in itertools.combinations(changes, size)
            if not _problem(
                cost.memory(replace(work, **{k: v for text in texts for k, v in changes[text].items()}), gpu, assume),
                gpu,
            )
        ]
        if fitting:
            ways += [f"on {gpu.name} with {text}" for text in fitting]
            break
    return f"It would fit {', or '.join(ways)}." if ways else "Nothing in the list of GPUs would hold it."


def _grouped(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.experiment, cell.model), []).append(cell)
    return groups


def _range(seconds: list[float]) -> str:
    """Durations of the jobs of a row, from the shortest to the longest."""
    low, high = duration(min(seconds)), duration(max(seconds))
    return low if low == high else f"{low} to {high}"


def _count(number: float) -> str:
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:.0f}"


# --- on a CPU ---------------------------------------------------------------------------------------------------------


def _show_cpu(paper: Paper, profile: str, plans: list[Plan], results: Path, console: Console) -> None:
    table = Table(title="on a CPU, by jobs that ran before", title_justify="left")
    for name in ("experiment", "jobs", "CPU-minutes", "minutes at its workers", "memory a worker", "measured"):
        table.add_column(name, justify="left" if name in ("experiment", "measured") else "right")
    from grpo_replications.shared.harness.runs import jobs_of

    total, wall, unknown = 0.0, 0.0, []
    for plan in plans:
        jobs = len(jobs_of(plan, paper.experiment(plan.experiment)))
        found = _measured(paper, profile, plan.experiment, results)
        if found is None:
            unknown.append(plan.experiment)
            table.add_row(plan.experiment, str(jobs), "?", "?", "?", "never")
            continue
        source, entry = found
        minutes = entry["job_seconds"] / entry["jobs_finished"] * jobs / 60
        total += minutes
        wall += minutes / min(plan.workers, jobs)
        where = " and ".join(entry["machines"]) + ("" if source == profile else f", profile {source}")
        table.add_row(
            plan.experiment,
            str(jobs),
            f"{minutes:.1f}",
            f"{minutes / min(plan.workers, jobs):.1f}",
            f"{entry['peak_memory_gib']:.1f} GiB",
            where,
        )
    console.print(table)
    rest = f"; not known: {', '.join(unknown)}" if unknown else ""
    console.print(
        f"In all {total:.0f} CPU-minutes, {wall:.0f} minutes one experiment after another{rest}. Jobs of another "
        "profile may have other sizes.",
        soft_wrap=True,
        highlight=False,
    )


def _measured(paper: Paper, profile: str, experiment: str, results: Path) -> tuple[str, dict[str, Any]] | None:
    """The profile and the record of an experiment that has run: of this profile, or else of another."""
    from grpo_replications.shared.harness.records import read_record

    for name in dict.fromkeys((profile, "full", "quick", *paper.profiles)):
        entry = read_record(results / paper.name / name).get("experiments", {}).get(experiment, {})
        if entry.get("jobs_finished") and entry.get("job_seconds") is not None:
            return name, entry
    return None
