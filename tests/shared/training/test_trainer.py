"""The trainer against an independent formula, and what it adds to TRL."""

from __future__ import annotations

import functools
import json
import math
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.token_weights import TOKEN_WEIGHTS, RolloutBatch
from grpo_replications.shared.training.trainer import TOKEN_LEVEL_LOSSES, TokenWeightedGRPOTrainer, check_settings
from tests.shared.training import grpo_oracle as oracle

GROUP = 4
TOKENS = 5
_ARGUMENTS = (
    "max_redraws",
    "redraw",
    "stop_at_box",
    "tree_sampling",
    "share_prefixes",
    "environment_factory",
    "eval_dataset",
)  # of the trainer, not of its settings


def mixed_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that depends on the completion and is hardly ever equal within a group."""
    return [(sum(ids) * 7 % 23) / 10 for ids in completion_ids]


def dataset(prompts: int = 12) -> Dataset:
    return Dataset.from_dict({"prompt": [f"{i}+{i + 1}=" for i in range(prompts)]})


def policy(noise: float = 0.05, sharpness: float = 6.0) -> tuple[Any, Any]:
    """The tiny model, moved away from its reference and sharp enough that completions share prefixes."""
    model, tokenizer = catalog.load("tiny-random")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
        model.model.norm.weight *= sharpness
    return model, tokenizer


class Recorder(TrainerCallback):
    """Gradients and parameters as they are right before each optimizer step."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.trainer: Any = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.gradients.append(torch.cat([p.grad.detach().flatten().clone() for p in parameters]))
        self.weights.append({name: value.detach().clone() for name, value in model.state_dict().items()})


def make_trainer(
    tmp_path: Path,
    token_weight: Any = None,
    reward: Any = mixed_reward,
    trainer_class: type = TokenWeightedGRPOTrainer,
    model: Any = None,
    peft_config: Any = None,
    train_dataset: Any = None,
    **changes: Any,
) -> tuple[Any, Recorder]:
    settings = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 2 * GROUP,
        "num_generations": GROUP,
        "max_completion_length": TOKENS,
        "max_steps": 1,
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "use_bias_correction_kl": False,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 7,
    }
    recorder = Recorder()
    model, tokenizer = model or policy()
    extra: dict[str, Any] = {}
    if trainer_class is not GRPOTrainer:
        own = {key: changes.pop(key) for key in _ARGUMENTS if key in changes}
        extra = {"token_weight": token_weight, "group_log": tmp_path / "groups.jsonl", **own}
    trainer = trainer_class(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(**{**settings, **changes}),
        train_dataset=train_dataset or dataset(),
        processing_class=tokenizer,
        callbacks=[recorder],
        peft_config=peft_config,
        **extra,
    )
    recorder.trainer = trainer
    return trainer, recorder


def oracle_gradient(
    trainer: Any,
    weights: dict[str, torch.Tensor],
    old: dict[str, torch.Tensor],
    used: slice,
    reward: Any = mixed_reward,
) -> torch.Tensor:
    """The gradient of one optimizer step by the independent formula; `used`: its micro-batches in the rollout."""
    args = trainer.args
    rollout = trainer._buffered_inputs
    completions = oracle.regroup(rollout)
    counts = oracle.prefix_counts(completions, GROUP)
    a = oracle.advantages(reward(completions), GROUP)
    tokens = sum(map(len, completions))
    # Fresh models throughout: TRL has replaced the forward pass of the one it trains.
    reference = oracle.double_precision(catalog.load("tiny-random")[0])
    model, sampler = (oracle.double_precision(catalog.load("tiny-random")[0]) for _ in range(2))
    model.load_state_dict({k: v.double() for k, v in weights.items()})
    sampler.load_state_dict({k: v.double() for k, v in old.items()})
    micro_batches = rollout[used]
    steps_per_rollout = len(rollout) // args.gradient_accumulation_steps
    total = 0.0
    for batch in micro_batches:
        rows = batch["row"].tolist()
        mask = batch["completion_mask"].double()
        w = torch.zeros_like(mask)
        for i, row in enumerate(rows):
            w[i, : len(counts[row])] = 1.0 / torch.tensor(counts[row], dtype=torch.float64)
        if trainer.token_weight is None:
            w = torch.ones_like(mask)
        logps = oracle.completion_logps(model, batch)
        with torch.no_grad():
            old_logps = oracle.completion_logps(sampler, batch)
            ref = oracle.completion_logps(reference, batch) if args.beta else None
        accumulation = args.gradient_accumulation_steps
        normalizer = {
            "grpo": len(rows) * accumulation,
            "sapo": len(rows) * accumulation,
            "bnpo": float(mask.sum()) * accumulation,
            "dr_grpo": len(rows) * TOKENS * accumulation,
        }.get(args.loss_type, tokens / steps_per_rollout)
        advantages = torch.tensor([a[row] for row in rows], dtype=torch.float64)
        value = oracle.loss(
            args.loss_type, logps, old_logps, ref, advantages, w, mask, beta=args.beta, normalizer=normalizer
        )
        total = total + value
    return oracle.flat_gradient(total, model)


def relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() - y).norm() / y.norm())


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", TOKEN_LEVEL_LOSSES)
def test_gradient_of_lambda_grpo_is_the_papers(tmp_path: Path, loss_type: str, beta: float) -> None:
    trainer, recorder = make_trainer(tmp_path, TOKEN_WEIGHTS["lambda-grpo"], loss_type=loss_type, beta=beta)
    trainer.train()
    sizes = {size for row in oracle.prefix_counts(oracle.regroup(trainer._buffered_inputs), GROUP) for size in row}
    assert len(sizes) > 1, "completions must share prefixes, or the weights are not tested"
    expected = oracle_gradient(trainer, recorder.weights[0], recorder.weights[0], slice(None))
    assert relative(recorder.gradients[0], expected) < 2e-5


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_gradient_with_accumulation_and_a_second_update(tmp_path: Path, loss_type: str, beta: float) -> None:
    trainer, recorder = make_trainer(
        tmp_path,
        TOKEN_WEIGHTS["lambda-grpo"],
        loss_type=loss_type,
        beta=beta,
        per_device_train_batch_size=GROUP,  # a micro-batch holds shuffled parts of two groups
        gradient_accumulation_steps=2,
        num_iterations=2,
        max_steps=2,
        learning_rate=0.02,
    )
    trainer.train()
    for step in (0, 1):
        expected = oracle_gradient(trainer, recorder.weights[step], recorder.weights[0], slice(None))
        assert relative(recorder.gradients[step], expected) < 5e-5
    assert trainer.state.log_history[1]["clip_ratio/region_mean"] > 0, (
        "some token must be clipped, or that is not tested"
    )


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_a_constant_weight_scales_the_gradient_and_one_is_stock_trl(tmp_path: Path, loss_type: str, lora: bool) -> None:
    def config() -> Any:
        from peft import LoraConfig

        return LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, lora_dropout=0.0) if lora else None

    def constant(value: float) -> Any:
        return lambda batch: torch.full(batch.set_sizes.shape, value)

    gradients = {}
    for name, options in {
        "stock": {"trainer_class": GRPOTrainer},
        "one": {"token_weight": constant(1.0)},
        "quarter": {"token_weight": constant(0.25)},
    }.items():
        trainer, recorder = make_trainer(
            tmp_path / name, loss_type=loss_type, beta=0.0 if lora else 0.3, peft_config=config(), **options
        )
        trainer.train()
        gradients[name] = recorder.gradients[0].double()
    assert torch.equal(gradients["one"], gradients["stock"])
    assert relative(gradients["quarter"], 0.25 * gradients["stock"]) < 1e-6


