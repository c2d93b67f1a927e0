"""Speed of the vectorized tabular policy against drawing paths and looping over seeds."""

from __future__ import annotations

import importlib.util
import statistics
import time
from pathlib import Path
from types import ModuleType

from shared.bench import BenchRow
from synthetic.binary_tree import BinaryTree, run_tabular

TARGET = 10.0
_ORACLE = Path(__file__).resolve().parents[1] / "tests" / "synthetic" / "tree_oracle.py"


def tabular_bench(slow_seeds: int = 2, fast_seeds: int = 1000, repeats: int = 3) -> list[BenchRow]:
    """Time per seed of the slow version divided by that of ``run_tabular``, both methods under both optimizers.

    The two are timed in turn, ``repeats`` times, and the median of the ratios is reported: at least TARGET is wanted.
    """
    oracle, tree = _load_oracle(), BinaryTree()
    rows = []
    for method in ("grpo", "lambda-grpo"):
        for optimizer, lr in (("sgd", 5.0), ("adam", 0.05)):
            ratios = []
            for _ in range(repeats):
                start = time.perf_counter()
                oracle.run_paths(tree, method, optimizer, lr, seeds=range(slow_seeds))
                middle = time.perf_counter()
                run_tabular(tree, method, optimizer, lr, seeds=range(fast_seeds))
                ratios.append((middle - start) / slow_seeds / ((time.perf_counter() - middle) / fast_seeds))
            name = f"tabular tree, {method}, {optimizer}: seeds per second against drawing paths"
            rows.append(BenchRow(name=name, ratio=statistics.median(ratios), target=TARGET, better="higher"))
    return rows


def _load_oracle() -> ModuleType:
    """The slow version lives with the tests, which are no package."""
    spec = importlib.util.spec_from_file_location("tree_oracle", _ORACLE)
    if spec is None or spec.loader is None or not _ORACLE.exists():
        raise FileNotFoundError(f"{_ORACLE} is missing; run this from a clone of the repository")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHES = {"tabular tree": tabular_bench}
