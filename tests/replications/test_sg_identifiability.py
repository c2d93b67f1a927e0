"""The experiment `identifiability`: shifted heads, weights that move with them, and the gradients that follow."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from torch import Tensor
from trl.trainer.utils import add_fused_lm_head

from grpo_replications.replications.grpo_sg import gradient_figures, identifiability
from grpo_replications.replications.grpo_sg.identifiability import (
    Group,
    GroupGradient,
    effect,
    gradient_rows,
    group_logps,
    inert_signals,
    inner,
    shift_head,
    total_variation,
    weight_rows,
    weight_shares,
)
from grpo_replications.replications.grpo_sg.settings import IdentifiabilitySettings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.precision import in_float64, with_exact_rotary
from grpo_replications.shared.training.raw_logits import watching_selected_logits
from grpo_replications.shared.training.token_weights import matched_weights, sharpness_weights

SETTINGS = {
    "model": "tiny-random",
    "prompts": 2,
    "group_size": 4,
    "max_new_tokens": 5,
    "low": 0,
    "high": 9,
    "system_message": "Answer briefly.",
    "reward": "parity",
    "shifts": [-10, 10, 20],
    "scales": [2.0],
    "gradient_shifts": [18],
    "gradient_scales": [2.0],
}
GROUP = Group((5, 6, 7), [(8, 9, 10), (11,), (12, 13), (8, 14, 15)], np.array([1.0, 0.0, 0.0, 1.0]))


def exact_tiny() -> Any:
    """The tiny model in float64 with embeddings large enough that its logits differ."""
    model = with_exact_rotary(in_float64(copy.deepcopy(catalog.load("tiny-random")[0]).double()))
    with torch.no_grad():
        model.get_input_embeddings().weight *= 60
    return model


# --- the shifted head -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [-20.0, 7.5, 20.0])
def test_a_shifted_head_keeps_the_policy_and_its_gradient_and_moves_raw_logits(c: float) -> None:
    plain, shifted = exact_tiny(), shift_head(exact_tiny(), c)
    results = []
    for model in (plain, shifted):
        logps, raw, mask = group_logps(model, GROUP)
        parameters = [p for p in model.parameters() if p.requires_grad]
        results.append((logps[mask], raw[mask], torch.autograd.grad(logps[mask].sum(), parameters)))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-12)
    assert torch.allclose(results[0][1] + c, results[1][1], atol=1e-12)
    assert len(results[0][2]) == len(results[1][2])
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(results[0][2], results[1][2], strict=True))


def test_trls_fused_head_and_the_raw_logits_of_the_trainer_see_the_shift() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 7, 11, 12, 13]])
    results = []
    for c in (0.0, 15.0):
        model = shift_head(copy.deepcopy(catalog.load("tiny-random")[0]), c)
        add_fused_lm_head(model)
        labels = ids.clone()
        labels[:, :3] = -100
        with watching_selected_logits(model, ids[:, 3:]) as found:
            output = model(input_ids=ids, labels=labels, fused_lm_head=True)
        output.loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
        results.append((output.log_probs.detach(), found[0], gradient))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-5)
    assert torch.allclose(results[0][1] + 15, results[1][1], atol=1e-5)
    assert torch.allclose(results[0][2], results[1][2], atol=1e-5)


def test_shifts_add_up_and_train_nothing() -> None:
    model = copy.deepcopy(catalog.load("tiny-random")[0])
    before = sum(p.numel() for p in model.parameters() if p.requires_grad)
    embedding = model.get_input_embeddings().weight
    assert shift_head(shift_head(model, 4.0), -1.5) is model
    assert torch.equal(model.get_output_embeddings().bias, torch.full_like(embedding[:, 0], 2.5))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == before
    assert model.get_output_embeddings().weight is embedding, "a tied head stays tied"


def small(**changes: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "pad_token_id": 0}
    return {**sizes, "num_attention_heads": 2, "num_key_value_heads": 1, **changes}


def test_a_scaled_head_is_shifted_by_the_constant_and_a_soft_capped_one_is_refused() -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.CohereConfig(**small(logit_scale=0.25))).eval()
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        assert torch.allclose(shift_head(model, 8.0)(input_ids=ids).logits, before + 8.0, atol=1e-5)
    capped = transformers.Gemma2Config(**small(head_dim=8, final_logit_softcapping=2.0))
    with pytest.raises(ReplicationError, match="without a soft cap"):
        shift_head(transformers.AutoModelForCausalLM.from_config(capped), 1.0)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_shares_and_total_variation_treat_the_bounds_as_values_of_their_own() -> None:
    w = np.array([1.0, 1.0, 1.2, 1.4])
    assert weight_shares(w) == {"share_lower": 0.5, "share_upper": 0.25, "share_between": 0.25}
    assert total_variation(w, w[::-1]) == 0 and total_variation(np.ones(3), np.full(5, 1.4)) == 1
    assert total_variation(np.ones(4), np.full(4, 1.0001)) == 1, "at the bound is not beside it"
    assert total_variation(w, np.array([1.0, 1.2, 1.2, 1.4])) == pytest.approx(0.25)


def test_weight_rows_say_how_weights_move() -> None:
    raw = np.linspace(12, 24, 30)
    logp = -np.linspace(3, 0.1, 30)
    found = weight_rows(raw, logp, [-20, 0, 20], [2.0])
    w = sharpness_weights(raw)
    assert found["weight_change_shift_0"] == found["variation_shift_0"] == 0
    assert found["share_lower_shift_-20"] == 1 and found["share_upper_shift_20"] == 1
    assert found["weight_change_shift_-20"] == pytest.approx((w - 1).mean())
    assert found["weight_change_scale_2"] == pytest.approx(np.abs(sharpness_weights(2 * raw) - w).mean())
    assert found["matched_weight_change"] == pytest.approx(0), "the same order gets the same weights"
    assert found["spearman_logit_logprob"] == pytest.approx(1)
    for shift, bound in ((found["shift_to_all_lower"], 1.0), (found["shift_to_all_upper"], 1.4)):
        assert np.allclose(sharpness_weights(raw + shift), bound, atol=1e-12)
    assert sharpness_weights(raw + found["shift_to_all_lower"] + 0.1).max() > 1


def test_probability_and_log_probability_give_every_token_the_weight_one_and_the_raw_logit_does_not() -> None:
    raw = np.array([5.0, 12.0, 20.0])
    found = inert_signals(raw, np.array([-0.1, -3.0, -40.0]))
    assert found["probability_weight_deviation"] == found["logprob_weight_deviation"] == 0
    assert found["probability_above_0.56"] == found["logprob_above_0.5"] == 0
    assert found["control_logit_weight_deviation"] == pytest.approx(float(sharpness_weights(12.0)) - 1)
    assert found["weight_at_logit_10"] == pytest.approx(1.005, abs=5e-4) and found["weight_at_logit_30"] == 1.4


def test_another_temperature_of_the_formula_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        identifiability, "sharpness_weights", lambda signal, **options: sharpness_weights(signal, tau=0.5, **options)
    )
    found = inert_signals(np.array([12.0]), np.array([-0.1]))
    assert found["probability_weight_deviation"] > 0.1 and found["probability_above_0.56"] > 0.1


# --- gradients --------------------------------------------------------------------------------------------------------


def by_completion(model: Any, weights: list[Tensor]) -> list[Tensor]:
    """The weighted GRPO gradient of `GROUP`, one unpadded forward pass per completion."""
    advantage = (GROUP.rewards - GROUP.rewards.mean()) / (GROUP.rewards.std(ddof=1) + 1e-4)
    total, tokens = 0.0, sum(map(len, GROUP.completions))
    for completion, w, a in zip(GROUP.completions, weights, advantage, strict=True):
        logits = model(input_ids=torch.tensor([[*GROUP.prompt, *completion]])).logits[0, len(GROUP.prompt) - 1 : -1]
        logps = logits.log_softmax(dim=1).gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
        total = total + float(a) * (w * logps).sum() / tokens
    return list(torch.autograd.grad(total, list(model.parameters())))


def test_the_group_gradient_is_that_of_each_completion_by_itself() -> None:
    model = exact_tiny()
    w = torch.rand(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = GroupGradient(model, GROUP)(w.numpy())
    expected = by_completion(model, list(w.split([3, 1, 2, 3])))
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(found, expected, strict=True))


def test_inner_products_are_sums_over_all_parameters() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = ([torch.randn(shape, generator=generator) for shape in ((300, 300), (7,))] for _ in range(2))
    expected = sum(float((a.double() * b.double()).sum()) for a, b in zip(x, y, strict=True))
    assert inner(x, y) == pytest.approx(expected, rel=1e-4)


def test_effects_are_measured_in_units_of_the_whole_method() -> None:
    model = shift_head(exact_tiny(), 15.0)
    gradient = GroupGradient(model, GROUP)
    assert np.ptp(sharpness_weights(gradient.raw)) > 0.01, "weights must differ, or nothing is tested"
    found = gradient_rows(gradient, [-200, 0, 5], [1.5])
    assert found["effect_shift_-200"] == pytest.approx(1), "weights all at the lower bound are plain GRPO"
    assert found["effect_shift_0"] == pytest.approx(0, abs=1e-3)
    assert found["cosine_shift_-200"] == found["cosine_plain"] < 1
    w = sharpness_weights(gradient.raw)
    matched = matched_weights(torch.from_numpy(gradient.logp), torch.from_numpy(w)).numpy()
    g, h, plain = (torch.cat([x.flatten() for x in gradient(v)]) for v in (w, matched, np.ones_like(w)))
    assert found["cosine_matched"] == pytest.approx(float(torch.cosine_similarity(g, h, dim=0)), abs=1e-9)
    assert found["norm_ratio_raw"] == pytest.approx(float(g.norm() / plain.norm()), rel=1e-9)
    assert found["norm_ratio_mean1"] == pytest.approx(float(g.norm() / plain.norm()) / w.mean(), rel=1e-9)


def test_an_effect_without_a_method_is_undefined() -> None:
    assert np.isnan(effect(1.0, 1.0)) and effect(0.98, 0.98) == pytest.approx(1)


# --- the experiment ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return identifiability.identifiability(
        IdentifiabilitySettings(**SETTINGS), 0, JobContext(tmp_path_factory.mktemp("ident") / "job")
    )


def test_a_run_reports_policy_weights_signals_and_gradients(rows: list[dict[str, Any]]) -> None:
    values = {row["metric"]: row["value"] for row in rows}
    assert values["policy_change"] < 1e-4 and values["raw_shift_error"] < 1e-4 and values["groups"] >= 2
    assert values["share_lower"] == 1, "the raw logits of the tiny model lie near 0"
    assert values["weight_change_shift_20"] > 0.2 and values["share_lower_shift_20"] == 0
    assert values["cosine_shift_18"] < 1 and values["cosine_scale_2"] == values["cosine_plain"]
    assert all(np.isfinite(row["value"]) for row in rows)


def test_a_model_that_gets_nothing_right_ends_in_a_clear_error(tmp_path: Path) -> None:
    settings = {**SETTINGS, "reward": "addition", "prompts": 1, "group_size": 2, "max_new_tokens": 1}
    settings |= {"low": 90, "high": 99}
    with pytest.raises(ReplicationError, match="groups were silent"):
        identifiability.identifiability(IdentifiabilitySettings(**settings), 0, JobContext(tmp_path / "job"))


def test_the_figure_is_drawn_from_measurements_and_left_out_without_them(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    frame = pd.DataFrame([{"experiment": "identifiability", "seed": 0, **row} for row in rows])
    figure = gradient_figures.identifiability(frame)
    assert figure is not None and len(figure.axes) == 3
    figure.savefig(tmp_path / "figure.png")
    assert gradient_figures.identifiability(frame.iloc[:0]) is None