def test_equal_rewards_move_nothing_even_where_trl_moves(tmp_path: Path) -> None:
    def constant(completions: list[Any], **_: Any) -> list[float]:
        return [0.35] * len(completions)

    moved = {}
    for trainer_class in (GRPOTrainer, TokenWeightedGRPOTrainer):
        trainer, recorder = make_trainer(
            tmp_path,
            reward=constant,
            trainer_class=trainer_class,
            learning_rate=0.01,
            optim="adamw_torch",
            max_steps=2,
            num_generations=8,
        )
        trainer.train()
        after = trainer.model.state_dict()
        moved[trainer_class] = any(not torch.equal(after[k], v) for k, v in recorder.weights[0].items())
    # TRL divides one rounding error by another. Should this ever fail for TRL, the repair is no longer needed.
    assert moved == {GRPOTrainer: True, TokenWeightedGRPOTrainer: False}
    history = trainer.state.log_history[0]
    assert history["groups/silent"] == 1.0 and history["groups/all_wrong"] == 1.0
    assert set(trainer._logs["advantages"]) == {0.0}


def test_equal_rewards_have_no_advantage_where_each_function_is_normalized(tmp_path: Path) -> None:
    def by_group(completions: list[Any], **_: Any) -> list[float]:
        return [0.35 * (1 + i // 8 % 3) for i in range(len(completions))]

    def other(completions: list[Any], **_: Any) -> list[float | None]:
        return [None if i % 8 < 2 else 0.1 for i in range(len(completions))]

    def opposed(completions: list[Any], **_: Any) -> list[float]:
        return [(-1) ** i * 0.25 if i < 8 else 0.7 for i in range(len(completions))]

    def offset(completions: list[Any], **_: Any) -> list[float]:
        return [-(value**3) for value in opposed(completions)]

    options = {"per_device_train_batch_size": 24, "num_generations": 8, "optim": "adamw_torch", "learning_rate": 0.01}
    for name, rewards, silent in (
        ("one", [by_group], [True] * 3),
        ("some unscored", [by_group, other], [True] * 3),
        ("opposed", [opposed, offset], [False, True, True]),  # silent groups beside one that is not
    ):
        trainer, recorder = make_trainer(
            tmp_path / name, reward=rewards, multi_objective_aggregation="normalize_then_sum", **options
        )
        trainer.train()
        groups = list(read_group_log(tmp_path / name / "groups.jsonl"))
        assert [not any(group["advantages"]) for group in groups] == silent
        assert trainer.state.log_history[0]["groups/silent"] == pytest.approx(sum(silent) / 3)
        assert bool(recorder.gradients[0].any()) == (not all(silent))
        assert sum(value == 0.0 for value in trainer._logs["advantages"]) == 8 * sum(silent)


def test_rewards_that_cancel_are_silent_if_they_do_after_normalization(tmp_path: Path) -> None:
    def uneven(completions: list[Any], **_: Any) -> list[float]:
        return [0.7, 0.1, 0.1, 0.2] * (len(completions) // GROUP)

    def less(completions: list[Any], **_: Any) -> list[float]:
        return [0.9 - value for value in uneven(completions)]

    def double(completions: list[Any], **_: Any) -> list[float]:
        return [-2.0 * value for value in uneven(completions)]

    silent = {}
    for other, weights in ((less, [1.0, 1.0]), (double, [2.0, 1.0]), (double, [1.0, 1.0])):
        for aggregation in ("sum_then_normalize", "normalize_then_sum"):
            trainer, recorder = make_trainer(
                tmp_path, reward=[uneven, other], multi_objective_aggregation=aggregation, reward_weights=weights
            )
            trainer.train()
            silent[other.__name__, weights[0], aggregation] = not recorder.gradients[0].any()
            assert trainer.state.log_history[0]["groups/silent"] == (not recorder.gradients[0].any())
    # 0.9 - 0.7 + 0.7 and 0.9 - 0.2 + 0.2 need not be equal in float32, so the sum of the first pair is left open.
    assert silent["less", 1.0, "normalize_then_sum"] and not silent["double", 2.0, "normalize_then_sum"]
    assert silent["double", 2.0, "sum_then_normalize"] and not silent["double", 1.0, "sum_then_normalize"]


def test_silent_groups_are_told_apart_by_the_success_reward(tmp_path: Path) -> None:
    def by_prompt(prompts: list[str], **_: Any) -> list[float]:
        return [1.0 if int(prompt.split("+")[0]) % 2 else 0.0 for prompt in prompts]

    trainer, _ = make_trainer(tmp_path, reward=by_prompt, per_device_train_batch_size=12 * GROUP)
    trainer.train()
    history = trainer.state.log_history[0]
    assert (history["groups/silent"], history["groups/all_right"], history["groups/all_wrong"]) == (1.0, 0.5, 0.5)
    kinds = [group["silent"] for group in read_group_log(tmp_path / "groups.jsonl")]
    assert sorted(kinds) == ["all right"] * 6 + ["all wrong"] * 6


def test_unscored_completions_leave_a_group_silent(tmp_path: Path) -> None:
    def some(completions: list[Any], **_: Any) -> list[float | None]:
        return [None if i % GROUP == 1 else 0.35 for i in range(len(completions))]

    trainer, recorder = make_trainer(tmp_path, reward=some)
    trainer.train()
    assert trainer.state.log_history[0]["groups/silent"] == 1.0
    assert not recorder.gradients[0].any()
    first = next(read_group_log(tmp_path / "groups.jsonl"))
    assert first["rewards"][1] is None and first["rewards"][0] == pytest.approx(0.35)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_stops_the_run(tmp_path: Path, bad: float) -> None:
    def broken(completions: list[Any], **_: Any) -> list[float]:
        return [bad] + [1.0] * (len(completions) - 1)

    trainer, recorder = make_trainer(tmp_path, reward=broken)
    with pytest.raises(ReplicationError, match="broken returned"):
        trainer.train()
    assert not recorder.gradients


def test_a_gradient_that_is_no_number_stops_the_run_before_the_step(tmp_path: Path) -> None:
    trainer, recorder = make_trainer(tmp_path, learning_rate=0.1)
    trainer.model.model.norm.weight.register_hook(lambda gradient: gradient * math.nan)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(ReplicationError, match="gradient norm is nan at step 0"):
        trainer.train()
    assert not recorder.gradients
    assert all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
    assert len(list(read_group_log(tmp_path / "groups.jsonl"))) == 2, "the groups of the failed step are kept"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda w: -w, r"own gave -1 to token 0 of completion 0"),
        (lambda w: w.index_fill(0, torch.tensor([3]), math.nan), r"own gave nan to token 0 of completion 3"),
        (lambda w: w.index_fill(1, torch.tensor([0]), math.inf), r"own gave inf .* and 8 such weights"),
        (lambda w: torch.ones(w.size(0) + 4, w.size(1) + 5), r"own gave shape \(12, 10\); .*\(8, 5\)"),
        (lambda w: w[:, :1], r"own gave shape \(8, 1\)"),
        (lambda w: w.sum(), r"own gave shape \(\)"),
        (lambda w: w.tolist(), r"own gave list"),
        (lambda w: w.to(torch.complex64), r"own gave a tensor of torch.complex64"),
    ],
)
def test_own_token_weights_are_checked(tmp_path: Path, wrong: Any, message: str) -> None:
    def own(batch: RolloutBatch) -> torch.Tensor:
        return wrong(torch.ones(batch.set_sizes.shape))

    trainer, recorder = make_trainer(tmp_path, own)
    with pytest.raises(ReplicationError, match=message):
        trainer.train()
    assert not recorder.gradients


