"""torch's global state at the start of a job. A job without use for torch does not load it: that takes two seconds."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def prepare_torch(seed: int, threads: int) -> None:
    """Seed torch's generators, set its threads, undo global settings of an earlier job: now, or once it is loaded."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AtLoading)]
    if sys.modules.get("torch") is not None:
        _set(sys.modules["torch"], seed, threads)
    else:
        sys.meta_path.insert(0, _AtLoading(seed, threads))


def _set(torch: ModuleType, seed: int, threads: int) -> None:
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)


class _AtLoading(importlib.abc.MetaPathFinder):
    """Finds torch as the other finders do, and sets its state as soon as it has been executed."""

    def __init__(self, seed: int, threads: int) -> None:
        self.seed, self.threads = seed, threads

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        others = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_set(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _set(module, self.seed, self.threads)

            spec.loader.exec_module = execute_and_set
        return spec
