"""Process sets: which completions of a group share the tokens up to here, and what follows for GRPO.

The process set lambda(i,t) of token t of completion i holds the completions of its group whose first t+1 tokens equal
those of completion i (Sullivan & Koller, "GRPO is Secretly a Process Reward Model", arXiv:2509.21154).

Shapes: B completions = groups * G, the G completions of a group in adjacent rows; T token columns.
`completion_ids` (B, T) integers and `completion_mask` (B, T), of any dtype, nonzero on real tokens. The mask
alone decides what is real: ids under padding do not matter, so the pad token may equal the end of sequence. Real
tokens are counted along the row, so t is a token's rank among the real tokens of its completion: rows may be padded
left or right, differently within one batch, or have masked tokens in between, which are then skipped in comparisons.

All functions raise ValueError for arguments whose shapes do not fit, ids that are not integers, or a group size that
is no positive integer or does not divide B. Results are on the device of `completion_ids`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_replications.shared.theory.common_prefixes import RowSets, pairwise_prefixes, row_sets
from grpo_replications.shared.theory.groups import group_mean, group_std, is_silent
from grpo_replications.shared.theory.row_layout import RowLayout


@dataclass(frozen=True)
class TreeStatistics:
    """Shape of the prefix trees of a batch.

    In the tree of a group every process set is a node, and a node's span is the run of tokens that exactly this set
    shares. The *root* is the whole group; its span is empty if the completions do not start alike. The *leaf* of a
    completion is the set of the completions identical to it, itself included; its span is empty if the completion is a
    proper prefix of another one. Every other set is *intermediate*: it lies between the root and the leaf. So

    - a pair of identical completions is one leaf, not an intermediate set;
    - if A is a proper prefix of B, the set {A, B} is intermediate for both, unless it is the whole group;
    - if all completions are identical, or G = 1, root and leaf are one.

    path_depth (B,) int64: intermediate sets between the root and the completion's leaf.
    intermediate_proportion (B,) float64: share of the completion's tokens in intermediate sets, 0 if it is empty.
    flat (groups,) bool: no completion of the group has an intermediate set (a trivial tree).
    sizes (B, T) int64: |lambda(i,t)|, as from `process_set_sizes`.
    """

    path_depth: Tensor
    intermediate_proportion: Tensor
    flat: Tensor
    sizes: Tensor


def process_set_sizes(completion_ids: Tensor, completion_mask: Tensor, group_size: int) -> Tensor:
    """|lambda(i,t)| on real tokens and 0 on padding, (B, T) int64, for all groups of the batch.

    Identical completions stay together to their last token; where one completion is a prefix of another, the longer
    one's further tokens do not count the shorter one.

    Cost on the CPU: reading mask and ids once and writing the result, O(B T); sorting, O(B L log G) token comparisons
    at worst for shared prefixes of L tokens; and one slice assignment per set of two or more, fewer than G per group.
    At G = 64, T = 4096 that is up to 6 times reading every id once and writing every size once (`replicate bench`
    measures it). Elsewhere all pairs of a group are compared, O(B G L), in blocks of bounded memory and without a loop
    over rows.
    """
    return _partition(completion_ids, completion_mask, group_size).sizes


def step_rewards(completion_ids: Tensor, completion_mask: Tensor, rewards: Tensor, group_size: int) -> Tensor:
    """Step reward R_{i,t}, the mean reward over lambda(i,t), on real tokens; 0 on padding. Shape (B, T).

    rewards (B,), finite; the result has their dtype, or float64 for integers, and is computed in float64. All members
    of a set get the same number. arXiv:2509.21154, definition of the implicit process reward model. Cost: O(B T) beyond
    the search for the sets.
    """
    _check_rewards(rewards, completion_ids)
    parts = _partition(completion_ids, completion_mask, group_size, owners=True)
    per_token = rewards.to(device=parts.sizes.device, dtype=torch.float64).unsqueeze(1).expand(parts.sizes.shape)
    # Column by column in terms of real tokens: members of a set share the rank of a token, not always its column.
    rank = (parts.mask.cumsum(dim=1) - 1).clamp(min=0)
    place = parts.owners * parts.sizes.shape[1] + rank
    real = place[parts.mask]
    sums = torch.zeros(parts.sizes.numel(), dtype=torch.float64, device=place.device)
    sums.index_add_(0, real, per_token[parts.mask])
    steps = torch.zeros_like(per_token)
    steps[parts.mask] = sums[real] / parts.sizes[parts.mask]
    return steps.to(rewards.dtype) if rewards.is_floating_point() else steps


def step_advantages(
    completion_ids: Tensor,
    completion_mask: Tensor,
    rewards: Tensor,
    group_size: int,
    ddof: int = 1,
    eps: float = 0.0,
) -> Tensor:
    """Step advantage A_{i,t} = (R_{i,t} - mean) / (std + eps), mean and std those of the group's rewards; (B, T).

    0 on padding and, exactly, in silent groups. dtype as for `step_rewards`. arXiv:2509.21154: with the advantages
    a_i of the completions, the sum of A_{i,t} over a set is the sum of its a_i.
    """
    _check_rewards(rewards, completion_ids)
    exact = rewards.to(device=completion_ids.device, dtype=torch.float64)
    steps = step_rewards(completion_ids, completion_mask, exact, group_size)
    groups = exact.view(-1, group_size)
    mean, std, silent = group_mean(groups), group_std(groups, ddof), is_silent(groups)
    mean, std, silent = (value.repeat_interleave(group_size).unsqueeze(1) for value in (mean, std, silent))
    real = (completion_mask != 0) & ~silent
    advantages = torch.where(real, (steps - mean) / torch.where(silent, 1.0, std + eps), 0.0)
    return advantages.to(rewards.dtype) if rewards.is_floating_point() else advantages


def tree_statistics(completion_ids: Tensor, completion_mask: Tensor, group_size: int) -> TreeStatistics:
    """Path depth, intermediate proportion and flatness of the groups' prefix trees; see `TreeStatistics`.

    arXiv:2509.21154, section on the overlap of completions. The sizes alone would not do: they cannot tell a set of
    identical completions from one whose shorter completion is a prefix of the others. Cost: O(B T) beyond the sizes.
    """
    parts = _partition(completion_ids, completion_mask, group_size)
    sizes, mask = parts.sizes, parts.mask
    between = mask & (sizes > parts.copies.unsqueeze(1)) & (sizes < group_size)
    # Along a completion sizes never grow, and a smaller size is another set.
    latest = torch.where(mask, sizes, group_size + 1)
    if sizes.shape[1]:
        latest = latest.cummin(dim=1).values
    before = torch.nn.functional.pad(latest[:, :-1], (1, 0), value=group_size + 1)[:, : sizes.shape[1]]
    path_depth = (between & (sizes != before)).sum(dim=1)
    proportion = between.sum(dim=1).double() / mask.sum(dim=1).clamp(min=1)
    flat = (path_depth.view(-1, group_size) == 0).all(dim=1)
    return TreeStatistics(path_depth, proportion, flat, sizes)


@dataclass(frozen=True)
class _Partition:
    """Sets of a batch: sizes (B, T), owners (B, T) a row that stands for the set (None if not asked for), copies (B,)
    how many completions of the group are identical to each, and the mask (B, T) as bool."""

    sizes: Tensor
    owners: Tensor | None
    copies: Tensor
    mask: Tensor


def _check(ids: Tensor, mask: Tensor, group_size: int) -> None:
    if ids.ndim != 2 or ids.shape != mask.shape:
        shapes = f"{tuple(ids.shape)} and {tuple(mask.shape)}"
        raise ValueError(f"completion_ids and completion_mask must have one shape (B, T), got {shapes}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"completion_ids must be integers, got {ids.dtype}")
    if ids.device != mask.device:
        raise ValueError(f"completion_ids are on {ids.device} and completion_mask is on {mask.device}")
    if isinstance(group_size, bool) or not isinstance(group_size, (int, np.integer)) or group_size < 1:
        raise ValueError(f"group_size must be a positive integer, got {group_size!r}")
    if ids.shape[0] % group_size:
        raise ValueError(f"{ids.shape[0]} completions are no whole number of groups of {group_size}")


def _check_rewards(rewards: Tensor, ids: Tensor) -> None:
    if rewards.ndim != 1 or rewards.shape[0] != ids.shape[0]:
        raise ValueError(f"rewards must have shape ({ids.shape[0]},), one per completion, got {tuple(rewards.shape)}")
    if not torch.isfinite(rewards).all():
        raise ValueError("rewards must be finite: NaN or infinity found")


def _partition(ids: Tensor, mask: Tensor, group_size: int, owners: bool = False) -> _Partition:
    _check(ids, mask, group_size)
    ids, real = ids.detach(), _as_bool(mask.detach())
    search = _partition_rows if ids.device.type == "cpu" else _partition_pairs
    return search(ids, real, int(group_size), owners)


def _as_bool(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return mask
    if mask.device.type == "cpu" and not mask.is_floating_point():
        return torch.from_numpy(mask.numpy() != 0)  # half the time of torch's comparison
    return mask != 0


def _partition_pairs(ids: Tensor, real: Tensor, group_size: int, owners: bool) -> _Partition:
    """Sets from the common prefixes of all pairs, by whole-tensor operations; any device.

    With l(i,j) the common prefix of i and j, j is in lambda(i,t) exactly if l(i,j) > t: sizes are a histogram of l
    summed from its far end.
    """
    rows, columns = ids.shape
    rank = real.cumsum(dim=1) - 1  # of each real token within its completion
    compact = ids.new_zeros(rows, columns + 1)
    compact.scatter_(1, torch.where(real, rank, columns), ids)  # the extra column takes the padding
    lengths = real.sum(dim=1)
    prefix = pairwise_prefixes(compact[:, :columns], lengths, group_size)  # (groups, G, G)
    by_group = lengths.view(-1, group_size)
    same = (prefix == by_group.unsqueeze(2)) & (prefix == by_group.unsqueeze(1))
    prefix = prefix.view(rows, group_size)
    copies = same.sum(dim=2).view(rows)

    rank = rank.clamp(min=0)
    histogram = torch.zeros(rows, columns + 1, dtype=torch.int64, device=ids.device)
    histogram.scatter_add_(1, prefix, torch.ones_like(prefix))
    sizes = histogram.flip(1).cumsum(dim=1).flip(1)[:, 1:].gather(1, rank) * real
    owner = None
    if owners:
        row = torch.arange(rows, device=ids.device).view(-1, group_size)
        member = row.unsqueeze(1).expand(-1, group_size, -1).reshape(rows, group_size)
        first = torch.full((rows, columns + 1), rows, dtype=torch.int64, device=ids.device)
        first.scatter_reduce_(1, prefix, member, "amin")
        owner = first.flip(1).cummin(dim=1).values.flip(1)[:, 1:].gather(1, rank) * real
    return _Partition(sizes, owner, copies, real)


def _partition_rows(ids: Tensor, real: Tensor, group_size: int, owners: bool) -> _Partition:
    """Sets from `row_sets`, written span by span; CPU only."""
    rows, columns = ids.shape
    if not ids.numel():
        empty = torch.zeros(rows, columns, dtype=torch.int64)
        return _Partition(empty, empty if owners else None, torch.full((rows,), group_size), real)
    layout = RowLayout.of(real.numpy())
    sets = row_sets(ids.numpy(), layout, group_size)
    sizes = _spread(layout, sets, np.ones(1, dtype=np.int64), sets.spans[:, 1] - sets.spans[:, 0])
    owner = _spread(layout, sets, sets.order, sets.order[sets.spans[:, 0]]) if owners else None
    return _Partition(sizes, owner, torch.from_numpy(sets.copies), real)


def _spread(layout: RowLayout, sets: RowSets, alone: np.ndarray, value: np.ndarray) -> Tensor:
    """Table (B, T) of `value` (S,) on each set's tokens, `alone` on the other real tokens and 0 on padding.

    `alone` (B,) in the order of the sets, or (1,).
    """
    narrow = np.min_scalar_type(max(value.max(initial=0), alone.max()))  # small while it is written piece by piece
    table = layout.real_at_left()[sets.order].view(np.uint8) * alone[:, None].astype(narrow)
    for (begin, end, start, stop), number in zip(sets.spans.tolist(), value.tolist()):
        table[begin:end, start:stop] = number
    by_row = np.empty_like(sets.order)
    by_row[sets.order] = np.arange(by_row.size)
    return torch.from_numpy(layout.from_left(table[by_row]))
