"""torch is seeded wherever a job loads it, and not loaded for a job that does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TORCH = """
float32, calls = "float32", []
def __getattr__(name):
    return lambda *values: calls.append((name, *values))
"""
SCRIPT = """
import importlib.util, sys
from grpo_replications.shared.harness.torch_state import prepare_torch
prepare_torch(7, 2)
prepare_torch(8, 3)
assert "torch" not in sys.modules and importlib.util.find_spec("torch")  # asking whether it is there changes nothing
import torch
first = list(torch.calls)
prepare_torch(9, 1)
print(first, torch.calls[len(first):])
"""


def state(seed: int, threads: int) -> list[tuple]:
    return [
        ("manual_seed", seed),
        ("set_default_dtype", "float32"),
        ("set_grad_enabled", True),
        ("set_num_threads", threads),
    ]


def test_the_state_is_set_when_torch_is_loaded_and_at_once_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"{state(8, 3)} {state(9, 1)}", done.stderr
