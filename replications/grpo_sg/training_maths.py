"""Experiments of the `paper` profile that need its models: mathematics, and agentic question answering.

`training-maths` trains one model by several methods from the same start, one after the other, and measures each on the
benchmarks, so that a gain is a difference within one seed. It runs in one process on one GPU; `lora_rank` is what lets
a model of seven billion parameters fit there, and a choice of ours.
"""

from __future__ import annotations

import gc
import statistics
from typing import Any

from replications.grpo_sg.training import APART
from replications.grpo_sg.training_metrics import run_rows
from shared.errors import ReplicationError
from shared.harness.jobs import JobContext, Row, row
from shared.models import catalog
from shared.training.settings import trainer_settings

OURS, BASELINE = "sharpness", "grpo"
SMOOTH = ("grad_norm_median", "grad_norm_tail", "grad_norm_spikes", "reward_mean", "reward_roughness")


def training_maths(settings: dict[str, Any], seed: int, context: JobContext) -> list[Row]:
    """Benchmark accuracies of `methods` (a list with "grpo" and "sharpness") trained from the same start.

    Settings beyond the trainer's: `methods`, `rollouts`, `dataset`, `benchmarks` (names of
    `shared.tasks.math.BENCHMARKS`, each optionally `name=path-or-hub-id`), `eval_batch_size`, `eval_max_new_tokens`,
    `eval_samples`, `eval_temperature`. Rows, in points of 100: `accuracy/<benchmark>/<method>`, `mean/<method>` over
    benchmarks, `gain/<method>` over GRPO, `lead/<method>` of sharpness over it; for each method the rows of `run_rows`
    with `/<method>` behind their names, and `sharpness_over_grpo/<metric>`, the ratio of the two for what tells a
    smooth run. Raises ReplicationError, before anything is trained, when the model
    or a data set cannot be had.
    """
    from shared.grading.rewards import accuracy_reward
    from shared.models.evaluation import benchmark_accuracies
    from shared.tasks.math import benchmarks_from, problems_from
    from shared.training.run import passes, run_training

    methods = settings["methods"]
    if not {OURS, BASELINE} <= set(methods):
        raise ReplicationError(f"methods must hold {BASELINE!r} and {OURS!r}, not {methods}.")
    catalog.prepare(settings["model"])
    tests = benchmarks_from(settings["benchmarks"])
    train = problems_from(settings["dataset"], ungradable="drop").shuffle(seed=seed)
    planned = settings["rollouts"] * settings["prompts_per_step"] * settings["group_size"]
    rows, mean = [], {}
    for position, method in enumerate(methods):
        chosen = {**trainer_settings(settings, APART), "method": method}
        model, tokenizer = catalog.load(settings["model"])
        run = run_training(
            {**chosen, "steps": settings["rollouts"] * passes(chosen)},
            seed,
            train,
            [accuracy_reward],
            directory=context.directory / str(position),
            model=model,
            tokenizer=tokenizer,
            progress=lambda part, done=position: context.progress((done + part) / len(methods)),
        )
        shares = benchmark_accuracies(run.model, tokenizer, tests, [accuracy_reward], settings, seed)
        accuracies = {name: 100 * share for name, share in shares.items()}
        mean[method] = statistics.fmean(accuracies.values())
        rows += [row(f"accuracy/{name}/{method}", value) for name, value in accuracies.items()]
        measured = run_rows(run.history, planned, settings["window"])
        rows += [{**entry, "metric": f"{entry['metric']}/{method}"} for entry in measured]
        del model, run
        gc.collect()
    rows += [row(f"mean/{method}", value) for method, value in mean.items()]
    rows += [row(f"gain/{method}", value - mean[BASELINE]) for method, value in mean.items() if method != BASELINE]
    rows += [row(f"lead/{method}", mean[OURS] - value) for method, value in mean.items() if method != OURS]
    value = {entry["metric"]: entry["value"] for entry in rows if "step" not in entry}
    for name in SMOOTH:
        if value.get(f"{name}/{BASELINE}"):
            rows.append(row(f"sharpness_over_grpo/{name}", value[f"{name}/{OURS}"] / value[f"{name}/{BASELINE}"]))
    return rows


def agentic_qa(settings: dict[str, Any], seed: int, context: JobContext) -> list[Row]:
    """The paper's questions answered with a search tool: not implemented, and it says so.

    Raises ReplicationError in any case: what is not run must not look as if it had been.
    """
    raise ReplicationError(
        f"Agentic question answering with {settings['model']} is not implemented here: it needs a search tool over a "
        "text corpus, rollouts of several turns in the setting of VerlTool, and questions that are not stated in our "
        "sources. Run the paper's setting in VerlTool with the weights of "
        "shared.theory.confidence_weights.sharpness_weights, "
        "or test the other claims: leave this experiment out with ONLY=<experiment>."
    )
