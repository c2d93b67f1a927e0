"""Process sets against a trie, a brute-force count and hand-made cases; step rewards and tree statistics; speed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_replications.shared.harness import bench
from grpo_replications.shared.theory import common_prefixes, process_sets, row_layout
from grpo_replications.shared.theory import process_sets_reference as oracle
from grpo_replications.shared.theory.groups import grpo_advantages
from grpo_replications.shared.theory.process_sets import (
    process_set_sizes,
    step_advantages,
    step_rewards,
    tree_statistics,
)


def real_tokens(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[keep != 0].tolist() for row, keep in zip(ids, mask)]


def brute_force_sizes(ids: torch.Tensor, mask: torch.Tensor, group_size: int) -> torch.Tensor:
    """O(G^2 T): for each token, count the completions of the group with the same real tokens up to it."""
    sizes = torch.zeros(ids.shape, dtype=torch.int64)
    real = real_tokens(ids, mask)
    for i, tokens in enumerate(real):
        first = i // group_size * group_size
        group = real[first : first + group_size]
        columns = torch.nonzero(mask[i]).flatten().tolist()
        for t, column in enumerate(columns):
            sizes[i, column] = sum(len(other) > t and other[: t + 1] == tokens[: t + 1] for other in group)
    return sizes


def padded(rows: list[list[int]], side: str = "right", pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    columns = max(map(len, rows), default=0)
    ids = torch.full((len(rows), columns), pad)
    mask = torch.zeros(len(rows), columns, dtype=torch.bool)
    for i, row in enumerate(rows):
        at = slice(0, len(row)) if side == "right" else slice(columns - len(row), columns)
        ids[i, at] = torch.tensor(row, dtype=torch.int64)
        mask[i, at] = True
    return ids, mask


def sets_by_prefix(tokens: list[list[int]]) -> dict[frozenset[int], list[int]]:
    """The process sets of one group of completions without padding: rows to the places t that they share."""
    sets: dict[frozenset[int], list[int]] = {}
    for t in range(max(map(len, tokens), default=0)):
        rows: dict[tuple[int, ...], list[int]] = {}
        for i, row in enumerate(tokens):
            if t < len(row):
                rows.setdefault(tuple(row[: t + 1]), []).append(i)
        for members in rows.values():
            sets.setdefault(frozenset(members), []).append(t)
    return sets


def all_paths(ids: torch.Tensor, mask: torch.Tensor, group_size: int) -> list[torch.Tensor]:
    """Sizes by the search for the CPU and by the one for accelerators, here run on the CPU."""
    return [
        process_set_sizes(ids, mask, group_size),
        process_sets._partition_pairs(ids, mask != 0, group_size, owners=False).sizes,
    ]


@pytest.fixture(params=["as shipped", "narrow limits"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables handled as shipped, and with the limits so low that they are handled like wide ones."""
    if request.param == "narrow limits":
        monkeypatch.setattr(row_layout, "SLICE_ROW", 1)
        monkeypatch.setattr(common_prefixes, "FIRST_LOOK", 2)
        monkeypatch.setattr(common_prefixes, "PAIR_BLOCK", 1)


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Batches with few token values and copied prefixes, so that sharing is common; all kinds of masks and types."""
    group_size, groups, columns = draw(st.integers(1, 7)), draw(st.integers(0, 3)), draw(st.integers(0, 12))
    rows = group_size * groups
    low = draw(st.sampled_from([-1, 0, 70_000, 2**40]))
    token = st.integers(low, low + draw(st.integers(0, 2)))
    ids = draw(st.lists(st.lists(token, min_size=columns, max_size=columns), min_size=rows, max_size=rows))
    for i in range(1, rows):
        if draw(st.booleans()):
            shared = draw(st.integers(0, columns))
            ids[i][:shared] = ids[draw(st.integers(0, i - 1))][:shared]
    mask = []
    for _ in range(rows):
        kind, length = draw(st.sampled_from(["right", "left", "holes", "full"])), draw(st.integers(0, columns))
        if kind == "holes":
            mask.append(draw(st.lists(st.booleans(), min_size=columns, max_size=columns)))
        elif kind == "full":
            mask.append([True] * columns)
        else:
            run = [True] * length + [False] * (columns - length)
            mask.append(run if kind == "right" else run[::-1])
    id_type = torch.int64 if low == 2**40 else draw(st.sampled_from([torch.int64, torch.int32]))
    mask_type = draw(st.sampled_from([torch.bool, torch.int64, torch.int32, torch.float32, torch.bfloat16]))
    shape = rows, columns
    ids_tensor = torch.tensor(ids, dtype=id_type).view(shape)
    return ids_tensor, torch.tensor(mask, dtype=torch.bool).view(shape).to(mask_type), group_size


class TestSizes:
    @given(batch=batches())
    @settings(max_examples=300, deadline=None)
    def test_equal_trie_and_brute_force_on_any_batch(self, batch: tuple[torch.Tensor, torch.Tensor, int]) -> None:
        ids, mask, group_size = batch
        expected = brute_force_sizes(ids, mask, group_size)
        assert torch.equal(oracle.process_set_sizes(ids, mask, group_size), expected)
        for sizes in all_paths(ids, mask, group_size):
            assert sizes.dtype == torch.int64
            assert torch.equal(sizes, expected)

    @pytest.mark.usefixtures("limits")
    @pytest.mark.parametrize("side", ["right", "left", "mixed", "holes"])
    def test_equal_trie_on_longer_batches(self, side: str) -> None:
        generator = torch.Generator().manual_seed(1)
        for _ in range(30):
            ids = torch.randint(-1, 2, (24, 40), generator=generator)
            for i in range(1, 24):
                shared = int(torch.randint(0, 41, (), generator=generator))
                ids[i, :shared] = ids[int(torch.randint(0, i, (), generator=generator)), :shared]
            lengths = torch.randint(0, 41, (24, 1), generator=generator)
            mask = torch.arange(40) < lengths
            if side == "left":
                mask = mask.flip(1)
            elif side == "mixed":
                mask[::2] = mask[::2].flip(1)
            elif side == "holes":
                mask = torch.rand(24, 40, generator=generator) < 0.8
            expected = oracle.process_set_sizes(ids, mask, 8)
            for sizes in all_paths(ids, mask, 8):
                assert torch.equal(sizes, expected)

    def test_worked_example(self) -> None:
        ids, mask = padded([[5, 6, 7], [5, 6, 8], [5, 9], [4]])
        for sizes in all_paths(ids, mask, 4):
            assert sizes.tolist() == [[3, 2, 1], [3, 2, 1], [3, 1, 0], [1, 0, 0]]

    def test_ids_under_padding_do_not_matter(self) -> None:
        ids, mask = padded([[1, 2, 3], [1, 2], [1], []])
        expected = process_set_sizes(ids, mask, 4)
        for garbage in (3, -100, torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max):
            spoiled = torch.where(mask, ids, garbage)
            for sizes in all_paths(spoiled, mask, 4):
                assert torch.equal(sizes, expected)

    def test_ids_at_the_ends_of_every_integer_type(self) -> None:
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
            ids = torch.tensor([[low, high, low], [low, high, 0], [low, low, low], [high, 1, 1]], dtype=dtype)
            mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]])
            for sizes in all_paths(ids, mask, 4):
                assert sizes.tolist() == [[3, 2, 1], [3, 2, 0], [3, 1, 1], [1, 1, 1]]

    def test_ids_that_agree_in_their_low_bits_are_different(self) -> None:
        ids = torch.tensor([[1, 1], [1 + 2**16, 1], [1 + 2**32, 1], [1 - 2**63, 1]])
        for sizes in all_paths(ids, torch.ones_like(ids), 4):
            assert sizes.tolist() == [[1, 1]] * 4

    def test_chain_of_two_thousand_prefixes(self) -> None:
        depth = 2000
        ids = torch.ones(depth, depth, dtype=torch.int32)
        mask = torch.arange(depth) < torch.arange(1, depth + 1).unsqueeze(1)
        expected = torch.where(mask, depth - torch.arange(depth), 0)
        assert torch.equal(process_set_sizes(ids, mask, depth), expected)
        shuffled = torch.randperm(depth, generator=torch.Generator().manual_seed(0))
        assert torch.equal(process_set_sizes(ids[shuffled], mask[shuffled], depth), expected[shuffled])
        few = process_sets._partition_pairs(ids[:200], mask[:200], 200, owners=False).sizes
        assert torch.equal(few, process_set_sizes(ids[:200], mask[:200], 200))

    def test_views_and_inputs_left_alone(self) -> None:
        ids, mask = padded([[1, 2, 3, 4], [1, 2, 5], [1, 2, 3], [2]])
        expected = process_set_sizes(ids, mask, 4)
        before = ids.clone(), mask.clone()
        wide_ids, wide_mask = torch.cat([ids + 1, ids], dim=1), torch.cat([mask, mask], dim=1)
        for view_ids, view_mask in (
            (ids.t().contiguous().t(), mask.t().contiguous().t()),
            (wide_ids[:, 4:], wide_mask[:, 4:]),
            (ids.repeat_interleave(2, 1)[:, ::2], mask.repeat_interleave(2, 1)[:, ::2]),
        ):
            assert not view_ids.is_contiguous()
            for sizes in all_paths(view_ids, view_mask, 4):
                assert torch.equal(sizes, expected)
        assert torch.equal(ids, before[0]) and torch.equal(mask, before[1])

    def test_result_shares_no_memory_with_the_mask(self) -> None:
        ids, mask = padded([[1, 2], [3]])
        mask = mask.long()
        process_set_sizes(ids, mask, 2).fill_(9)
        assert mask.tolist() == [[1, 1], [1, 0]]

    def test_errors_say_what_does_not_fit(self) -> None:
        ids, mask = padded([[1, 2], [1, 3], [1, 2]])
        cases = [
            ((ids, mask, 2), "3 completions"),
            ((ids, mask, 0), "positive integer"),
            ((ids, mask, -3), "positive integer"),
            ((ids, mask, 1.0), "positive integer"),
            ((ids, mask[:, :1], 3), "one shape"),
            ((ids[0], mask[0], 1), "one shape"),
            ((ids.float(), mask, 3), "integers"),
        ]
        for arguments, message in cases:
            with pytest.raises(ValueError, match=message):
                process_set_sizes(*arguments)


class TestSteps:
    def test_worked_example_of_the_paper(self) -> None:
        """A prefix shared by three completions of mean reward 1/3, in a group of mean 5/12: below average as a step."""
        ids, mask = padded([[1, 2], [1, 3], [1, 4], [5, 6]])
        rewards = torch.tensor([1.0, 0.0, 0.0, 2 / 3], dtype=torch.float64)
        steps = step_rewards(ids, mask, rewards, 4)
        assert steps[:3, 0].tolist() == pytest.approx([1 / 3] * 3)
        assert steps[:, 1].tolist() == rewards.tolist()
        advantages = step_advantages(ids, mask, rewards, 4)
        expected = (1 / 3 - 5 / 12) / rewards.std().item()
        assert advantages[:3, 0].tolist() == pytest.approx([expected] * 3)
        assert expected < 0

    @given(batch=batches(), data=st.data())
    @settings(max_examples=150, deadline=None)
    def test_sums_over_every_set(self, batch: tuple[torch.Tensor, torch.Tensor, int], data: st.DataObject) -> None:
        """R is the mean of r over the set; hence A summed over a set is a summed over it, and so over all tokens."""
        ids, mask, group_size = batch
        number = st.floats(-3, 3, width=32)
        values = data.draw(st.lists(number, min_size=len(ids), max_size=len(ids)))
        rewards = torch.tensor(values, dtype=torch.float64)
        steps = step_rewards(ids, mask, rewards, group_size)
        advantages = step_advantages(ids, mask, rewards, group_size, ddof=1, eps=1e-4)
        outcome = grpo_advantages(rewards.view(-1, group_size), ddof=1, eps=1e-4).view(-1)
        assert (steps[mask == 0] == 0).all() and (advantages[mask == 0] == 0).all()
        real = mask != 0
        rank = real.cumsum(1) - 1
        for first in range(0, len(ids), group_size):
            group = slice(first, first + group_size)
            for rows, shared in sets_by_prefix(real_tokens(ids[group], mask[group])).items():
                members = [first + i for i in rows]
                ends = shared[0], shared[-1]
                place = [(i, int(torch.nonzero(real[i] & (rank[i] == t)))) for i in members for t in ends]
                mean = rewards[members].mean().item()
                assert [steps[p].item() for p in place] == pytest.approx([mean] * len(place), abs=1e-12)
                total = sum(advantages[p].item() for p in place[::2])
                assert total == pytest.approx(outcome[members].sum().item(), rel=1e-11, abs=1e-9)
        lengths = real.sum(1)
        assert advantages.sum().item() == pytest.approx((outcome * lengths).sum().item(), rel=1e-11, abs=1e-8)

    def test_the_other_search_gives_the_same_sets(self) -> None:
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(0, 2, (12, 6), generator=generator)
        mask = torch.rand(12, 6, generator=generator) < 0.8
        one = process_sets._partition_rows(ids, mask, 6, owners=True)
        other = process_sets._partition_pairs(ids, mask, 6, owners=True)
        assert torch.equal(one.copies, other.copies)
        for partition in (one, other):  # tokens with one owner and one rank are the tokens of one set
            place = (partition.owners * 10 + mask.cumsum(1))[mask]
            assert torch.equal(place.bincount()[place], one.sizes[mask])

    def test_silent_groups_are_exactly_zero(self) -> None:
        ids, mask = padded([[1, 2], [1, 3], [1, 2], [4, 5]] * 2)
        rewards = torch.tensor([0.35] * 4 + [0.0, 0.0, 0.0, 1.0])
        advantages = step_advantages(ids, mask, rewards, 4)
        assert advantages.dtype == torch.float32
        assert (advantages[:4] == 0).all()
        assert (advantages[4:] != 0).any()
        assert (step_advantages(ids, mask, rewards, 1) == 0).all()

    def test_types(self) -> None:
        ids, mask = padded([[1], [1]])
        for dtype, expected in ((torch.float32, torch.float32), (torch.int64, torch.float64)):
            rewards = torch.tensor([0, 1], dtype=dtype)
            assert step_rewards(ids, mask, rewards, 2).dtype == expected
            assert step_advantages(ids, mask, rewards, 2).dtype == expected

    def test_bad_rewards(self) -> None:
        ids, mask = padded([[1], [1]])
        for rewards in (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("inf")]), torch.ones(3)):
            with pytest.raises(ValueError, match="rewards"):
                step_rewards(ids, mask, rewards, 2)
            with pytest.raises(ValueError, match="rewards"):
                step_advantages(ids, mask, rewards, 2)


class TestTree:
    def statistics(self, rows: list[list[int]], group_size: int) -> tuple[list[int], list[float], list[bool]]:
        for side in ("right", "left"):
            ids, mask = padded(rows, side)
            found = tree_statistics(ids, mask, group_size)
            assert torch.equal(found.sizes, process_set_sizes(ids, mask, group_size))
        return found.path_depth.tolist(), found.intermediate_proportion.tolist(), found.flat.tolist()

    def test_flat_trees(self) -> None:
        assert self.statistics([[1, 2], [3, 4], [5, 6]], 3) == ([0] * 3, [0.0] * 3, [True])  # nothing shared
        assert self.statistics([[9, 2], [9, 4], [9, 6]], 3) == ([0] * 3, [0.0] * 3, [True])  # the root alone
        assert self.statistics([[1, 2]] * 3, 3) == ([0] * 3, [0.0] * 3, [True])  # root and leaf in one
        assert self.statistics([[1, 2]], 1) == ([0], [0.0], [True])

    def test_intermediate_set(self) -> None:
        depth, proportion, flat = self.statistics([[9, 1, 2, 3], [9, 1, 2, 4], [9, 5, 6, 7]], 3)
        assert (depth, proportion, flat) == ([1, 1, 0], [0.5, 0.5, 0.0], [False])

    def test_proper_prefix_ends_in_an_intermediate_set(self) -> None:
        depth, proportion, flat = self.statistics([[1, 2], [1, 2, 3, 4], [5]], 3)
        assert (depth, proportion, flat) == ([1, 1, 0], [1.0, 0.5, 0.0], [False])
        assert self.statistics([[1, 2], [1, 2, 3, 4]], 2) == ([0, 0], [0.0, 0.0], [True])  # here the set is the root

    def test_equal_sizes_do_not_hide_a_proper_prefix(self) -> None:
        """Both groups have the same sizes; only the first has pairs that are not identical."""
        prefixes = self.statistics([[1], [1, 2], [3], [3, 4]], 4)
        identical = self.statistics([[1], [3, 4], [1], [3, 5]], 4)
        assert prefixes == ([1] * 4, [1.0, 0.5, 1.0, 0.5], [False])
        assert identical == ([0, 1, 0, 1], [0.0, 0.5, 0.0, 0.5], [False])

    @given(batch=batches())
    @settings(max_examples=150, deadline=None)
    def test_agree_with_the_list_of_sets(self, batch: tuple[torch.Tensor, torch.Tensor, int]) -> None:
        ids, mask, group_size = batch
        found = tree_statistics(ids, mask, group_size)
        for first in range(0, len(ids), group_size):
            group = slice(first, first + group_size)
            tokens = real_tokens(ids[group], mask[group])
            sets = sets_by_prefix(tokens)
            for i in range(group_size):
                same = frozenset(j for j in range(group_size) if tokens[j] == tokens[i])
                between = [rows for rows in sets if i in rows and rows != same and len(rows) < group_size]
                assert found.path_depth[first + i] == len(between)
                inside = sum(len(sets[rows]) for rows in between)
                expected = inside / max(1, len(tokens[i]))
                assert found.intermediate_proportion[first + i].item() == pytest.approx(expected, abs=1e-15)
            assert found.flat[first // group_size] == (found.path_depth[group] == 0).all()


class TestSpeed:
    def test_ratios(self) -> None:
        rows = bench.bench_process_sets(repeats=10, trie_repeats=2)
        assert len(rows) == 10 and not [row for row in rows if not row.met]

    def test_workloads_share_what_they_say(self) -> None:
        sizes = {
            name: process_set_sizes(ids, torch.ones_like(ids), 64)
            for name, ids in bench.process_set_workloads().items()
        }
        assert sizes["random"].sum() < 1.01 * sizes["random"].numel()
        assert (sizes["identical"] == 64).all()
        assert sizes["binary tree"][0, ::585].tolist() == [64, 32, 16, 8, 4, 2, 1, 1]
        assert sizes["prefix 20-200"][:, 200:].max() == 1 and sizes["prefix 20-200"][:, :20].min() == 64


def test_bench_rows_judge_in_either_direction() -> None:
    assert bench.BenchRow("speed", 21.0, 20.0, "higher").met and not bench.BenchRow("speed", 19.0, 20.0, "higher").met
    assert bench.BenchRow("cost", 7.0, 8.0, "lower").met and not bench.BenchRow("cost", 9.0, 8.0, "lower").met
    row = bench.BenchRow("a", 1.0, 2.0, "lower")
    assert bench.print_table({"one": lambda: [row]})
    assert not bench.print_table({"one": lambda: [row], "two": lambda: [bench.BenchRow("b", 3.0, 2.0, "lower")]})
