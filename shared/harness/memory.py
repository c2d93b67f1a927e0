"""Memory settings of a process that trains on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import sys
from types import ModuleType

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's mallopt(3)
_LARGE = 1 << 30


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for reuse instead of returning each large tensor to the system at once.

    A training step of the embedded model on the CPU frees and asks again for hundreds of megabytes; mapping them anew
    each time took a quarter of the step. Resident memory then stays at its peak until `release_freed_memory`.
    Does nothing where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE - 1)


def import_once(name: str) -> ModuleType:
    """Import a module without collections of garbage, now and later: what it loads stays as long as the process.

    torch and TRL load a fifth faster so, and the trainer, whose start and end collect garbage, need not go through them
    each time: half a second, a tenth of a short run.
    """
    if name in sys.modules:
        return sys.modules[name]
    enabled = gc.isenabled()
    gc.disable()
    try:
        loaded = importlib.import_module(name)
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
    return loaded


def release_freed_memory() -> None:
    """Return to the system what `keep_freed_memory` kept: to be called when a job has ended."""
    gc.collect()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
