"""What only the libraries know to be wrong in the settings of a training run, found before the first job starts."""

from __future__ import annotations

import dataclasses
import tempfile
import typing
from functools import lru_cache
from typing import Any

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training.settings import MethodSettings, TrainingSettings, UpdateSettings
from grpo_replications.shared.training.token_weights import passes, token_weighting

CHOICES = {
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}
"""Values of options that TRL looks at only in the middle of a step."""

DECIDED_LATER = ("prompts_per_step", "max_new_tokens", "lr")


def check_training(settings: UpdateSettings) -> None:
    """Raise ReplicationError for a method, an option or a batch that a run cannot have, and for a wrong `trl` table.

    Names of the table are held against GRPOConfig's fields, values against their types, and the configuration is built
    as the run will build it; with weights of tokens, the weighting's own conditions are checked on it. Imports TRL
    only where there is such a table.
    """
    methods = [settings.method] if isinstance(settings, MethodSettings) else settings.methods
    completions = (settings.prompts_per_step or 0) * settings.group_size
    if completions % settings.gradient_accumulation_steps:
        raise ReplicationError(
            f"{completions} completions a step do not divide into gradient_accumulation_steps = "
            f"{settings.gradient_accumulation_steps}."
        )
    for method in methods:
        try:
            weighting = token_weighting(method, **settings.method_options())
        except (KeyError, ValueError) as error:
            raise ReplicationError(f"method = {method!r}: {error.args[0]}.") from error
        if settings.save_every:
            window = passes(MethodSettings.of(settings, method=method))
            if settings.save_every % window:
                raise ReplicationError(
                    f"save_every = {settings.save_every} would save inside a rollout, from where no run can go on: "
                    f"{method!r} makes {window} optimizer steps of one. Make it a multiple of {window}."
                )
        if settings.trl:
            # What an experiment decides itself (None here) is none of TRL's further options.
            decided = {name: value for name, value in TrainingSettings.defaults().items() if name in DECIDED_LATER}
            own = {name: value for name, value in decided.items() if getattr(settings, name) is None}
            _check_trl(TrainingSettings.of(settings, method=method, **own), weighting)


def _check_trl(settings: TrainingSettings, weighting: Any) -> None:
    from pydantic import TypeAdapter, ValidationError

    from grpo_replications.shared.training.run import grpo_config
    from grpo_replications.shared.training.weighted_loss import check_weighting, configured

    types = option_types()
    for name, value in settings.trl.items():
        if name not in types:
            raise ReplicationError(f"trl.{name}: GRPOConfig has no such field; it has: {', '.join(sorted(types))}.")
        try:
            TypeAdapter(types[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ReplicationError(f"trl.{name} = {value!r}: {error.errors()[0]['msg']}.") from error
        if value not in CHOICES.get(name, (value,)):
            raise ReplicationError(f"trl.{name} must be one of {', '.join(CHOICES[name])}, not {value!r}.")
    with tempfile.TemporaryDirectory(prefix="trl-") as scratch:
        try:
            config = grpo_config(settings, 0, scratch)
        except (ValueError, TypeError, ImportError) as error:
            raise ReplicationError(f"trl = {settings.trl}: {error}") from error
    if weighting is not None:
        check_weighting(configured(config, weighting), weighting)


@lru_cache(maxsize=1)
def option_types() -> dict[str, Any]:
    """Type of every field of GRPOConfig that a run can be given, by name."""
    from trl import GRPOConfig

    hints = typing.get_type_hints(GRPOConfig)
    return {field.name: hints[field.name] for field in dataclasses.fields(GRPOConfig) if field.init}
