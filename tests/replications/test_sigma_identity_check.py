"""The identity's check: it holds where it must, its controls break, and a wrong advantage or factor is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grpo_replications.replications.sigma_identity import identity as check
from grpo_replications.replications.sigma_identity.settings import IdentitySettings
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.theory.groups import grpo_advantages

SETTINGS = {"draws": 30, "largest_group": 64, "largest_dimension": 40, "largest_baseline": 10.0}
ERRORS = ("grpo_error", "dr_grpo_error", "rloo_error", "dapo_error", "trl_error", "leave_one_out_error")


def measured(tmp_path: Path, seed: int = 0, **changes: object) -> dict[str, float]:
    rows = check.identity(IdentitySettings(**{**SETTINGS, **changes}), seed, JobContext(tmp_path / "job"))
    return {row["metric"]: row["value"] for row in rows}


def test_the_identities_hold_to_rounding_and_the_controls_break(tmp_path: Path) -> None:
    found = measured(tmp_path)
    assert all(0 < found[name] < 1e-12 for name in ERRORS), found
    assert found["silent_update"] == 0
    assert all(found[f"control_{name}"] > 1e-2 for name in check.WRONG_ADVANTAGES), found
    assert found["groups"] > 30 * 3


def test_another_seed_draws_other_groups(tmp_path: Path) -> None:
    assert measured(tmp_path, 1) == measured(tmp_path, 1) != measured(tmp_path, 2)


def test_groups_have_every_number_of_right_completions_and_a_baseline() -> None:
    generator = np.random.default_rng(0)
    sizes, dimensions = set(), set()
    for _ in range(300):
        scores, rewards, right = check.random_groups(generator, 16, 5, 3.0)
        sizes.add(len(scores))
        dimensions.add(scores.shape[1])
        assert sorted(right.sum(axis=1)) == list(range(len(scores) + 1))
        assert np.ptp(rewards[1]) == pytest.approx(1.0) and np.abs(rewards).max() <= 4.0
    assert sizes == set(range(2, 17)) and dimensions == set(range(1, 6))
    assert len({tuple(row) for row in right}) == len(right)


@pytest.mark.parametrize("name", list(check.WRONG_ADVANTAGES))
def test_a_wrong_advantage_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = check.WRONG_ADVANTAGES[name]

    def advantages(rewards: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.nan_to_num(wrong(rewards), posinf=0.0, neginf=0.0)

    monkeypatch.setattr(check, "population_grpo", advantages)
    assert measured(tmp_path)["grpo_error"] > 1e-2


def test_a_wrong_deviation_of_the_closed_form_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "sigma", lambda k, G: np.sqrt(k * (G - k) / G))
    found = measured(tmp_path)
    assert all(found[name] > 1e-2 for name in ("grpo_error", "dr_grpo_error", "rloo_error", "trl_error"))


@pytest.mark.parametrize(
    "factor",
    [
        lambda gain, size, eps=1e-4: gain,
        lambda gain, size, eps=1e-4: gain**2 / (gain + eps),
        lambda gain, size, eps=1e-4: gain * np.sqrt((size - 1) / size),
    ],
)
def test_trl_needs_both_its_deviation_and_its_epsilon(
    factor: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "trl_gain", factor)
    assert measured(tmp_path)["trl_error"] > 1e-6


def test_an_update_of_a_silent_group_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(rewards: np.ndarray) -> np.ndarray:
        deviation = rewards - rewards.sum(axis=-1, keepdims=True) / rewards.shape[-1]
        return deviation / (rewards.std(axis=-1, keepdims=True) + 1e-12)

    monkeypatch.setattr(check, "population_grpo", rounded)
    assert measured(tmp_path)["silent_update"] > 0


def test_errors_are_those_of_a_loop() -> None:
    scores, rewards, right = check.random_groups(np.random.default_rng(3), 6, 4, 1.0)
    advantages = grpo_advantages(rewards, ddof=1, eps=0.0)
    found = check.errors(scores, advantages, right, np.full(len(right), 0.3))
    for row in range(len(right)):
        update = sum(a * s for a, s in zip(advantages[row], scores)) / len(scores)
        sides = [[s for s, r in zip(scores, right[row]) if r == kind] for kind in (True, False)]
        plus, minus = (np.mean(side, axis=0) if side else np.zeros(scores.shape[1]) for side in sides)
        difference = np.linalg.norm(update - 0.3 * (plus - minus))
        terms = np.mean([abs(a) * np.linalg.norm(s) for a, s in zip(advantages[row], scores)])
        assert found[row] == pytest.approx(difference / terms if terms else difference, rel=1e-9)
