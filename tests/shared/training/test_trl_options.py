"""TRL's own options in a profile's `trl` table: they reach the trainer's updates, or are refused before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog
from grpo_replications.shared.training.run import TrainingRun, grpo_config, run_training
from grpo_replications.shared.training.settings import MethodSettings, TrainingSettings
from grpo_replications.shared.training.trl_names import SETTING_OF

SMALL: dict[str, Any] = {
    "steps": 4,
    "prompts_per_step": 2,
    "group_size": 4,
    "num_iterations": 2,
    "lr": 3e-2,
    "max_new_tokens": 5,
    "loss_type": "grpo",
    "precision": "float32",
    "optimizer": "sgd",
    "max_grad_norm": 0.0,
}


@pytest.fixture(scope="module", autouse=True)
def sharp_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tiny model, sure enough of its next token that an update moves ratios far from 1."""
    model, tokenizer = catalog.tiny_random()
    with torch.no_grad():
        model.model.norm.weight *= 12
    directory = tmp_path_factory.mktemp("model")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    SMALL["model"] = str(directory)


def train(directory: Path, **changes: Any) -> TrainingRun:
    data = Dataset.from_dict({"prompt": [f"{i}+{i + 1}=" for i in range(12)]})

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [(sum(ids) * 7 % 23) / 10 for ids in completion_ids]

    settings = TrainingSettings(**{**SMALL, **changes})
    return run_training(settings, 0, data, [reward], directory=directory)


def weights(run: TrainingRun) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    return weights(train(tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize(
    "option",
    [
        {"importance_sampling_level": "sequence"},
        {"epsilon": 1e-3},
        {"epsilon_high": 5.0},
        {"delta": 1.01},
        {"mask_truncated_completions": True},
        {"steps_per_generation": 2},
        {"top_p": 0.5},
        {"entropy_coef": 0.1},
        {"lr_scheduler_type": "linear"},
        {"weight_decay": 0.5},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_changes_the_updates(option: dict[str, Any], plain: torch.Tensor, tmp_path: Path) -> None:
    ((name, value),) = option.items()
    assert getattr(grpo_config(TrainingSettings(**{**SMALL, "trl": option}), 0, tmp_path), name) == value
    changed = weights(train(tmp_path, trl=option))
    assert torch.isfinite(changed).all() and not torch.equal(changed, plain)


def test_options_at_the_values_that_hold_anyway_change_nothing(plain: torch.Tensor, tmp_path: Path) -> None:
    same = {"importance_sampling_level": "token", "epsilon": 0.2, "epsilon_high": 0.2, "weight_decay": 0.0}
    assert torch.equal(weights(train(tmp_path, trl=same)), plain)


def test_several_updates_of_one_rollout_leave_fewer_rollouts(tmp_path: Path) -> None:
    run = train(tmp_path, num_iterations=1, trl={"steps_per_generation": 2})
    assert [entry["budget/rollouts"] for entry in run.history] == [1, 1, 2, 2]
    assert run.history[-1]["budget/completions"] == 4 * 8, "as many completions as without"


@pytest.mark.parametrize("name", SETTING_OF)
def test_what_a_setting_controls_is_refused_with_its_name(name: str) -> None:
    with pytest.raises(ReplicationError, match=f"trl.*'{name}' is controlled by "):
        MethodSettings.parse({"trl": {name: 1}}, "here")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trl": {"epsilon_hihg": 0.28}}, "trl.epsilon_hihg: GRPOConfig has no such field; it has: .*epsilon_high"),
        ({"trl": {"epsilon": "x"}}, "trl.epsilon = 'x': Input should be a valid number"),
        ({"trl": {"weight_decay": True}}, "trl.weight_decay = True"),
        ({"trl": {"importance_sampling_level": "word"}}, "must be one of token, sequence, not 'word'"),
        ({"trl": {"steps_per_generation": 2, "generation_batch_size": 48}}, "can not be both configured"),
        ({"trl": {"lr_scheduler_type": "wavy"}}, "wavy"),
        (
            {"method": "lambda-grpo", "loss_type": "grpo", "trl": {"importance_sampling_level": "sequence"}},
            "Token weights need a loss with one term per token",
        ),
        ({"method": "lopti", "gradient_accumulation_steps": 2, "trl": {"steps_per_generation": 3}}, "Lopti"),
        ({"method": "lamda-grpo"}, "unknown method lamda-grpo"),
        ({"tau": 3.0}, "the method grpo has no option tau"),
        ({"gradient_accumulation_steps": 5}, "24 completions a step do not divide"),
    ],
)
def test_what_a_run_cannot_have_is_refused_before_it(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ReplicationError, match=message):
        TrainingSettings(**settings).check()


def test_sound_tables_pass() -> None:
    TrainingSettings(method="lambda-grpo", trl={"epsilon_high": 0.28, "steps_per_generation": 2}).check()
    TrainingSettings(loss_type="grpo", trl={"importance_sampling_level": "sequence"}).check()
