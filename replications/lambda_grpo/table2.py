"""Experiment `table2`: the paper's downstream accuracies, with its models, its data and its benchmarks.

One job trains one model once (or not at all, for the base row), looks at problems held out of the training set every
`eval_every` steps, and measures the weights that solved most of them on the five benchmarks: no benchmark chooses
anything. With `processes` above 1 the job starts itself under `accelerate launch`, one process per GPU (or on the CPU
where there is no GPU, for tests), each with the whole model or, by the setting `launch`, with a part of it; each
process then decodes its share of the held-out problems.

What differs from the paper and from its authors' code is in the table on this paper's page, with the reasons. Not
stated by the paper is how a benchmark is decoded: `eval_temperature` and `eval_samples` say it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_replications.replications.lambda_grpo.settings import Table2Settings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.vllm_engine import check_engine
from grpo_replications.shared.training.launching import check_machine, launch_command, launch_environment


def table2(settings: Table2Settings, seed: int, context: JobContext) -> list[Row]:
    """Rows of one model: `accuracy/<benchmark>` with `low/…` and `high/…`, `problems/<benchmark>`, `accuracy/mean`.

    `low` and `high` are the ends of the 95 % interval over the benchmark's problems, for this one run; an interval over
    runs comes from its seeds. `problems`: how many could be graded. Raises ReplicationError, before anything is
    trained, when the model or a data set cannot be had.
    """
    check_engine(settings, settings.processes)
    check_machine(settings.launch, settings.processes)
    catalog.prepare(settings.pinned(settings.model))
    if settings.processes == 1:
        return train_and_measure(settings, seed, context.directory, context)
    return _launch(settings, seed, context.directory)


def train_and_measure(
    settings: Table2Settings, seed: int, directory: Path, context: JobContext | None = None
) -> list[Row]:
    """Train (unless `method` is "base") and measure; under `accelerate launch` every process takes part in training."""
    from accelerate import PartialState

    from grpo_replications.shared.grading.rewards import accuracy_reward, of_first_box
    from grpo_replications.shared.models.evaluation import benchmark_estimates
    from grpo_replications.shared.tasks.benchmarks import load_benchmarks
    from grpo_replications.shared.tasks.math import SYSTEM_MESSAGE

    reward = of_first_box(accuracy_reward) if settings.stop_at_box else accuracy_reward
    message = settings.system_message or SYSTEM_MESSAGE
    benchmarks = load_benchmarks(settings.benchmarks, message, settings.revisions, reward)
    model, tokenizer = catalog.load(settings.pinned(settings.model))
    rows: list[Row] = []
    if settings.method != "base":
        progress = None if context is None else context.progress
        model, rows = _trained(settings, seed, directory, model, tokenizer, reward, progress)
    measured = benchmark_estimates(model, tokenizer, benchmarks, settings, settings.precision, seed, directory)
    if not PartialState().is_main_process:
        return []
    for name, found in measured.items():
        rows.append(row(f"accuracy/{name}", found.value))
        rows.append(row(f"low/{name}", found.low))
        rows.append(row(f"high/{name}", found.high))
        rows.append(row(f"problems/{name}", len(benchmarks[name].problems)))
    rows.append(row("accuracy/mean", sum(found.value for found in measured.values()) / len(measured)))
    return rows


def _trained(
    settings: Table2Settings,
    seed: int,
    directory: Path,
    model: Any,
    tokenizer: Any,
    reward: Any,
    progress: Callable[[float], None] | None,
) -> tuple[Any, list[Row]]:
    """The model with the weights of its best look, and the looks as rows: `held_out_accuracy` by step, `best_step`.

    The start takes no part: the paper chooses among checkpoints of training.
    """
    from accelerate import PartialState

    from grpo_replications.shared.models.divided import copy_whole_weights
    from grpo_replications.shared.saved_runs import FOLDER
    from grpo_replications.shared.tasks import load_task
    from grpo_replications.shared.tasks.math import HELD_OUT, SYSTEM_MESSAGE
    from grpo_replications.shared.training.checkpoints import BestWeights
    from grpo_replications.shared.training.run import run_training, sampling_correction
    from grpo_replications.shared.training.settings import TrainingSettings

    task = load_task(
        "math",
        dataset=settings.pinned(settings.dataset),
        validation=HELD_OUT,
        validation_size=settings.validation_size,
        ungradable="drop",
        system_message=settings.system_message or SYSTEM_MESSAGE,
        seed=seed,
    )
    best = BestWeights(directory / FOLDER / "best.safetensors")
    # Where the processes divide the policy, each looks through a whole copy: it may decode longer than the others.
    copy = None if settings.launch == "ddp" else catalog.load(settings.pinned(settings.model))[0]

    def look(policy: Any, step: int) -> dict[str, float]:
        if copy is not None:
            copy_whole_weights(policy, copy.to(policy.device))
            policy = copy
        accuracy = _held_out_accuracy(policy, tokenizer, task.validation, reward, settings)
        if step > 0 and PartialState().is_main_process:
            best.offer(policy, step, accuracy)
        return {"accuracy": accuracy}

    run = run_training(
        TrainingSettings.of(settings),
        seed,
        task.train,
        [reward],
        directory=directory,
        model=model,
        tokenizer=tokenizer,
        observe=look,
        observe_every=settings.eval_every,
        progress=progress,
    )
    rows = [row("held_out_accuracy", seen["accuracy"], step) for step, seen in run.observations]
    rows += [row(name, value) for name, value in sampling_correction(run.history).items()]
    trained = run.model if copy is None else copy
    PartialState().wait_for_everyone()
    best.restore(trained)
    rows.append(row("best_step", best.best()[0]))
    return trained, rows


def _held_out_accuracy(policy: Any, tokenizer: Any, problems: Any, reward: Any, settings: Table2Settings) -> float:
    """Share of the held-out problems solved by greedy decoding, of all processes together."""
    from accelerate import PartialState
    from accelerate.utils import gather_object

    from grpo_replications.shared.models.evaluation import greedy_accuracy

    state = PartialState()
    own = problems.select(range(state.process_index, len(problems), state.num_processes))
    right = 0
    if len(own):
        found = greedy_accuracy(
            policy,
            tokenizer,
            own,
            [reward],
            max_new_tokens=settings.max_new_tokens,
            batch_size=settings.eval_batch_size,
            precision=settings.precision,
        )
        right = int(found.correct.sum())
    return sum(gather_object([right])) / len(problems)


def _launch(settings: Table2Settings, seed: int, directory: Path) -> list[Row]:
    """Run `train_and_measure` in `processes` processes; the main one leaves its rows in a file."""
    request = directory / "request.json"
    answer = directory / "rows.json"
    answer.unlink(missing_ok=True)
    asked = {"settings": settings.model_dump(), "seed": seed, "directory": str(directory.resolve())}
    asked["parent"] = os.getpid()
    request.write_text(json.dumps(asked))
    program = ["-m", __name__, str(request.resolve())]
    command = launch_command(settings.launch, settings.processes, settings.precision, program)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=launch_environment())
    if done.returncode != 0 or not answer.exists():
        raise ReplicationError(
            f"`accelerate launch` with {settings.processes} processes ended with code {done.returncode}:\n"
            f"{done.stderr.strip()[-1500:]}\nSet `processes` in profiles.toml to the number of GPUs of this machine."
        )
    return json.loads(answer.read_text())


def _end_with(parent: int) -> None:
    """End this process when the job that asked for it is gone: a stopped run must not go on training unseen."""

    def watch() -> None:
        while True:
            try:
                os.kill(parent, 0)
            except ProcessLookupError:
                os._exit(1)
            time.sleep(1.0)

    threading.Thread(target=watch, daemon=True).start()


def main(request: str) -> None:
    """Entry point of the processes that `accelerate launch` starts."""
    asked = json.loads(Path(request).read_text())
    directory = Path(asked["directory"])
    _end_with(asked["parent"])
    rows = train_and_measure(Table2Settings(**asked["settings"]), asked["seed"], directory)
    if rows:
        (directory / "rows.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1])
