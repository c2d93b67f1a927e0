"""Which seeds are run: a number N for the seeds 0 to N-1, or the first and the last, `64-319`."""

from __future__ import annotations

import re

from grpo_replications.shared.errors import ReplicationError


def seed_range(value: int | str, where: str = "seeds") -> range:
    """The seeds that `value` stands for: `16` or `"16"` for 0 to 15, `"64-319"` for 64 to 319.

    `where`: what the message of the ReplicationError names, for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return range(value)
    written = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", value.strip()) if isinstance(value, str) else None
    if written:
        first, last = int(written[1]), written[2]
        if last is None and first >= 1:
            return range(first)
        if last is not None and int(last) >= first:
            return range(first, int(last) + 1)
    raise ReplicationError(
        f"{where}: write a number of seeds of at least 1, such as 16 for the seeds 0 to 15, or the first and the last, "
        f"such as 64-319; not {value!r}."
    )


def written_range(seeds: range) -> str:
    """`0-15`; `3` for a single seed."""
    return f"{seeds.start}-{seeds.stop - 1}" if len(seeds) > 1 else str(seeds.start)


def read_range(written: str) -> range:
    """The seeds that `written_range` has written; ValueError for anything else."""
    first, _, last = written.partition("-")
    return range(int(first), int(last or first) + 1)
