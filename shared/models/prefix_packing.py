"""Prompts and completions packed so that a language model computes every distinct prefix once.

The completions of a prompt begin with the same prompt and often with the same tokens. Laid out as one text, with a
mask by which a token sees its own prefix alone and a position that is its depth, each distinct prefix takes one place
of the text; a prefix that no completion goes on from takes none, since nothing is predicted from it.

Legend of shapes: B completions, P prompt columns, T completion columns, M distinct nonempty prefixes of completions of
the same prompt (*nodes*), N places of a packed text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PADDING_ALLOWED = 0.1
"""Texts share a batch as long as at most this share of its places is padding."""


@dataclass(frozen=True)
class PackedBatch:
    """Packed texts of similar length as a model's inputs: `ids`, `positions` (R, N), `visible` (R, 1, N, N) bool."""

    ids: Tensor
    positions: Tensor
    visible: Tensor


@dataclass(frozen=True)
class PackedCompletions:
    """The texts of a batch of completions, and where to find what is predicted.

    `batches`: one text a prompt, every text once. `sources` (M,): the place that predicts each node, in the places of
    all batches one after another. `labels` (M,): the node's token. `nodes` (B, T): the node of each token, -1 on
    padding. All on the device of the ids.
    """

    batches: list[PackedBatch]
    sources: Tensor
    labels: Tensor
    nodes: Tensor

    def of_tokens(self, per_node: Tensor) -> Tensor:
        """A number of each node, (M,), as a number of each completion token, (B, T); 0 on padding."""
        return per_node[self.nodes.clamp(min=0)].masked_fill(self.nodes < 0, 0)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and places of each batch."""
        return [(batch.ids.size(0), batch.ids.size(1)) for batch in self.batches]


def prefix_nodes(ids: np.ndarray, mask: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Number of the distinct prefix that ends with each token, (B, T) int64, -1 on padding.

    Two tokens have one number if their completions have the same prompt, `prompts` (B,), and agree up to and with them.
    `ids` (B, T) and `mask` (B, T) bool, its real tokens first. Numbers go from 0 without gaps, and a prefix has a
    smaller number than what goes on from it. Cost: sorting B rows of T tokens.
    """
    tokens = np.where(mask, ids, -1)
    order = np.lexsort((*tokens.T[::-1], prompts))
    tokens, real, owner = tokens[order], mask[order], prompts[order]
    new = real.copy()
    same = (tokens[1:] == tokens[:-1]) & (owner[1:] == owner[:-1])[:, None]
    new[1:] &= ~np.logical_and.accumulate(same, axis=1)
    numbers = new.cumsum().reshape(new.shape) - 1
    row = np.arange(len(new))[:, None]
    first = np.maximum.accumulate(np.where(new, row, 0), axis=0)  # the row whose prefix this token's row shares
    found = np.empty_like(numbers)
    found[order] = np.where(real, np.take_along_axis(numbers, first, axis=0), -1)
    return found


def pack(prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor) -> PackedCompletions:
    """Pack completions (B, T), real tokens first, behind their prompts (B, P), real tokens last.

    A token keeps the position that it has in the unpacked rows, padding counted. Equal prompts share a text. Memory: N
    squared for each text, of which `packed_shapes` tells beforehand.
    Raises ValueError for masks that are not so, a prompt without a token, or completions without one.
    """
    device = completion_ids.device
    layout = _layout(prompt_ids, prompt_mask, completion_ids, completion_mask)
    nodes, mask = layout.nodes, layout.nodes >= 0
    texts = [_text(layout, u, one) for u, one in enumerate(layout.example)]
    batches, offsets = _batches(texts)
    sources = np.empty(nodes.max() + 1, dtype=np.int64)
    labels = np.empty_like(sources)
    for text, offset in zip(texts, offsets, strict=True):
        sources[text.nodes] = offset + text.sources
    labels[nodes[mask]] = layout.ids[mask]
    return PackedCompletions(
        [PackedBatch(*(torch.from_numpy(part).to(device) for part in batch)) for batch in batches],
        torch.from_numpy(sources).to(device),
        torch.from_numpy(labels).to(device),
        torch.from_numpy(nodes).to(device),
    )


def packed_shapes(
    prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor
) -> list[tuple[int, int]]:
    """Rows and places of each batch that `pack` makes of the same arguments, without making them."""
    layout = _layout(prompt_ids, prompt_mask, completion_ids, completion_mask)
    lengths = [int(layout.real[one].sum()) + len(inner) for one, inner in zip(layout.example, layout.inner)]
    return [(len(group), lengths[group[0]]) for group in _alike(lengths)]


