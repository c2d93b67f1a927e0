"""Experiments of the `paper` profile that need its models: mathematics, and agentic question answering.

`training-maths` trains one model by several methods from the same start, one after the other, and measures each on the
benchmarks, so that a gain is a difference within one seed. It runs in one process on one GPU; `lora_rank` is what lets
a model of seven billion parameters fit there, and a choice of ours.
"""

from __future__ import annotations

import gc
import statistics

from grpo_replications.replications.grpo_sg.settings import AgenticSettings, MathsTrainingSettings
from grpo_replications.replications.grpo_sg.training_metrics import run_rows
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.training.settings import MethodSettings

OURS, BASELINE = "sharpness", "grpo"
SMOOTH = ("grad_norm_median", "grad_norm_tail", "grad_norm_spikes", "reward_mean", "reward_roughness")


def training_maths(settings: MathsTrainingSettings, seed: int, context: JobContext) -> list[Row]:
    """Benchmark accuracies of `methods` (a list with "grpo" and "sharpness") trained from the same start.

    Rows, in points of 100: `accuracy/<benchmark>/<method>`, `low/…` and `high/…`, the ends of its 95 % interval over
    problems, `mean/<method>` over benchmarks, `gain/<method>` over GRPO, `lead/<method>` of sharpness over it; for each
    method the rows of `run_rows` with `/<method>` behind their names, and `sharpness_over_grpo/<metric>`, the ratio of
    the two for what tells a smooth run. Raises ReplicationError, before anything is trained, when the model or a data
    set cannot be had.
    """
    from grpo_replications.shared.grading.rewards import accuracy_reward
    from grpo_replications.shared.models.evaluation import benchmark_estimates
    from grpo_replications.shared.models.vllm_engine import check_engine
    from grpo_replications.shared.tasks.benchmarks import load_benchmarks
    from grpo_replications.shared.tasks.math import problems_from
    from grpo_replications.shared.training.comparison import run_method

    methods = settings.methods
    if not {OURS, BASELINE} <= set(methods):
        raise ReplicationError(f"methods must hold {BASELINE!r} and {OURS!r}, not {methods}.")
    check_engine(settings)
    catalog.prepare(settings.pinned(settings.model))
    tests = load_benchmarks(settings.benchmarks, revisions=settings.revisions)
    train = problems_from(settings.pinned(settings.dataset), ungradable="drop").shuffle(seed=seed)
    planned = settings.rollouts * settings.mini_batches * settings.prompts_per_step * settings.group_size
    rows, mean = [], {}
    for position, method in enumerate(methods):
        run = run_method(
            MethodSettings.of(settings, method=method),
            seed,
            catalog.load(settings.pinned(settings.model)),
            train,
            [accuracy_reward],
            rollouts=settings.rollouts,
            directory=context.directory / str(position),
            progress=lambda part, done=position: context.progress((done + part) / len(methods)),
        )
        found = benchmark_estimates(
            run.model, run.tokenizer, tests, settings, settings.precision, seed, context.directory
        )
        accuracies = {name: 100 * one.value for name, one in found.items()}
        rows += [row(f"low/{name}/{method}", 100 * one.low) for name, one in found.items()]
        rows += [row(f"high/{name}/{method}", 100 * one.high) for name, one in found.items()]
        mean[method] = statistics.fmean(accuracies.values())
        rows += [row(f"accuracy/{name}/{method}", value) for name, value in accuracies.items()]
        measured = run_rows(run.history, planned, settings.window)
        rows += [{**entry, "metric": f"{entry['metric']}/{method}"} for entry in measured]
        del run
        gc.collect()
    rows += [row(f"mean/{method}", value) for method, value in mean.items()]
    rows += [row(f"gain/{method}", value - mean[BASELINE]) for method, value in mean.items() if method != BASELINE]
    rows += [row(f"lead/{method}", mean[OURS] - value) for method, value in mean.items() if method != OURS]
    value = {entry["metric"]: entry["value"] for entry in rows if "step" not in entry}
    for name in SMOOTH:
        if value.get(f"{name}/{BASELINE}"):
            rows.append(row(f"sharpness_over_grpo/{name}", value[f"{name}/{OURS}"] / value[f"{name}/{BASELINE}"]))
    return rows


def agentic_qa(settings: AgenticSettings, seed: int, context: JobContext) -> list[Row]:
    """The paper's questions answered with a search tool: not implemented, and it says so.

    Raises ReplicationError in any case: what is not run must not look as if it had been.
    """
    raise ReplicationError(
        f"Agentic question answering with {settings.model} ({settings.method}) is not implemented here: it needs a "
        "search tool over a text corpus, rollouts of several turns in the setting of VerlTool, and questions that are "
        "not stated in our sources. Run the paper's setting in VerlTool with the weights of "
        "grpo_replications.shared.theory.confidence_weights.sharpness_weights, "
        "or test the other claims: leave this experiment out with ONLY=<experiment>."
    )
