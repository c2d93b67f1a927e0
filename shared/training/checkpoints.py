"""What a run leaves on disk while it trains, so that the same command goes on after a kill, and its best weights.

Everything lies in the folder `checkpoints` of the run's directory, which the harness removes when the job is done:
TRL's checkpoints (two of them, since the newest may be half written), what was observed on the way, and the weights
that did best on held-out problems. How exactly a run goes on: `shared.training.resume`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from grpo_replications.shared.saved_runs import FOLDER

OBSERVATIONS = "observations.jsonl"
Observation = tuple[int, dict[str, float]]


@contextmanager
def output_directory(directory: Path, keeps: bool) -> Iterator[Path]:
    """Where TRL writes: the run's folder of checkpoints, or a temporary one where nothing is kept."""
    if keeps:
        folder = directory / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    else:
        with TemporaryDirectory(prefix="trl-") as scratch:
            yield Path(scratch)


def restore_finished(trainer: Any, checkpoint: Path) -> None:
    """Give a trainer the weights and the history of a checkpoint at the end of its run, without training."""
    trainer._load_from_checkpoint(str(checkpoint))
    trainer.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))


def read_observations(folder: Path, before: int) -> list[Observation]:
    """What was observed before step `before`, each step once; a line that a kill cut short is left out."""
    found: dict[int, dict[str, float]] = {}
    path = folder / OBSERVATIONS
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry["step"] < before:
            found[entry["step"]] = entry["seen"]
    return sorted(found.items())


def add_observation(folder: Path, step: int, seen: dict[str, float]) -> None:
    """Add one observation to the file, on a line of its own even after a line that a kill cut short."""
    with (folder / OBSERVATIONS).open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps({"step": step, "seen": {name: float(value) for name, value in seen.items()}}))


class BestWeights:
    """The trained weights with the highest score so far, the first of equals, in a file that a resumed run uses too.

    After a kill on a GPU, where a resumed run is not exact, the best may be of steps that were done again otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def best(self) -> tuple[int, float] | None:
        """Step and score of the weights that are kept; None before the first."""
        from safetensors import safe_open

        if not self.path.exists():
            return None
        with safe_open(self.path, "pt") as file:
            kept = file.metadata()
        return int(kept["step"]), float(kept["score"])

    def offer(self, model: Any, step: int, score: float) -> None:
        """Keep the weights that are trained (an adapter's, or all), if their score is the highest so far."""
        from safetensors.torch import save_file

        best = self.best()
        if best is not None and best[1] >= score:
            return
        weights = {name: value.detach().cpu().contiguous() for name, value in _trained(model).items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        save_file(weights, temporary, metadata={"step": str(step), "score": repr(score)})
        os.replace(temporary, self.path)

    def restore(self, model: Any) -> None:
        """Give the model the weights that are kept."""
        import torch
        from safetensors.torch import load_file

        kept = load_file(self.path)
        with torch.no_grad():
            for name, value in _trained(model).items():
                value.copy_(kept[name])


def _trained(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}
