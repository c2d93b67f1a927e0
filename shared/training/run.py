"""One training run of TRL from plain settings: the configuration spelled out, the model loaded, the history returned.

Everything that decides a result is stated here, nothing is left to a library's default: loss type, scaling of rewards,
KL coefficient and estimator, updates per batch, precision, optimizer, gradient clipping and seed.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOConfig

from grpo_replications.shared import live, tracking
from grpo_replications.shared.models import catalog
from grpo_replications.shared.saved_runs import newest_checkpoint
from grpo_replications.shared.training.checkpoints import (
    add_observation,
    output_directory,
    read_observations,
    restore_finished,
)
from grpo_replications.shared.training.ports import choose_rendezvous, own_server, sole_user
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.shared.training.token_weights import method_weighting, passes
from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer
from grpo_replications.shared.training.vllm_checks import check_vllm, sampling_in_words, server_address

# The fused AdamW is two to four times faster than the default one on a CPU, where it is bound by memory.
_OPTIMIZERS = {"adam": "adamw_torch_fused", "sgd": "sgd"}
_SAID = {"reward": "reward", "groups/silent": "silent"}  # names in the log -> in `shared.live`


_OUR_TRAINERS = ("max_redraws", "stop_at_box", "save_every", "tree_sampling", "share_prefixes")
"""Settings that only `TokenWeightedGRPOTrainer` follows."""

__all__ = ["TrainingRun", "grpo_config", "method_weighting", "passes", "run_training", "sampling_correction"]


@dataclass
class TrainingRun:
    """What a run left: one dictionary of metrics per optimizer step (TRL's names), and the trained model.

    What belongs to a rollout, such as `reward`, is missing from the steps that go through a rollout a second time.
    """

    history: list[dict[str, float]]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    group_log: Path
    observations: list[tuple[int, dict[str, float]]] = field(default_factory=list)


def grpo_config(settings: TrainingSettings, seed: int, directory: str | Path) -> GRPOConfig:
    """TRL's configuration for `settings` and `seed`.

    A step samples `prompts_per_step * group_size` completions over all processes and makes `num_iterations` passes.
    Constant learning rate, no weight decay, no warm-up; KL by the k3 estimator without importance correction.
    `scale_rewards`: what centered rewards are divided by: "group" or "batch", its sample standard deviation plus 1e-4;
    "none", nothing (Dr. GRPO). A rollout sampled with vLLM is corrected for vLLM's own log-probabilities as TRL does by
    default, in both its modes (completions whose ratio exceeds 3 are masked). What the table `trl` names replaces what
    is stated here.
    Raises ValueError for completions that do not divide among processes, and as GRPOConfig does.
    """
    on_gpu = torch.cuda.is_available()
    processes = max(1, int(_world_size()))
    completions = settings.prompts_per_step * settings.group_size
    micro_batch, rest = divmod(completions, processes * settings.gradient_accumulation_steps)
    if rest:
        raise ValueError(
            f"{completions} completions a step do not divide into {processes} processes x "
            f"{settings.gradient_accumulation_steps} accumulation steps"
        )
    stated = dict(
        output_dir=str(directory),
        seed=seed,
        data_seed=seed,
        max_steps=settings.steps,
        per_device_train_batch_size=micro_batch,
        per_device_eval_batch_size=micro_batch,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        num_generations=settings.group_size,
        max_completion_length=settings.max_new_tokens,
        temperature=settings.temperature,
        top_p=1.0,
        top_k=0,
        learning_rate=settings.lr,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        optim=_OPTIMIZERS[settings.optimizer],
        max_grad_norm=settings.max_grad_norm,
        loss_type=settings.loss_type,
        scale_rewards=settings.scale_rewards,
        beta=settings.beta,
        use_bias_correction_kl=False,
        num_iterations=settings.num_iterations,
        epsilon=0.2,
        importance_sampling_level="token",
        mask_truncated_completions=False,
        bf16=settings.precision == "bfloat16",
        use_cpu=not on_gpu,
        gradient_checkpointing=settings.gradient_checkpointing,
        use_vllm=settings.use_vllm,
        vllm_mode=settings.vllm_mode,
        vllm_gpu_memory_utilization=0.3,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode="sequence_mask",
        vllm_importance_sampling_clip_max=3.0,
        logging_steps=1,
        logging_first_step=True,
        report_to="none",
        save_strategy="steps" if settings.save_every else "no",
        save_steps=settings.save_every or 1,
        save_total_limit=2,  # the newest may be half written when the run is killed
        eval_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
    )
    if settings.mini_batches > 1:
        stated["steps_per_generation"] = settings.mini_batches * settings.gradient_accumulation_steps
    place = own_server(settings.trl) if settings.use_vllm and settings.vllm_mode == "server" else {}
    return GRPOConfig(**{**stated, **settings.trl, **place})


def run_training(
    settings: TrainingSettings,
    seed: int,
    train_dataset: Any,
    reward_functions: Any,
    *,
    directory: str | Path,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    observe: Callable[[PreTrainedModel, int], dict[str, float]] | None = None,
    observe_every: int = 0,
    progress: Callable[[float], None] | None = None,
    trainer_class: type = TokenWeightedGRPOTrainer,
) -> TrainingRun:
    """Train from `settings` and `seed` and return the history.

    The settings' method names the token weight, with its options among them (`token_weighting`); a method with two
    updates per batch makes half as many rollouts in its `steps`. `model`, `tokenizer`: given, or loaded by the
    settings' name. `observe(model, step)` measures the policy every `observe_every` steps, before the
    step is made and once at the end; it must draw nothing from torch's global generator. The group log is written
    to `directory/groups.jsonl`, and to `sampling.txt` what samples, if it is vLLM. With `save_every` a run that was
    killed goes on from its last checkpoint in `directory`, by the same call. Raises ReplicationError as the trainer
    and the model loader do, and where vLLM cannot be had, ValueError as `grpo_config` does, KeyError for an unknown
    method.
    """
    weighting = method_weighting(settings)
    sampling = contextlib.nullcontext()
    if settings.use_vllm:
        sampling = _state_sampling(grpo_config(settings, seed, directory), settings.model, Path(directory))
    if model is None or tokenizer is None:
        model, tokenizer = catalog.load(settings.pinned(settings.model))
    log = Path(directory) / "groups.jsonl"
    run = TrainingRun([], model, tokenizer, log)
    extra = {}
    if issubclass(trainer_class, TokenWeightedGRPOTrainer):
        extra = {"max_redraws": settings.max_redraws, "redraw": settings.redraw, "stop_at_box": settings.stop_at_box}
        extra |= {"tree_sampling": settings.tree_sampling, "share_prefixes": settings.share_prefixes}
        extra |= {"token_weight": weighting, "group_log": log}
    elif asked := [name for name in _OUR_TRAINERS if getattr(settings, name)]:
        raise ValueError(f"{trainer_class.__name__} lacks what these settings ask for: leave {', '.join(asked)} out")
    with output_directory(Path(directory), bool(settings.save_every)) as output, sampling, _quiet():
        saved = newest_checkpoint(output)
        ended = saved is not None and saved[1] >= settings.steps
        callbacks: list[TrainerCallback] = []
        if observe and observe_every:
            run.observations = read_observations(output, settings.steps + 1 if ended else saved[1] if saved else 0)
            callbacks.append(_Observer(run, observe, observe_every, output if settings.save_every else None))
        if progress is not None:
            callbacks.append(_Progress(progress, settings.steps))
        listener = live.listener()
        if listener is not None:
            callbacks.append(_Live(listener, settings.steps))
        tracked = tracking.current()
        if tracked is not None:
            callbacks.append(_Tracked(tracked))
        trainer = trainer_class(
            model=model,
            reward_funcs=reward_functions,
            args=grpo_config(settings, seed, output),
            train_dataset=train_dataset,
            processing_class=tokenizer,
            callbacks=callbacks,
            peft_config=_lora(settings),
            **extra,
        )
        trainer.remove_callback(PrinterCallback)
        if ended:
            restore_finished(trainer, saved[0])
            for callback in callbacks:
                callback.on_train_end(trainer.args, trainer.state, trainer.control, model=trainer.model)
        else:
            trainer.train(resume_from_checkpoint=None if saved is None else str(saved[0]))
    run.model = trainer.model
    run.history = [entry for entry in trainer.state.log_history if "loss" in entry]
    return run


def sampling_correction(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What TRL's correction for vLLM's log-probabilities did, over the rollouts of a run; empty where there was none.

    `sampling_ratio_least`, `_mean` and `_largest`: of the ratio that a token's (or completion's) term is multiplied by;
    0 is one that was left out. `sampling_difference_mean` and `_largest`: by how much the two log-probabilities of a
    token differ, in nats. In both modes of vLLM.
    """
    summaries = {"least": ("min", min), "mean": ("mean", statistics.fmean), "largest": ("max", max)}
    found = {}
    for ours, theirs in (("ratio", "importance_sampling_ratio"), ("difference", "sampling_logp_difference")):
        for name, (kind, summary) in summaries.items():
            key = f"sampling/{theirs}/{kind}"
            values = [entry[key] for entry in history if key in entry]
            if values:
                found[f"sampling_{ours}_{name}"] = float(summary(values))
    return found


def _state_sampling(config: GRPOConfig, model: str, directory: Path) -> contextlib.AbstractContextManager[None]:
    """Ask for vLLM before anything is loaded, and leave in `sampling.txt` what samples and what is corrected.

    Returns a block in which this run alone has its server.
    """
    check_vllm(config, model)
    if config.process_index == 0:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "sampling.txt").write_text(sampling_in_words(config) + "\n", encoding="utf-8")
    if config.vllm_mode == "colocate":
        choose_rendezvous()
    if config.vllm_mode == "server" and config.process_index == 0:
        return sole_user(server_address(config))
    return contextlib.nullcontext()


