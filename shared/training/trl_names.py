"""Names of `trl.GRPOConfig` that a profile may not set in its `trl` table, each with what sets it; no import."""

from __future__ import annotations

from collections.abc import Iterable

SETTING_OF = {
    "learning_rate": "lr",
    "num_generations": "group_size",
    "max_completion_length": "max_new_tokens",
    "per_device_train_batch_size": "prompts_per_step, group_size and gradient_accumulation_steps",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "max_steps": "steps (or rollouts)",
    "num_train_epochs": "steps (or rollouts)",
    "beta": "beta",
    "loss_type": "loss_type",
    "scale_rewards": "scale_rewards",
    "num_iterations": "num_iterations",
    "temperature": "temperature",
    "optim": "optimizer",
    "max_grad_norm": "max_grad_norm",
    "bf16": "precision",
    "fp16": "precision",
    "gradient_checkpointing": "gradient_checkpointing",
    "use_vllm": "use_vllm",
    "vllm_mode": "vllm_mode",
    "seed": "seeds",
    "data_seed": "seeds",
    "model_init_kwargs": "model",
    "trust_remote_code": "model",
    "top_entropy_quantile": 'method = "80/20"',
}
"""Names that a setting of this project controls, with that setting."""

DECIDED = (
    "output_dir", "logging_steps", "logging_strategy", "logging_first_step", "report_to", "disable_tqdm",
    "save_strategy", "save_steps", "save_only_model", "eval_strategy", "eval_steps", "eval_on_start", "do_train",
    "do_eval", "do_predict", "per_device_eval_batch_size", "num_generations_eval", "remove_unused_columns",
    "dataloader_pin_memory", "use_cpu", "resume_from_checkpoint", "push_to_hub", "load_best_model_at_end", "local_rank",
    "hub_token", "auto_find_batch_size", "log_completions_hub_repo",
)  # fmt: skip
"""Names that a run decides by itself: where it writes, what it logs, and that it is one run from its start."""


def refuse_known_names(names: Iterable[str]) -> None:
    """Raise ValueError for a name that belongs to a setting of this project, which it names, or to the run itself."""
    for name in names:
        if name in SETTING_OF:
            raise ValueError(
                f"'{name}' is controlled by the setting {SETTING_OF[name]}; set that in place of trl.{name}"
            )
        if name in DECIDED:
            raise ValueError(f"'{name}' is decided by the run itself and cannot be set")
