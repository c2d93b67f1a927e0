"""From plain settings to TRL: every setting arrives, looking changes nothing, and no run affects another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from grpo_replications.shared import live, tracking
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.evaluation import greedy_accuracy
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.run import (
    TrainingRun,
    _lora,
    grpo_config,
    method_weighting,
    passes,
    run_training,
)
from grpo_replications.shared.training.settings import METHOD_OPTIONS, MethodSettings, TrainingSettings
from grpo_replications.shared.training.token_weights import Weighting, token_weighting

SMALL = {
    "method": "lambda-grpo",
    "steps": 3,
    "prompts_per_step": 2,
    "group_size": 4,
    "lr": 1e-2,
    "max_new_tokens": 5,
    "precision": "float32",
}


@pytest.fixture(scope="module", autouse=True)
def sharp_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tiny model made so sure of its next token that completions share prefixes."""
    model, tokenizer = catalog.tiny_random()
    with torch.no_grad():
        model.model.norm.weight *= 12
    directory = tmp_path_factory.mktemp("model")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    SMALL["model"] = str(directory)


def data() -> Dataset:
    return Dataset.from_dict({"prompt": [f"{i}+{i + 1}=" for i in range(12)], "answer": ["1"] * 12})


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [(sum(ids) * 7 % 23) / 10 for ids in completion_ids]


def train(directory: Path, seed: int = 0, *, settings: dict[str, Any] | None = None, **options: Any) -> TrainingRun:
    chosen = TrainingSettings(**{**SMALL, **(settings or {})})
    return run_training(chosen, seed, data(), [reward], directory=directory, **options)


def measured(run: TrainingRun) -> list[dict[str, float]]:
    """The history without what depends on the machine's speed."""
    return [{k: v for k, v in entry.items() if "time" not in k and "runtime" not in k} for entry in run.history]


def weights(run: TrainingRun) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.model.parameters()])


class Recorder:
    """A backend of tracking that remembers."""

    logged: ClassVar[list[tuple[str, int, dict[str, float]]]] = []

    def log(self, section: str, step: int, metrics: dict[str, float]) -> None:
        self.logged.append((section, step, metrics))


# --- the configuration ------------------------------------------------------------------------------------------------

ARRIVES = {
    # setting: (another value, TRL's field, what it must then be)
    "steps": (7, "max_steps", 7),
    "prompts_per_step": (5, "per_device_train_batch_size", 30),
    "group_size": (3, "num_generations", 3),
    "lr": (3e-4, "learning_rate", 3e-4),
    "optimizer": ("sgd", "optim", "sgd"),
    "max_grad_norm": (0.5, "max_grad_norm", 0.5),
    "max_new_tokens": (9, "max_completion_length", 9),
    "temperature": (0.75, "temperature", 0.75),
    "loss_type": ("grpo", "loss_type", "grpo"),
    "scale_rewards": ("none", "scale_rewards", "none"),
    "beta": (0.04, "beta", 0.04),
    "num_iterations": (2, "num_iterations", 2),
    "mini_batches": (2, "steps_per_generation", 2),
    "save_every": (50, "save_steps", 50),
    "gradient_accumulation_steps": (4, "gradient_accumulation_steps", 4),
    "precision": ("float32", "bf16", False),
    "gradient_checkpointing": (True, "gradient_checkpointing", True),
    "use_vllm": (True, "use_vllm", True),
    "vllm_mode": ("server", "vllm_mode", "server"),
}
ELSEWHERE = {
    "model",
    "method",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "max_redraws",
    "redraw",
    "stop_at_box",
    "tree_sampling",
    "share_prefixes",
    "revisions",
    "trl",
}
ELSEWHERE |= set(METHOD_OPTIONS)


def test_every_setting_is_accounted_for() -> None:
    assert set(ARRIVES) | ELSEWHERE == set(TrainingSettings.model_fields)