def _lora(settings: TrainingSettings) -> Any:
    if not settings.lora_rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def _world_size() -> int:
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available()).num_processes


class _Observer(TrainerCallback):
    def __init__(
        self, run: TrainingRun, observe: Callable[[Any, int], dict[str, float]], every: int, folder: Path | None
    ) -> None:
        self.run, self.observe, self.every, self.folder = run, observe, every, folder

    def _look(self, model: Any, state: Any) -> None:
        training = model.training
        model.eval()
        seen = dict(self.observe(model, state.global_step))
        self.run.observations.append((state.global_step, seen))
        if self.folder is not None and state.is_world_process_zero:
            add_observation(self.folder, state.global_step, seen)
        model.train(training)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            self._look(kwargs["model"], state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.run.observations or self.run.observations[-1][0] < state.global_step:
            self._look(kwargs["model"], state)


class _Progress(TrainerCallback):
    def __init__(self, progress: Callable[[float], None], steps: int) -> None:
        self.progress, self.steps = progress, steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress(state.global_step / self.steps)


class _Live(TrainerCallback):
    """Says of each step what `shared.live` names; of steps without a rollout, no more than which they are."""

    def __init__(self, say: live.Listener, steps: int) -> None:
        self.say, self.steps = say, steps
        self.seen: tuple[float, float] | None = None  # (moment, tokens so far)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        said = {"step": state.global_step, "steps": self.steps}
        said |= {ours: float(logs[theirs]) for theirs, ours in _SAID.items() if theirs in logs}
        if "num_tokens" in logs:
            now, tokens = time.monotonic(), float(logs["num_tokens"])
            if self.seen is not None and now > self.seen[0]:
                said["tokens_per_second"] = (tokens - self.seen[1]) / (now - self.seen[0])
            self.seen = (now, tokens)
        self.say(said)


class _Tracked(TrainerCallback):
    """Logs each step to the tracked run of this job, every training run of it under a name of its own."""

    def __init__(self, run: tracking.TrackedRun) -> None:
        self.run, self.section = run, run.section("train")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.run.log(self.section, state.global_step, logs or {})


class _quiet:
    """Keep the libraries' chatter out of a progress bar; warnings and errors still come through as errors."""

    def __enter__(self) -> None:
        self.loggers = [logging.getLogger(name) for name in ("transformers", "trl", "accelerate")]
        self.levels = [logger.level for logger in self.loggers]
        for logger in self.loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *_: Any) -> None:
        for logger, level in zip(self.loggers, self.levels, strict=True):
            logger.setLevel(level)