def test_own_token_weights_on_padding_do_not_matter(tmp_path: Path) -> None:
    gradients = []
    for padding in (1, math.nan):

        def own(batch: RolloutBatch, padding: float = padding) -> torch.Tensor:
            assert not batch.completion_mask.all(), "there must be padding"
            return torch.where(batch.completion_mask, 1, padding)

        trainer, recorder = make_trainer(tmp_path, own, per_device_train_batch_size=12 * GROUP, temperature=50.0)
        trainer.train()
        gradients.append(recorder.gradients[0])
    assert gradients[0].any() and torch.equal(*gradients)


def test_every_group_is_logged_with_what_was_measured(tmp_path: Path) -> None:
    trainer, _ = make_trainer(
        tmp_path,
        TOKEN_WEIGHTS["lambda-grpo"],
        per_device_train_batch_size=GROUP,
        gradient_accumulation_steps=2,
        max_steps=3,
    )
    trainer.train()
    groups = list(read_group_log(tmp_path / "groups.jsonl"))
    assert [group["step"] for group in groups] == [1, 1, 2, 2, 3, 3]
    for group in groups:
        completions = group["completion_ids"]
        assert group["rewards"] == pytest.approx(mixed_reward(completions))
        assert group["advantages"] == pytest.approx(oracle.advantages(mixed_reward(completions), GROUP), abs=1e-4)
        assert group["lengths"] == [len(ids) for ids in completions]
        assert all(0 < value < math.log(97) for value in group["entropy"])
        weights = [[1 / n for n in row] for row in oracle.prefix_counts(completions, GROUP)]
        assert group["weights"]["mean"] == pytest.approx([sum(w) / len(w) for w in weights])
        assert group["weights"]["min"] == pytest.approx([min(w) for w in weights])
        assert len(group["completions"]) == GROUP and isinstance(group["flat"], bool)
    last = trainer.state.log_history[2]
    assert last["tree/flat"] == sum(group["flat"] for group in groups[-2:]) / 2
    depth = [value for group in groups[-2:] for value in group["path_depth"]]
    assert last["tree/path_depth"] == pytest.approx(sum(depth) / len(depth))
    assert {"reward", "grad_norm", "entropy", "groups/silent", "time/token_weights"} <= last.keys()


