"""Speed of lambda-GRPO on a small reasoning task: steps to a common solve rate, hundreds of seeds.

A small transformer of each seed is taught running sums modulo 10 up to a fifth of the answers, then trained by
reinforcement learning, all seeds of a cell at once (`synthetic.digit_runs`). The reward is 1 for a right answer and 0
otherwise ("right"), or that of the paper's synthetic tree ("trap").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replications.lambda_grpo.many_table1 import arm
from shared.errors import ReplicationError
from shared.harness.jobs import JobContext, Row, row
from shared.training.many_runs import OBJECTIVE_KEYS, Objective
from synthetic.digit_runs import run_sums
from synthetic.digit_sums import START_KEYS, Reward

_RUN_KEYS = ("prompts_per_step", "group_size", "steps", "look_every", "held_out")


def many_sums(settings: Mapping[str, Any], seeds: range, context: JobContext) -> list[Row]:
    """A reward, a group size, a method and a learning rate: every seed's transformer at once.

    Settings: `reward` ("right", or "trap" with `prefix_length`, `r_neg` and `other_reward`), method, lr, `threshold`
    (a solve rate), `curves` (whether to give solve rates by step), those of `run_sums`, `starts` and `Objective`.
    Returns per seed: `steps_to_threshold` (all steps where it is never reached) with `censored`, `start_rate`,
    `final_rate`, `mean_rate` (over all looks after the first: the area under the curve), `silent_share`; with `curves`
    `solve_rate` by step. Solve rates are exact, over held-out problems. Raises ReplicationError for an unknown reward.
    """
    objective = Objective(
        **{key: settings[key] for key in OBJECTIVE_KEYS if key in settings}
        | {"method": arm(settings["method"], settings["terms"])}
    )
    result = run_sums(
        {key: settings[key] for key in START_KEYS},
        _reward(settings),
        objective,
        settings["lr"],
        seeds=seeds,
        progress=context.progress,
        **{key: settings[key] for key in _RUN_KEYS},
    )
    steps, censored = result.steps_to(settings["threshold"])
    columns = {
        "steps_to_threshold": steps,
        "censored": censored,
        "start_rate": result.solve_rate[0],
        "final_rate": result.solve_rate[-1],
        "mean_rate": result.solve_rate[1:].mean(axis=0),
        "silent_share": result.silent.mean(axis=0),
    }
    rows = [_row(name, value, seed) for name, values in columns.items() for seed, value in zip(seeds, values)]
    for step, values in zip(result.looked_at, result.solve_rate) if settings["curves"] else ():
        rows += [_row("solve_rate", value, seed, int(step)) for seed, value in zip(seeds, values)]
    return rows


def _reward(settings: Mapping[str, Any]) -> Reward:
    if settings["reward"] == "right":
        return Reward()
    if settings["reward"] == "trap":
        return Reward(settings["prefix_length"], settings["r_neg"], settings["other_reward"])
    raise ReplicationError(f"reward must be right or trap, not {settings['reward']!r}. Correct it in profiles.toml.")


def _row(metric: str, value: float, seed: int, step: int | None = None) -> Row:
    return {**row(metric, round(float(value), 6), step), "seed": int(seed)}
