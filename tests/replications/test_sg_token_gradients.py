"""The experiment `token-gradients`: the closed form, gradients of single tokens, and what would make a check fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from grpo_replications.replications.grpo_sg import gradient_figures, token_gradients
from grpo_replications.replications.grpo_sg.settings import TokenGradientsSettings
from grpo_replications.replications.grpo_sg.token_gradients import (
    LEVELS,
    autograd_norms,
    backward_norms,
    complement,
    gradient_bounds,
    logit_checks,
    logit_gradient_norm,
    pooled_intervals,
    quartiles,
    spaced,
    spearman,
    summary,
    token_logits,
)
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.models import catalog

SETTINGS = {
    "model": "tiny-random",
    "completions": 2,
    "tokens_per_completion": 3,
    "max_new_tokens": 5,
    "low": 0,
    "high": 9,
    "system_message": "Answer briefly.",
}


def random_logits(seed: int = 0, count: int = 40, vocabulary: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 12 + 6 * torch.randn(count, vocabulary, generator=generator, dtype=torch.float64)
    return logits, torch.randint(vocabulary, (count,), generator=generator)


# --- the claim --------------------------------------------------------------------------------------------------------


def test_the_closed_form_is_the_norm_of_the_gradient_written_out() -> None:
    logits, tokens = random_logits()
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(axis=1, keepdims=True)
    gradient = np.eye(p.shape[1])[tokens.numpy()] - p
    expected = np.linalg.norm(gradient, axis=1)
    assert logit_gradient_norm(logits, tokens).numpy() == pytest.approx(expected, rel=1e-12)
    assert autograd_norms(logits, tokens).numpy() == pytest.approx(expected, abs=1e-14)


def test_one_minus_pi_loses_no_digit_near_one() -> None:
    logits = torch.tensor([[50.0, 0.0]], dtype=torch.float64)
    assert float(complement(logits, torch.tensor([0]))) == pytest.approx(np.exp(-50.0), rel=1e-12)


def test_bounds_are_reached_by_many_equal_rivals_and_by_a_single_one() -> None:
    token = torch.tensor([0])
    single = torch.tensor([[0.0, 3.0]], dtype=torch.float64)
    many = torch.zeros(1, 100_000, dtype=torch.float64)
    for logits, which in ((single, 1), (many, 0)):
        bounds = gradient_bounds(complement(logits, token))
        assert float(logit_gradient_norm(logits, token)) == pytest.approx(float(bounds[which]), rel=1e-4)


def test_the_checks_pass_on_the_truth_and_the_wrong_formulas_are_noticed() -> None:
    found = logit_checks(*random_logits())
    for name in ("norm_error", "weighted_norm_error", "lower_excess", "upper_excess", "weighted_upper_excess"):
        assert found[name] < 1e-12, name
    for name in ("control_no_square_root", "control_weight_left_out", "control_upper_without_sqrt2"):
        assert found[name] > 0.05, name


@pytest.mark.parametrize("broken", ["norm", "gate"])
def test_a_mistake_in_the_code_under_test_breaks_the_check(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    if broken == "norm":
        monkeypatch.setattr(token_gradients, "logit_gradient_norm", complement)
        assert logit_checks(*random_logits())["norm_error"] > 0.05
    else:  # a gate that lets the weights into the value alone
        monkeypatch.setattr(token_gradients, "gate_gradient", lambda logps, weights: logps + weights - weights.detach())
        assert logit_checks(*random_logits())["weighted_norm_error"] > 0.05


# --- gradients of single tokens ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> Any:
    return catalog.load("tiny-random")[0]


def test_backward_norms_are_those_of_a_plain_backward_pass(tiny: Any) -> None:
    prompt, completion, t = [5, 6, 7], [8, 9, 10, 11], 2
    found = backward_norms(tiny, prompt, completion, [0, t])
    tiny.zero_grad()
    ids = torch.tensor([prompt + completion])
    states = {}
    hooks = [
        tiny.model.layers[0].register_forward_hook(lambda _, __, out: states.__setitem__("middle", out)),
        tiny.model.norm.register_forward_hook(lambda _, __, out: states.__setitem__("last", out)),
    ]
    output = tiny(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    middle = states["middle"] if isinstance(states["middle"], torch.Tensor) else states["middle"][0]
    for state in (middle, states["last"]):
        state.retain_grad()
    output.logits[0, len(prompt) + t - 1].log_softmax(dim=0)[completion[t]].backward()
    parameters = torch.cat([p.grad.flatten() for p in tiny.parameters()]).norm()
    tiny.zero_grad()
    assert found["parameters"][1] == pytest.approx(float(parameters), rel=1e-4)
    assert found["hidden_last"][1] == pytest.approx(float(states["last"].grad.norm()), rel=1e-4)
    assert found["hidden_middle"][1] == pytest.approx(float(middle.grad.norm()), rel=1e-4)
    assert len(found["parameters"]) == 2 and all(p.grad is None for p in tiny.parameters())


def test_token_logits_are_the_models_own(tiny: Any) -> None:
    prompt, completion = (5, 6, 7), (8, 9)
    logits = token_logits(tiny, prompt, completion)
    with torch.no_grad():
        expected = tiny(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, 2:-1].double()
    assert logits.dtype == torch.float64 and torch.allclose(logits, expected, atol=1e-6)


def test_a_model_that_scales_its_logits_is_refused(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny.config, "logit_scale", 0.5, raising=False)
    with pytest.raises(ReplicationError, match="scales them afterwards"):
        token_logits(tiny, [5], [6])


# --- statistics -------------------------------------------------------------------------------------------------------


def made_up(count: int = 40, seed: int = 0) -> token_gradients.Columns:
    """Tokens whose parameter gradient is 1 - pi, and whose weight falls with it."""
    doubt = np.random.default_rng(seed).uniform(0.05, 1, count)
    return {
        "complement": doubt,
        "raw_logit": 30 - 10 * doubt,
        "weight": 1.4 - 0.4 * doubt,
        **dict.fromkeys(LEVELS, doubt),
    }


def test_quartiles_are_equal_in_size_and_start_with_the_least_probable() -> None:
    found = quartiles(np.array([0.9, 0.1, 0.5, 0.7, 0.2, 0.3, 0.8, 0.6]))
    assert found.tolist() == [4, 1, 2, 3, 1, 2, 4, 3]
    assert np.bincount(quartiles(np.full(40, 0.5)))[1:].tolist() == [10, 10, 10, 10]


def test_spearman_is_the_correlation_of_ranks_and_undefined_for_a_constant() -> None:
    assert spearman(np.array([1, 2, 3, 40]), np.array([2, 4, 8, 9])) == pytest.approx(1)
    assert spearman(np.array([1, 2, 3]), np.array([3, 2, 1])) == pytest.approx(-1)
    assert np.isnan(spearman(np.ones(5), np.arange(5)))


def test_the_summary_says_what_weights_do_to_shares_and_sums() -> None:
    tokens = made_up()
    found = summary(tokens)
    doubt, w = tokens["complement"], tokens["weight"]
    assert found["parameters_spearman"] == pytest.approx(1) and found["logit_probability_spearman"] == pytest.approx(1)
    assert sum(found[f"parameters_share_q{q}"] for q in range(1, 5)) == pytest.approx(1)
    assert sum(found[f"parameters_share_gain_q{q}"] for q in range(1, 5)) == pytest.approx(0)
    assert found["parameters_share_gain_q1"] < 0 < found["parameters_share_gain_q4"]
    assert (
        found["parameters_sum_raw"] == pytest.approx((w * doubt).sum() / doubt.sum())
        and found["parameters_sum_raw"] > 1
    )
    assert found["parameters_sum_mean1"] == pytest.approx(((w / w.mean()) * doubt).sum() / doubt.sum())
    assert found["parameters_log_ratio"] > 0
    constant = summary({**tokens, "weight": np.full(40, 1.4)})
    assert "weight_probability_spearman" not in constant and constant["parameters_sum_mean1"] == pytest.approx(1)


def test_pooled_intervals_resample_completions_and_contain_the_value() -> None:
    completions = [made_up(10, seed) for seed in range(8)]
    for name, (value, low, high) in pooled_intervals(completions, draws=50).items():
        assert low <= high, name
        if name.endswith("_norm_q1"):
            assert low <= value <= high
    equal = pooled_intervals([made_up(10, 1)] * 5, draws=20)
    assert equal["parameters_norm_q2"][1] == pytest.approx(equal["parameters_norm_q2"][2])


def test_spaced_positions_start_at_the_first_token_and_are_distinct() -> None:
    assert spaced(3, 5) == [0, 1, 2] and spaced(16, 4) == [0, 4, 8, 12]
    assert all(len(spaced(n, 7)) == 7 and max(spaced(n, 7)) < n for n in range(8, 30))


# --- the experiment ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("token-gradients")
    return token_gradients.token_gradients(TokenGradientsSettings(**SETTINGS), range(2), JobContext(directory / "job"))


def test_a_run_reports_every_seed_and_all_of_them_together(rows: list[dict[str, Any]]) -> None:
    own = {row["metric"]: row["value"] for row in rows if row.get("seed") == 1}
    assert own["norm_error"] < 1e-12 and own["weighted_norm_error"] < 1e-12 and own["tokens"] == 6
    assert {"parameters_log_ratio", "hidden_last_spearman", "logits_sum_mean1"} <= set(own)
    pooled = {row["metric"] for row in rows if "seed" not in row and "step" not in row}
    assert {"pooled_parameters_norm_q1", "pooled_parameters_norm_q1_low", "pooled_logits_share_gain_q4_high"} <= pooled
    assert len([row for row in rows if row["metric"] == "token_parameters"]) == 12
    assert all(np.isfinite(row["value"]) for row in rows)


def test_the_figure_is_drawn_from_measurements_and_left_out_without_them(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    frame = pd.DataFrame([{"experiment": "token-gradients", **row} for row in rows])
    figure = gradient_figures.token_gradients(frame)
    assert figure is not None and len(figure.axes) == 4
    figure.savefig(tmp_path / "figure.png")
    assert gradient_figures.token_gradients(frame.iloc[:0]) is None
