"""What should be kept after redraws, worked out from the calls of a reward function alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One completion as a reward function saw it."""

    prompt: str
    ids: list[int]
    reward: float


def threshold(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """0 or 1 by the completion, so unevenly that many groups are silent."""
    return [float(sum(ids) * 7 % 23 > 15) for ids in completion_ids]


class Recorded:
    """A reward function that remembers every call, and logs the sum of each completion's ids as an extra column."""

    __name__ = "recorded"
    row = Row

    def __init__(self, reward: Callable[..., list[float]]) -> None:
        self.reward = reward
        self.calls: list[list[Row]] = []
        self.steps: list[int] = []

    def __call__(self, prompts: list[str], completion_ids: list[list[int]], log_extra: Any, **columns: Any) -> Any:
        rewards = self.reward(prompts=prompts, completion_ids=completion_ids, **columns)
        self.calls.append([Row(*row) for row in zip(prompts, completion_ids, rewards, strict=True)])
        self.steps.append(columns["trainer_state"].global_step)
        log_extra("ids_sum", [sum(ids) for ids in completion_ids])
        return rewards

    def rollouts(self) -> list[list[list[Row]]]:
        """The calls, one list per rollout, where every optimizer step has one rollout."""
        return [[call for call, at in zip(self.calls, self.steps) if at == step] for step in sorted(set(self.steps))]


def kept_by_hand(rounds: list[list[Row]], group_size: int) -> tuple[list[list[Row]], list[int]]:
    """Groups kept and how often each was drawn; every round after the first redraws, in order, what is silent then.

    Rows of a round beyond the silent groups are surplus: they exist only to give processes equal shares.
    """

    def split(rows: list[Row]) -> list[list[Row]]:
        return [rows[i : i + group_size] for i in range(0, len(rows), group_size)]

    kept = split(rounds[0])
    draws = [1] * len(kept)
    for redrawn in rounds[1:]:
        silent = [g for g, rows in enumerate(kept) if len({row.reward for row in rows}) == 1]
        groups = split(redrawn)
        assert all(len({row.prompt for row in rows}) == 1 for rows in groups), (
            "whole groups, as vLLM's server needs them"
        )
        assert silent and len(silent) <= len(groups) <= len(silent) + 1
        for g, rows in zip(silent, groups):
            kept[g] = rows
            draws[g] += 1
    return kept, draws
