"""Speed measured as ratios: `python -m shared.harness.bench` prints a table of them.

A ratio of two times taken in one run, side by side, holds on other machines where a time in seconds does not. Targets
leave a fifth or more below what repeated runs measured, since a ratio still differs from processor to processor. Each
entry of `BENCHES` is a function that measures and returns rows; other packages hand their own to `print_table`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from grpo_replications.shared.theory import process_sets_reference
from grpo_replications.shared.theory.process_sets import process_set_sizes

GROUP_SIZE, COLUMNS = 64, 4096


@dataclass(frozen=True)
class BenchRow:
    """One measured ratio and its target: at least the target if `better` is "higher", at most if it is "lower"."""

    name: str
    ratio: float
    target: float
    better: Literal["higher", "lower"]

    @property
    def met(self) -> bool:
        return self.ratio >= self.target if self.better == "higher" else self.ratio <= self.target


Bench = Callable[[], list[BenchRow]]


def seconds(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Shortest processor time of each call on one thread: what it costs when nothing else is in its way.

    Processor time, because on a busy machine the time on the clock measures the other programs, and so do threads that
    wait for each other. The calls take turns, so that a slow moment of the machine falls on all of them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {name: [] for name in calls}
    try:
        for repeat in range(repeats + 1):
            for name, call in calls.items():
                begin = time.process_time()
                call()
                if repeat:  # the first call of each warms up
                    times[name].append(time.process_time() - begin)
    finally:
        torch.set_num_threads(threads)
    return {name: min(taken) for name, taken in times.items()}


def process_set_workloads(group_size: int = GROUP_SIZE, columns: int = COLUMNS) -> dict[str, Tensor]:
    """Completion ids (G, T) by kind of sharing, the same on each call; no padding.

    random: nothing shared. prefix 20-200: each completion follows an earlier one for 20 to 200 tokens. any prefix: for
    any number of tokens. binary tree: halves part at each of log2 G even steps. identical: one completion G times.
    """
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 50_000, (columns,), generator=generator) for _ in range(group_size)]

    def branching(least: int, most: int) -> Tensor:
        ids = torch.stack(rows)
        for i in range(1, group_size):
            parent = int(torch.randint(0, i, (), generator=generator))
            shared = int(torch.randint(least, most + 1, (), generator=generator))
            ids[i, :shared] = ids[parent, :shared]
        return ids

    levels = (group_size - 1).bit_length()
    span = columns // (levels + 1)
    tree = torch.stack(rows)
    for level in range(levels):
        first = torch.arange(group_size) >> (levels - level) << (levels - level)
        tree[:, level * span : (level + 1) * span] = tree[first, level * span : (level + 1) * span]
    return {
        "random": torch.stack(rows),
        "prefix 20-200": branching(min(20, columns), min(200, columns)),
        "any prefix": branching(1, columns),
        "binary tree": tree,
        "identical": rows[0].repeat(group_size, 1),
    }


def memory_floor(ids: Tensor, mask: Tensor) -> Tensor:
    """Read every token once and write every size once: the least that any computation of process-set sizes must do."""
    return torch.where(mask, ids, 0)


def bench_process_sets(repeats: int = 30, trie_repeats: int = 5) -> list[BenchRow]:
    """`process_set_sizes` against the memory floor and against the trie in plain Python.

    Measured on one core: 1.4 to 2.8 times the floor; 26 to 54 times as fast as the trie, which empties the caches.
    """
    rows = []
    for name, ids in process_set_workloads().items():
        arguments = ids, torch.ones_like(ids, dtype=torch.bool), len(ids)
        calls = {"ours": partial(process_set_sizes, *arguments), "floor": partial(memory_floor, *arguments[:2])}
        times = seconds(calls, repeats)
        rows.append(BenchRow(f"process sets / memory floor, {name}", times["ours"] / times["floor"], 6.0, "lower"))
        trie = partial(process_sets_reference.process_set_sizes, *arguments)
        times = seconds({"ours": calls["ours"], "trie": trie}, trie_repeats)
        rows.append(BenchRow(f"Python trie / process sets, {name}", times["trie"] / times["ours"], 20.0, "higher"))
    return rows


BENCHES: dict[str, Bench] = {"process sets": bench_process_sets}


def print_table(benches: Mapping[str, Bench]) -> bool:
    """Run the benches, print one line per ratio, and return whether every target was met."""
    rows = [row for bench in benches.values() for row in bench()]
    table = Table("ratio", "measured", "target", "met", title="ratios of processor times, one thread")
    for row in rows:
        sign = "≥" if row.better == "higher" else "≤"
        table.add_row(row.name, f"{row.ratio:.1f}", f"{sign} {row.target:g}", "yes" if row.met else "no")
    Console().print(table)
    return all(row.met for row in rows)


if __name__ == "__main__":
    sys.exit(0 if print_table(BENCHES) else 1)
