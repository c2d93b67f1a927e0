"""Ports and vLLM servers of several runs on one machine: each takes a free port, and no two use one server.

`REPLICATE_VLLM_SERVER` names the server of this run or part in place of `trl.vllm_server_base_url`; settings, by which
a job is known, stay the same for all parts.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from grpo_replications.shared.errors import ReplicationError

SERVER = "REPLICATE_VLLM_SERVER"
_taken: list[str] = []  # the rendezvous port that this process has chosen itself


def free_port() -> int:
    """A port that nobody listens at: the system deals out another one at each call, for a while."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asked:
        asked.bind(("", 0))
        return asked.getsockname()[1]


def own_server(trl: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of GRPOConfig that differ from run to run: the server, if the environment names one, and a port.

    The port is on this machine, where vLLM's processes meet the trainer to get weights; one in `trl` holds.
    """
    named = {"vllm_server_base_url": os.environ[SERVER]} if os.environ.get(SERVER) else {}
    return named | ({} if "vllm_group_port" in trl else {"vllm_group_port": free_port()})


def choose_rendezvous() -> None:
    """Let this process alone, which starts vLLM inside itself, meet nobody else's: TRL would try the same port first.

    A port that was set from outside holds, as by `accelerate launch`.
    """
    if os.environ.get("MASTER_PORT", "") in ("", "0", "auto", *_taken):
        _taken[:] = [str(free_port())]
        os.environ["MASTER_PORT"] = _taken[0]


@contextmanager
def sole_user(address: str) -> Iterator[None]:
    """Hold a vLLM server for the block; ReplicationError where another run of this machine has it.

    A server has the weights of one run at a time: two would train on each other's samples.
    """
    name = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:16]
    lock = FileLock(Path(tempfile.gettempdir()) / f"replicate-vllm-{name}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ReplicationError(
            f"Another run of this machine uses the vLLM server at {address}, which would then have the weights of both "
            f"in turn. Start one server for each run, on a port of its own, and name it: {SERVER}=http://HOST:PORT "
            "replicate run …"
        ) from None
    try:
        yield
    finally:
        lock.release()
