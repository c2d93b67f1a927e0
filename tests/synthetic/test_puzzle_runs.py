"""Many small transformers on Knights & Knaves: a seed's run is its own, and all are measured alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grpo_replications.shared.models.many_transformers import SeedStreams
from grpo_replications.shared.training.many_runs import ManyRuns, Objective
from grpo_replications.synthetic.puzzle_runs import (
    PuzzleSupply,
    logits_of,
    puzzles_of,
    rollout_of,
    run_puzzles,
    shared_puzzles,
    starts,
)
from grpo_replications.synthetic.puzzle_traces import mask_of, strict_rewards

START = {
    "people": 3,
    "max_tokens": 24,
    "train_puzzles": 20,
    "width": 16,
    "layers": 1,
    "heads": 2,
    "inner": 32,
    "initial_scale": 4.0,
    "start_rate": 0.03,
    "pretrain_lr": 1e-2,
    "pretrain_batch": 16,
    "pretrain_every": 10,
    "pretrain_max_steps": 200,
}
RUN = {"prompts_per_step": 2, "group_size": 4, "rollouts": 3, "held_out": 10, "samples": 2}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_CACHE", str(tmp_path_factory.getbasetemp() / "puzzles"))
    torch.set_num_threads(1)


def test_a_seeds_run_does_not_depend_on_the_others() -> None:
    both = run_puzzles(START, lambda models: Objective(), 1e-2, seeds=[3, 4], **RUN)
    alone = run_puzzles(START, lambda models: Objective(), 1e-2, seeds=[4], **RUN)
    for name, values in vars(both).items():
        # Rollouts are cut where all seeds have ended, so that sums are rounded in another order.
        np.testing.assert_allclose(values[..., 1], getattr(alone, name)[..., 0], rtol=1e-4, err_msg=name)
    assert both.reward.shape == (3, 2) and both.start_rate.shape == (2,)
    assert shared_puzzles(START, RUN["held_out"]) == 0


def test_a_rollout_holds_each_prompts_own_answers() -> None:
    models = starts(START, [3])
    prompts, solutions = PuzzleSupply(START, [3]).next(5)
    rollout = rollout_of(models, prompts, solutions, SeedStreams([3], 1).uniforms(5, 4, START["max_tokens"]))
    assert torch.equal(rollout.rewards, strict_rewards(rollout.completions, solutions))
    assert torch.equal(rollout.mask, mask_of(rollout.completions)) and bool(rollout.mask.any(dim=3).all())
    # Computed apart, the logits are those of a group computed as one text with its prompt.
    together = models.completion_logits(prompts, rollout.completions)
    torch.testing.assert_close(logits_of(models, prompts, rollout.completions), together, atol=1e-4, rtol=1e-4)
    ManyRuns(models, Objective(method="lopti"), 1e-3).step(rollout)


def test_all_puzzles_of_a_side_are_the_same_for_everyone() -> None:
    assert torch.equal(puzzles_of("held-out", 10, 3).prompts, puzzles_of("held-out", 12, 3).prompts[:10])
