"""Where a training run keeps what it can go on from: known to the trainer that writes it and to whoever looks.

A job's directory has a folder `checkpoints` (several, where it trains several runs one after the other), with TRL's
`checkpoint-<step>` in it.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = "checkpoints"
RUN_FILE = "grpo_run.json"
"""What a checkpoint holds beside TRL's files: the settings that decide which prompts come when, and the budget."""


def newest_checkpoint(folder: Path) -> tuple[Path, int] | None:
    """The newest complete checkpoint in a folder and its step; None without one.

    The file that this project adds is written last, so a checkpoint that has it is complete.
    """
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        try:
            json.loads((checkpoint / RUN_FILE).read_text(encoding="utf-8"))
            return checkpoint, _step(checkpoint)
        except (OSError, ValueError):
            continue
    return None


def saved_step(job: Path) -> int | None:
    """The optimizer step from which a job would go on: of the last of its runs that has a checkpoint; None without."""
    saved = [newest_checkpoint(folder) for folder in sorted(job.rglob(FOLDER))]
    steps = [found[1] for found in saved if found is not None]
    return steps[-1] if steps else None


def _step(checkpoint: Path) -> int:
    tail = checkpoint.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1
