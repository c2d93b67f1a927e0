"""The tree, its exact probabilities, its gradient against two independent formulas, and the vectorized runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from grpo_replications.shared.theory.depth_weights import depth_mean_weights, halving_weights
from grpo_replications.shared.theory.process_sets import process_set_sizes
from grpo_replications.shared.theory.weighting import RolloutBatch
from grpo_replications.synthetic import binary_tree
from grpo_replications.synthetic import binary_tree_reference as oracle
from grpo_replications.synthetic.bench import tabular_bench
from grpo_replications.synthetic.binary_tree import METHODS, BinaryTree, run_tabular, sampling_uniforms
from grpo_replications.synthetic.tree_policy import (
    draw_leaf_counts,
    group_advantages,
    leaf_probabilities,
    left_probabilities,
    policy_gradient,
)

# --- the environment -------------------------------------------------------------------------------------------------


def test_rewards_follow_the_papers_three_kinds_of_path():
    tree = BinaryTree(depth=4, prefix_length=2, prefix_reward=-1.5)
    target = 0b0110
    rewards = tree.leaf_rewards(target)
    for leaf in range(16):
        path = tree.path_of_leaf(leaf)
        expected = 1.0 if path == (0, 1, 1, 0) else -1.5 if path[:2] == (0, 1) else 0.7
        assert rewards[leaf] == expected


def test_integer_rewards_are_not_truncated():
    assert BinaryTree(prefix_reward=-1, other_reward=0.7).leaf_rewards(0)[-1] == 0.7
    assert BinaryTree(prefix_reward=-1, other_reward=1, target_reward=1.5).leaf_rewards(3)[3] == 1.5


@pytest.mark.parametrize("depth", [2, 4, 7])
def test_a_leaf_is_its_path_in_binary(depth):
    tree = BinaryTree(depth=depth)
    paths = np.array([tree.path_of_leaf(leaf) for leaf in range(tree.leaves)])
    assert paths.shape == (tree.leaves, depth) and np.array_equal(_leaves(paths), np.arange(tree.leaves))


def test_random_targets_are_reproducible_and_reach_every_leaf():
    tree = BinaryTree()
    targets = [tree.random_target(seed) for seed in range(400)]
    assert targets == [tree.random_target(seed) for seed in range(400)]
    assert set(targets) == set(range(16))


@pytest.mark.parametrize(
    "arguments",
    [
        {"depth": 1},
        {"prefix_length": 0},
        {"prefix_length": 4},
        {"prefix_reward": float("nan")},
        {"other_reward": np.inf},
    ],
)
def test_bad_trees_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        BinaryTree(**arguments)


def test_bad_leaves_are_refused():
    tree = BinaryTree()
    for call in (
        lambda: tree.path_of_leaf(16),
        lambda: tree.leaf_rewards(-1),
    ):
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize(
    "arguments",
    [
        {"method": "ppo"},
        {"optimizer": "rmsprop"},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"group_size": 1},
        {"steps": 0},
        {"ddof": 2},
        {"beta": -0.1},
        {"seeds": []},
        {"seeds": [-1]},
        {"targets": [1, 2]},
        {"initial_logits": np.zeros(3)},
    ],
)
def test_bad_runs_are_refused(arguments):
    with pytest.raises(ValueError):
        run_tabular(BinaryTree(), **{"method": "grpo", "optimizer": "sgd", "lr": 1.0, "seeds": [0], **arguments})


# --- probabilities and sampling --------------------------------------------------------------------------------------


def test_leaf_probabilities_are_products_along_paths():
    tree = BinaryTree(depth=5)
    logits = np.random.default_rng(0).normal(size=(tree.inner_nodes, 3)) * 2
    probabilities = leaf_probabilities(left_probabilities(logits))
    for leaf in range(tree.leaves):
        for s in range(3):
            assert probabilities[leaf, s] == pytest.approx(
                oracle.target_probability(logits[:, s], tree.path_of_leaf(leaf)), abs=1e-15
            )


@pytest.mark.parametrize("group_size", [2, 16, 300])
def test_counts_are_those_of_inverse_transform_sampling(group_size):
    generator = np.random.default_rng(1)
    probabilities = generator.dirichlet(np.ones(16), size=7).T
    uniforms = generator.random((group_size, 7))
    counts = draw_leaf_counts(probabilities, uniforms)
    for s in range(7):
        leaves = np.searchsorted(np.cumsum(probabilities[:-1, s]), uniforms[:, s], side="right")
        assert np.array_equal(counts[:, s], np.bincount(leaves, minlength=16))


def test_counts_have_the_multinomial_distribution():
    seeds, group_size = 4000, 16
    logits = np.random.default_rng(2).normal(size=15)
    probabilities = np.repeat(leaf_probabilities(left_probabilities(logits[:, None])), seeds, axis=1)
    uniforms = np.stack([sampling_uniforms(seed, 1, group_size)[0] for seed in range(seeds)], axis=1)
    counts = draw_leaf_counts(probabilities, uniforms)
    assert stats.chisquare(counts.sum(axis=1), probabilities[:, 0] * seeds * group_size).pvalue > 1e-3
    for leaf in range(16):  # each leaf's count is binomial: compare its second moment too
        law = stats.binom(group_size, probabilities[leaf, 0])
        standard_error = law.var() * np.sqrt((2 + law.stats("k")) / seeds)
        assert abs(counts[leaf].var() - law.var()) < 4 * standard_error


def test_seeds_have_streams_of_their_own():
    streams = np.stack([sampling_uniforms(seed, 250, 16).ravel() for seed in range(50)])
    correlation = np.corrcoef(streams) - np.eye(50)
    assert np.abs(correlation).max() < 6 / np.sqrt(4000)


# --- the gradient ----------------------------------------------------------------------------------------------------


def _random_group(seed: int):
    """A random tree, policy, reference and group: tree, logits, reference (N,), paths (G, depth), leaf rewards (L,)."""
    generator = np.random.default_rng(seed)
    depth = int(generator.integers(2, 6))
    tree = BinaryTree(depth, int(generator.integers(1, depth)), prefix_reward=-float(generator.integers(1, 4)) / 2)
    logits, reference = generator.normal(size=(2, tree.inner_nodes)) * generator.choice([0.1, 1.0, 4.0])
    paths = oracle.draw_paths(logits, depth, int(generator.integers(2, 40)), generator)
    return tree, logits, reference, paths, tree.leaf_rewards(int(generator.integers(tree.leaves)))


def _leaves(paths: np.ndarray) -> np.ndarray:
    return np.array([int("".join(map(str, path)), 2) for path in paths])


def _fast_gradient(tree, logits, reference, paths, leaf_rewards, weighted, beta):
    counts = np.bincount(_leaves(paths), minlength=tree.leaves)[:, None].astype(float)
    advantages, _ = group_advantages(counts, leaf_rewards[:, None])
    left, reference_left = left_probabilities(logits[:, None]), left_probabilities(reference[:, None])
    return policy_gradient(left, counts, advantages, "lambda-grpo" if weighted else "grpo", beta, reference_left)[:, 0]


@pytest.mark.parametrize("weighting", ["halving-depth", "mean-depth"])
def test_gradient_with_weights_by_depth_equals_the_sum_over_tokens(weighting):
    for seed in range(50):
        tree, logits, _, paths, leaf_rewards = _random_group(seed)
        counts = np.bincount(_leaves(paths), minlength=tree.leaves)[:, None].astype(float)
        advantages, _ = group_advantages(counts, leaf_rewards[:, None])
        left = left_probabilities(logits[:, None])
        ids = torch.from_numpy(paths)
        ones = torch.ones_like(ids, dtype=torch.bool)
        batch = RolloutBatch(ids, ones, process_set_sizes(ids, ones, len(ids)), torch.zeros(len(ids)), len(ids))
        weights = (halving_weights(tree.depth) if weighting == "halving-depth" else depth_mean_weights)(batch).numpy()
        expected = np.zeros(tree.inner_nodes)
        for path, leaf, row in zip(paths, _leaves(paths), weights):
            node = 0
            for token, weight in zip(path, row):
                score = (1.0 - left[node, 0]) if token == 0 else -left[node, 0]
                expected[node] += weight * advantages[leaf, 0] * score / (len(paths) * tree.depth)
                node = 2 * node + 1 + int(token)
        found = policy_gradient(left, counts, advantages, weighting)[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_gradient_equals_the_sum_over_tokens(weighted, beta):
    for seed in range(300):
        tree, logits, reference, paths, leaf_rewards = _random_group(seed)
        expected = oracle.gradient(logits, paths, leaf_rewards[_leaves(paths)], weighted, beta, reference)
        got = _fast_gradient(tree, logits, reference, paths, leaf_rewards, weighted, beta)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def _written_out_loss(logits, reference, paths, rewards, weighted, beta):
    """The paper's loss (to minimize), term by term, in torch float64."""
    group_size, depth = len(paths), len(paths[0])
    mean = sum(rewards) / group_size
    std = (sum((r - mean) ** 2 for r in rewards) / (group_size - 1)) ** 0.5
    silent = len(set(rewards)) == 1
    loss = torch.zeros((), dtype=torch.float64)
    for path, reward in zip(paths, rewards):
        advantage = 0.0 if silent else (reward - mean) / (std + 1e-4)
        for t in range(depth):
            node = 0
            for token in path[:t]:
                node = 2 * node + 1 + token
            two_logits = torch.stack([logits[node], torch.zeros((), dtype=torch.float64)])
            reference_logits = torch.stack([reference[node], torch.zeros((), dtype=torch.float64)])
            log_p = torch.log_softmax(two_logits, 0)[path[t]]
            log_ref = torch.log_softmax(reference_logits, 0)[path[t]]
            kl = torch.exp(log_ref - log_p) - (log_ref - log_p) - 1
            term = torch.exp(log_p - log_p.detach()) * advantage - beta * kl
            size = sum(other[: t + 1] == path[: t + 1] for other in paths) if weighted else 1
            loss = loss - term / size
    return loss / (group_size * depth)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_gradient_equals_autograd_of_the_written_out_loss(weighted, beta):
    for seed in range(25):
        tree, logits, reference, paths, leaf_rewards = _random_group(1000 + seed)
        parameters = torch.tensor(logits, requires_grad=True)
        rewards = [float(leaf_rewards[leaf]) for leaf in _leaves(paths)]
        _written_out_loss(parameters, torch.tensor(reference), paths.tolist(), rewards, weighted, beta).backward()
        got = _fast_gradient(tree, logits, reference, paths, leaf_rewards, weighted, beta)
        np.testing.assert_allclose(got, -parameters.grad.numpy(), rtol=0, atol=1e-12)


