"""Speed of lambda-GRPO on a small reasoning task: steps to a common solve rate, hundreds of seeds.

A small transformer of each seed is taught running sums modulo 10 up to a fifth of the answers, then trained by
reinforcement learning, all seeds of a cell at once (`synthetic.digit_runs`). The reward is 1 for a right answer and 0
otherwise ("right"), or that of the paper's synthetic tree ("trap").
"""

from __future__ import annotations

from grpo_replications.replications.lambda_grpo.many_table1 import arm
from grpo_replications.replications.lambda_grpo.settings import ManySumsSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, seed_rows
from grpo_replications.shared.training.many_runs import Objective
from grpo_replications.synthetic.digit_runs import run_sums
from grpo_replications.synthetic.digit_sums import Reward, start_of


def many_sums(settings: ManySumsSettings, seeds: range, context: JobContext) -> list[Row]:
    """A reward, a group size, a method and a learning rate: every seed's transformer at once.

    Returns per seed: `steps_to_threshold` (all steps where the solve rate `threshold` is never reached) with
    `censored`, `start_rate`, `final_rate`, `mean_rate` (over all looks after the first: the area under the curve),
    `silent_share`; with `curves` `solve_rate` by step. Solve rates are exact, over held-out problems.
    Cost: `synthetic.digit_runs.run_sums`, and the teaching of each seed's start, once.
    """
    trap = settings.reward == "trap"
    result = run_sums(
        start_of(settings),
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
    rows = seed_rows(columns, seeds)
    for step, values in zip(result.looked_at, result.solve_rate) if settings.curves else ():
        rows += seed_rows({"solve_rate": values}, seeds, step)
    return rows
