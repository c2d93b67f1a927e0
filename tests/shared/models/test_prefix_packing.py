"""Packed texts: every distinct prefix once, seeing its own prefix only, at the position that it had."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grpo_replications.shared.models.prefix_packing import pack, packed_shapes, prefix_nodes


def batch(seed: int) -> tuple[torch.Tensor, ...]:
    """Twelve completions of three prompts of different lengths, over two tokens, so that many begin alike."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(5, 9, (3, 4))
    real = np.arange(4) >= np.array([0, 1, 2])[:, None]
    of = rng.permutation(np.repeat(np.arange(3), 4))
    ids, lengths = rng.integers(1, 3, (12, 5)), rng.integers(0, 6, 12)
    mask = np.arange(5) < lengths[:, None]
    return tuple(torch.from_numpy(x) for x in (prompts[of], real[of].astype(np.int64), ids, mask.astype(np.int64)))


@pytest.mark.parametrize("seed", range(5))
def test_what_predicts_a_token_sees_exactly_its_prefix(seed: int) -> None:
    arguments = batch(seed)
    prompts, prompt_mask, ids, mask = (one.numpy() for one in arguments)
    packed = pack(*arguments)
    assert packed.shapes == packed_shapes(*arguments)
    places = [
        (one, row, place) for one in packed.batches for row in range(len(one.ids)) for place in range(one.ids.size(1))
    ]
    texts = {}
    for i, t in zip(*mask.nonzero()):
        node = int(packed.nodes[i, t])
        assert packed.labels[node] == ids[i, t]
        one, row, place = places[packed.sources[node]]
        seen = one.visible[row, 0, place].nonzero().flatten()
        own = [*prompts[i][prompt_mask[i] == 1], *ids[i, :t]]
        assert one.ids[row, seen].tolist() == own
        start = int((prompt_mask[i] == 0).sum())
        assert one.positions[row, seen].tolist() == list(range(start, start + len(own)))
        texts.setdefault((tuple(prompts[i][prompt_mask[i] == 1]), *ids[i, : t + 1]), set()).add(node)
    assert all(len(nodes) == 1 for nodes in texts.values()) and len(texts) == len(packed.labels)
    assert (packed.nodes.numpy() < 0).sum() == (mask == 0).sum()
    per_token = packed.of_tokens(torch.arange(1.0, len(packed.labels) + 1))
    assert per_token.tolist() == (packed.nodes + 1).tolist()


def test_nodes_count_distinct_prefixes() -> None:
    ids = np.array([[1, 2], [1, 3], [1, 2], [1, 2]])
    nodes = prefix_nodes(ids, np.array([[1, 1], [1, 1], [1, 0], [1, 1]], dtype=bool), np.array([0, 0, 0, 1]))
    assert nodes.tolist() == [[0, 1], [0, 2], [0, -1], [3, 4]]


def test_masks_of_another_form_are_refused() -> None:
    one = torch.ones(1, 2, dtype=torch.long)
    for prompt, completion in (([1, 0], [1, 1]), ([1, 1], [0, 1]), ([1, 1], [0, 0])):
        with pytest.raises(ValueError):
            pack(one, torch.tensor([prompt]), one, torch.tensor([completion]))
