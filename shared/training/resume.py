"""Resuming a run: the same prompts, log and weights as if it had never stopped, or a refusal that says why not.

TRL and transformers restore the weights, the optimizer and the generators of random numbers. What is added here:

- the order of prompts. TRL's sampler draws one permutation of the data set per pass from one generator; a resumed run
  starts that generator anew, so that every pass but the first would be in another order. For a stream, transformers
  skips the batches of all passes within the first one;
- a refusal where the run cannot be repeated: a checkpoint inside a generation window (the samples in use are not
  saved), one without the optimizer, a reference model that has moved, or settings that deal out other prompts;
- a warning at the start of a run whose `save_steps` puts checkpoints inside a generation window.

A generation window is `steps_per_generation * num_iterations` micro-batches, the time that one rollout is used for.
Metrics averaged over `logging_steps` start anew at the checkpoint, as they do in transformers.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import Sampler
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.saved_runs import RUN_FILE

_SETTINGS = (
    "num_generations",
    "generation_batch_size",
    "per_device_train_batch_size",
    "steps_per_generation",
    "num_iterations",
    "gradient_accumulation_steps",
    "world_size",
    "seed",
    "shuffle_dataset",
)


class ExactResume:
    """Mixin before a class derived from `trl.GRPOTrainer`: resuming is exact, or refused before anything is sampled.

    `_budget` is saved with every checkpoint and restored from it. `_resumed` is true once a run has been resumed.
    """

    _resumed = False
    _train_sampler: Sampler | None = None
    _data_description: str | None = None

    def _budget(self) -> dict[str, int]:
        """Counts that a resumed run goes on from."""
        return {}

    def _restore_budget(self, budget: Mapping[str, int]) -> None:
        """Go on from the counts of a checkpoint."""

    def _get_train_sampler(self, dataset: Any = None) -> Sampler:
        self._train_sampler = super()._get_train_sampler(dataset)
        return self._train_sampler

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """As in transformers: passes over the data finished at the checkpoint, and micro-batches of the one begun."""
        saved = None if resume_from_checkpoint is None else _saved_state(Path(resume_from_checkpoint))
        passes, batches = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        is_stream = isinstance(self.train_dataset, IterableDataset)
        accumulation = self.args.gradient_accumulation_steps
        if saved is not None:
            checkpoint = Path(resume_from_checkpoint)
            if is_stream:
                passes, batches = _place_in_stream(saved.epoch, saved.max_steps * accumulation)
            check_resume(self.args, checkpoint, saved.global_step, batches)
            run = _saved_run(checkpoint)
            if run is not None:
                _check_same(checkpoint, run["settings"], self._settings())
                self._restore_budget(run["budget"])
            if self._train_sampler is not None and getattr(self._train_sampler, "shuffle", False):
                for _ in range(passes):
                    torch.randperm(self._train_sampler.num_samples, generator=self._train_sampler.generator)
            self._resumed = True
        if self.is_world_process_zero():
            warn_of_save_steps(self.args, max_steps, None if is_stream else num_update_steps_per_epoch)
        return passes, batches

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            (folder / RUN_FILE).write_text(json.dumps({"settings": self._settings(), "budget": self._budget()}))

    def _settings(self) -> dict[str, Any]:
        if self._data_description is None:
            self._data_description = describe_data(self.train_dataset)
        return {**{name: getattr(self.args, name) for name in _SETTINGS}, "training set": self._data_description}


def check_resume(args: Any, checkpoint: Path, step: int, batches: int) -> None:
    """Refuse a checkpoint from which a run would not go on as if it had never stopped.

    `step`: optimizer steps done at the checkpoint. `batches`: micro-batches since the last pass over the data began.
    Raises ReplicationError for: a checkpoint inside a generation window, one without the optimizer, `ignore_data_skip`
    and a reference model that follows the policy (`sync_ref_model`), which no checkpoint holds.
    """
    if batches % _window(args):
        multiple = f"multiple of {steps_per_window(args)}"
        raise ReplicationError(
            f"{checkpoint} lies inside a generation window (step {step}): the samples in use then are not saved, so "
            f"the run cannot be resumed exactly. Resume from a checkpoint at a {multiple} steps, or start again with "
            f"save_steps a {multiple}."
        )
    # Sharded runs keep it in files of their own: FSDP below another name that begins alike, DeepSpeed elsewhere.
    found = args.deepspeed_plugin is not None or any(checkpoint.glob("optimizer*"))
    if args.save_only_model or not found:
        raise ReplicationError(
            f"{checkpoint} lacks the state of the optimizer, so the run cannot be resumed exactly. Start again with "
            "save_only_model=False, or train from its weights as a new run."
        )
    if args.ignore_data_skip:
        raise ReplicationError(
            "With ignore_data_skip=True a resumed run begins with the first prompts again. Set it to False."
        )
    if args.sync_ref_model and step:
        raise ReplicationError(
            "With sync_ref_model=True the reference model moves, and a checkpoint does not hold it, so the run cannot "
            "be resumed exactly. Start again."
        )


def steps_per_window(args: Any) -> int:
    """The least number of optimizer steps that whole generation windows make up, counted from a pass's beginning."""
    window = _window(args)
    return window // math.gcd(window, args.gradient_accumulation_steps)


