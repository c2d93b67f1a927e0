"""Token weights that follow the policy, over whole runs: the update under way, what is recorded and what refused."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog
from grpo_replications.shared.theory.weighting import AdvantageReweighting, Factor, Sharpness, TokenBatch, Weighting
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.token_weights import TOKEN_WEIGHTS, as_weighting, token_weighting
from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer
from tests.shared.training import grpo_oracle as oracle
from tests.shared.training.test_trainer import GROUP, dataset, make_trainer, mixed_reward, policy, relative
from tests.shared.training.test_trainer_distributed import launch
from tests.shared.training.test_weighting_trainer import CONSTANTS, TEMPERATURE, sharp


def run_gradient(
    micro_batches: list[dict[str, Tensor]],
    rows: list[list[int]],
    completions: list[list[int]],
    at: dict[str, Tensor],
    sampled: dict[str, Tensor],
    *,
    method: str,
    first: bool,
    steps: int,
    together: int = 1,
) -> Tensor:
    """The gradient of one optimizer step by the formula.

    `rows`: of each micro-batch, its completions' numbers in the rollout `completions`, which `steps` optimizer steps go
    through. `together`: how many micro-batches in a row go through the loss at once, in as many processes.
    """
    counts = oracle.prefix_counts(completions, GROUP)
    a = oracle.advantages(mixed_reward(completions), GROUP)
    model, sampler, reference = (oracle.double_precision(catalog.load("tiny-random")[0]) for _ in range(3))
    model.load_state_dict({k: v.double() for k, v in at.items()})
    sampler.load_state_dict({k: v.double() for k, v in sampled.items()})
    eta = 0.5 if "lopti+ar" in method else 0.4
    sharpened, sets, masks = [], [], []
    with torch.no_grad():
        for batch, numbers in zip(micro_batches, rows, strict=True):
            masks.append(batch["completion_mask"].double())
            h = oracle.raw_logits(model, batch)
            old = oracle.completion_logps(sampler, batch, TEMPERATURE)
            w = oracle.sharpness(h, **CONSTANTS) if "sharpness" in method else torch.ones_like(h)
            sharpened.append(w * (0.3 * old.exp() + 0.7) if "lopti+ar" in method else w)
            sets.append(torch.ones_like(h))
            if "lambda-grpo" in method:
                for i, number in enumerate(numbers):
                    sets[-1][i, : len(counts[number])] = 1 / torch.tensor(counts[number], dtype=torch.float64)
    if method.endswith("-mean1"):
        for start in range(0, len(micro_batches), together):
            group = range(start, start + together)
            total = sum(float((sharpened[i] * sets[i] * masks[i]).sum()) for i in group)
            for i in group:
                sharpened[i] = sharpened[i] * sum(float(masks[j].sum()) for j in group) / total
    value: Any = 0.0
    for i, (batch, numbers) in enumerate(zip(micro_batches, rows, strict=True)):
        logps = oracle.completion_logps(model, batch, TEMPERATURE)
        with torch.no_grad():
            old = oracle.completion_logps(sampler, batch, TEMPERATURE)
            ref = oracle.completion_logps(reference, batch, TEMPERATURE)
        isolated = ((old.exp() < eta) == first) if "lopti" in method else torch.ones_like(old)
        value = value + oracle.placed_loss(
            "dapo",
            logps,
            old,
            ref,
            torch.tensor([a[number] for number in numbers], dtype=torch.float64),
            masks[i],
            weights=sharpened[i],
            placement="outside",
            weight_kl=False,
            isolated=isolated * sets[i],  # weights of lambda-GRPO stand on the whole term
            beta=0.3,
            normalizer=sum(map(len, completions)) / steps,
        )
    return oracle.flat_gradient(value, model)


SCHEDULES = {  # updates of a rollout: which of its micro-batches, and whether it is the first pass
    "one micro-batch": ({"per_device_train_batch_size": 2 * GROUP}, [([0], True), ([0], False)]),
    "accumulation": (
        {"per_device_train_batch_size": GROUP, "gradient_accumulation_steps": 2},
        [([0, 1], True), ([0, 1], False)],
    ),
    "two steps a pass": (
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
        [([0, 1], True), ([2, 3], True), ([0, 1], False), ([2, 3], False)],
    ),
}


@pytest.mark.parametrize(
    ("method", "schedule"),
    [
        *(("lopti+ar", schedule) for schedule in SCHEDULES),
        ("sharpness", "accumulation"),
        ("lambda-grpo*sharpness-mean1", "two steps a pass"),
    ],
)
def test_updates_of_a_run_follow_the_policy_and_know_their_pass(tmp_path: Path, method: str, schedule: str) -> None:
    settings, updates = SCHEDULES[schedule]
    options = CONSTANTS if "sharpness" in method else {}
    trainer, recorder = make_trainer(
        tmp_path,
        token_weighting(method, **options),
        loss_type="dapo",
        beta=0.3,
        temperature=TEMPERATURE,
        num_iterations=1 if method == "lopti+ar" else 2,  # Lopti adds its second pass by itself
        max_steps=len(updates),
        learning_rate=0.001,
        model=policy(sharpness=12.0) if "lambda-grpo" in method else None,
        **settings,
    )
    trainer.train()
    if "lambda-grpo" in method:
        counts = oracle.prefix_counts(oracle.regroup(trainer._buffered_inputs), GROUP)
        assert len({size for row in counts for size in row}) > 1, "completions must share prefixes"
    for step, (used, first) in enumerate(updates):
        rollout = trainer._buffered_inputs
        wanted = run_gradient(
            [rollout[i] for i in used],
            [rollout[i]["row"].tolist() for i in used],
            oracle.regroup(rollout),
            recorder.weights[step],
            recorder.weights[0],
            method=method,
            first=first,
            steps=len(rollout) // trainer.args.gradient_accumulation_steps,
        )
        assert relative(recorder.gradients[step], wanted) < 1e-4
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["budget/pass"] for entry in history] == [1 if first else 2 for _, first in updates]
    assert {entry["budget/rollouts"] for entry in history} == {1}
    rows = sum(len(batch["row"]) for batch in trainer._buffered_inputs)
    assert {entry["budget/completions"] for entry in history} == {rows}
    if method == "lopti+ar":  # every token takes part once
        shares = [entry["token_weights/share_isolated"] for entry in history]
        half = len(shares) // 2
        assert sum(shares[:half]) / half + sum(shares[half:]) / half == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_a_product_with_rescaling_and_two_passes_over_two_processes(tmp_path: Path) -> None:
    catalog.prepare("tiny-random")
    ranks = launch(tmp_path, script="weighting_script")
    completions = [row for rank in ranks for row in oracle.regroup(rank["micro_batches"])]
    half = len(completions) // 2
    pairs = [(rank["micro_batches"][i], number * half) for i in range(2) for number, rank in enumerate(ranks)]
    for step in (0, 1):
        wanted = run_gradient(
            [batch for batch, _ in pairs],
            [[int(row) + offset for row in batch["row"]] for batch, offset in pairs],
            completions,
            ranks[0]["weights"][step],
            ranks[0]["weights"][0],
            method="lopti*lambda-grpo*sharpness-mean1",
            first=step == 0,
            steps=1,
            together=2,
        )
        assert torch.equal(ranks[0]["gradients"][step], ranks[1]["gradients"][step])
        assert relative(ranks[0]["gradients"][step], wanted) < 1e-4
    history = ranks[0]["history"]
    assert [(entry["budget/pass"], entry["budget/completions"]) for entry in history] == [(1, 12), (2, 12)]
    shares = [entry["token_weights/share_isolated"] for entry in history]
    assert sum(shares) == pytest.approx(1), "over all processes, every token takes part once"


def test_a_second_rollout_starts_again_with_the_first_pass(tmp_path: Path) -> None:
    config = {"max_steps": 4, "learning_rate": 0.01}
    trainer, _ = make_trainer(tmp_path, "lopti", **config)
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["budget/pass"] for entry in history] == [1, 2, 1, 2]
    assert [entry["budget/completions"] for entry in history] == [8, 8, 16, 16]
    assert ["reward" in entry for entry in history] == [True, False, True, False]


def test_the_users_own_configuration_is_left_alone(tmp_path: Path) -> None:
    model, tokenizer = policy()
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", num_generations=GROUP)
    trainer = TokenWeightedGRPOTrainer(model, mixed_reward, config, dataset(), None, tokenizer, token_weight="lopti+ar")
    assert (trainer.num_iterations, trainer.args.num_iterations, config.num_iterations) == (2, 2, 1)
    with pytest.raises(ReplicationError, match="args=GRPOConfig"):
        TokenWeightedGRPOTrainer(model, mixed_reward, token_weight="80/20")


def test_eighty_twenty_is_trls_own(tmp_path: Path) -> None:
    gradients = {}
    for name, options in {
        "stock": {"trainer_class": GRPOTrainer, "top_entropy_quantile": 0.2},
        "ours": {"token_weight": "80/20"},
        "all": {},
    }.items():
        trainer, recorder = make_trainer(tmp_path / name, beta=0.3, **options)
        trainer.train()
        gradients[name] = recorder.gradients[0]
    assert torch.equal(gradients["ours"], gradients["stock"])
    assert not torch.equal(gradients["ours"], gradients["all"])


@pytest.mark.parametrize("signal", ["sharpness-prob", "sharpness-logprob"])
def test_a_weight_that_does_nothing_trains_as_grpo_does_and_says_so(tmp_path: Path, signal: str) -> None:
    plain, of_plain = make_trainer(tmp_path / "grpo", None, max_steps=2, learning_rate=0.01)
    plain.train()
    trainer, recorder = make_trainer(tmp_path / "ours", signal, max_steps=2, learning_rate=0.01)
    with pytest.warns(UserWarning, match="inert") as caught:
        trainer.train()
    assert sum("inert" in str(warning.message) for warning in caught) == 1
    assert all(torch.equal(x, y) for x, y in zip(recorder.gradients, of_plain.gradients, strict=True))
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["token_weights/inert"] for entry in history] == [1.0, 1.0]
    assert [entry["token_weights/share_lower"] for entry in history] == [1.0, 1.0]


def test_a_weight_that_does_something_is_not_called_inert(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, sharp())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*inert.*")
        trainer.train()
    assert trainer.state.log_history[0]["token_weights/inert"] == 0


def test_the_group_log_holds_the_weights_of_the_first_update(tmp_path: Path) -> None:
    trainer, recorder = make_trainer(tmp_path, sharp(), temperature=TEMPERATURE, num_iterations=2, max_steps=2)
    trainer.train()
    (batch,) = trainer._buffered_inputs
    model = oracle.double_precision(catalog.load("tiny-random")[0])
    model.load_state_dict({k: v.double() for k, v in recorder.weights[0].items()})
    weights = oracle.sharpness(oracle.raw_logits(model, batch), **CONSTANTS)
    mask = batch["completion_mask"].bool()
    expected = {int(row): w[real] for row, w, real in zip(batch["row"], weights, mask, strict=True)}
    for g, group in enumerate(read_group_log(tmp_path / "groups.jsonl")):
        for name, figure in (("mean", torch.mean), ("min", torch.amin), ("max", torch.amax)):
            wanted = [float(figure(expected[g * GROUP + i])) for i in range(GROUP)]
            assert group["weights"][name] == pytest.approx(wanted, rel=1e-5)


class FromFullLogits(Factor):
    """Sharpness-guided weights from the whole vocabulary's logits, in a forward pass of their own."""

    trainer: Any = None

    def weights(self, batch: TokenBatch) -> Tensor:
        inputs, model = self.trainer._loss_inputs, self.trainer.model
        training = model.training
        h = oracle.raw_logits(model.eval(), inputs)
        model.train(training)
        return oracle.sharpness(h, **CONSTANTS)


