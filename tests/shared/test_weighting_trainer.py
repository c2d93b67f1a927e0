"""Token weights that follow the policy, inside TRL's loss: every place against an independent float64 formula."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from shared import models
from shared.errors import ReplicationError
from shared.group_log import read_group_log
from shared.token_weights import TOKEN_WEIGHTS, as_weighting, token_weighting
from shared.weighted_loss import WeightedLoss
from shared.weighting import AdvantageReweighting, Factor, Sharpness, TokenBatch, Weighting
from tests.shared import grpo_oracle as oracle
from tests.shared.test_trainer import GROUP, TOKENS, dataset, make_trainer, mixed_reward, policy, relative
from tests.shared.test_trainer_distributed import launch

CONSTANTS = {"alpha": 4.0, "tau": 4.0, "mu": 0.5, "lower": 0.75, "upper": 1.45}
"""Made for the tiny model, whose logits span a few units: weights at both bounds and between."""

TEMPERATURE = 0.8
PLACES = [("outside", True), ("outside", False), ("inside", True), ("inside", False)]


def sharp(**options: Any) -> Weighting:
    return token_weighting("sharpness", **{**CONSTANTS, **options})


# --- one loss, every place --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer after one step of learning rate 0: its model and micro-batch are as they were in the loss."""
    directory = tmp_path_factory.mktemp("trainer")
    trainer, _ = make_trainer(directory, beta=0.3, temperature=TEMPERATURE)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def twins(trained: Any) -> tuple[Any, Any]:
    """The policy and the reference in float64; TRL's forward pass is not theirs."""
    model, reference = (oracle.double_precision(models.load("tiny-random")[0]) for _ in range(2))
    model.load_state_dict({k: v.double() for k, v in trained.model.state_dict().items()})
    return model, reference


def policy_logps(trained: Any, inputs: dict[str, Tensor]) -> Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    with torch.no_grad():
        return trained._get_per_token_logps_and_entropies(trained.model, ids, mask, inputs["completion_ids"].size(1))[0]


def micro_batch(trained: Any, moved: bool) -> dict[str, Tensor]:
    """The micro-batch; `moved`: as in a later update, with old log-probabilities that clip many ratios."""
    inputs = dict(trained._buffered_inputs[0])
    inputs["completion_mask"] = inputs["completion_mask"].clone()
    inputs["completion_mask"][0] = 0  # as when a completion was cut off
    inputs["completion_mask"][1, 2:] = 0
    if moved:
        noise = torch.randn(inputs["completion_ids"].shape, generator=torch.Generator().manual_seed(5))
        inputs["old_per_token_logps"] = (policy_logps(trained, inputs) - 0.4 * noise).clamp(max=0)
    return inputs


def gradient(
    trained: Any, weighting: Weighting | None, inputs: dict[str, Tensor], loss_type: str, beta: float, visits: int = 0
) -> tuple[Tensor, dict[str, list[float]]]:
    """Gradient of TRL's loss with the weighting, and what was recorded."""
    recorded: dict[str, list[float]] = {}
    trained._weighted_loss = WeightedLoss(
        weighting, trained.accelerator, lambda name, value: recorded.setdefault(name, []).append(value)
    )
    trained._weighted_loss.start_rollout(trained._buffered_inputs[0]["row"], 0)
    trained._weighted_loss._visits += visits
    trained.loss_type, trained.beta = loss_type, beta
    before = {key: value.clone() for key, value in inputs.items() if isinstance(value, Tensor)}
    trained.model.zero_grad()
    trained.model.train()
    trained._compute_loss(trained.model, inputs).backward()
    assert all(torch.equal(inputs[key], value) for key, value in before.items()), "inputs serve a second pass"
    parameters = [p for p in trained.model.parameters() if p.requires_grad]
    return torch.cat([p.grad.flatten() for p in parameters]), recorded


def normalizer(loss_type: str, inputs: dict[str, Tensor]) -> float:
    rows = len(inputs["row"])
    per_row = {"grpo": rows, "sapo": rows, "dr_grpo": rows * TOKENS, "bnpo": float(inputs["completion_mask"].sum())}
    return per_row.get(loss_type, float(inputs["num_items_in_batch"]))


