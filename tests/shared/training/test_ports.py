"""Several runs on one machine: ports of their own, servers of their own, and a refusal where two would share one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training import ports
from grpo_replications.shared.training.launching import launch_command
from grpo_replications.shared.training.run import grpo_config
from grpo_replications.shared.training.settings import TrainingSettings

PROFILE = "http://127.0.0.1:8000"


def test_every_run_has_a_server_and_a_port_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = TrainingSettings(use_vllm=True, vllm_mode="server", trl={"vllm_server_base_url": PROFILE})
    monkeypatch.delenv(ports.SERVER, raising=False)
    one, other = (grpo_config(server, 0, tmp_path) for _ in range(2))
    assert one.vllm_server_base_url == PROFILE and one.vllm_group_port != other.vllm_group_port
    monkeypatch.setenv(ports.SERVER, "http://127.0.0.1:8003")
    assert grpo_config(server, 0, tmp_path).vllm_server_base_url == "http://127.0.0.1:8003"
    stated = TrainingSettings(use_vllm=True, vllm_mode="server", trl={"vllm_group_port": 51300})
    assert grpo_config(stated, 0, tmp_path).vllm_group_port == 51300
    inside = grpo_config(TrainingSettings(use_vllm=True), 0, tmp_path)
    assert inside.vllm_server_base_url is None, "no server"
    launched = [launch_command("ddp", 2, "float32", ["x"]) for _ in range(2)]
    assert len({command[command.index("--main_process_port") + 1] for command in launched}) == 2


def test_vllm_inside_a_run_meets_at_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "29501")
    ports.choose_rendezvous()
    assert os.environ["MASTER_PORT"] == "29501", "set from outside"
    monkeypatch.setenv("MASTER_PORT", "")
    ports.choose_rendezvous()
    first = os.environ["MASTER_PORT"]
    ports.choose_rendezvous()
    assert int(first) > 0 and os.environ["MASTER_PORT"] != first, "each run of a worker another one"


def test_a_server_has_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports.tempfile, "gettempdir", lambda: str(tmp_path))
    with ports.sole_user(PROFILE):
        with ports.sole_user("http://127.0.0.1:8001"):
            pass
        with pytest.raises(ReplicationError, match="REPLICATE_VLLM_SERVER=http"), ports.sole_user(PROFILE + "/"):
            pass
    with ports.sole_user(PROFILE):
        pass
