"""Speed of lambda-GRPO on a small reasoning task: steps to a common solve rate, hundreds of seeds.

A small transformer of each seed is taught running sums modulo 10 up to a fifth of the answers, then trained by
reinforcement learning, all seeds of a cell at once (`synthetic.digit_runs`). The reward is 1 for a right answer and 0
otherwise ("right"), or that of the paper's synthetic tree ("trap").
"""

from __future__ import annotations

from grpo_replications.replications.lambda_grpo.many_table1 import arm
from grpo_replications.replications.lambda_grpo.settings import ManySumsSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.training.many_runs import Objective
from grpo_replications.synthetic.digit_runs import run_sums
from grpo_replications.synthetic.digit_sums import Reward


def many_sums(settings: ManySumsSettings, seeds: range, context: JobContext) -> list[Row]:
    """A reward, a group size, a method and a learning rate: every seed's transformer at once.

    Returns per seed: `steps_to_threshold` (all steps where the solve rate `threshold` is never reached) with
    `censored`, `start_rate`, `final_rate`, `mean_rate` (over all looks after the first: the area under the curve),
    `silent_share`; with `curves` `solve_rate` by step. Solve rates are exact, over held-out problems.
    Cost: `synthetic.digit_runs.run_sums`, and the teaching of each seed's start, once.
    """
    trap = settings.reward == "trap"
    result = run_sums(
        _start(settings),
        Reward(settings.prefix_length, settings.r_neg, settings.other_reward) if trap else Reward(),
        Objective(method=arm(settings.method, settings.terms), max_grad_norm=settings.max_grad_norm),
        settings.lr,
        seeds=seeds,
        prompts_per_step=settings.prompts_per_step,
        group_size=settings.group_size,
        steps=settings.steps,
        look_every=settings.look_every,
        held_out=settings.held_out,
        progress=context.progress,
    )
    steps, censored = result.steps_to(settings.threshold)
    columns = {
        "steps_to_threshold": steps,
        "censored": censored,
        "start_rate": result.solve_rate[0],
        "final_rate": result.solve_rate[-1],
        "mean_rate": result.solve_rate[1:].mean(axis=0),
        "silent_share": result.silent.mean(axis=0),
    }
    rows = [_row(name, value, seed) for name, values in columns.items() for seed, value in zip(seeds, values)]
    for step, values in zip(result.looked_at, result.solve_rate) if settings.curves else ():
        rows += [_row("solve_rate", value, seed, int(step)) for seed, value in zip(seeds, values)]
    return rows


def _start(settings: ManySumsSettings) -> dict[str, float]:
    """What `synthetic.digit_sums.starts` knows a start by."""
    return {
        "terms": settings.terms,
        "width": settings.width,
        "layers": settings.layers,
        "heads": settings.heads,
        "inner": settings.inner,
        "start_rate": settings.start_rate,
        "pretrain_lr": settings.pretrain_lr,
        "pretrain_batch": settings.pretrain_batch,
        "pretrain_every": settings.pretrain_every,
        "pretrain_max_steps": settings.pretrain_max_steps,
    }


def _row(metric: str, value: float, seed: int, step: int | None = None) -> Row:
    return {**row(metric, round(float(value), 6), step), "seed": int(seed)}
