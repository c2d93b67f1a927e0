"""Token weights that follow the policy, inside TRL's loss: every place against an independent float64 formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_replications.shared.models import catalog
from grpo_replications.shared.theory.weighting import Weighting
from grpo_replications.shared.training.token_weights import token_weighting
from grpo_replications.shared.training.weighted_loss import WeightedLoss
from tests.shared.training import grpo_oracle as oracle
from tests.shared.training.test_trainer import TOKENS, make_trainer, relative

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
    model, reference = (oracle.double_precision(catalog.load("tiny-random")[0]) for _ in range(2))
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