def test_every_reward_function_is_logged_with_its_weight(tmp_path: Path) -> None:
    def length(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        return [None if i % GROUP == 0 else float(len(ids)) for i, ids in enumerate(completion_ids)]

    async def later(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(ids[0]) for ids in completion_ids]

    trainer, _ = make_trainer(tmp_path, reward=[mixed_reward, length, later], reward_weights=[1.0, 0.3, -0.5])
    trainer.train()
    for group in read_group_log(tmp_path / "groups.jsonl"):
        functions, ids = group["reward_functions"], group["completion_ids"]
        assert [(f["name"], f["weight"]) for f in functions] == [("mixed_reward", 1), ("length", 0.3), ("later", -0.5)]
        assert functions[0]["rewards"] == pytest.approx(mixed_reward(ids))
        assert functions[1]["rewards"] == [None, *(len(row) for row in ids[1:])]
        assert functions[2]["rewards"] == [row[0] for row in ids]
        summed = [sum(f["weight"] * (f["rewards"][i] or 0.0) for f in functions) for i in range(GROUP)]
        assert group["rewards"] == pytest.approx(summed)


def test_steps_of_the_group_log_are_those_of_trl(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, max_steps=3, log_completions=True)
    trainer.train()
    ours = {
        (group["step"], text) for group in read_group_log(tmp_path / "groups.jsonl") for text in group["completions"]
    }
    tables = [pandas.read_parquet(path) for path in sorted((tmp_path / "completions").glob("*.parquet"))]
    assert ours == {(step, text) for table in tables for step, text in zip(table["step"], table["completion"])}


def test_completions_cut_off_still_belong_to_their_process_sets(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, TOKEN_WEIGHTS["lambda-grpo"], mask_truncated_completions=True)
    trainer.train()
    groups = list(read_group_log(tmp_path / "groups.jsonl"))
    assert any(ids[-1] != 0 for group in groups for ids in group["completion_ids"]), "some completion must be cut off"
    for group in groups:
        counts = oracle.prefix_counts(group["completion_ids"], GROUP)
        assert group["weights"]["min"] == pytest.approx([1 / max(row) for row in counts])


def run_history(tmp_path: Path, seed: int) -> list[dict[str, float]]:
    trainer, _ = make_trainer(
        tmp_path, TOKEN_WEIGHTS["lambda-grpo"], seed=seed, learning_rate=0.05, optim="adamw_torch", max_steps=3
    )
    trainer.train()
    timings = ("time", "runtime", "per_second", "flos")
    return [{k: v for k, v in e.items() if not any(t in k for t in timings)} for e in trainer.state.log_history]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (run_history(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert json.dumps(first) == json.dumps(again)
    assert json.dumps(first) != json.dumps(other)


def test_evaluation_beside_training_leaves_weights_and_log_alone(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, TOKEN_WEIGHTS["lambda-grpo"])
    trainer.train()
    before = (tmp_path / "groups.jsonl").read_text()
    metrics = trainer.evaluate(eval_dataset=dataset(4))
    assert "eval_reward" in metrics
    assert (tmp_path / "groups.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_type": "nonsense"}, "loss_type 'nonsense' is unknown"),
        ({"loss_type": "luspo"}, "one term per token"),
        ({"importance_sampling_level": "sequence"}, "one term per token"),
        ({"per_device_train_batch_size": 100 * GROUP}, "12 prompts, fewer than the 100"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_sampled(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ReplicationError, match=message):
        make_trainer(tmp_path, TOKEN_WEIGHTS["lambda-grpo"], **changes)


def test_sequence_level_losses_are_allowed_without_token_weights(tmp_path: Path) -> None:
    trainer, recorder = make_trainer(tmp_path, None, loss_type="luspo", importance_sampling_level="sequence")
    trainer.train()
    assert recorder.gradients[0].any()


@pytest.mark.parametrize("column", ["completions", "completion_ids", "prompts", "trainer_state", "log_extra"])
def test_columns_that_trl_would_lose_are_refused(tmp_path: Path, column: str) -> None:
    config = GRPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=8, use_cpu=True, bf16=False)
    with pytest.raises(ReplicationError, match=f"column '{column}'"):
        check_settings(config, Dataset.from_dict({"prompt": ["a"], column: ["b"]}))
    with pytest.raises(ReplicationError, match="no column 'prompt'"):
        check_settings(config, Dataset.from_dict({"question": ["a"]}))


def test_a_column_of_completions_is_trained_without_and_said(tmp_path: Path) -> None:
    data = dataset().add_column("completion", ["its own"] * 12)
    with pytest.warns(UserWarning, match="column 'completion' is not passed"):
        trainer, recorder = make_trainer(tmp_path, train_dataset=data)
    trainer.train()
    assert recorder.gradients[0].any()


def test_an_environment_may_own_the_prompts(tmp_path: Path) -> None:
    class Environment:
        def reset(self, number: int, **_: Any) -> str:
            self.number = number
            return f"{number}+1="

        def get_reward(self) -> float:
            return float(self.number % 2)

    model, tokenizer = policy()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls or '' }}{{ m.name }}\n{% endfor %}a:"
    )
    data = Dataset.from_dict({"number": list(range(12))})
    trainer, _ = make_trainer(
        tmp_path, reward=None, model=(model, tokenizer), train_dataset=data, environment_factory=Environment
    )
    trainer.train()
    for group in read_group_log(tmp_path / "groups.jsonl"):
        number = int(group["prompt"][0]["content"].split("+")[0])
        assert group["reward_functions"] == [{"name": "Environment", "weight": 1.0, "rewards": [number % 2] * GROUP}]