def test_two_logits_per_node_move_twice_as_far():
    tree, logits, _, paths, leaf_rewards = _random_group(7)
    generator = np.random.default_rng(7)
    pair = np.stack([logits, np.zeros_like(logits)]) + generator.normal(size=logits.shape)  # same difference
    parameters = torch.tensor(pair, requires_grad=True)
    rewards = [float(leaf_rewards[leaf]) for leaf in _leaves(paths)]
    difference = parameters[0] - parameters[1]
    _written_out_loss(difference, difference.detach(), paths.tolist(), rewards, False, 0.0).backward()
    step = -parameters.grad.numpy()
    got = _fast_gradient(tree, logits, logits, paths, leaf_rewards, False, 0.0)
    np.testing.assert_allclose(step[0] - step[1], 2 * got, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_advantages_with_either_ddof(ddof):
    rewards = np.array([1.0, -0.5, 0.7, 0.7])
    counts = np.array([1.0, 3.0, 0.0, 2.0])
    sample = np.repeat(rewards, counts.astype(int))
    advantages, silent = group_advantages(counts[:, None], rewards[:, None], ddof=ddof, eps=0.01)
    np.testing.assert_allclose(advantages[:, 0], (rewards - sample.mean()) / (sample.std(ddof=ddof) + 0.01), atol=1e-14)
    assert not silent[0]


@pytest.mark.parametrize("reward", [0.35, 0.7, 1e-8, -1 / 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_equal_rewards_move_nothing_at_all(reward, optimizer):
    tree = BinaryTree(target_reward=reward, prefix_reward=reward, other_reward=reward)
    for method in METHODS:
        result = run_tabular(tree, method, optimizer, 10.0, seeds=range(5), steps=20)
        assert result.silent.all()
        assert not result.update_norm.any() and not result.logits.any()


# --- runs ------------------------------------------------------------------------------------------------------------


def test_first_step_is_the_oracles_step_on_the_same_sample():
    tree = BinaryTree(prefix_length=2)
    logits = np.random.default_rng(3).normal(size=15)
    for method, weighted in (("grpo", False), ("lambda-grpo", True)):
        result = run_tabular(tree, method, "sgd", 3.0, steps=1, seeds=range(20), initial_logits=logits)
        probabilities = leaf_probabilities(left_probabilities(logits[:, None]))[:, 0]
        for seed in range(20):
            target = tree.random_target(seed)
            leaves = np.searchsorted(np.cumsum(probabilities[:-1]), sampling_uniforms(seed, 1, 16)[0], side="right")
            paths = np.array([tree.path_of_leaf(int(leaf)) for leaf in leaves])
            expected = logits + 3.0 * oracle.gradient(logits, paths, tree.leaf_rewards(target)[leaves], weighted)
            np.testing.assert_allclose(result.logits[seed], expected, rtol=0, atol=1e-12)
            assert result.target_probability[0, seed] == pytest.approx(probabilities[target], abs=1e-15)


@pytest.mark.parametrize("method", ["grpo", "lambda-grpo"])
@pytest.mark.parametrize("optimizer, lr", [("sgd", 4.0), ("adam", 0.1)])
def test_trajectories_have_the_distribution_of_the_slow_version(method, optimizer, lr):
    tree = BinaryTree(prefix_length=1, prefix_reward=-0.5)
    slow = oracle.run_paths(tree, method, optimizer, lr, steps=60, seeds=range(150))
    fast = run_tabular(tree, method, optimizer, lr, steps=60, seeds=range(4000)).target_probability
    for step in (5, 25, 59):
        assert stats.ks_2samp(slow[step], fast[step]).pvalue > 1e-3
    spread = np.sqrt(slow[-1].var() / 150 + fast[-1].var() / 4000)
    assert abs(slow[-1].mean() - fast[-1].mean()) < 4 * spread


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer, lr", [("sgd", 3.0), ("adam", 0.1)])
def test_a_seed_runs_the_same_alone_and_in_any_company(method, optimizer, lr, monkeypatch):
    tree = BinaryTree(prefix_length=2)
    together = run_tabular(tree, method, optimizer, lr, seeds=range(40), beta=0.01)
    monkeypatch.setattr(binary_tree, "_SEEDS_PER_BLOCK", 7)
    in_blocks = run_tabular(tree, method, optimizer, lr, seeds=range(39, -1, -1), beta=0.01)
    alone = run_tabular(tree, method, optimizer, lr, seeds=[23], beta=0.01)
    for name in ("target_probability", "update_norm", "silent"):
        assert np.array_equal(getattr(together, name), getattr(in_blocks, name)[:, ::-1])
        assert np.array_equal(getattr(together, name)[:, 23], getattr(alone, name)[:, 0])
    assert np.array_equal(together.logits[23], alone.logits[0])
    assert np.array_equal(together.target_frequency()[23], alone.target_frequency()[0])


def test_seeds_differ_and_the_seed_argument_matters():
    result = run_tabular(BinaryTree(), "grpo", "sgd", 3.0, seeds=range(30), steps=50)
    assert len(np.unique(result.target_probability[-1])) == 30


def test_matching_changes_the_length_of_a_step_and_not_its_direction():
    tree, start = BinaryTree(prefix_length=2), np.random.default_rng(4).normal(size=15)
    first = {
        method: run_tabular(tree, method, "sgd", 1.0, steps=1, seeds=range(50), initial_logits=start)
        for method in METHODS
    }
    for matched, direction, length in (
        ("lambda-grpo-matched", "lambda-grpo", "grpo"),
        ("grpo-matched", "grpo", "lambda-grpo"),
    ):
        np.testing.assert_allclose(first[matched].update_norm, first[length].update_norm, rtol=1e-12)
        loud = ~first[matched].silent[0]
        moved, along = first[matched].logits[loud] - start, first[direction].logits[loud] - start
        cosine = (moved * along).sum(1) / np.linalg.norm(moved, axis=1) / np.linalg.norm(along, axis=1)
        np.testing.assert_allclose(cosine, 1.0, atol=1e-12)
    shorter = first["lambda-grpo"].update_norm < first["grpo"].update_norm
    assert shorter[~first["grpo"].silent].all()


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_optimizers_are_pytorchs(optimizer):
    generator = np.random.default_rng(5)
    gradients = generator.normal(size=(30, 15)) * generator.choice([0.0, 1e-3, 1.0], size=(30, 1))
    if optimizer == "adam":
        ours = binary_tree._Adam(0.05, (0.9, 0.999), 1e-8)
    else:
        ours = binary_tree._Sgd(0.05, 0.9 if optimizer == "momentum" else 0.0)
    parameters = torch.zeros(15, dtype=torch.float64, requires_grad=True)
    theirs = {
        "sgd": lambda: torch.optim.SGD([parameters], lr=0.05),
        "momentum": lambda: torch.optim.SGD([parameters], lr=0.05, momentum=0.9),
        "adam": lambda: torch.optim.Adam([parameters], lr=0.05),
    }[optimizer]()
    logits = np.zeros((15, 1))
    for gradient in gradients:
        logits = logits + ours(gradient[:, None])
        parameters.grad = -torch.tensor(gradient)
        theirs.step()
    np.testing.assert_allclose(logits[:, 0], parameters.detach().numpy(), rtol=0, atol=1e-12)


def test_kl_pulls_back_to_the_initial_policy():
    start = np.full(15, 1.5)
    moved = [
        np.abs(
            run_tabular(BinaryTree(), "grpo", "sgd", 2.0, seeds=range(100), initial_logits=start, beta=beta).logits
            - start
        ).mean()
        for beta in (0.0, 1.0, 4.0)
    ]
    assert moved[0] > 1.5 * moved[1] > 2 * moved[2]


def test_target_frequency_is_the_mean_over_the_last_steps():
    result = run_tabular(BinaryTree(), "grpo", "sgd", 3.0, seeds=range(4), steps=30)
    np.testing.assert_allclose(result.target_frequency(10), result.target_probability[20:].mean(axis=0), atol=1e-15)
    for last in (0, 31):
        with pytest.raises(ValueError, match="last"):
            result.target_frequency(last)


def test_extreme_learning_rates_stay_finite():
    for optimizer in ("sgd", "adam"):
        for method in METHODS:
            result = run_tabular(BinaryTree(), method, optimizer, 1e4, seeds=range(20), steps=50, beta=0.01)
            assert np.isfinite(result.target_probability).all()


def test_speed_against_drawing_paths():
    assert not [row for row in tabular_bench(slow_seeds=1, fast_seeds=500, repeats=1) if not row.met]
