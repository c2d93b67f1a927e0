"""Transformers on the tree: exact probabilities, independent seeds, and the same learning as through TRL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from grpo_replications.shared.models.many_transformers import ManyTransformers, SeedStreams
from grpo_replications.shared.theory.depth_weights import halving_weights
from grpo_replications.shared.training.many_runs import ManyRuns, Objective, Rollout
from grpo_replications.shared.training.run import run_training
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.synthetic.binary_tree import BinaryTree
from grpo_replications.synthetic.tree_task import leaf_probability, path_model, tree_dataset, tree_reward
from grpo_replications.synthetic.tree_transformers import (
    Settled,
    _run_stack,
    _token_tree,
    run_language_model,
    run_transformers,
    seed_target,
    tree_models,
)

TREE = BinaryTree(depth=3, prefix_length=1)
SMALL = {"width": 16, "inner": 32}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_head_of_zeros_starts_with_the_probability_asked_for() -> None:
    for left in (0.5, 0.8):
        run = run_transformers(TREE, Objective(), 1e-9, seeds=range(4), steps=1, start_left=left, **SMALL)
        for seed, p, prefix in zip(run.seeds, run.target_probability[0], run.prefix_probability[0]):
            path = TREE.path_of_leaf(seed_target(TREE, int(seed)))
            assert p == pytest.approx(np.prod([left if token == 0 else 1 - left for token in path]), rel=1e-6)
            assert prefix == pytest.approx(left if path[0] == 0 else 1 - left, rel=1e-6)


def test_targets_may_be_chosen_by_their_number_of_rights() -> None:
    targets = {seed_target(TREE, seed, rights=1) for seed in range(40)}
    assert targets == {leaf for leaf in range(8) if sum(TREE.path_of_leaf(leaf)) == 1}
    with pytest.raises(ValueError, match="4 tokens R"):
        seed_target(TREE, 0, rights=4)


def test_a_seed_runs_alike_alone_and_among_others() -> None:
    options = {"steps": 15, "group_size": 8, "head_std": 0.5, **SMALL}
    objective = Objective(method="lambda-grpo")
    among = run_transformers(TREE, objective, 3e-3, seeds=[4, 0, 9], **options)
    alone = run_transformers(TREE, objective, 3e-3, seeds=[9], **options)
    assert np.array_equal(among.target_probability[:, 2], alone.target_probability[:, 0])
    assert np.array_equal(among.grad_norm[:, 2], alone.grad_norm[:, 0])
    assert not np.array_equal(among.grad_norm[:, 1], alone.grad_norm[:, 0])


def test_steps_to_a_level_are_censored_where_it_is_never_reached() -> None:
    run = run_transformers(TREE, Objective(), 3e-3, seeds=range(6), steps=60, **SMALL)
    steps, censored = run.steps_to(0.5)
    assert censored.any() != censored.all() or len(set(steps)) > 1
    for curve, step, late in zip(run.target_probability.T, steps, censored):
        assert (curve[:step] < 0.5).all()
        assert step == 60 if late else curve[step] >= 0.5
    assert np.allclose(run.target_frequency(10), run.target_probability[-10:].mean(axis=0))


def test_the_target_is_learned_where_all_else_is_worth_nothing() -> None:
    tree = BinaryTree(depth=3, prefix_reward=0.0, other_reward=0.0)
    run = run_transformers(tree, Objective(), 3e-3, seeds=range(8), steps=80, **SMALL)
    assert (run.target_probability[-1] > 0.9).all()


@pytest.mark.parametrize("method", ["grpo", "lambda-grpo"])
def test_learning_is_that_of_trl(tmp_path: Path, method: str) -> None:
    """From the same weights, on the completions that TRL drew, the simulator's policy follows TRL's step by step."""
    steps, lr, target = 6, 3e-3, 5
    drawn: list[list[list[int]]] = []
    reward = tree_reward(TREE, target)

    def watched(completion_ids: list[list[int]], **rest: object) -> list[float]:
        drawn.append([list(ids) for ids in completion_ids])
        return reward(completion_ids=completion_ids, **rest)

    run = run_training(
        TrainingSettings(
            method=method,
            steps=steps,
            prompts_per_step=1,
            group_size=8,
            lr=lr,
            max_new_tokens=3,
            precision="float32",
        ),
        0,
        tree_dataset(steps),
        watched,
        directory=tmp_path,
        model=tree_models([7], head_std=0.5, **SMALL).export(0),
        tokenizer=path_model("random-small")[1],
        observe=lambda policy, _: {"p": leaf_probability(policy, target, 3)},
        observe_every=1,
    )
    models = tree_models([7], head_std=0.5, **SMALL)
    runs = ManyRuns(models, Objective(method=None if method == "grpo" else method), lr)
    prompts = torch.tensor([[[1]]])
    for (_, theirs), completions in zip(run.observations, drawn):
        assert leaf_probability(models.export(0), target, 3) == pytest.approx(theirs["p"], rel=2e-3)
        ids = torch.tensor(completions).view(1, 1, 8, 3)
        rewards = torch.tensor(reward(completion_ids=completions)).view(1, 1, 8)
        logits = lambda these, ids=ids: these.completion_logits(prompts, ids)  # noqa: E731
        runs.step(Rollout(ids, torch.ones_like(ids, dtype=torch.bool), rewards, logits))
    assert abs(run.observations[-1][1]["p"] - run.observations[0][1]["p"]) > 0.02, "something must have been learned"


def test_one_model_of_transformers_learns_as_a_stack_does() -> None:
    """The same weights, target and draws: once as a model of transformers, once as a stack of one."""
    model, _ = path_model("random-small", 3)
    stack = ManyTransformers.of([model])
    options = {"seed": 5, "group_size": 8, "steps": 12}
    one = run_language_model(TREE, model, Objective(method="lambda-grpo"), 3e-3, **options)
    runs, streams = ManyRuns(stack, Objective(method="lambda-grpo"), 3e-3), SeedStreams([5], 1)
    columns = _run_stack(TREE, _token_tree(TREE), runs, streams, [seed_target(TREE, 5)], 8, 12, lambda _: None)
    assert np.allclose(one.target_probability, columns[0], rtol=1e-3)
    assert np.allclose(one.grad_norm[:3], columns[2][:3], rtol=1e-4)
    assert abs(one.target_probability[-1, 0] - one.target_probability[0, 0]) > 0.05, "something must have been learned"
    assert leaf_probability(model, seed_target(TREE, 5), 3) != pytest.approx(one.target_probability[0, 0], rel=0.1)


def test_a_settled_run_ends_and_repeats_its_last_row() -> None:
    options = {"seed": 5, "group_size": 8, "steps": 60}
    whole = run_language_model(TREE, path_model("random-small", 3)[0], Objective(), 1e-2, **options)
    ended = run_language_model(
        TREE, path_model("random-small", 3)[0], Objective(), 1e-2, settled=Settled(0.99, 4), **options
    )
    assert whole.steps_computed == 60 and 4 < ended.steps_computed < 60
    assert np.array_equal(
        ended.target_probability[: ended.steps_computed], whole.target_probability[: ended.steps_computed]
    )
    assert len(ended.target_probability) == 60
    assert (
        ended.target_probability[ended.steps_computed :] == ended.target_probability[ended.steps_computed - 1]
    ).all()
    assert np.allclose(ended.target_probability[-1], whole.target_probability[-1], atol=0.02)


def test_arms_differ_from_the_first_step_on() -> None:
    curves = [
        run_transformers(TREE, Objective(method=method), 3e-3, seeds=[1], steps=5, **SMALL).target_probability
        for method in (None, "lambda-grpo", halving_weights(3))
    ]
    assert all(np.array_equal(curve[0], curves[0][0]) for curve in curves)
    assert len({float(curve[-1, 0]) for curve in curves}) == 3
