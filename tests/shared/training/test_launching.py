"""Settings files of `accelerate launch`, read by accelerate itself, and what is refused before a job starts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin, DistributedType
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training import launching
from grpo_replications.shared.training.launching import FOLDER, SETTINGS_FILES, check_launch, check_machine
from grpo_replications.shared.training.settings import TrainingSettings

KINDS = {
    "one": DistributedType.NO,
    "ddp": DistributedType.MULTI_GPU,
    "fsdp2": DistributedType.FSDP,
    "deepspeed-zero3": DistributedType.DEEPSPEED,
}


def parsed(launch: str, processes: int, precision: str) -> Any:
    """What accelerate makes of the command of a job: its own arguments, completed from the settings file."""
    command = launching.launch_command(launch, processes, precision, ["-m", "module", "request.json"])
    assert command[1:3] == ["-m", "accelerate.commands.launch"]
    return _validate_launch_command(launch_command_parser().parse_args(command[3:]))[0]


@pytest.mark.parametrize("launch", SETTINGS_FILES)
def test_accelerate_reads_a_settings_file_and_knows_every_key(launch: str) -> None:
    path = SETTINGS_FILES[launch]
    config = load_config_from_file(str(path))  # refuses an unknown key at the top
    assert config.distributed_type is KINDS[launch]
    assert config.num_processes == (1 if "one_gpu" in path.name else 8) and config.num_machines == 1
    known = {action.dest for action in launch_command_parser()._actions}
    inner = {**config.fsdp_config, **config.deepspeed_config}
    assert set(inner) <= known, "accelerate passes over an unknown key further in"
    assert "use_fsdp" in known and "zero_stage" in known
    assert bool(inner) == (launch in ("fsdp2", "deepspeed-zero3"))


def test_no_settings_file_is_left_over() -> None:
    assert set(FOLDER.glob("*")) == set(SETTINGS_FILES.values())


@pytest.mark.parametrize(("precision", "mixed"), [("bfloat16", "bf16"), ("float32", "no")])
@pytest.mark.parametrize("launch", ["ddp", "fsdp2", "deepspeed-zero3"])
def test_a_jobs_processes_and_precision_hold_over_the_files(launch: str, precision: str, mixed: str) -> None:
    arguments = parsed(launch, 2, precision)
    assert (arguments.num_processes, arguments.mixed_precision) == (2, mixed)
    assert (arguments.multi_gpu, arguments.use_fsdp, arguments.use_deepspeed) == tuple(
        launch == name for name in ("ddp", "fsdp2", "deepspeed-zero3")
    )
    assert arguments.module and arguments.training_script == "module"


def test_fsdp2_and_zero3_arrive_in_the_environment_that_training_reads() -> None:
    fsdp = prepare_multi_gpu_env(parsed("fsdp2", 2, "float32"))
    assert (fsdp["ACCELERATE_USE_FSDP"], fsdp["FSDP_VERSION"], fsdp["FSDP_RESHARD_AFTER_FORWARD"]) == (
        "true",
        "2",
        "true",
    )
    assert fsdp["FSDP_CPU_RAM_EFFICIENT_LOADING"] == fsdp["FSDP_OFFLOAD_PARAMS"] == "false"
    arguments = parsed("deepspeed-zero3", 2, "float32")
    arguments.deepspeed_fields_from_accelerate_config = ""  # accelerate adds it between the two
    _, zero = prepare_deepspeed_cmd_env(arguments)
    assert (zero["ACCELERATE_DEEPSPEED_ZERO_STAGE"], zero["ACCELERATE_DEEPSPEED_ZERO3_INIT"]) == ("3", "false")
    assert {"zero_stage", "zero3_init_flag"} <= {field.name for field in dataclasses.fields(DeepSpeedPlugin)}


def refused(message: str, launch: str, processes: int, **changes: Any) -> None:
    settings = TrainingSettings(**{"prompts_per_step": 4, "group_size": 6, **changes})
    with pytest.raises(ReplicationError, match=re.escape(message)):
        check_launch(settings, launch, processes)


def test_what_cannot_be_launched_is_refused_with_the_reason() -> None:
    refused("24 completions a step do not divide into processes = 5", "ddp", 5)
    refused("processes = 4 times gradient_accumulation_steps = 4", "ddp", 4, gradient_accumulation_steps=4)
    refused("'fsdp2' divides a model among processes, but processes = 1", "fsdp2", 1)
    refused("lora_rank = 0", "deepspeed-zero3", 2, lora_rank=8)
    refused("has not been tested", "fsdp2", 2, save_every=5)
    check_launch(TrainingSettings(prompts_per_step=4, group_size=6, save_every=5, lora_rank=8), "ddp", 8)
    check_launch(TrainingSettings(prompts_per_step=4, group_size=6), "fsdp2", 8)


def test_what_this_machine_cannot_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    check_machine("ddp", 2)
    with pytest.raises(ReplicationError, match="on a CPU accelerate would leave it out"):
        check_machine("fsdp2", 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ReplicationError, match="this machine has 2 GPUs"):
        check_machine("ddp", 8)
    check_machine("fsdp2", 2)
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ReplicationError, match="pip install deepspeed"):
        check_machine("deepspeed-zero3", 2)
