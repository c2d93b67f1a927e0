"""A toy paper in a temporary directory, for everything that is tested with whole runs."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True, scope="module")
def collections_of_garbage_pass_over_what_is_loaded() -> None:
    """Every training run collects garbage, which takes half a second with the modules of torch and TRL in the heap."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_figure_is_left_open() -> Iterator[None]:
    """Close what a test has drawn: others look at which figures are open."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


CLAIMS = """
paper = "toy-paper"
title = "A toy"
authors = ["A. Author"]
arxiv = "0000.00000"

[[claim]]
id = "toy-paper/theorem"
statement = "Nothing is left over."
where = "Theorem 1"
source = "paper"
reports = "an identity"
published_setting = "random draws"

[[claim.check]]
id = "toy-paper/identity"
answers = "published"
kind = "exact"
statement = "The residual is zero."
experiment = "draw"
profiles = ["quick", "full"]
metric = "residual"
unit = "length"
definition = "largest residual"

[[claim]]
id = "toy-paper/gain"
statement = "New beats old."
where = "Table 1"
source = "paper"
reports = "1.0 against 0.0"
published_setting = "a model of 1 T parameters"
here_setting = "a toy"

[claim.common]
experiment = "batch"
metric = "score"
unit = "points"

[[claim.check]]
id = "toy-paper/direction"
answers = "here"
kind = "direction"
statement = "New beats old on a toy."
profiles = ["quick", "full"]
select = { step = "last" }
better = { method = "new" }
worse = { method = "old" }
conditions = ["lr"]
paper_value = 1.0
definition = "score, new minus old"

[[claim.check]]
id = "toy-paper/huge"
answers = "published"
kind = "at_least"
statement = "A model of 1 T parameters agrees."
profiles = ["full"]
not_run_reason = "needs a day"
threshold = 0.5
definition = "mean score"
"""

PROFILES = """
[quick]
description = "a few seconds"
budget_minutes = 1
[quick.draw]
seeds = 3
workers = 2
scale = 2.0
[quick.draw.grid]
kind = ["a", "b"]
[quick.batch]
seeds = 8
[quick.batch.grid]
lr = [0.5, 1]
method = ["new", "old"]

[smoke]
description = "a test"
[smoke.draw]
seeds = 1
scale = 2.0
[smoke.draw.grid]
kind = ["a"]

[full]
description = "everything"
[full.draw]
seeds = 3
scale = 2.0
[full.draw.grid]
kind = ["a", "b"]
[full.batch]
seeds = 8
[full.batch.grid]
lr = [0.5, 1]
method = ["new", "old"]

[gpu]
description = "needs a GPU"
requires = "gpu"
[gpu.draw]
seeds = 1
scale = 1.0
"""

EXPERIMENTS = """
import importlib, os, random, signal, sys, time
from pathlib import Path

import numpy as np

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import Experiment
from grpo_replications.shared.settings import Settings

HERE = Path(__file__).parent


class DrawSettings(Settings):
    scale: float
    kind: str = "a"


class BatchSettings(Settings):
    lr: float
    method: str


def draw(settings, seed, context):
    with open(HERE / "calls.txt", "a") as calls:
        calls.write(f"draw {settings.kind} {seed} {os.getpid()}\\n")
    print("words on the terminal")
    if (HERE / "fail").exists() and seed == 1:
        raise RuntimeError("seed 1 is broken")
    if (HERE / "stop").exists():
        raise ReplicationError("The hub cannot be reached.")
    if (HERE / "die").exists() and seed == 1 and settings.kind == "a":
        os.kill(os.getpid(), signal.SIGKILL)
    delay = float((HERE / "delay").read_text()) if (HERE / "delay").exists() else 0.0
    for part in range(10):
        context.progress(part / 10)
        time.sleep(delay / 10)
    torch = importlib.import_module("torch") if (HERE / "torch").exists() else None  # loading it takes seconds
    values = [random.random(), np.random.random(), torch.rand(1).item() if torch else 0.0]
    rows = [{"metric": name, "value": settings.scale * value} for name, value in zip(("py", "np", "torch"), values)]
    rows.append({"metric": "residual", "value": 0.0})
    rows.append({"metric": "threads", "value": torch.get_num_threads() if torch else 0})
    rows.append({"metric": "omp", "value": int(os.environ["OMP_NUM_THREADS"])})
    rows.append({"metric": "seconds", "value": time.perf_counter(), "timing": True})
    return rows


def noise(method, seed):
    return np.random.default_rng([seed, len(method), ord(method[0])]).normal() * 0.01


def batch(settings, seeds, context):
    with open(HERE / "calls.txt", "a") as calls:
        calls.write(f"batch {settings.lr:g} {settings.method} {os.getpid()}\\n")
    (context.directory / "log.txt").write_text("kept")
    better = settings.method == "new"
    if settings.lr == 1:
        better = not better
    return [
        {"metric": "score", "value": better + noise(settings.method, seed) + step, "seed": seed,
         "step": step}
        for seed in seeds for step in (0, 10)
    ]


EXPERIMENTS = {
    "draw": Experiment(draw, "draws from three generators", settings=DrawSettings),
    "batch": Experiment(batch, "all seeds at once", settings=BatchSettings, seeds_at_once=True),
}
"""

FIGURES = """
import matplotlib.pyplot as plt


def scores(frame):
    if "score" not in set(frame["metric"]):
        return None
    figure, axes = plt.subplots()
    axes.plot(frame.loc[frame["metric"] == "score", "value"])
    return figure


FIGURES = {"scores": scores}
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The directory of a fresh toy paper, `.../papers/toy_paper`."""
    directory = tmp_path / "papers" / "toy_paper"
    directory.mkdir(parents=True)
    for name, text in (
        ("claims.toml", CLAIMS),
        ("profiles.toml", PROFILES),
        ("experiments.py", EXPERIMENTS),
        ("figures.py", FIGURES),
    ):
        (directory / name).write_text(text)
    return directory


@pytest.fixture
def calls(toy: Path) -> Callable[[], list[str]]:
    """What the toy's functions have been called with so far, without process ids."""

    def read() -> list[str]:
        path = toy / "calls.txt"
        return [line.rsplit(" ", 1)[0] for line in path.read_text().splitlines()] if path.exists() else []

    return read
