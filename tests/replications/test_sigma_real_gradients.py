"""The identity on real gradients: it holds on TRL's update, and a wrong prediction is caught."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from grpo_replications.replications.sigma_identity import (
    beyond_theorem,
    real_figures,
    real_gradients,
    score_gradients,
    trl_updates,
)
from grpo_replications.replications.sigma_identity.score_gradients import Rollout
from grpo_replications.replications.sigma_identity.settings import BeyondTheoremSettings, RealGradientsSettings
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.theory.groups import dr_grpo_advantages, grpo_advantages

SETTINGS: dict[str, Any] = {
    "model": "tiny-random",
    "precision": "float64",
    "reward": "parity",
    "prompts": 3,
    "group_size": 4,
    "micro_batch": 4,
    "max_new_tokens": 24,
    "loss_type": "grpo",
    "scale_rewards": "group",
    "lr": 1024.0,
    "low": 0,
    "high": 99,  # prompts of different lengths: the trainer pads, the scores do not
    "system_message": "Answer briefly.",
}
BEYOND = {**SETTINGS, "max_new_tokens": 12, "lr": 0.3, "steps": 1, "num_iterations": 1, "beta": 0.0}


@pytest.fixture
def context(tmp_path: Path) -> JobContext:
    return JobContext(tmp_path / "job")


def one_step(context: JobContext, **changes: Any) -> dict[str, float]:
    torch.manual_seed(0)
    rows = real_gradients.real_gradients(RealGradientsSettings(**{**SETTINGS, **changes}), 0, context)
    assert len({row["metric"] for row in rows}) == len(rows)
    return {row["metric"]: row["value"] for row in rows}


def by_step(context: JobContext, **changes: Any) -> dict[int, dict[str, float]]:
    torch.manual_seed(0)
    found: dict[int, dict[str, float]] = {}
    for row in beyond_theorem.beyond_theorem(BeyondTheoremSettings(**{**BEYOND, **changes}), 0, context):
        found.setdefault(row["step"], {})[row["metric"]] = row["value"]
    return found


# --- the identity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss_type", "scale_rewards"), [("grpo", "group"), ("dapo", "none"), ("dr_grpo", "group")])
def test_the_prediction_is_trls_update_in_float64(context: JobContext, loss_type: str, scale_rewards: str) -> None:
    found = one_step(context, loss_type=loss_type, scale_rewards=scale_rewards)
    assert found["mixed_groups"] >= 2 and found["shortest_tokens"] < found["mean_tokens"]
    assert found["error"] < 1e-12 and found["step_rounding"] < 1e-12
    assert found["cosine"] == pytest.approx(1) and found["norm_ratio"] == pytest.approx(1)
    assert found["error_other_loss"] > 1e-2 and found["error_misprint"] > 0.1
    if scale_rewards == "group":
        assert found["error_paper"] > 0.02 and found["error_no_epsilon"] > 1e-5
        assert found["paper_factor"] == pytest.approx(math.sqrt(3 / 4), abs=1e-3)
    else:
        assert found["error_paper"] < 1e-12 and "error_no_epsilon" not in found


def test_the_trainer_as_it_comes_agrees_in_float32(context: JobContext) -> None:
    found = one_step(context, precision="float32", loss_type="dapo")
    assert 1e-12 < found["error"] < 1e-5 and found["step_rounding"] < 1e-6


def test_a_wrong_factor_is_caught(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    right, factor = score_gradients.sigma, 1.001
    monkeypatch.setattr(score_gradients, "sigma", lambda k, size: factor * right(k, size))
    found = one_step(context, scale_rewards="none")
    assert found["error"] == pytest.approx(abs(1 - factor**2), rel=1e-6)
    assert found["cosine"] == pytest.approx(1) and found["norm_ratio"] == pytest.approx(factor**-2)


def test_completions_in_the_wrong_group_are_caught(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    right = trl_updates._rollouts

    def shifted(*args: Any) -> list[Rollout]:
        return [Rollout(r.prompts, r.completions[1:] + r.completions[:1], r.rewards) for r in right(*args)]

    monkeypatch.setattr(trl_updates, "_rollouts", shifted)
    assert one_step(context)["error"] > 1e-2


def test_silent_groups_move_nothing(context: JobContext) -> None:
    found = one_step(context, reward="constant", precision="float32")
    assert found["update_norm"] == 0.0 and found["mixed_groups"] == 0 and "error" not in found


def test_the_seed_is_used(context: JobContext) -> None:
    settings = RealGradientsSettings(**{**SETTINGS, "max_new_tokens": 4})
    first = real_gradients.real_gradients(settings, 0, context)
    assert first != real_gradients.real_gradients(settings, 1, context)


# --- where it stops ---------------------------------------------------------------------------------------------------


def test_partial_credit_breaks_the_identity_and_not_the_general_form(context: JobContext) -> None:
    two = by_step(context, reward="levels", levels=2)[0]
    assert two["break"] < 1e-12 and "estimate_ratio" not in two
    many = by_step(context, reward="levels", levels=5)[0]
    assert many["residual"] < 1e-12 and many["break"] > 0.05
    assert many["break"] == pytest.approx(many["predicted_break"], rel=1e-9)
    assert 0.3 < many["estimate_ratio"] < 3


def test_a_second_update_needs_ratios_and_clipping(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"steps": 2, "num_iterations": 2, "loss_type": "dapo", "lr": 3.0}
    found = by_step(context, **changes)
    assert found[0]["break"] < 1e-12 and found[0]["clipped_share"] == 0
    assert found[1]["clipped_share"] > 0 and found[1]["break"] > 1e-2 and found[1]["residual"] < 1e-10
    monkeypatch.setattr(beyond_theorem, "is_clipped", lambda ratio, _: torch.zeros_like(ratio, dtype=torch.bool))
    assert by_step(context, **changes)[1]["residual"] > 1e-3


def test_kl_is_nothing_at_the_reference_and_breaks_the_identity_from_there(context: JobContext) -> None:
    found = by_step(context, steps=3, beta=0.5, scale_rewards="none")
    assert found[0]["break"] < 1e-12
    assert found[1]["break"] > 1e-3 and found[2]["break"] > 1e-3
    assert all(values["residual"] < 1e-10 for values in found.values())


# --- the pieces -------------------------------------------------------------------------------------------------------


def test_identity_weights_are_the_advantages() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(2, (40, 5), generator=generator).double()
    rewards[0], rewards[1] = 0.0, 1.0
    for form, advantages in (
        ("grpo", grpo_advantages(rewards, ddof=0, eps=0.0)),
        ("dr-grpo", dr_grpo_advantages(rewards)),
        ("trl-group", grpo_advantages(rewards)),
        ("no-epsilon", grpo_advantages(rewards, eps=0.0)),
    ):
        weights = score_gradients.identity_weights(rewards, form).view(40, 5)
        assert torch.allclose(weights, advantages / 200, rtol=1e-12, atol=0)
        assert not weights[:2].any()
    with pytest.raises(ValueError, match="0 and 1"):
        score_gradients.identity_weights(rewards / 2, "grpo")


def test_gains_by_hand() -> None:
    k = torch.tensor([2.0])
    s = math.sqrt(12) / 8
    assert float(score_gradients.identity_gain(k, 8, "grpo")) == pytest.approx(s)
    assert float(score_gradients.identity_gain(k, 8, "misprint")) == pytest.approx(math.sqrt(1.5))
    trl = s**2 / (s * math.sqrt(8 / 7) + 1e-4)
    assert float(score_gradients.identity_gain(k, 8, "trl-group")) == pytest.approx(trl)


def test_normalizers_by_hand() -> None:
    lengths = torch.tensor([2.0, 4.0])
    expected = {"grpo": [0.5, 0.25], "dapo": [1 / 3, 1 / 3], "dr_grpo": [0.1, 0.1]}
    for loss_type, values in expected.items():
        assert score_gradients.score_normalizers(lengths, loss_type, 10).tolist() == pytest.approx(values)


def test_which_tokens_are_clipped() -> None:
    ratio = torch.tensor([0.7, 0.9, 1.1, 1.3])
    for advantage, expected in ((1.0, [0, 0, 0, 1]), (-1.0, [1, 0, 0, 0])):
        assert score_gradients.is_clipped(ratio, torch.tensor(advantage)).int().tolist() == expected


def test_scores_are_gradients_of_log_probabilities() -> None:
    policy, _ = score_gradients.load_policy("tiny-random", "float64")
    rollout = Rollout([[5, 6], [7]], [[8, 9, 0], [10, 11]], torch.tensor([[1.0, 0.0]]))
    weights = [torch.tensor([1.0, 2.0, 0.0]), torch.tensor([-1.0, 0.5])]
    found = score_gradients.weighted_score(policy, rollout, weights)
    value = torch.zeros((), dtype=torch.float64)
    for prompt, completion, w in zip(rollout.prompts, rollout.completions, weights, strict=True):
        logps = policy(input_ids=torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        for t, token in enumerate(completion):
            value = value + w[t] * logps[len(prompt) - 1 + t, token]
    expected = torch.autograd.grad(value, list(policy.parameters()))
    assert all(torch.allclose(x, y, rtol=1e-10, atol=1e-14) for x, y in zip(found, expected, strict=True))
    assert all(p.grad is None for p in policy.parameters())


def test_agreement_by_hand() -> None:
    def pair(*values: float) -> list[Tensor]:
        return [torch.tensor(values[:1]), torch.tensor(values[1:])]

    found = score_gradients.agreement(pair(3.0, 4.0), pair(3.0, 0.0))
    assert (found.error, found.cosine, found.norm) == pytest.approx((0.8, 0.6, 5.0))
    assert found.norm_ratio == pytest.approx(5 / 3)
    zero = score_gradients.agreement(pair(0.0, 0.0), pair(0.0, 0.0))
    assert zero.error == zero.norm == 0.0 and math.isnan(zero.cosine)
    assert score_gradients.agreement(pair(0.0, 0.0), pair(1.0, 0.0)).error == math.inf


def test_made_up_rewards() -> None:
    assert trl_updates.level_reward(3)([[0], [1], [2], [1, 2]]) == [0.0, 0.5, 1.0, 0.0]
    answers = ["12", "12", "12", "12", "12"]
    texts = ["It is 12", "22", "112", "none", "1.2"]
    assert trl_updates.digit_credit(texts, answers) == pytest.approx([1, 0.5, 2 / 3, 0, 1 / 3])


# --- figures ----------------------------------------------------------------------------------------------------------


def frame(experiment: str, rows: list[dict[str, Any]], **settings: Any) -> pd.DataFrame:
    columns = {"experiment": experiment, "seed": 0, "step": np.nan, **settings}
    return pd.DataFrame([{**columns, **row} for row in rows])


def test_figures_from_measurements_and_none_without(context: JobContext) -> None:
    rows = real_gradients.real_gradients(RealGradientsSettings(**{**SETTINGS, "max_new_tokens": 4}), 0, context)
    varying = {key: SETTINGS[key] for key in ("loss_type", "scale_rewards", "precision", "reward", "group_size")}
    measured = frame("real-gradients-small", rows, **varying)
    assert real_figures.real_gradients(measured) is not None
    assert real_figures.real_gradients(measured[measured["metric"] == "groups"]) is None
    assert real_figures.real_gradients(pd.DataFrame({"experiment": [], "metric": []})) is None
    parts = []
    for reward, changes in (
        ("levels", {"levels": 3}),
        ("parity", {"num_iterations": 2, "steps": 2}),
        ("parity", {"beta": 0.1, "steps": 2}),
    ):
        settings = {**BEYOND, "max_new_tokens": 4, "reward": reward, **changes}
        rows = beyond_theorem.beyond_theorem(BeyondTheoremSettings(**settings), 0, context)
        keys = ("reward", "levels", "num_iterations", "steps", "lr", "beta")
        parts.append(frame("beyond-theorem-small", rows, **{k: settings[k] for k in keys if k in settings}))
    broken = pd.concat(parts)
    assert real_figures.beyond_theorem(broken) is not None
    large = broken.assign(experiment="beyond-theorem")
    assert real_figures.beyond_theorem(pd.concat([broken, large])) is not None
    assert real_figures.beyond_theorem(large) is None
