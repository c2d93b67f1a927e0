"""Speed of the vectorized simulators against the straightforward way: ratios of times taken in one run."""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial

import numpy as np
import torch

from grpo_replications.shared.harness.bench import BenchRow, seconds
from grpo_replications.shared.training.many_runs import Objective
from grpo_replications.synthetic import binary_tree_reference
from grpo_replications.synthetic.bernoulli_logit import METHODS, SeedDraws, reference_step, simulate
from grpo_replications.synthetic.binary_tree import BinaryTree, run_tabular
from grpo_replications.synthetic.tree_task import path_model, tree_dataset, tree_reward
from grpo_replications.synthetic.tree_transformers import run_transformers, tree_models


def tabular_bench(slow_seeds: int = 2, fast_seeds: int = 1000, repeats: int = 3) -> list[BenchRow]:
    """Time per seed of the slow version divided by that of `run_tabular`, both methods under both optimizers.

    Measured: 88 to 116.
    """
    tree = BinaryTree()
    rows = []
    for method in ("grpo", "lambda-grpo"):
        for optimizer, lr in (("sgd", 5.0), ("adam", 0.05)):
            calls = {
                "slow": partial(binary_tree_reference.run_paths, tree, method, optimizer, lr, seeds=range(slow_seeds)),
                "fast": partial(run_tabular, tree, method, optimizer, lr, seeds=range(fast_seeds)),
            }
            times = seconds(calls, repeats)
            ratio = times["slow"] / slow_seeds / (times["fast"] / fast_seeds)
            name = f"tabular tree, {method}, {optimizer}: seeds per second against drawing paths"
            rows.append(BenchRow(name=name, ratio=ratio, target=50.0, better="higher"))
    return rows


def bernoulli_logit_bench(prompts: int = 6000, seeds: int = 4, steps: int = 5, repeats: int = 15) -> list[BenchRow]:
    """The Bernoulli-logit simulator against drawing an (M, G) matrix of uniforms per step, at G = 8, 16 and 64.

    draws: the counts of one step of all seeds, against a matrix of uniforms per seed, compared with p and counted. A
    matrix costs in proportion to G and the counts hardly more for a larger G: the gain grows from G = 8 (measured 2.4
    to 3.6) over G = 16 (3.7 to 4.5) to G = 64 (6.5 to 8.8). A matrix in the layout (G, M), counted in bytes, is faster
    than one in the layout (M, G); against it the gain at G = 64 is 5.1 to 6.4.
    run: some steps of GRPO with everything that `simulate` records, against the same steps with a reward, a score and
    an advantage for every completion and nothing recorded: 5.6 to 6.1 at G = 8, 16 to 18 at G = 64.

    Solve rates are those of a run under way: most near 0 or 1 at the start, as in real data, and 20 steps later.
    """
    start = np.random.default_rng(0).beta(0.5, 0.6, (seeds, prompts)).clip(0.02, 0.98)
    p = simulate(start, ["dr-grpo"], steps=20, seeds=range(seeds))["dr-grpo"].final_p
    generator, draws = np.random.default_rng(1), SeedDraws(range(seeds), prompts)

    def counts(group_size: int) -> None:
        draws.counts(p.ravel(), group_size)

    def matrix(group_size: int) -> None:
        for rates in p:
            (generator.random((prompts, group_size)) < rates[:, None]).sum(axis=1)

    def transposed(group_size: int) -> None:
        for rates in p:
            (generator.random((group_size, prompts)) < rates).view(np.int8).sum(axis=0, dtype=np.int8)

    def run(group_size: int) -> None:
        simulate(p, ["grpo"], group_size=group_size, steps=steps, seeds=range(seeds))

    def reference_run(group_size: int) -> None:
        for rates in p:
            theta = np.log(rates / (1 - rates))
            for _ in range(steps):
                theta += 0.5 * reference_step(1 / (1 + np.exp(-theta)), METHODS["grpo"], group_size, generator)[1]

    rows = []
    for name, slow, fast, size, target in (
        ("draws against an M x G matrix of uniforms", matrix, counts, 8, 1.5),
        ("draws against an M x G matrix of uniforms", matrix, counts, 16, 2.5),
        ("draws against an M x G matrix of uniforms", matrix, counts, 64, 5.0),
        ("draws against a G x M matrix of uniforms", transposed, counts, 64, 4.0),
        ("run against M x G rewards, scores and advantages", reference_run, run, 8, 4.0),
        ("run against M x G rewards, scores and advantages", reference_run, run, 64, 10.0),
    ):
        times = seconds({"slow": partial(slow, size), "fast": partial(fast, size)}, repeats)
        ratio = times["slow"] / times["fast"]
        rows.append(BenchRow(f"Bernoulli-logit, G = {size}: {name}", ratio, target, "higher"))
    return rows


def many_transformers_bench(seeds: int = 64, steps: int = 20, repeats: int = 3) -> list[BenchRow]:
    """Seeds per second of `run_transformers` over those of TRL's trainer on the same comparison, one thread each.

    The same transformer, tree, group, objective and optimizer. A TRL run's time per step is the difference of a longer
    and a shorter run, so that setting up a trainer does not count; the simulator's time counts everything. More
    processes on more cores speed both up alike.
    """
    from grpo_replications.shared.training.run import run_training  # TRL takes seconds to import
    from grpo_replications.shared.training.settings import TrainingSettings

    tree, objective, group_size = BinaryTree(), Objective(method="lambda-grpo"), 16

    def by_trl(trl_steps: int) -> float:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            run_training(
                TrainingSettings(
                    method="lambda-grpo",
                    steps=trl_steps,
                    prompts_per_step=1,
                    group_size=group_size,
                    lr=1e-4,
                    max_new_tokens=tree.depth,
                    precision="float32",
                ),
                0,
                tree_dataset(trl_steps),
                tree_reward(tree, 0),
                directory=directory,
                model=tree_models([0]).export(0),
                tokenizer=path_model("random-small")[1],
            )
        return time.perf_counter() - start

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        by_trl(2)  # imports and warm-up
        ratios = []
        for _ in range(repeats):
            trl = (by_trl(3 * steps) - by_trl(steps)) / (2 * steps)
            start = time.perf_counter()
            run_transformers(tree, objective, 1e-4, seeds=range(seeds), group_size=group_size, steps=steps)
            ratios.append(trl / ((time.perf_counter() - start) / (steps * seeds)))
    finally:
        torch.set_num_threads(threads)
    name = f"{seeds} transformers at once on the tree: seeds per second against TRL"
    return [BenchRow(name, statistics.median(ratios), 20.0, "higher")]


BENCHES = {
    "tabular tree": tabular_bench,
    "Bernoulli-logit": bernoulli_logit_bench,
    "many transformers": many_transformers_bench,
}
