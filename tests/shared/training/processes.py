"""Processes of gloo that train together, forked from one that has imported everything: imports take the longest."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState


def train_together(processes: int, work: Callable[[], None], printed: Path) -> None:
    """Do `work` in `processes` processes at once; RuntimeError with what they printed to `printed` if one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # With a GPU in sight torch refuses a backward pass in a process that was forked after one.
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    started = [
        context.Process(target=_forked, args=(work, rank, processes, port, printed)) for rank in range(processes)
    ]
    for process in started:
        process.start()
    while any(process.is_alive() for process in started):
        for process in started:
            process.join(0.1)
        if any(process.exitcode for process in started):
            for process in started:
                process.terminate()  # it may wait for the one that failed
    if any(process.exitcode for process in started):
        raise RuntimeError(f"one of {processes} processes failed:\n{printed.read_text()[-3000:]}")


def _forked(work: Callable[[], None], rank: int, processes: int, port: int, printed: Path) -> None:
    with printed.open("a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    for state in (GradientState, AcceleratorState, PartialState):
        state._reset_state()  # what the process forked from knew: that it is alone
    os.environ.update(ACCELERATE_USE_CPU="true", TOKENIZERS_PARALLELISM="false")
    if processes > 1:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        os.environ.update({name: str(value) for name, value in places.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the others may wait for this one
