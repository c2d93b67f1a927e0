"""The bench of a training step compares what it says: stock TRL at its defaults and ours at its fastest."""

from __future__ import annotations

from typing import Any

import pytest
from trl import GRPOTrainer

from grpo_replications.replications import step_bench


def test_the_ratio_is_stock_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def seconds(trainer_class: type, model: str, checkpointing: bool, **options: Any) -> float:
        called.append((trainer_class is GRPOTrainer, checkpointing, options))
        return 6.0 if trainer_class is GRPOTrainer else 2.0

    monkeypatch.setattr(step_bench, "step_seconds", seconds)
    (row,) = step_bench.bench_training_step("tiny-random")
    assert row.ratio == 3.0 and row.met
    ours = (False, False, {"tree_sampling": True, "share_prefixes": True})
    assert called == [ours, (True, True, {}), ours]


def test_a_step_is_made_and_timed() -> None:
    fast = {"tree_sampling": True, "share_prefixes": True}
    assert step_bench.step_seconds(step_bench.TokenWeightedGRPOTrainer, "tiny-random", False, **fast) > 0