def test_a_log_that_cannot_be_written_is_known_before_anything_is_sampled(tmp_path: Path) -> None:
    (tmp_path / "groups.jsonl").mkdir()
    with pytest.raises(ReplicationError, match=r"groups\.jsonl cannot be written"):
        make_trainer(tmp_path)


def test_settings_are_checked_where_none_are_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    on_cpu = functools.partial(GRPOConfig, use_cpu=True, bf16=False)  # TRL's own defaults want a GPU
    monkeypatch.setattr("grpo_replications.shared.training.trainer.GRPOConfig", on_cpu)
    model, tokenizer = policy()
    with pytest.raises(ReplicationError, match="no column 'prompt'"):
        TokenWeightedGRPOTrainer(
            model, mixed_reward, train_dataset=Dataset.from_dict({"question": ["a"] * 9}), processing_class=tokenizer
        )


def test_the_budget_is_a_count_whenever_it_is_logged(tmp_path: Path) -> None:
    trainer, _ = make_trainer(
        tmp_path, "lopti", max_steps=8, logging_steps=4, num_iterations=2, per_device_train_batch_size=GROUP
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "budget/rollouts" in entry]
    assert [entry["budget/rollouts"] for entry in logged] == [2, 4]
    assert [entry["budget/completions"] for entry in logged] == [2 * GROUP, 4 * GROUP]
    assert [entry["budget/pass"] for entry in logged] == [2, 2]