@pytest.mark.parametrize("setting", ARRIVES)
def test_a_setting_reaches_the_configuration(setting: str, tmp_path: Path) -> None:
    value, field, expected = ARRIVES[setting]
    settings = TrainingSettings(), TrainingSettings(**{setting: value})
    default, changed = (grpo_config(one, 0, tmp_path) for one in settings)
    assert getattr(default, field) != expected
    assert getattr(changed, field) == expected


def test_what_is_not_a_setting_is_stated_not_left_to_the_library(tmp_path: Path) -> None:
    config = grpo_config(TrainingSettings(), 11, tmp_path)
    stated = {
        "seed": 11,
        "data_seed": 11,
        "scale_rewards": "group",
        "use_bias_correction_kl": False,
        "importance_sampling_level": "token",
        "mask_truncated_completions": False,
        "epsilon": 0.2,
        "top_p": 1.0,
        "top_k": 0,
        "weight_decay": 0.0,
        "warmup_steps": 0,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "report_to": [],
        "generation_batch_size": 24,
        "steps_per_generation": 1,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_max": 3.0,
        "use_cpu": not torch.cuda.is_available(),
    }
    assert {name: getattr(config, name) for name in stated} == stated


def test_accumulation_divides_a_step_and_does_not_enlarge_it(tmp_path: Path) -> None:
    settings = TrainingSettings(prompts_per_step=4, group_size=6, gradient_accumulation_steps=4)
    config = grpo_config(settings, 0, tmp_path)
    assert (config.per_device_train_batch_size, config.generation_batch_size) == (6, 24)


def test_a_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="24 completions a step do not divide into 1 processes x 5 accumulation"):
        grpo_config(TrainingSettings(gradient_accumulation_steps=5), 0, tmp_path)


OPTIONS = {
    "alpha": 3.0,
    "tau": 4.0,
    "mu": 0.1,
    "lower": 0.5,
    "upper": 2.0,
    "placement": "inside",
    "weight_kl": True,
    "rescale": True,
    "match": True,
}


def test_the_options_of_a_method_reach_its_weighting() -> None:
    assert set(OPTIONS) | {"eta"} == set(METHOD_OPTIONS)
    assert method_weighting(MethodSettings(method="grpo")) is None
    assert method_weighting(MethodSettings(method="lopti", eta=0.3)) == Weighting(isolation=0.3)
    default = method_weighting(MethodSettings(method="sharpness-prob"))
    for option, value in OPTIONS.items():
        changed = method_weighting(MethodSettings(method="sharpness-prob", **{option: value}))
        assert changed != default and changed == token_weighting("sharpness-prob", **{option: value})
    with pytest.raises(ValueError, match="grpo has no option tau"):
        method_weighting(MethodSettings(tau=4.0))


def test_passes_are_what_equal_samples_need() -> None:
    methods = ("grpo", "sharpness", "lopti", "lopti+ar*sharpness")
    assert [passes(MethodSettings(method=name)) for name in methods] == [1, 1, 2, 2]
    assert passes(MethodSettings(num_iterations=3)) == 3
    assert passes(MethodSettings(method="lopti", mini_batches=2)) == 4
    assert passes(MethodSettings(gradient_accumulation_steps=2, trl={"steps_per_generation": 4})) == 2