@dataclass(frozen=True)
class _Layout:
    """Prompts (B, P) with their mask, ids and nodes (B, T); of each text a row that has it, its rows, its inner nodes.

    Inner nodes are those from which something is predicted.
    """

    prompts: np.ndarray
    real: np.ndarray
    ids: np.ndarray
    nodes: np.ndarray
    example: np.ndarray
    rows: list[np.ndarray]
    inner: list[np.ndarray]


def _layout(prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor) -> _Layout:
    prompts, real, ids, mask = (
        value.detach().cpu().numpy() for value in (prompt_ids, prompt_mask != 0, completion_ids, completion_mask != 0)
    )
    _check(real, mask)
    _, example, prompt_of = np.unique(np.where(real, prompts, -1), axis=0, return_index=True, return_inverse=True)
    prompt_of = prompt_of.reshape(-1)
    nodes = prefix_nodes(ids, mask, prompt_of)
    if nodes.max(initial=-1) < 0:
        raise ValueError("no completion has a token")
    rows = [np.flatnonzero(prompt_of == u) for u in range(len(example))]
    inner = [np.unique(nodes[own, :-1][nodes[own, 1:] >= 0]) for own in rows]
    return _Layout(prompts, real, ids, nodes, example, rows, inner)


def _check(prompt: np.ndarray, completion: np.ndarray) -> None:
    if not prompt[:, -1:].all() or not prompt.shape[1]:
        raise ValueError("every prompt needs a token, and its padding on the left")
    if (np.diff(prompt.astype(int), axis=1) < 0).any() or (np.diff(completion.astype(int), axis=1) > 0).any():
        raise ValueError("padding must be on the left of prompts and on the right of completions")


@dataclass(frozen=True)
class _Text:
    """One prompt and its completions: ids, positions (N,), visible (N, N); the place that predicts each node."""

    ids: np.ndarray
    positions: np.ndarray
    visible: np.ndarray
    nodes: np.ndarray  # (m,) this prompt's nodes
    sources: np.ndarray  # (m,) their places in this text


def _text(layout: _Layout, number: int, example: int) -> _Text:
    """The text of one prompt, which the row `example` has."""
    prompt, real, inner = layout.prompts[example], layout.real[example], layout.inner[number]
    ids, nodes = layout.ids[layout.rows[number]], layout.nodes[layout.rows[number]]
    start = len(real) - real.sum()
    length = len(real) - start
    place = {int(node): length + i for i, node in enumerate(inner)}
    size = length + len(inner)
    text_ids, positions = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    text_ids[:length], positions[:length] = prompt[start:], np.arange(start, len(real))
    visible = np.zeros((size, size), dtype=bool)
    visible[:length, :length] = np.tri(length, dtype=bool)
    visible[length:, :length] = True
    sources: dict[int, int] = {}
    for row_ids, row in zip(ids, nodes, strict=True):
        row = row[row >= 0]
        if not row.size:
            continue
        path = np.array([place[int(node)] for node in row[:-1]], dtype=np.int64)
        text_ids[path], positions[path] = row_ids[: len(path)], len(real) + np.arange(len(path))
        visible[path[:, None], path] = np.tri(len(path), dtype=bool)
        sources.update(zip(row.tolist(), [length - 1, *path.tolist()], strict=True))
    return _Text(
        text_ids,
        positions,
        visible,
        np.array(list(sources), dtype=np.int64),
        np.array(list(sources.values()), dtype=np.int64),
    )


def _batches(texts: Sequence[_Text]) -> tuple[list[tuple[np.ndarray, np.ndarray, np.ndarray]], list[int]]:
    """Texts of similar length together, and for each text the place of its first token among those of all batches."""
    groups = _alike([len(text.ids) for text in texts])
    batches, offsets, begin = [], [0] * len(texts), 0
    for group in groups:
        size = len(texts[group[0]].ids)
        ids, positions = (np.zeros((len(group), size), dtype=np.int64) for _ in range(2))
        visible = np.zeros((len(group), 1, size, size), dtype=bool)
        visible[:, 0, range(size), range(size)] = True  # padding sees itself: an empty softmax is NaN
        for row, i in enumerate(group):
            own = len(texts[i].ids)
            ids[row, :own], positions[row, :own] = texts[i].ids, texts[i].positions
            visible[row, 0, :own, :own] = texts[i].visible
            offsets[i] = begin + row * size
        batches.append((ids, positions, visible))
        begin += len(group) * size
    return batches, offsets


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Numbers of texts to put together, the longest first, with at most PADDING_ALLOWED of a batch as padding."""
    groups: list[list[int]] = []
    places = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        places += lengths[i]
        if groups and places >= (1 - PADDING_ALLOWED) * lengths[groups[-1][0]] * (len(groups[-1]) + 1):
            groups[-1].append(i)
        else:
            groups.append([i])
            places = lengths[i]
    return groups
