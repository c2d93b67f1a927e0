"""Experiment `table2`: the paper's downstream accuracies, with its models, its data and its benchmarks.

One job trains one model once (or not at all, for the base row) and measures it on the five benchmarks. With
`processes` above 1 the job starts itself under `accelerate launch`, one process per GPU (or on the CPU where there is
no GPU, for tests).

Where the settings seen in the authors' code and this experiment differ:

* completions end at the model's own end of sequence, not when a box is closed;
* the reward reads the completion alone, and training rows whose gold answer cannot be graded are left out;
* the loss is normalized over the tokens of the whole batch, not of each micro-batch;
* the last checkpoint is measured, not the best of those looked at every 25 steps;
* greedy decoding is not assumed: `eval_temperature` and `eval_samples` say how a benchmark is sampled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from grpo_replications.replications.lambda_grpo.settings import Table2Settings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.models import catalog

ROOT = Path(__file__).resolve().parents[2]


def table2(settings: Table2Settings, seed: int, context: JobContext) -> list[Row]:
    """Rows `accuracy/<benchmark>`, `problems/<benchmark>` (how many could be graded) and `accuracy/mean` of one model.

    Raises ReplicationError, before anything is trained, when the model or a data set cannot be had.
    """
    catalog.prepare(settings.model)
    if settings.processes == 1:
        return train_and_measure(settings, seed, context.directory, context)
    return _launch(settings, seed, context.directory)


def train_and_measure(
    settings: Table2Settings, seed: int, directory: Path, context: JobContext | None = None
) -> list[Row]:
    """Train (unless `method` is "base") and measure; under `accelerate launch` every process takes part in training."""
    from accelerate import PartialState

    from grpo_replications.shared.models.evaluation import benchmark_accuracies
    from grpo_replications.shared.tasks.math import SYSTEM_MESSAGE, benchmarks_from, problems_from
    from grpo_replications.shared.training.run import run_training
    from grpo_replications.shared.training.settings import TrainingSettings

    problems = benchmarks_from(settings.benchmarks)
    model, tokenizer = catalog.load(settings.model)
    from grpo_replications.shared.grading.rewards import accuracy_reward

    if settings.method != "base":
        words = settings.system_message or SYSTEM_MESSAGE
        train = problems_from(settings.dataset, ungradable="drop", system_message=words).shuffle(seed=seed)
        run = run_training(
            TrainingSettings.of(settings),
            seed,
            train,
            [accuracy_reward],
            directory=directory,
            model=model,
            tokenizer=tokenizer,
            progress=None if context is None else context.progress,
        )
        model = run.model
    if not PartialState().is_main_process:
        return []
    accuracies = benchmark_accuracies(model, tokenizer, problems, [accuracy_reward], settings, settings.precision, seed)
    rows: list[Row] = []
    for name, dataset in problems.items():
        rows.append({"metric": f"accuracy/{name}", "value": accuracies[name]})
        rows.append({"metric": f"problems/{name}", "value": len(dataset)})
    rows.append({"metric": "accuracy/mean", "value": sum(accuracies.values()) / len(accuracies)})
    return rows


def _launch(settings: Table2Settings, seed: int, directory: Path) -> list[Row]:
    """Run `train_and_measure` in `processes` processes; the main one leaves its rows in a file."""
    request = directory / "request.json"
    answer = directory / "rows.json"
    answer.unlink(missing_ok=True)
    asked = {"settings": settings.model_dump(), "seed": seed, "directory": str(directory.resolve())}
    asked["parent"] = os.getpid()
    request.write_text(json.dumps(asked))
    command = [*_accelerate(settings.processes), "-m", __name__, str(request.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode != 0 or not answer.exists():
        raise ReplicationError(
            f"`accelerate launch` with {settings.processes} processes ended with code {done.returncode}:\n"
            f"{done.stderr.strip()[-1500:]}\nSet `processes` in profiles.toml to the number of GPUs of this machine."
        )
    return json.loads(answer.read_text())


def _accelerate(processes: int) -> list[str]:
    """`accelerate launch` with every choice stated: a machine's own accelerate configuration changes nothing."""
    return [
        *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes)),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
    ]


def _environment() -> dict[str, str]:
    """This process's environment, with this checkout importable, and the CPU asked for where torch finds no GPU."""
    import torch

    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if not torch.cuda.is_available():
        environment["ACCELERATE_USE_CPU"] = "true"
    return environment


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