def test_checks_also_see_positional_arguments(tmp_path: Path) -> None:
    model, tokenizer = policy()
    config = GRPOConfig(output_dir=str(tmp_path), loss_type="luspo", use_cpu=True, bf16=False)
    with pytest.raises(ReplicationError, match="one term per token"):
        TokenWeightedGRPOTrainer(
            model, mixed_reward, config, dataset(), None, tokenizer, token_weight=TOKEN_WEIGHTS["lambda-grpo"]
        )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_no_number_stops_the_run_from_an_asynchronous_function_too(tmp_path: Path, bad: float) -> None:
    async def later(completions: list[Any], **_: Any) -> list[float | None]:
        return [bad, None] + [1.0] * (len(completions) - 2)

    trainer, recorder = make_trainer(tmp_path, reward=later)
    with pytest.raises(ReplicationError, match=f"later returned {bad}"):
        trainer.train()
    assert not recorder.gradients


def test_a_reward_beyond_float32_and_one_of_a_model_that_is_no_number_stop_the_run(tmp_path: Path) -> None:
    class Broken(torch.nn.Module):
        config = SimpleNamespace(name_or_path="broken", _name_or_path="broken")

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return SimpleNamespace(logits=torch.full((len(input_ids), 1), math.nan))

    def huge(completions: list[Any], **_: Any) -> list[float]:
        return [1e300] * len(completions)

    for reward in (huge, Broken()):
        trainer, _ = make_trainer(tmp_path, reward=reward)
        trainer.reward_processing_classes = [trainer.processing_class]
        with pytest.raises(ReplicationError, match="infinite or NaN in float32"):
            trainer.train()


def test_rewards_may_come_from_a_generator_and_functions_can_be_pickled(tmp_path: Path) -> None:
    def one_by_one(completion_ids: list[list[int]], **_: Any) -> Any:
        yield from mixed_reward(completion_ids)

    def mapped(completion_ids: list[list[int]], **_: Any) -> Any:
        return map(float, mixed_reward(completion_ids))

    trainer, _ = make_trainer(tmp_path, reward=[mixed_reward, one_by_one, mapped])
    trainer.train()
    for group in read_group_log(tmp_path / "groups.jsonl"):
        first, *others = (function["rewards"] for function in group["reward_functions"])
        assert all(other == first for other in others)
    again = pickle.loads(pickle.dumps(trainer.reward_funcs[0]))
    assert again([[1, 2]]) == trainer.reward_funcs[0](completion_ids=[[1, 2]]) == mixed_reward([[1, 2]])
    assert again.__name__ == "mixed_reward"


def test_entropy_is_null_where_the_loss_sees_no_token(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, mask_truncated_completions=True)
    trainer.train()
    for group in read_group_log(tmp_path / "groups.jsonl"):
        cut = [ids[-1] != 0 for ids in group["completion_ids"]]
        assert [value is None for value in group["entropy"]] == cut


def test_a_rollout_that_training_ends_in_keeps_what_is_known_of_it(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, per_device_train_batch_size=GROUP, steps_per_generation=4, max_steps=3)
    trainer.train()
    entropies = [value for group in read_group_log(tmp_path / "groups.jsonl") for value in group["entropy"]]
    assert sum(value is not None for value in entropies) == 3 * GROUP and len(entropies) == 4 * GROUP
