"""The experiment `sharpness-bound`: exact losses of small policies, the terms of the bound, and training."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from grpo_replications.replications.grpo_sg import bound, gradient_figures
from grpo_replications.replications.grpo_sg.bound import (
    Draws,
    Population,
    complexity_term,
    draw_population,
    rank_correlations,
    sharpness,
    surrogate,
    weighted_gradient_norms,
)
from grpo_replications.replications.grpo_sg.settings import BoundSettings
from grpo_replications.replications.grpo_sg.small_policy import START, AdditionPolicies, digits_of_sums, gradients
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.training.token_weights import sharpness_weights

POLICIES = AdditionPolicies(base=3, hidden=4, noise=0.5, shift=12.0)
SETTINGS = {
    "method": "sharpness",
    "labels": "sums",
    "train_size": 10,
    "replicates": 4,
    "base": 5,
    "hidden": 6,
    "noise": 0.3,
    "head_shift": 10.0,
    "steps": 6,
    "lr": 0.02,
    "prompts_per_step": 4,
    "group_size": 4,
    "checkpoints": [0, 6],
    "radii": [0.001, 5.0],
}


def parameters(count: int = 2, seed: int = 0) -> torch.Tensor:
    return POLICIES.initial(count, torch.Generator().manual_seed(seed))


def population(labels: str = "sums", size: int = 4, replicates: int = 2) -> Population:
    return draw_population(3, size, labels, range(1), replicates)


def distribution(theta: torch.Tensor, policy: int, a: int, b: int) -> dict[tuple[int, int], float]:
    """Probability of every completion of a + b, one forward pass per prefix."""
    probabilities = {}
    for first, second in itertools.product(range(10), repeat=2):
        total = 1.0
        for previous, token in ((START, first), (first, second)):
            index = [torch.tensor([value]) for value in (a, b, previous)]
            total *= float(POLICIES.logits(theta, *index)[policy, 0].softmax(dim=0)[token])
        probabilities[first, second] = total
    return probabilities


# --- policies ---------------------------------------------------------------------------------------------------------


def test_solve_rates_are_probabilities_of_the_right_completion() -> None:
    theta = parameters()
    rates = POLICIES.solve_rates(theta, digits_of_sums(3))
    for policy, (place, (a, b)) in itertools.product(range(2), enumerate(itertools.product(range(3), repeat=2))):
        every = distribution(theta, policy, a, b)
        assert sum(every.values()) == pytest.approx(1)
        assert float(rates[policy, place]) == pytest.approx(every[divmod(a + b, 10)], rel=1e-12)


def test_a_shift_of_the_logits_changes_no_solve_rate() -> None:
    plain = AdditionPolicies(base=3, hidden=4, noise=0.5)
    theta, digits = parameters(), digits_of_sums(3)
    assert torch.allclose(plain.solve_rates(theta, digits), POLICIES.solve_rates(theta, digits), atol=1e-14)


def test_gradients_of_one_policy_do_not_depend_on_the_others() -> None:
    theta, own = parameters().requires_grad_(), parameters()[:1].requires_grad_()
    mask = torch.ones(2, 9, dtype=torch.bool)
    together = gradients(POLICIES.losses(theta, digits_of_sums(3), mask), theta)
    alone = gradients(POLICIES.losses(own, digits_of_sums(3), mask[:1]), own)
    assert torch.allclose(together[:1], alone, atol=1e-14)


def test_every_seed_has_its_own_prompts_whatever_the_number_of_seeds() -> None:
    few, many = draw_population(5, 10, "shuffled", range(2), 3), draw_population(5, 10, "shuffled", range(4), 3)
    assert torch.equal(few.trained, many.trained[:6]) and torch.equal(few.answers, many.answers[:6])
    assert (few.trained.sum(dim=1) == 10).all() and not torch.equal(few.trained[0], few.trained[3])
    assert torch.equal(few.trained[0], few.trained[2])
    assert torch.equal(Draws(range(2), 3)(4), Draws(range(4), 3)(4)[:6])
    with pytest.raises(ValueError, match="labels must be"):
        draw_population(5, 10, "true", range(1), 1)


# --- terms of the bound -----------------------------------------------------------------------------------------------


def test_sharpness_is_the_maximum_where_it_is_known() -> None:
    theta = torch.tensor([[0.5, -0.3, 0.2], [1.0, 2.0, 0.0]], dtype=torch.float64)
    slope = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)
    assert sharpness(lambda t: t @ slope, theta, 0.7).tolist() == pytest.approx([2.1, 2.1])
    norm = theta.norm(dim=1)
    bowl = sharpness(lambda t: (t**2).sum(dim=1), theta, 0.7)
    assert bowl.tolist() == pytest.approx((2 * 0.7 * norm + 0.49).tolist(), rel=1e-6)
    top = sharpness(lambda t: -((t - theta) ** 2).sum(dim=1), theta, 0.7)
    assert top.tolist() == [0.0, 0.0], "nothing rises from a maximum"


def test_sharpness_exceeds_every_point_of_a_random_search() -> None:
    theta, people = parameters(), population()
    found = sharpness(lambda t: people.empirical(POLICIES, t), theta, 1.0)
    base = people.empirical(POLICIES, theta)
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        offset = torch.randn(theta.shape, generator=generator, dtype=torch.float64)
        offset = offset / offset.norm(dim=1, keepdim=True)
        assert (people.empirical(POLICIES, theta + offset) - base <= found + 1e-12).all()


def test_the_expected_update_is_a_sum_over_all_completions() -> None:
    theta, people = parameters(1), population(replicates=1)
    plain, weighted, mean1 = weighted_gradient_norms(POLICIES, theta, people)
    leaf = theta.clone().requires_grad_()
    assert float(plain) == pytest.approx(float(gradients(people.empirical(POLICIES, leaf), leaf).norm()), rel=1e-10)
    total, mean = torch.zeros_like(theta), 0.0
    chosen = people.trained[0].nonzero().flatten().tolist()
    for place in chosen:
        a, b = divmod(place, 3)
        every = distribution(theta, 0, a, b)
        right = divmod(a + b, 10)
        for (first, second), p in every.items():
            leaf = theta.clone().requires_grad_()
            score = 0.0
            for previous, token in ((START, first), (first, second)):
                raw = POLICIES.logits(leaf, *(torch.tensor([value]) for value in (a, b, previous)))[0, 0]
                w = float(sharpness_weights(raw[token].detach()))
                score = score + w * raw.log_softmax(dim=0)[token]
                mean += p * w / 2 / len(chosen)
            (gradient,) = torch.autograd.grad(score, leaf)
            total += p * (float((first, second) == right) - every[right]) * gradient / len(chosen)
    assert float(weighted) == pytest.approx(float(total.norm()), rel=1e-9)
    assert float(mean1) == pytest.approx(float(total.norm()) / mean, rel=1e-9)
    assert abs(float(mean1 / plain) - 1) > 1e-4, "the weights must do something, or nothing is tested"


def test_the_known_bounds_term_falls_with_the_radius_and_with_prompts() -> None:
    norm = np.array([10.0, 20.0])
    term = complexity_term(norm, parameters=300, prompts=60, radius=0.05)
    expected = (300 * np.log(1 + 400 * 100 * (1 + np.sqrt(np.log(60) / 300)) ** 2) + 4 * np.log(60 / 0.05)) / 59
    assert term[0] == pytest.approx(np.sqrt(expected), rel=1e-12) and term[0] < term[1]
    assert (complexity_term(norm, 300, 60, 5.0) < term).all() and (complexity_term(norm, 300, 600, 0.05) < term).all()


def test_rank_correlations_see_through_a_common_cause() -> None:
    generator = np.random.default_rng(0)
    loss = generator.normal(size=400)
    values = {
        "empirical_loss": loss,
        "gap": loss + 0.5 * generator.normal(size=400),
        "gradient_norm": loss + 0.5 * generator.normal(size=400),
        "sharpness_1": -loss,
    }
    found = rank_correlations(values)
    assert found["rank_gradient_norm"] > 0.6 and abs(found["rank_gradient_norm_given_loss"]) < 0.15
    assert found["rank_sharpness_1"] < -0.7 and np.isnan(found["rank_sharpness_1_given_loss"])


# --- training ---------------------------------------------------------------------------------------------------------


def test_the_sampled_update_is_on_average_the_expected_one() -> None:
    """Dividing by a sampled deviation bends the direction of the mean a little; the sign and most of it must agree."""
    count = 400
    theta = parameters(1).repeat(count, 1).requires_grad_()
    people = Population(population().answers[:1].repeat(count, 1, 1), population().trained[:1].repeat(count, 1))
    draws = Draws(range(1), count)
    sampled = gradients(surrogate(POLICIES, theta, people, "grpo", 16, 8, draws), theta).mean(dim=0)
    one = parameters(1).requires_grad_()
    expected = gradients(population(replicates=1).empirical(POLICIES, one), one)[0]
    assert float(torch.cosine_similarity(sampled, expected, dim=0)) > 0.7


def test_weights_of_mean_one_divide_by_the_mean_and_grpo_has_none() -> None:
    theta, people = parameters(), population()
    norms = {}
    for method in bound.METHODS:
        leaf = theta.clone().requires_grad_()
        loss = surrogate(POLICIES, leaf, people, method, 200, 4, Draws(range(1), 2))
        norms[method] = gradients(loss, leaf).norm(dim=1)
    ratio = norms["sharpness"] / norms["sharpness-mean1"]
    assert ((ratio > 1) & (ratio < 1.4)).all() and not torch.allclose(norms["grpo"], norms["sharpness-mean1"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    rows = []
    for labels, method in (("sums", "grpo"), ("sums", "sharpness"), ("shuffled", "grpo")):
        settings = BoundSettings(**{**SETTINGS, "labels": labels, "method": method})
        context = JobContext(tmp_path_factory.mktemp("bound") / "job")
        found = bound.sharpness_bound(settings, range(2), context)
        rows += [{"labels": labels, "method": method, "train_size": 10, **row} for row in found]
    return rows


def test_a_run_reports_every_term_at_every_checkpoint(runs: list[dict[str, Any]]) -> None:
    for step in (0, 6):
        own = [row for row in runs if row["seed"] == 1 and row["step"] == step and row["method"] == "sharpness"]
        values = {row["metric"]: row["value"] for row in own}
        assert values["gap"] == pytest.approx(values["population_loss"] - values["empirical_loss"], abs=1e-12)
        assert values["first_to_max_0.001"] == pytest.approx(1, abs=0.02) and values["expected_update_error"] < 1e-9
        assert values["first_order_5"] == pytest.approx(5 * values["gradient_norm"])
        assert ("rank_gradient_norm" in values) == (step > 0)


def test_the_figure_is_drawn_from_measurements_and_left_out_without_them(
    runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    frame = pd.DataFrame([{"experiment": "sharpness-bound", **row} for row in runs])
    figure = gradient_figures.sharpness_bound(frame)
    assert figure is not None and len(figure.axes) == 3
    figure.savefig(tmp_path / "figure.png")
    assert gradient_figures.sharpness_bound(frame.iloc[:0]) is None
