"""Running sums modulo 10: right answers, rewards, exact solve rates, and problems that are kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models.many_transformers import SeedStreams
from grpo_replications.shared.training.many_runs import Objective
from grpo_replications.synthetic.digit_runs import run_sums
from grpo_replications.synthetic.digit_sums import (
    EQUALS,
    Reward,
    answers_of,
    is_held_out,
    measuring_problems,
    problems,
    solve_rates,
    starts,
)

START = {
    "terms": 2,
    "width": 32,
    "layers": 2,
    "heads": 2,
    "inner": 64,
    "start_rate": 0.2,
    "pretrain_lr": 2e-3,
    "pretrain_batch": 64,
    "pretrain_every": 5,
    "pretrain_max_steps": 500,
}
RUN = {"prompts_per_step": 4, "group_size": 4, "steps": 6, "look_every": 3, "held_out": 32}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_CACHE", str(cache))
    torch.set_num_threads(1)


def test_answers_are_running_sums() -> None:
    assert answers_of(torch.tensor([3, 8, 9, 0, 5, EQUALS])).tolist() == [1, 0, 0, 5]


def test_problems_that_measure_never_train() -> None:
    measuring = measuring_problems(range(3), 200, 3)
    training = problems([np.random.default_rng(s) for s in range(3)], 2000, 3, held_out=False)
    assert bool((measuring[..., -1] == EQUALS).all()) and measuring.shape == (3, 200, 5)
    kinds = [{tuple(problem) for problem in kind.flatten(0, 1).tolist()} for kind in (measuring, training)]
    assert not kinds[0] & kinds[1]
    assert not torch.equal(measuring[0], measuring[1])
    every = np.stack(np.meshgrid(*[np.arange(10)] * 4), axis=-1).reshape(-1, 4)
    assert is_held_out(every).mean() == pytest.approx(1 / 16, abs=0.01)


def test_rewards_of_the_trap() -> None:
    answers = torch.tensor([[1, 2, 3]])
    completions = torch.tensor([[[1, 2, 3], [1, 2, 4], [1, 9, 3], [9, 2, 3]]])
    assert Reward()(completions, answers).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    trap = Reward(prefix_length=2, prefix=-0.5, other=0.7)
    assert trap(completions, answers).tolist() == [[1.0, -0.5, 0.7, 0.7]]


def test_starts_are_at_the_rate_asked_for_and_depend_on_their_seed_alone(tmp_path: Path, monkeypatch: Any) -> None:
    models = starts(START, [3, 8])
    rates = solve_rates(models, measuring_problems([3, 8], 300, 2))
    assert ((rates > 0.15) & (rates < 0.6)).all()
    kept = starts(START, [8])
    monkeypatch.setenv("REPLICATE_CACHE", str(tmp_path / "other"))
    alone = starts(START, [8])
    for name, value in alone.parameters.items():
        assert torch.equal(value[0], models.parameters[name][1])
        assert torch.equal(value[0], kept.parameters[name][0])
    with pytest.raises(ReplicationError, match="pretrain_max_steps"):
        starts({**START, "pretrain_max_steps": 5}, [1])


def test_the_exact_solve_rate_is_the_frequency_of_right_samples() -> None:
    models = starts(START, [3])
    prompts = measuring_problems([3], 20, 2)
    drawn = models.sample(prompts, SeedStreams([3], 1).uniforms(20, 200, 2))
    right = (drawn == answers_of(prompts).unsqueeze(2)).all(dim=-1).double()
    error = (right.mean(dim=2) * (1 - right.mean(dim=2)) / 200).sum().sqrt() / 20
    assert float(abs(right.mean() - solve_rates(models, prompts)[0])) < 4 * float(error)


def test_a_run_learns_and_depends_on_its_seed_alone() -> None:
    options = {**RUN, "prompts_per_step": 16, "group_size": 8, "steps": 100, "look_every": 25}
    among = run_sums(START, Reward(), Objective(), 5e-4, seeds=[3, 8], **options)
    alone = run_sums(START, Reward(), Objective(), 5e-4, seeds=[8], **options)
    assert np.array_equal(among.solve_rate[:, 1], alone.solve_rate[:, 0])
    assert among.looked_at.tolist() == [0, 25, 50, 75, 100]
    assert among.solve_rate[-1, 0] > among.solve_rate[0, 0] + 0.05
    steps, censored = among.steps_to(float(among.solve_rate[2, 0]))
    assert steps[0] <= 50 and not censored[0]
    assert among.steps_to(2.0)[0].tolist() == [100, 100] and among.steps_to(2.0)[1].all()
