"""Many small transformers at once: weights that are what they are called, and metrics that mean what they say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_replications.replications.grpo_sg.embedded_batches import same_batch_embedded, weightings
from grpo_replications.replications.grpo_sg.many_same_batch import degrees, many_same_batch, part_of, spikes, tail
from grpo_replications.replications.grpo_sg.many_training import at_level, many_training
from grpo_replications.replications.grpo_sg.many_weights import FittedSharpness, fitted_taus, weighting
from grpo_replications.replications.grpo_sg.settings import ManyTrainingSettings, SameBatchSettings, SampledGroups
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.models.many_transformers import SeedStreams
from grpo_replications.shared.theory.confidence_weights import matched_weights, sharpness_weights
from grpo_replications.shared.theory.weighting import TokenBatch
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, placed_weights, run_norms
from grpo_replications.synthetic import digit_runs
from grpo_replications.synthetic.digit_runs import PromptSupply, rollout_of
from grpo_replications.synthetic.digit_sums import Reward, is_held_out, starts
from tests.synthetic.test_digit_sums import START

SIZES = {**START, "prompts_per_step": 4, "group_size": 4, "rollouts": 4}
TRAIN = {**SIZES, "lr": 5e-4, "look_every": 2, "held_out": 16, "train_level": 0.3}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_CACHE", str(cache))


def batch(runs: int = 2, rows: int = 3, tokens: int = 5) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    raw = 6 * torch.randn(runs * rows, tokens, generator=generator).double()
    logps = -torch.rand(runs * rows, tokens, generator=generator).double()
    mask = torch.arange(tokens) < torch.randint(2, tokens + 1, (runs * rows, 1), generator=generator)
    return TokenBatch(logps, logps, raw, None, mask, torch.zeros(runs * rows))


def test_each_run_has_its_own_tau() -> None:
    given, taus = batch(), (2.0, 4.0)
    found = FittedSharpness(taus=taus).weights(given)
    reverse = FittedSharpness(taus=taus, reverse=True).weights(given)
    by_logp = FittedSharpness(taus=taus, signal="logprob").weights(given)
    for s, tau in enumerate(taus):
        rows = slice(3 * s, 3 * s + 3)
        own, mask = sharpness_weights(given.raw_logits[rows], tau=tau), given.mask[rows]
        torch.testing.assert_close(found[rows][mask], own[mask])
        torch.testing.assert_close(reverse[rows][mask], 2.4 - own[mask])
        torch.testing.assert_close(by_logp[rows][mask], matched_weights(given.logps[rows][mask], own[mask]))


def test_contrast_multiplies_deviations_from_the_mean_and_no_weight_is_negative() -> None:
    given, taus = batch(), (2.0, 4.0)

    def placed(contrast: float) -> Tensor:
        return placed_weights(weighting("sharpness", taus, contrast), given, 2).advantage

    mask = given.mask.view(2, 3, 5)
    one, two, large = (placed(contrast) for contrast in (1.0, 2.0, 100.0))
    for s in range(2):
        assert all(float(weights[s][mask[s]].mean()) == pytest.approx(1) for weights in (one, two, large))
        torch.testing.assert_close(two[s][mask[s]] - 1, 2 * (one[s][mask[s]] - 1))
        assert float(large[s][mask[s]].min()) == 0


def test_tau_puts_half_of_the_starts_tokens_at_the_upper_bound() -> None:
    models = starts(START, [3, 8])
    taus = fitted_taus(models, [3, 8], START["terms"])
    assert taus[0] != taus[1] and fitted_taus(starts(START, [8]), [8], START["terms"]) == taus[1:]
    rollout = rollout_of(models, PromptSupply([3, 8], 2).next(64), SeedStreams([3, 8], 5).uniforms(64, 8, 2), Reward())
    raw = rollout.logits(models).gather(4, rollout.completions.unsqueeze(4)).flatten(1)
    for s, tau in enumerate(taus):
        assert float((sharpness_weights(raw[s], tau=tau) >= 1.4 - 1e-9).double().mean()) == pytest.approx(0.5, abs=0.06)


def test_fixed_training_problems_are_few_and_never_measure() -> None:
    supply = PromptSupply([3, 8], 2, fixed_count=6)
    drawn = torch.cat([supply.next(4) for _ in range(20)], dim=1)
    for s in range(2):
        assert {tuple(p) for p in drawn[s].tolist()} <= {tuple(p) for p in supply.fixed[s].tolist()}
    assert not is_held_out(supply.fixed[..., :-1].numpy()).any()
    assert torch.equal(PromptSupply([8], 2, fixed_count=6).next(4)[0], drawn[1, :4])


def by_seed(rows: list[Row], seed: int) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in rows if row["seed"] == seed and "step" not in row}


def test_rows_of_training(tmp_path: Path) -> None:
    def run(seeds: range, **changes: Any) -> list[Row]:
        settings = ManyTrainingSettings.model_validate({**TRAIN, "method": "grpo", **changes})
        return many_training(settings, seeds, JobContext(tmp_path / "job"))

    both = run(range(3, 5), train_problems=8, curves=True)
    assert by_seed(run(range(4, 5), train_problems=8), 4) == by_seed(both, 4)
    found = by_seed(both, 4)
    assert found["final_gap"] == pytest.approx(found["final_train_rate"] - found["final_solve_rate"], abs=2e-6)
    assert {row["metric"] for row in both if "step" in row} == {"solve_rate", "train_rate"}
    assert "final_gap" not in by_seed(run(range(4, 5)), 4)
    start = found["start_solve_rate"]
    for method, contrast in (("sharpness", 4.0), ("advantage-reweighting", 1.0), ("lopti", 1.0), ("80/20", 1.0)):
        other = by_seed(run(range(4, 5), train_problems=8, method=method, contrast=contrast), 4)
        assert other["start_solve_rate"] == start and other["final_train_rate"] != found["final_train_rate"]


def test_more_seeds_than_a_stack_holds_change_no_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ManyTrainingSettings.model_validate({**TRAIN, "method": "sharpness", "contrast": 4.0})
    together = many_training(settings, range(3, 5), JobContext(tmp_path / "job"))
    monkeypatch.setattr(digit_runs, "_SEEDS_PER_STACK", 1)
    assert many_training(settings, range(3, 5), JobContext(tmp_path / "job")) == together


def test_the_rate_at_a_common_level_is_interpolated() -> None:
    guide = np.array([[0.1, 0.5], [0.3, 0.6], [0.5, 0.7]])
    values = np.array([[0.0, 1.0], [0.2, 2.0], [0.6, 3.0]])
    assert at_level(values, guide, 0.4).tolist() == pytest.approx([0.4, 1.0])
    assert np.isnan(at_level(values, guide, 0.55)[0])


def test_rows_of_the_same_batch(tmp_path: Path) -> None:
    settings = SameBatchSettings.model_validate({**SIZES, "lr": 1e-3})
    found = by_seed(many_same_batch(settings, range(3, 5), JobContext(tmp_path / "job")), 4)
    alone = by_seed(many_same_batch(settings, range(4, 5), JobContext(tmp_path / "job")), 4)
    assert found == pytest.approx(alone, abs=2e-6)
    assert found["norm_ratio/sharpness"] < 1 < found["norm_ratio/sharpness-reverse"]
    raw = found["norm_ratio/sharpness-raw"] / found["norm_ratio/sharpness"]
    assert 1 < raw < 1.4  # the mean of weights between 1 and 1.4
    assert 0 < found["angle/sharpness"] < 45 < found["angle/halves"] < 180
    smaller, larger = (found[f"norm_ratio/advantage-reweighting{alpha}"] for alpha in ("-0.3", ""))
    assert smaller < larger < 1


def test_gradients_of_the_halves_add_up_to_that_of_the_batch() -> None:
    models = starts(START, [3])
    run = ManyRuns(models, Objective(), 1e-4)
    rollout = rollout_of(models, PromptSupply([3], 2).next(4), SeedStreams([3], 5).uniforms(4, 8, 2), Reward())
    whole = run.gradients(rollout)
    halves = [run.gradients(part_of(rollout, rows)) for rows in (slice(2), slice(2, None))]
    mean = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
    assert float(run_norms([a - b for a, b in zip(whole, mean, strict=True)])) < 1e-5 * float(run_norms(whole))


def test_angles_tails_and_spikes() -> None:
    one, other = [torch.tensor([[1.0, 0.0]])], [torch.tensor([[1.0, 1.0]])]
    assert float(degrees(one, other)) == pytest.approx(45)
    assert math.isnan(float(degrees(one, [torch.zeros(1, 2)])))
    norms = np.array([1.0] * 50 + [1.1] * 48 + [5.0, 6.0])
    assert spikes(norms) == 2 and tail(norms) > 4


def test_rows_of_the_embedded_models_groups(tmp_path: Path) -> None:
    settings = SampledGroups(
        model="tiny-random",
        prompts=3,
        group_size=4,
        max_new_tokens=6,
        low=0,
        high=9,
        system_message="Answer briefly.",
        reward="parity",
    )
    rows = same_batch_embedded(settings, 0, JobContext(tmp_path / "job"))
    found = {row["metric"]: row["value"] for row in rows}
    # The raw logits of a random model are small: every weight is L, and at mean 1 that is plain GRPO.
    assert found["norm_ratio/sharpness"] == pytest.approx(1, abs=1e-6) and found["angle/sharpness"] < 0.1
    assert 0 < found["angle/advantage-reweighting"] < found["angle/advantage-reweighting-0.3"] < found["angle/groups"]
    assert found["mixed_groups"] >= 2
    raw, logp = np.array([5.0, 20.0, 30.0]), np.log([0.1, 0.5, 0.9])
    assert all(weights.mean() == pytest.approx(1) for weights in weightings(raw, logp).values())
