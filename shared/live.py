"""What a running job says of its training besides its results: the harness listens, a trainer speaks.

Nothing here draws a random number or changes a result; where nobody listens, nothing is said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

Listener = Callable[[Mapping[str, float]], None]
"""Takes `step` and `steps` of a training run and, where known, `reward` (mean of the rollout), `silent` (share of its
groups) and `tokens_per_second` (prompts and completions)."""
_listeners: list[Listener] = []


def listener() -> Listener | None:
    """Who listens to the job that this process runs; None where nobody does."""
    return _listeners[-1] if _listeners else None


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let `listener` hear what is said within the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