def expected(
    twins: tuple[Any, Any],
    inputs: dict[str, Tensor],
    loss_type: str,
    beta: float,
    weigh: Callable[[Tensor, Tensor, Tensor], Tensor],
    placement: str = "outside",
    weight_kl: bool = False,
    isolate: Callable[[Tensor], Tensor] | None = None,
    entropy_coefficient: float = 0.0,
) -> Tensor:
    """The same gradient by the formula; `weigh(raw logits, log-probabilities, old ones)`, `isolate(old p)`."""
    model, reference = twins
    mask = inputs["completion_mask"].double()
    logps = oracle.completion_logps(model, inputs, TEMPERATURE)
    old = inputs["old_per_token_logps"].double() if "old_per_token_logps" in inputs else logps.detach()
    with torch.no_grad():
        ref = oracle.completion_logps(reference, inputs, TEMPERATURE) if beta else None
    isolated = isolate(old.exp()) if isolate else None
    value = oracle.placed_loss(
        loss_type,
        logps,
        old,
        ref,
        inputs["advantages"].double(),
        mask,
        weights=weigh(oracle.raw_logits(model, inputs), logps.detach(), old),
        placement=placement,
        weight_kl=weight_kl,
        isolated=isolated,
        beta=beta,
        normalizer=normalizer(loss_type, inputs),
    )
    if entropy_coefficient:
        p = (oracle.completion_logits(model, inputs) / TEMPERATURE).log_softmax(dim=-1)
        entropy = -(p.exp() * p).sum(dim=-1) * mask * (1 if isolated is None else isolated)
        value = value - entropy_coefficient * entropy.sum() / mask.sum()
    return oracle.flat_gradient(value, model)


def by_raw_logit(h: Tensor, logps: Tensor, old: Tensor) -> Tensor:
    return oracle.sharpness(h, **CONSTANTS)


CASES = [(loss, beta, moved) for loss in ("grpo", "dapo", "dr_grpo") for beta in (0.0, 0.3) for moved in (False, True)]
CASES += [(loss, 0.3, True) for loss in ("bnpo", "cispo", "sapo")]


@pytest.mark.parametrize(("loss_type", "beta", "moved"), CASES)
@pytest.mark.parametrize(("placement", "weight_kl"), PLACES)
def test_every_place_of_the_sharpness_weight_is_its_formula(
    trained: Any, twins: Any, placement: str, weight_kl: bool, loss_type: str, beta: float, moved: bool
) -> None:
    inputs = micro_batch(trained, moved)
    weighting = sharp(placement=placement, weight_kl=weight_kl)
    got, recorded = gradient(trained, weighting, inputs, loss_type, beta)
    wanted = expected(twins, inputs, loss_type, beta, by_raw_logit, placement, weight_kl)
    assert relative(got, wanted) < 5e-5
    plain = expected(twins, inputs, loss_type, beta, lambda h, *_: torch.ones_like(h))
    if not (loss_type == "cispo" and placement == "inside"):  # whose cap of 0.2 is below every ratio here
        assert relative(plain, wanted) > 0.02, "the weights must matter"
    for share in ("lower", "upper", "between"):
        assert recorded[f"token_weights/share_{share}"][0] > 0
    if moved and loss_type in ("grpo", "dapo", "dr_grpo", "bnpo"):
        assert trained._metrics["train"]["clip_ratio/region_mean"][-1] > 0.1, "many tokens must be clipped"


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_the_four_places_differ(twins: Any, trained: Any, loss_type: str) -> None:
    inputs = micro_batch(trained, True)
    gradients = [expected(twins, inputs, loss_type, 0.3, by_raw_logit, *place) for place in PLACES]
    for i, one in enumerate(gradients):
        assert all(relative(one, other) > 1e-3 for other in gradients[i + 1 :])


def test_weighting_the_kl_term_inside_makes_it_differ_from_zero_at_the_reference(trained: Any) -> None:
    inputs = micro_batch(trained, False)
    inputs["ref_per_token_logps"] = policy_logps(trained, inputs)  # KL is 0 for every token
    kl = {}
    for weight_kl in (True, False):
        gradient(trained, sharp(placement="inside", weight_kl=weight_kl), inputs, "dapo", 0.3)
        kl[weight_kl] = trained._metrics["train"]["kl"][-1]
    assert kl[True] > 0.01 and abs(kl[False]) < 1e-6


