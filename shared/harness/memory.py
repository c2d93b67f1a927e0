"""Memory settings of a process that trains on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

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


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Leave garbage alone for as long as modules are imported: torch and TRL make none, and load a fifth faster."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def release_freed_memory() -> None:
    """Return to the system what `keep_freed_memory` kept: to be called when a job has ended."""
    gc.collect()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
