"""Knights & Knaves in symbols: every method at several learning rates, on many small transformers at once.

A small transformer of each seed is taught traces that test assignments of roles (`synthetic.puzzle_traces`) until it
solves a given share of puzzles, then trained by reinforcement learning for the right answer, all seeds of a cell at
once. The methods of a seed share start, puzzles and the numbers that samples are drawn by; all seeds are measured on
the same held-out puzzles.
"""

from __future__ import annotations

import numpy as np
import torch

from grpo_replications.replications.grpo_sg.many_weights import taus_of, weighting
from grpo_replications.replications.grpo_sg.settings import ManyPuzzlesSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, seed_rows
from grpo_replications.shared.models.many_transformers import ManyTransformers, SeedStreams
from grpo_replications.shared.training.many_runs import Objective
from grpo_replications.synthetic.puzzle_runs import (
    PuzzleResult,
    PuzzleSupply,
    logits_of,
    run_puzzles,
    sampled,
    shared_puzzles,
    start_of,
)
from grpo_replications.synthetic.puzzle_traces import mask_of

_TAU_STREAM = 36
_PROMPTS, _GROUP = 64, 4


def many_puzzles(settings: ManyPuzzlesSettings, seeds: range, context: JobContext) -> list[Row]:
    """A method and a learning rate: every seed's transformer at once.

    Returns per seed `start_solve_rate` and `final_solve_rate` (share of sampled answers to held-out puzzles that are
    right), `final_accuracy` (of greedy answers), `reward_first` and `reward_last` (mean reward of the first and last
    ten rollouts), `silent_share`, `clipped_share`, `tokens` (of the last ten rollouts' completions), `grad_norm_median`
    and `shared_puzzles` (held-out puzzles whose canonical form is trained on).
    """
    start = start_of(settings)

    def objective(models: ManyTransformers) -> Objective:
        method = weighting(settings.method, start_taus(models, seeds, settings))
        return Objective(method=method, num_iterations=1 if settings.method == "lopti" else settings.updates)

    result = run_puzzles(
        start,
        objective,
        settings.lr,
        seeds=seeds,
        prompts_per_step=settings.prompts_per_step,
        group_size=settings.group_size,
        rollouts=settings.rollouts,
        held_out=settings.held_out,
        samples=settings.samples,
        progress=context.progress,
    )
    found = _summary(result) | {"shared_puzzles": np.full(len(seeds), shared_puzzles(start, settings.held_out))}
    return seed_rows(found, seeds)


@torch.no_grad()
def start_taus(models: ManyTransformers, seeds: range, settings: ManyPuzzlesSettings) -> tuple[float, ...]:
    """Median raw logit of each model's samples on training puzzles, over ln 19."""
    prompts, _ = PuzzleSupply(start_of(settings), seeds).next(_PROMPTS)
    drawn = sampled(models, prompts, SeedStreams(seeds, _TAU_STREAM).uniforms(_PROMPTS, _GROUP, settings.max_tokens))
    raw = logits_of(models, prompts, drawn).gather(4, drawn.unsqueeze(4)).squeeze(4)
    return taus_of(raw.flatten(1), mask_of(drawn).flatten(1))


def _summary(result: PuzzleResult) -> dict[str, np.ndarray]:
    """One number of each seed by metric, (S,)."""
    return {
        "start_solve_rate": result.start_rate,
        "final_solve_rate": result.solve_rate,
        "final_accuracy": result.greedy_rate,
        "reward_first": result.reward[:10].mean(axis=0),
        "reward_last": result.reward[-10:].mean(axis=0),
        "silent_share": result.silent.mean(axis=0),
        "clipped_share": result.clipped.mean(axis=0),
        "tokens": result.length[-10:].mean(axis=0),
        "grad_norm_median": np.median(result.grad_norm, axis=0),
    }
