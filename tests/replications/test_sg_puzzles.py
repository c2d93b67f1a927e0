"""Knights & Knaves in symbols: every method runs from the same start, and rows mean what they say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import pytest
import torch

from grpo_replications.replications.grpo_sg.many_puzzles import many_puzzles, start_taus
from grpo_replications.replications.grpo_sg.settings import ManyPuzzlesSettings
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.models.many_transformers import SeedStreams
from grpo_replications.synthetic.puzzle_runs import PuzzleSupply, logits_of, sampled, starts
from grpo_replications.synthetic.puzzle_traces import mask_of
from tests.synthetic.test_puzzle_runs import RUN, START, own_cache  # noqa: F401

SETTINGS = {**START, **RUN, "lr": 1e-2, "rollouts": 3, "prompts_per_step": 8, "group_size": 8}
METHODS = get_args(ManyPuzzlesSettings.model_fields["method"].annotation)


def test_rows_of_every_method(tmp_path: Path) -> None:
    found = {}
    for method in METHODS:
        settings = ManyPuzzlesSettings.model_validate({**SETTINGS, "method": method})
        rows = many_puzzles(settings, range(3, 5), JobContext(tmp_path / "job"))
        found[method] = {row["metric"]: row["value"] for row in rows if row["seed"] == 4}
    assert len({one["start_solve_rate"] for one in found.values()}) == 1
    assert len({one["reward_last"] for one in found.values()}) > 1
    for one in found.values():
        assert one["shared_puzzles"] == 0 and one["silent_share"] < 1 and one["grad_norm_median"] > 0
        assert 0 <= one["final_solve_rate"] <= 1 and one["tokens"] <= START["max_tokens"]


def test_tau_puts_half_of_the_starts_counted_tokens_at_the_upper_bound() -> None:
    settings = ManyPuzzlesSettings.model_validate({**SETTINGS, "method": "sharpness"})
    models = starts(START, [4])
    (tau,) = start_taus(models, range(4, 5), settings)
    prompts, _ = PuzzleSupply(START, [4]).next(64)
    drawn = sampled(models, prompts, SeedStreams([4], 1).uniforms(64, 4, START["max_tokens"]))
    raw = logits_of(models, prompts, drawn).gather(4, drawn.unsqueeze(4)).squeeze(4)
    share = (torch.sigmoid(raw[mask_of(drawn)] / tau) >= 0.95).double().mean()
    assert float(share) == pytest.approx(0.5, abs=0.06) and math.isfinite(tau)
