"""The tree as a task for a language model: it can say two tokens only, and TRL trains it as the tabular theory says."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grpo_replications.shared.models import catalog
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.run import TrainingRun, run_training
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.synthetic.binary_tree import BinaryTree
from grpo_replications.synthetic.tree_policy import group_advantages, policy_gradient
from grpo_replications.synthetic.tree_task import (
    LEFT,
    PATH,
    RIGHT,
    leaf_of,
    leaf_probability,
    path_ids,
    path_model,
    tree_dataset,
    tree_reward,
)

DEPTH, TARGET = 4, 6
TREE = BinaryTree(depth=DEPTH, prefix_length=1)
ALL_PATHS = torch.tensor([[PATH, *path_ids(leaf, DEPTH)] for leaf in range(TREE.leaves)])


def sharp_model(seed: int = 0) -> tuple[Any, Any]:
    """A random policy whose leaves differ clearly in probability."""
    model, tokenizer = path_model("random-small", seed)
    with torch.no_grad():
        model.model.norm.weight *= 6
    return model, tokenizer


def train(directory: Path, model: Any, tokenizer: Any, **settings: Any) -> TrainingRun:
    chosen = {
        "method": "lambda-grpo",
        "steps": 3,
        "prompts_per_step": 1,
        "group_size": 16,
        "max_new_tokens": DEPTH,
        "precision": "float32",
        **settings,
    }
    options = {"directory": directory, "model": model, "tokenizer": tokenizer}
    return run_training(TrainingSettings(**chosen), 0, tree_dataset(8), tree_reward(TREE, TARGET), **options)


def parameters(model: Any) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters() if p.requires_grad])


# --- the model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["random-small", "tiny-random"])
def test_nothing_but_left_and_right_has_any_probability(name: str, dtype: torch.dtype) -> None:
    model = path_model(name)[0].to(dtype)
    with torch.no_grad():
        probabilities = model(input_ids=ALL_PATHS).logits.softmax(dim=-1)
    others = [token for token in range(probabilities.size(-1)) if token not in (LEFT, RIGHT)]
    assert len(others) == 2 and not probabilities[..., others].any()
    assert probabilities[..., [LEFT, RIGHT]].min() > 0
    entropy = -(probabilities * model(input_ids=ALL_PATHS).logits.log_softmax(dim=-1)).sum(dim=-1)
    assert torch.isfinite(entropy).all()


def test_the_random_model_depends_on_its_seed_alone() -> None:
    state = torch.get_rng_state()
    first = parameters(path_model("random-small", 1)[0])
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(parameters(path_model("random-small", 1)[0]), first)
    assert not torch.equal(parameters(path_model("random-small", 2)[0]), first)


def test_a_pretrained_body_is_kept_and_its_own_words_left_and_right_are_used() -> None:
    model, tokenizer = path_model("tiny-random")
    original, words = catalog.load("tiny-random")
    left, right = (words.convert_tokens_to_ids(word) for word in "LR")
    translation = torch.tensor([words.eos_token_id, words.eos_token_id, left, right])
    with torch.no_grad():
        ours = model(input_ids=ALL_PATHS).logits[..., [LEFT, RIGHT]]
        theirs = original(input_ids=translation[ALL_PATHS]).logits[..., [left, right]]
    torch.testing.assert_close(ours, theirs)
    assert tokenizer("<path> L R").input_ids == [PATH, LEFT, RIGHT] and tokenizer.decode([LEFT, RIGHT]) == "L R"


def test_input_and_output_share_the_embedding_and_the_mask_is_not_trained() -> None:
    model, _ = path_model("tiny-random")
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert not model.get_output_embeddings().bias.requires_grad


def test_no_reference_policy_is_rebuilt_from_where_the_body_came_from(tmp_path: Path) -> None:
    """The model on disk has another vocabulary: as a reference it would give a KL that means nothing."""
    with pytest.raises(OSError):
        train(tmp_path, *path_model("tiny-random"), beta=0.1)


def test_a_tokenizer_that_splits_a_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = catalog.tiny_random()

    class Splitting:
        bos_token_id, eos_token_id = 0, 0

        def __call__(self, word: str, add_special_tokens: bool) -> Any:
            return tokenizer("--" + word)

    monkeypatch.setattr(catalog, "load", lambda _: (model, Splitting()))
    with pytest.raises(ValueError, match="splits 'L' into 3 tokens"):
        path_model("some/model")


# --- paths, leaves and rewards ----------------------------------------------------------------------------------------


def test_paths_and_leaves_are_inverse_and_agree_with_the_tree() -> None:
    for depth in (2, 5):
        tree = BinaryTree(depth=depth)
        for leaf in range(tree.leaves):
            ids = path_ids(leaf, depth)
            assert leaf_of(ids, depth) == leaf
            assert tuple(int(token == RIGHT) for token in ids) == tree.path_of_leaf(leaf)


@pytest.mark.parametrize("ids", [[LEFT] * 3, [LEFT] * 5, [LEFT, LEFT, PATH, RIGHT], [LEFT, RIGHT, LEFT, 0], []])
def test_what_is_no_path_has_no_leaf(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="not a path of 4 tokens"):
        leaf_of(ids, DEPTH)


@pytest.mark.parametrize("prefix_length", [1, 2, 3])
def test_rewards_are_those_of_the_tree(prefix_length: int) -> None:
    tree = BinaryTree(depth=DEPTH, prefix_length=prefix_length, prefix_reward=-1.5)
    for target in (0, 6, 15):
        paths = [path_ids(leaf, DEPTH) for leaf in range(tree.leaves)]
        paid = tree_reward(tree, target)(completion_ids=paths, prompts=["<path>"] * len(paths))
        assert paid == tree.leaf_rewards(target).tolist()
        assert paid[target] == 1.0 and paid.count(-1.5) == 2 ** (DEPTH - prefix_length) - 1


# --- probabilities ----------------------------------------------------------------------------------------------------


def test_leaf_probabilities_sum_to_one_and_are_the_sampled_frequencies() -> None:
    model, _ = sharp_model()
    exact = np.array([leaf_probability(model, leaf, DEPTH) for leaf in range(TREE.leaves)])
    assert exact.sum() == pytest.approx(1, abs=1e-6) and exact.max() > 2 * exact.min()
    draws = 4000
    torch.manual_seed(0)
    sampled = model.generate(
        torch.full((draws, 1), PATH), do_sample=True, top_k=0, max_new_tokens=DEPTH, min_new_tokens=DEPTH
    )
    counts = Counter(leaf_of(ids, DEPTH) for ids in sampled[:, 1:].tolist())
    frequencies = np.array([counts[leaf] / draws for leaf in range(TREE.leaves)])
    assert (np.abs(frequencies - exact) < 4.5 * np.sqrt(exact * (1 - exact) / draws)).all()


# --- training ---------------------------------------------------------------------------------------------------------


def test_trl_samples_paths_only_and_sees_an_entropy_of_at_most_ln_2(tmp_path: Path) -> None:
    run = train(tmp_path, *path_model("random-small"), lr=1e-3)
    groups = list(read_group_log(run.group_log))
    assert len(groups) == 3 and all(len(group["completion_ids"]) == 16 for group in groups)
    for group in groups:
        leaves = [leaf_of(ids, DEPTH) for ids in group["completion_ids"]]
        assert group["rewards"] == pytest.approx([TREE.leaf_rewards(TARGET)[leaf] for leaf in leaves])
        assert all(0.5 < entropy <= math.log(2) + 1e-6 for entropy in group["entropy"])
    assert all(0.5 < entry["entropy"] <= math.log(2) + 1e-6 for entry in run.history)


def test_weights_on_the_tree_are_one_over_the_completions_that_share_the_path_so_far(tmp_path: Path) -> None:
    run = train(tmp_path, *path_model("random-small"))
    for group in read_group_log(run.group_log):
        paths = [tuple(ids) for ids in group["completion_ids"]]
        expected = [
            [1 / sum(other[: t + 1] == path[: t + 1] for other in paths) for t in range(DEPTH)] for path in paths
        ]
        assert group["weights"]["mean"] == pytest.approx([sum(row) / DEPTH for row in expected])
        assert group["weights"]["min"] == pytest.approx([row[0] for row in expected])
        assert group["weights"]["max"] == pytest.approx([row[-1] for row in expected])


def expected_change(model: Any, group: dict[str, Any], lam: bool) -> Tensor:
    """The tabular gradient on the nodes, carried to the model's parameters by the chain rule through each node's logit.

    d L / d theta = sum over nodes v of (d L / d z_v) (d z_v / d theta), z_v = logit of L minus logit of R at node v.
    """
    model = model.double()
    logits = model(input_ids=ALL_PATHS).logits[:, :-1]
    nodes: dict[int, Tensor] = {}
    for leaf, path in enumerate(ALL_PATHS[:, 1:].tolist()):
        node = 0
        for t, token in enumerate(path):
            nodes[node] = logits[leaf, t, LEFT] - logits[leaf, t, RIGHT]
            node = 2 * node + (1 if token == LEFT else 2)
    z = torch.stack([nodes[node] for node in range(TREE.inner_nodes)])
    leaves = [leaf_of(ids, DEPTH) for ids in group["completion_ids"]]
    counts = np.bincount(leaves, minlength=TREE.leaves).astype(float)[:, None]
    a, _ = group_advantages(counts, TREE.leaf_rewards(TARGET)[:, None])
    left = z.detach().sigmoid().numpy()[:, None]
    gradient = policy_gradient(left, counts, a, "lambda-grpo" if lam else "grpo")
    (z * torch.from_numpy(gradient[:, 0])).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("method", ["grpo", "lambda-grpo"])
def test_a_step_of_the_trainer_is_the_closed_form_of_the_tabular_simulator(tmp_path: Path, method: str) -> None:
    model, tokenizer = sharp_model(seed=3)
    start = parameters(model)
    one_step = {"optimizer": "sgd", "lr": 1.0, "max_grad_norm": 0.0, "steps": 1}  # so the change is the gradient
    run = train(tmp_path, model, tokenizer, method=method, **one_step)
    change = parameters(run.model) - start
    group = next(read_group_log(run.group_log))
    expected = {lam: expected_change(sharp_model(seed=3)[0], group, lam) for lam in (False, True)}
    right, wrong = expected[method == "lambda-grpo"], expected[method == "grpo"]
    assert float((change - right).norm() / right.norm()) < 1e-4
    assert float((change - wrong).norm() / wrong.norm()) > 0.1


@pytest.mark.embedded
def test_the_embedded_model_can_walk_the_tree() -> None:
    if not (catalog.cache_directory() / "smollm2-135m-instruct" / "model.safetensors").exists():
        pytest.skip("the embedded model is not in the cache: run `make model`")
    model, _ = path_model("embedded")
    assert sum(leaf_probability(model, leaf, DEPTH) for leaf in range(TREE.leaves)) == pytest.approx(1, abs=1e-6)