@pytest.mark.parametrize(("lora", "checkpointing"), [(False, True), (True, False)])
def test_adapters_and_gradient_checkpointing_give_the_same_weights(
    tmp_path: Path, lora: bool, checkpointing: bool
) -> None:
    from peft import LoraConfig

    gradients = {}
    for name in ("ours", "full"):
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, lora_dropout=0.0)
        torch.manual_seed(0)
        weighting = sharp() if name == "ours" else Weighting(factors=(FromFullLogits(weight_kl=False),))
        trainer, recorder = make_trainer(
            tmp_path / name,
            weighting,
            beta=0.3,
            peft_config=config if lora else None,
            gradient_checkpointing=checkpointing,
        )
        FromFullLogits.trainer = trainer
        trainer.train()
        gradients[name] = recorder.gradients[0].double()
    assert relative(gradients["ours"], gradients["full"]) < 1e-5


class Evaluate(TrainerCallback):
    """Evaluates before every step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.evaluate(eval_dataset=dataset(4))


def test_evaluation_is_not_weighted_and_takes_no_part_in_the_count_of_passes(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, "lopti", max_steps=4)
    trainer.add_callback(Evaluate(trainer))
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["budget/pass"] for entry in history] == [1, 2, 1, 2]
    evaluated = [entry for entry in trainer.state.log_history if "eval_reward" in entry]
    assert len(evaluated) == 4 and not any("token_weights" in key for key in evaluated[0])


REFUSED = [
    ("sharpness", {"loss_type": "luspo"}, "one term per token"),
    ("sharpness", {"importance_sampling_level": "sequence"}, "one term per token"),
    ("lopti", {"importance_sampling_level": "sequence"}, "one term per token"),
    ("lopti", {"num_iterations": 3}, "two updates per batch, but num_iterations is 3"),
    ("lopti", {"gradient_accumulation_steps": 2, "steps_per_generation": 1}, "mix the two updates"),
    ("80/20", {"top_entropy_quantile": 0.5}, "most entropic 0.2"),
    ("inside", {"loss_type": "vespo"}, "inside the clip"),
    ("inside", {"beta": 0.1, "use_bias_correction_kl": True}, "use_bias_correction_kl"),
    ("inside", {"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
]


@pytest.mark.parametrize(("method", "changes", "message"), REFUSED)
def test_combinations_without_a_meaning_are_refused(
    tmp_path: Path, method: str, changes: dict[str, Any], message: str
) -> None:
    weight = sharp(placement="inside") if method == "inside" else method
    with pytest.raises(ReplicationError, match=message):
        make_trainer(tmp_path, weight, **{"per_device_train_batch_size": 2 * GROUP, **changes})


def test_names_and_objects_stand_for_weightings() -> None:
    assert as_weighting(None) is None and as_weighting("grpo") is None
    assert as_weighting("sharpness") == Weighting(factors=(Sharpness(),)) == TOKEN_WEIGHTS["sharpness"]
    assert as_weighting("lopti+ar") == Weighting(factors=(AdvantageReweighting(alpha=0.3),), isolation=0.5)
    assert as_weighting(sharp()) == sharp()
    with pytest.raises(KeyError, match="sharpnes"):
        as_weighting("sharpnes")
    assert math.isclose(TOKEN_WEIGHTS["80/20"].top_entropy_quantile, 0.2)