def test_lora_settings_reach_the_adapter() -> None:
    assert _lora(TrainingSettings()) is None
    config = _lora(TrainingSettings(lora_rank=4, lora_alpha=16, lora_dropout=0.1))
    assert (config.r, config.lora_alpha, config.lora_dropout, config.target_modules) == (4, 16, 0.1, "all-linear")


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_does_what_its_settings_say(tmp_path: Path) -> None:
    fractions: list[float] = []
    said: list[dict[str, float]] = []
    with live.heard_by(said.append):
        run = train(tmp_path, progress=fractions.append)
    assert [(one["step"], one["steps"]) for one in said[:3]] == [(1, 3), (2, 3), (3, 3)]
    assert [(one["reward"], one["silent"]) for one in said[:3]] == [
        (entry["reward"], entry["groups/silent"]) for entry in run.history
    ]
    assert [one.get("tokens_per_second", 0) > 0 for one in said[:3]] == [False, True, True]
    unheard = train(tmp_path / "unheard")
    assert torch.equal(weights(run), weights(unheard)) and measured(run) == measured(unheard)
    assert [entry["step"] for entry in run.history] == [1, 2, 3]
    assert {entry["learning_rate"] for entry in run.history} == {SMALL["lr"]}
    assert fractions == pytest.approx([1 / 3, 2 / 3, 1])
    groups = list(read_group_log(run.group_log))
    assert [group["step"] for group in groups] == [1, 1, 2, 2, 3, 3] and run.group_log == tmp_path / "groups.jsonl"
    assert all(len(group["rewards"]) == 4 and max(group["lengths"]) <= 5 for group in groups)
    assert min(min(group["weights"]["min"]) for group in groups) < 1
    start = torch.cat([p.detach().flatten() for p in catalog.load(SMALL["model"])[0].parameters()])
    assert not torch.equal(weights(run), start)


def test_the_method_and_the_seed_decide_the_run(tmp_path: Path) -> None:
    runs = {
        name: train(tmp_path / name, seed, settings={"method": method, "steps": 1})
        for name, seed, method in (
            ("one", 0, "lambda-grpo"),
            ("again", 0, "lambda-grpo"),
            ("seed", 1, "lambda-grpo"),
            ("grpo", 0, "grpo"),
        )
    }
    assert measured(runs["one"]) == measured(runs["again"]) and torch.equal(
        weights(runs["one"]), weights(runs["again"])
    )
    assert not torch.equal(weights(runs["one"]), weights(runs["seed"]))
    assert runs["one"].history[0]["reward"] == runs["grpo"].history[0]["reward"], "the same completions are sampled"
    assert not torch.equal(weights(runs["one"]), weights(runs["grpo"]))
    assert "weights" not in next(read_group_log(runs["grpo"].group_log))


@pytest.mark.parametrize(("steps", "every", "looks"), [(3, 2, [0, 2, 3]), (4, 2, [0, 2, 4]), (2, 5, [0, 2])])
def test_the_policy_is_observed_before_its_steps_and_at_the_end(
    tmp_path: Path, steps: int, every: int, looks: list[int]
) -> None:
    seen: list[tuple[int, bool, torch.Tensor]] = []

    def look(model: Any, step: int) -> dict[str, float]:
        seen.append((step, model.training, model.get_input_embeddings().weight.detach().clone()))
        return {"twice": 2.0 * step}

    run = train(tmp_path, settings={"steps": steps}, observe=look, observe_every=every)
    assert run.observations == [(step, {"twice": 2.0 * step}) for step in looks]
    assert not any(training for _, training, _ in seen), "dropout must be off while the policy is measured"
    assert torch.equal(seen[0][2], catalog.load(SMALL["model"])[0].get_input_embeddings().weight)
    assert torch.equal(seen[-1][2], run.model.get_input_embeddings().weight)
    assert not torch.equal(seen[0][2], seen[1][2])


def test_looking_and_tracking_do_not_disturb_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = catalog.load(SMALL["model"])

    def accuracy(policy: Any, _: int) -> dict[str, float]:
        return {"a": greedy_accuracy(policy, tokenizer, data(), [graded], max_new_tokens=3).estimate.value}

    def graded(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(text[:1] == gold) for text, gold in zip(completions, answer)]

    alone = train(tmp_path / "alone")
    run = tracking.TrackedRun(Recorder)
    monkeypatch.setattr(tracking, "current", lambda: run)
    watched = train(tmp_path / "watched", model=model, tokenizer=tokenizer, observe=accuracy, observe_every=1)
    assert len(watched.observations) == 4
    logged = [(section, step) for section, step, metrics in Recorder.logged if "reward" in metrics]
    assert logged == [("train", step) for step in (1, 2, 3)]
    assert measured(alone) == measured(watched) and torch.equal(weights(alone), weights(watched))


