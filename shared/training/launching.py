"""One job on several GPUs: how `accelerate launch` starts it, and what is refused before that.

The settings files lie in the folder `launch`, one for each way of sharing the work; they hold for one machine of eight
GPUs, and the number of processes and the precision are stated again on the command line, as the job has them. No
machine's own accelerate configuration changes anything.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training.ports import free_port
from grpo_replications.shared.training.settings import TrainingSettings

FOLDER = Path(__file__).with_name("launch")
SETTINGS_FILES = {
    "one": FOLDER / "one_gpu.yaml",
    "ddp": FOLDER / "eight_gpus.yaml",
    "fsdp2": FOLDER / "fsdp2_eight_gpus.yaml",
    "deepspeed-zero3": FOLDER / "deepspeed_zero3_eight_gpus.yaml",
}
"""Settings file of `accelerate launch` by the value of the setting `launch`; "one" where there is one process."""

ROOT = Path(__file__).resolve().parents[2]


def launch_command(launch: str, processes: int, precision: str, program: Sequence[str]) -> list[str]:
    """`accelerate launch` of a program (and its arguments), with every choice stated.

    The port at which its processes meet is a free one: other jobs of this machine may be launched at the same time.
    """
    return [
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(SETTINGS_FILES[launch])),
        *("--num_processes", str(processes), "--mixed_precision", "bf16" if precision == "bfloat16" else "no"),
        *("--main_process_port", str(free_port()), "--dynamo_backend", "no", *program),
    ]


def launch_environment() -> dict[str, str]:
    """This process's environment, with this checkout importable, and the CPU asked for where torch finds no GPU."""
    import torch

    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if not torch.cuda.is_available():
        environment["ACCELERATE_USE_CPU"] = "true"
    return environment


def check_launch(settings: TrainingSettings, launch: str, processes: int) -> None:
    """Raise ReplicationError where the settings do not go with so many processes, on whatever machine."""
    completions, micro_batches = settings.prompts_per_step * settings.group_size, settings.gradient_accumulation_steps
    if completions % (processes * micro_batches):
        raise ReplicationError(
            f"{completions} completions a step do not divide into processes = {processes} times "
            f"gradient_accumulation_steps = {micro_batches}."
        )
    if launch == "ddp":
        return
    if processes == 1:
        raise ReplicationError(
            f"launch = {launch!r} divides a model among processes, but processes = 1. Set processes to the number of "
            'GPUs, or leave launch at "ddp".'
        )
    if settings.lora_rank:
        raise ReplicationError(
            f"launch = {launch!r} with lora_rank = {settings.lora_rank}: the held-out looks and the best weights are "
            'those of an undivided adapter. Leave launch at "ddp", which holds the model once a GPU, or train all '
            "weights (lora_rank = 0)."
        )
    if settings.save_every:
        raise ReplicationError(
            f"launch = {launch!r} with save_every = {settings.save_every}: that a run of divided weights goes on "
            'exactly has not been tested. Set save_every to 0, or leave launch at "ddp".'
        )


def check_machine(launch: str, processes: int) -> None:
    """Raise ReplicationError where this machine cannot start such a job."""
    import torch

    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise ReplicationError(f"processes = {processes}, but this machine has {gpus} GPUs: set processes to {gpus}.")
    if launch == "ddp":
        return
    if not gpus:
        raise ReplicationError(
            f"launch = {launch!r} needs GPUs: on a CPU accelerate would leave it out without a word, and train as "
            '"ddp" does. Set launch to "ddp".'
        )
    if launch == "deepspeed-zero3" and importlib.util.find_spec("deepspeed") is None:
        raise ReplicationError('launch = "deepspeed-zero3" needs DeepSpeed: pip install deepspeed, or use "fsdp2".')
