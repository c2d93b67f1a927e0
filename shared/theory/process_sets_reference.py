"""Process-set sizes from a compressed trie in plain Python: the slow, independent oracle for
`shared.theory.process_sets`.

A node is one span of tokens; completions are inserted one after another, splitting a node where they part from it.
"""

from __future__ import annotations

import torch


class _Node:
    """A span of tokens, how many completions run through it, and its children by their first token."""

    __slots__ = ("children", "count", "span")

    def __init__(self, span: list[int], count: int) -> None:
        self.span = span
        self.count = count
        self.children: dict[int, _Node] = {}


def _insert(root: _Node, tokens: list[int]) -> None:
    node, at, length = root, 0, len(tokens)
    node.count += 1
    while at < length:
        child = node.children.get(tokens[at])
        if child is None:
            node.children[tokens[at]] = _Node(tokens[at:], 1)
            return
        span = child.span
        limit = min(len(span), length - at)
        if span[:limit] == tokens[at : at + limit]:
            common = limit
        else:
            common = 1
            while span[common] == tokens[at + common]:
                common += 1
        if common < len(span):  # split: the upper part keeps the place in the tree
            upper = _Node(span[:common], child.count)
            child.span = span[common:]
            upper.children[child.span[0]] = child
            node.children[tokens[at]] = upper
            child = upper
        child.count += 1
        node, at = child, at + common


def _sizes(root: _Node, tokens: list[int]) -> list[int]:
    sizes: list[int] = []
    node = root
    while len(sizes) < len(tokens):
        node = node.children[tokens[len(sizes)]]
        sizes += [node.count] * len(node.span)
    return sizes


def process_set_sizes(completion_ids: torch.Tensor, completion_mask: torch.Tensor, group_size: int) -> torch.Tensor:
    """|lambda(i,t)| on real tokens, 0 on padding; arguments and result as `process_sets.process_set_sizes`."""
    ids, mask = completion_ids.tolist(), completion_mask.bool().tolist()
    table = []
    for first in range(0, len(ids), group_size):
        rows = range(first, first + group_size)
        real = [ids[i] if all(mask[i]) else [t for t, keep in zip(ids[i], mask[i]) if keep] for i in rows]
        root = _Node([], 0)
        for tokens in real:
            _insert(root, tokens)
        for i, tokens in zip(rows, real):
            sizes = iter(_sizes(root, tokens))
            table.append([next(sizes) if keep else 0 for keep in mask[i]])
    return torch.tensor(table, dtype=torch.int64).view(completion_ids.shape)