def test_float32_and_bfloat16_runs_do_not_affect_each_other(tmp_path: Path) -> None:
    order = ("float32", "bfloat16", "float32", "bfloat16")
    runs = [train(tmp_path / str(i), settings={"precision": p, "steps": 2}) for i, p in enumerate(order)]
    assert measured(runs[0]) == measured(runs[2]) and torch.equal(weights(runs[0]), weights(runs[2]))
    assert measured(runs[1]) == measured(runs[3]) and torch.equal(weights(runs[1]), weights(runs[3]))
    assert not torch.equal(weights(runs[0]), weights(runs[1]))
    assert {parameter.dtype for run in runs for parameter in run.model.parameters()} == {torch.float32}


def test_the_stock_trainer_takes_the_same_settings(tmp_path: Path) -> None:
    settings = {"method": "grpo", "steps": 1}
    stock = train(tmp_path / "stock", settings=settings, trainer_class=GRPOTrainer)
    ours = train(tmp_path / "ours", settings=settings)
    assert torch.equal(weights(stock), weights(ours)) and not (tmp_path / "stock" / "groups.jsonl").exists()


def test_redraws_reach_the_trainer(tmp_path: Path) -> None:
    def constant(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    settings = TrainingSettings(**{**SMALL, "steps": 1, "max_redraws": 2, "redraw": "prompts"})
    run = run_training(settings, 0, data(), [constant], directory=tmp_path)
    assert [group["draws"] for group in read_group_log(run.group_log)] == [3, 3]
    assert run.history[0]["groups/samples_spent"] == 24
    with pytest.raises(ValueError, match="GRPOTrainer lacks what these settings ask for: leave max_redraws out"):
        run_training(settings, 0, data(), [constant], directory=tmp_path, trainer_class=GRPOTrainer)


def test_only_the_adapter_is_trained_with_lora(tmp_path: Path) -> None:
    run = train(tmp_path, settings={"lora_rank": 2, "lora_alpha": 4, "lora_dropout": 0.0, "steps": 1})
    trained = [name for name, parameter in run.model.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    moved = [name for name, value in run.model.named_parameters() if "lora_B" in name and value.any()]
    assert moved


@pytest.mark.parametrize(
    "method", ["sharpness", "advantage-reweighting", "lopti", "80/20", "lambda-grpo*sharpness-mean1"]
)
def test_every_method_trains_by_name(tmp_path: Path, method: str) -> None:
    options = {"tau": 30.0, "lower": 0.1} if "sharpness" in method else {}
    steps = 2 * passes(MethodSettings(method=method))
    run = train(tmp_path, settings={"method": method, "steps": steps, **options})
    plain = train(tmp_path / "grpo", settings={"method": "grpo", "steps": 2})
    assert run.history[0]["reward"] == plain.history[0]["reward"] and not torch.equal(weights(run), weights(plain))
    last = run.history[-1]
    assert [entry["step"] for entry in run.history] == list(range(1, last["step"] + 1))
    # Two rollouts of eight completions for every method, in one or two optimizer steps each.
    assert (last["budget/rollouts"], last["budget/completions"]) == (2, 16)
    assert [entry["budget/pass"] for entry in run.history] == ([1, 2, 1, 2] if method == "lopti" else [1, 1])
    if method.endswith("-mean1"):
        assert last["token_weights/mean"] == pytest.approx(1, rel=1e-6)


def test_an_unknown_method_is_an_error_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="lamda-grpo"):
        train(tmp_path, settings={"method": "lamda-grpo", "model": "nonsense"})