SIGNALS = {"sharpness": 0, "sharpness-logprob": 1, "sharpness-prob": 2}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("method", SIGNALS)
def test_every_signal_and_its_reverse(trained: Any, twins: Any, method: str, reverse: bool) -> None:
    constants = (
        CONSTANTS if method == "sharpness" else {"alpha": 4.0, "tau": 1.5, "mu": 0.4, "lower": 0.1, "upper": 1.3}
    )

    def weigh(h: Tensor, logps: Tensor, old: Tensor) -> Tensor:
        weights = oracle.sharpness((h, logps, logps.exp())[SIGNALS[method]], **constants)
        return constants["lower"] + constants["upper"] - weights if reverse else weights

    inputs = micro_batch(trained, True)
    weighting = token_weighting(method + "-reverse" * reverse, **constants)
    got, recorded = gradient(trained, weighting, inputs, "dapo", 0.3)
    assert relative(got, expected(twins, inputs, "dapo", 0.3, weigh)) < 5e-5
    assert (recorded["token_weights/correlation"][0] < 0) == reverse


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_advantage_reweighting_is_its_formula(trained: Any, twins: Any, loss_type: str, moved: bool) -> None:
    inputs = micro_batch(trained, moved)
    got, _ = gradient(trained, token_weighting("advantage-reweighting", alpha=0.9), inputs, loss_type, 0.3)
    wanted = expected(twins, inputs, loss_type, 0.3, lambda h, logps, old: 0.9 * old.exp() + 0.1)
    assert relative(got, wanted) < 5e-5


@pytest.mark.parametrize("visits", [0, 1])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("method", ["lopti", "lopti+ar"])
def test_an_update_of_lopti_leaves_out_policy_kl_and_entropy_of_the_other_tokens(
    trained: Any, twins: Any, method: str, loss_type: str, visits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "_entropy_bonus_enabled", True)
    monkeypatch.setattr(trained, "entropy_coef", 0.1)
    eta, alpha = (0.5, 0.3) if method == "lopti+ar" else (0.4, 0.0)
    inputs = micro_batch(trained, True)
    got, recorded = gradient(trained, token_weighting(method), inputs, loss_type, 0.3, visits)
    wanted = expected(
        twins,
        inputs,
        loss_type,
        0.3,
        lambda h, logps, old: alpha * old.exp() + 1 - alpha,
        isolate=lambda p: (p < eta) == (visits == 0),
        entropy_coefficient=0.1,
    )
    assert relative(got, wanted) < 5e-5
    assert 0.1 < recorded["token_weights/share_isolated"][0] < 0.9
    assert recorded["budget/pass"] == [visits + 1]


@pytest.mark.parametrize("method", ["sharpness", "sharpness-reverse", "advantage-reweighting"])
def test_rescaled_weights_have_mean_one(trained: Any, twins: Any, method: str) -> None:
    inputs = micro_batch(trained, True)
    weighting = token_weighting(method, rescale=True, **({} if method == "advantage-reweighting" else CONSTANTS))
    real = inputs["completion_mask"].bool()

    def weigh(h: Tensor, logps: Tensor, old: Tensor) -> Tensor:
        w = 0.2 * old.exp() + 0.8 if method == "advantage-reweighting" else oracle.sharpness(h, **CONSTANTS)
        w = 2.2 - w if method == "sharpness-reverse" else w
        return w / w[real].mean()

    got, recorded = gradient(trained, weighting, inputs, "dapo", 0.3)
    assert relative(got, expected(twins, inputs, "dapo", 0.3, weigh)) < 5e-5
    assert recorded["token_weights/mean"] == [pytest.approx(1, rel=1e-6)]


def test_a_matched_signal_uses_the_raw_logits_weights(trained: Any, twins: Any) -> None:
    inputs = micro_batch(trained, True)
    real = inputs["completion_mask"].bool()

    def weigh(h: Tensor, logps: Tensor, old: Tensor) -> Tensor:
        w = oracle.sharpness(h, **CONSTANTS)
        ordered = sorted(w[real].tolist())
        ranks = {value: i for i, value in enumerate(sorted(logps[real].tolist()))}
        w[real] = torch.tensor([ordered[ranks[value]] for value in logps[real].tolist()]).double()
        return w

    got, recorded = gradient(trained, token_weighting("sharpness-prob", match=True, **CONSTANTS), inputs, "dapo", 0.3)
    assert relative(got, expected(twins, inputs, "dapo", 0.3, weigh)) < 5e-5
    _, of_logits = gradient(trained, sharp(), inputs, "dapo", 0.3)
    for name in ("mean", "min", "max", "share_lower", "share_upper"):
        assert recorded[f"token_weights/{name}"] == pytest.approx(of_logits[f"token_weights/{name}"], rel=1e-9)
    assert recorded["token_weights/correlation"][0] > of_logits["token_weights/correlation"][0]


# --- whole runs -------------------------------------------------------------------------------------------------------


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
    model, sampler, reference = (oracle.double_precision(models.load("tiny-random")[0]) for _ in range(3))
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
    models.prepare("tiny-random")
    ranks = launch(tmp_path, script="weighting_script.py")
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
    from shared.trainer import TokenWeightedGRPOTrainer

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
    model = oracle.double_precision(models.load("tiny-random")[0])
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