def warn_of_save_steps(args: Any, max_steps: int, steps_per_pass: int | None) -> None:
    """Warn, before anything is sampled, of checkpoints that a run could not be resumed from.

    `steps_per_pass`: optimizer steps of one pass over the data; None for a stream, whose length is not known.
    """
    every = args.save_steps if args.save_strategy == "steps" else args.eval_steps
    if args.save_strategy not in ("steps", "best") or not every:
        return
    every = math.ceil(max_steps * every) if every < 1 else int(every)
    window, accumulation = _window(args), args.gradient_accumulation_steps
    inside = [
        step
        for step in range(every, max_steps, every)
        if (step % steps_per_pass if steps_per_pass else step) * accumulation % window
    ]
    if inside:
        listed = ", ".join(map(str, inside[:3])) + (", ..." if len(inside) > 3 else "")
        name = "save_steps" if args.save_strategy == "steps" else "eval_steps"
        warnings.warn(
            f"Checkpoints at steps {listed} fall inside a generation window, so the run cannot be resumed from them. "
            f"Set {name} to a multiple of {steps_per_window(args)}.",
            stacklevel=2,
        )


def describe_data(dataset: Any) -> str:
    """Rows, columns and a hash of the content of a data set; a stream is told by its columns alone.

    Reads the whole data set once, as it is stored: images and audio are not decoded.
    """
    columns = sorted(getattr(dataset, "column_names", None) or ())
    if not isinstance(dataset, Dataset):
        return f"a stream with columns {columns}"
    digest = hashlib.sha256()
    for table in dataset.select_columns(columns).with_format("arrow").iter(batch_size=1000):
        digest.update(json.dumps(table.to_pydict(), sort_keys=True, default=_hashable).encode())
    return f"{len(dataset)} rows with columns {columns}, sha256 {digest.hexdigest()[:16]}"


def _hashable(value: Any) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else repr(value)


def _window(args: Any) -> int:
    return args.steps_per_generation * args.num_iterations


def _place_in_stream(epoch: float, batches_per_epoch: int) -> tuple[int, int]:
    """Passes and micro-batches since, from the `epoch` that transformers keeps: passes + batches / batches_per_epoch.

    There `batches_per_epoch` is that of the whole run, so the second part is above 0 and at most 1.
    """
    passes = max(math.ceil(epoch) - 1, 0)
    return passes, round((epoch - passes) * batches_per_epoch)


def _saved_state(checkpoint: Path) -> TrainerState:
    try:
        return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    except (OSError, ValueError, TypeError) as error:
        raise ReplicationError(f"{checkpoint} is not a checkpoint that can be resumed from: {error}.") from error


def _saved_run(checkpoint: Path) -> dict[str, Any] | None:
    try:
        return json.loads((checkpoint / RUN_FILE).read_text())
    except OSError:
        warnings.warn(
            f"{checkpoint} has no {RUN_FILE}: it cannot be told whether group size, batch and data are those of the "
            "run that is resumed, and the budget is counted from 0.",
            stacklevel=2,
        )
        return None
    except ValueError as error:
        raise ReplicationError(f"{checkpoint / RUN_FILE} could not be read: {error}.") from error


def _check_same(checkpoint: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    changed = [
        f"{name} is {own[name]} and was {saved[name]}" for name in own if name in saved and own[name] != saved[name]
    ]
    if changed:
        raise ReplicationError(
            f"The run of {checkpoint} cannot be resumed with other settings: {'; '.join(changed)}. Set back what has "
            "changed, or train from the checkpoint's weights as a new run."
        )
