"""Relabelled completions: verifiers that nest, ||Delta|| of labels that know nothing, and norms of unseen groups."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_replications.replications.sigma_identity.open_estimates import classes
from grpo_replications.replications.sigma_identity.relabel_estimates import (
    FORMS,
    Unit,
    group_norms,
    held_out_norms,
    predictions,
    trend,
    weighted_slope,
)
from grpo_replications.replications.sigma_identity.relabelling import relabelling
from grpo_replications.replications.sigma_identity.settings import RelabellingSettings
from grpo_replications.replications.sigma_identity.verifiers import numbers_in, verify
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.theory.closed_forms import sigma


def test_verifiers_of_a_family_are_nested_and_an_answer_without_a_number_is_wrong_but_for_arbitrary_labels() -> None:
    texts = ["33", "It is 34.", "no idea", " 23 + 10", "-33", "133", "33.5"]
    numbers = numbers_in(texts)
    attached = np.linspace(0.01, 0.99, len(texts))
    found = verify(numbers, 33, attached)
    named = {(one.family, one.name): one.right for one in found}
    assert named["tolerance", "0"].tolist() == [True, False, False, False, False, False, False]
    assert named["tolerance", "1"].tolist() == [True, True, False, False, False, False, True]
    assert named["digits", "last-digit"].tolist() == [True, False, False, False, True, True, False]
    assert named["digits", "first-digit"].tolist() == [True, True, False, False, True, False, False]
    assert not any(right[2] for (family, _), right in named.items() if family != "arbitrary")
    for family in ("tolerance", "at-least", "arbitrary"):
        rights = [right for (own, _), right in named.items() if own == family]
        steps = rights if family != "at-least" else rights[::-1]
        assert all((a <= b).all() for a, b in itertools.pairwise(steps)), family


def test_labels_that_know_nothing_of_orthogonal_scores_have_an_exponent_of_minus_one_half() -> None:
    atoms = np.repeat(np.arange(20), 30)  # a softmax over 20 equal logits, every completion drawn as often as it should
    scores = np.eye(20)[atoms] - 1 / 20
    rights = {r: atoms < r for r in (2, 5, 10, 16, 19)}
    units = [Unit(0, "arbitrary", str(r), scores @ scores.T, right, r / 20) for r, right in rights.items()]
    assert trend(units) == pytest.approx([-0.5, 0.0], abs=0.03)


def test_a_bernoulli_logit_has_a_flat_delta_of_length_one() -> None:
    generator = np.random.default_rng(4)
    units = []
    for prompt, p in enumerate((0.1, 0.3, 0.5, 0.8)):
        right = generator.random(300) < p
        scores = right[:, None] - p
        units.append(Unit(0, "tolerance", str(prompt), scores @ scores.T, right, p))
    assert [unit.means.delta_squared for unit in units] == pytest.approx([1.0] * 4)
    assert trend(units) == pytest.approx([0.0, 0.0], abs=1e-9)
    assert np.isnan(trend(units[:2])).all()


def test_norms_of_drawn_groups_are_those_of_their_gradients_by_hand() -> None:
    generator = np.random.default_rng(5)
    scores, right = generator.normal(size=(5, 3)), np.array([True, False, True, False, False])
    k, squared = group_norms(scores @ scores.T, right, 5, 1, generator)
    by_hand = sigma(2, 5) * (scores[right].mean(axis=0) - scores[~right].mean(axis=0))
    assert k.tolist() == [2] and squared[0] == pytest.approx(by_hand @ by_hand)
    with pytest.raises(ValueError, match="no group of 6"):
        group_norms(scores @ scores.T, right, 6, 1, generator)


def test_the_formula_predicts_unseen_groups_and_one_spread_for_both_classes_does_not() -> None:
    generator = np.random.default_rng(6)
    right = generator.random(600) < 0.4
    # Right scores scatter five times as far as wrong ones, in 40 dimensions; Delta is along the first.
    scores = generator.normal(size=(600, 40)) * np.where(right, 1.0, 0.2)[:, None]
    scores[:, 0] += np.where(right, 2.0, 0.0)
    unit = Unit(0, "tolerance", "0", scores @ scores.T, right, 0.4)
    found = held_out_norms([unit], 8, 400, generator)
    errors = {form: found.error(form) for form in FORMS}
    assert errors["formula"] < 0.04 and min(errors["signal"], errors["noise"], errors["both"]) > 0.1
    assert found.slope("measured") == pytest.approx(found.slope("formula"), abs=0.1)
    silent = predictions(classes(unit.gram, unit.right), 8)
    assert all(values[0] == values[8] == 0 for values in silent.values())


def test_a_slope_is_within_units_and_ignores_what_weighs_nothing() -> None:
    x = np.log([1.0, 2.0, 4.0])
    squared = np.array([[1.0, 2.0, 4.0], [9.0, 18.0, 1e9]])  # slope 1/2 in log length; the last weighs nothing
    assert weighted_slope(x, squared, np.array([[1, 1, 1], [1, 1, 0]])) == pytest.approx(0.5)
    assert np.isnan(weighted_slope(x[:1], squared[:, :1], np.ones((2, 1))))


SMALL: dict[str, Any] = {
    "model": "tiny-random",
    "low": 1,
    "high": 49,
    "prompts": 2,
    "scored_samples": 24,
    "reference_samples": 8,
    "max_new_tokens": 3,
    "max_rows": 64,
    "sketch_rank": 8,
    "score_batch": 8,
    "smallest_class": 2,
    "group_sizes": [2, 4],
    "group_draws": 8,
}


@pytest.mark.parametrize("style", [{"style": "text"}, {"style": "chat", "system_message": "Answer briefly."}])
def test_the_experiment_repeats_itself_and_every_verifier_shares_the_prompts_scores(
    tmp_path: Path, style: dict[str, str]
) -> None:
    settings = RelabellingSettings(**SMALL, **style)
    rows = relabelling(settings, 0, JobContext(tmp_path))
    assert rows == relabelling(settings, 0, JobContext(tmp_path))
    values = {row["metric"]: row["value"] for row in rows}
    assert {"mean_score", "sketch_error", "signal_to_noise_arbitrary"} <= set(values)
    rates = [value for name, value in values.items() if name.startswith("rate/0/arbitrary/")]
    assert len(rates) > 3 and rates == sorted(rates)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"style": "chat"}, "system_message is set with"),
        ({"style": "text", "group_sizes": [16]}, "at most half of scored_samples"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RelabellingSettings(**{**SMALL, **changed})
