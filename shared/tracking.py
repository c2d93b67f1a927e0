"""Curves of running jobs for Weights & Biases or TensorBoard, besides the results, which need neither.

A job is one tracked run, with a name and tags that say what it is.  Trainers log their steps while it runs; at its end
come the rows it has measured.  Tracking is never fatal and changes no result: whatever a backend does wrong is one line
in the job's log, and the run goes on without it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import netrc
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from grpo_replications.shared.errors import ReplicationError

BACKENDS = ("none", "wandb", "tensorboard")
PROJECT = "grpo-replications"
SECONDS_TO_CONNECT = 30.0
DIRECTORY = "tracking"  # beside the jobs


@dataclass(frozen=True)
class Tracking:
    """How jobs are tracked; `directory` takes what a backend writes, `tags` hold for every job of the run."""

    backend: str
    directory: Path
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """What a tracked run is: its name, its group (a name that similar runs share), its tags and its settings."""

    name: str
    group: str
    tags: tuple[str, ...]
    settings: Mapping[str, Any]


class Writer(Protocol):
    """What a backend must do."""

    def log(self, section: str, step: int, metrics: Mapping[str, float]) -> None:
        """Store metrics of a step under a section."""

    def summarize(self, metrics: Mapping[str, float]) -> None:
        """Store numbers of the whole run."""

    def close(self) -> None:
        """Finish the run."""


class TrackedRun:
    """One run of a backend; after the backend's first failure it does nothing."""

    def __init__(self, open_writer: Callable[[], Writer]) -> None:
        self._writer: Writer | None = None
        self._sections: dict[str, int] = {}
        with self._safely():
            self._writer = open_writer()

    def section(self, name: str) -> str:
        """A name for the curves of one training run of the job: `train`, then `train-2` and so on."""
        number = self._sections[name] = self._sections.get(name, 0) + 1
        return name if number == 1 else f"{name}-{number}"

    def log(self, section: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the finite numbers among `metrics`."""
        finite = {name: float(value) for name, value in metrics.items() if _is_finite(value)}
        if self._writer is not None and finite:
            with self._safely():
                self._writer.log(section, step, finite)

    def measured(self, rows: Mapping[str, list[Any]]) -> None:
        """Log a job's measured rows, in columns: means over seeds, by step where rows have one, else as a summary."""
        means: dict[tuple[str, int | None], list[float]] = {}
        for metric, value, step in zip(rows["metric"], rows["value"], rows["step"]):
            if _is_finite(value):
                means.setdefault((metric, step), []).append(value)
        steps: dict[int, dict[str, float]] = {}
        summary: dict[str, float] = {}
        for (metric, step), values in means.items():
            target = summary if step is None else steps.setdefault(step, {})
            target[metric] = math.fsum(values) / len(values)
        for step in sorted(steps):
            self.log("measured", step, steps[step])
        if self._writer is not None and summary:
            with self._safely():
                self._writer.summarize(summary)

    def close(self) -> None:
        """Finish the run."""
        if self._writer is not None:
            with self._safely():
                self._writer.close()
        self._writer = None

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a backend raises, the results matter more
            self._writer = None
            print(f"Tracking stopped: {type(error).__name__}: {error}", file=sys.stderr)


class WandbWriter:
    """Weights & Biases; without a key or a connection the run is kept offline."""

    def __init__(self, tracking: Tracking, facts: RunFacts) -> None:
        import wandb

        tracking.directory.mkdir(parents=True, exist_ok=True)
        options = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "dir": str(tracking.directory),
            "name": facts.name,
            "group": facts.group,
            "tags": [tag[:64] for tag in (*tracking.tags, *facts.tags)],  # its limit
            "config": dict(facts.settings),
            "reinit": "create_new",
        }
        settings = wandb.Settings(console="off", silent=True, init_timeout=SECONDS_TO_CONNECT)
        try:
            self.run = wandb.init(mode=wandb_mode(), settings=settings, **options)
        except Exception:
            self.run = wandb.init(mode="offline", settings=settings, **options)
        self.sections: set[str] = set()

    def log(self, section: str, step: int, metrics: Mapping[str, float]) -> None:
        """A section has a step axis of its own: two training runs of a job may be logged one after the other."""
        if section not in self.sections:
            self.sections.add(section)
            self.run.define_metric(f"{section}/step", hidden=True)
            self.run.define_metric(f"{section}/*", step_metric=f"{section}/step")
        self.run.log({f"{section}/step": step, **{f"{section}/{name}": value for name, value in metrics.items()}})

    def summarize(self, metrics: Mapping[str, float]) -> None:
        """Numbers beside the curves."""
        self.run.summary.update(metrics)

    def close(self) -> None:
        """Write what is left."""
        self.run.finish()


class TensorboardWriter:
    """TensorBoard: one directory a run."""

    def __init__(self, tracking: Tracking, facts: RunFacts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(tracking.directory / re.sub(r"[^\w.=+-]+", "_", facts.name)))
        lines = [f"{name}: {value}" for name, value in facts.settings.items()]
        self.writer.add_text("run", "  \n".join([" ".join((*tracking.tags, *facts.tags)), *lines]))

    def log(self, section: str, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar a metric."""
        for name, value in metrics.items():
            self.writer.add_scalar(f"{section}/{name}", value, step)

    def summarize(self, metrics: Mapping[str, float]) -> None:
        """Numbers of the whole run, at step 0."""
        self.log("measured", 0, metrics)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


_WRITERS: dict[str, Callable[[Tracking, RunFacts], Writer]] = {"wandb": WandbWriter, "tensorboard": TensorboardWriter}
_current: list[TrackedRun] = []


def current() -> TrackedRun | None:
    """The tracked run of the job that this process runs; None where there is none."""
    return _current[-1] if _current else None


@contextlib.contextmanager
def tracked(tracking: Tracking | None, facts: RunFacts) -> Iterator[TrackedRun | None]:
    """Track the block as one run, which `current` finds; nothing where `tracking` is None."""
    if tracking is None:
        yield None
        return
    run = TrackedRun(lambda: _WRITERS[tracking.backend](tracking, facts))
    _current.append(run)
    try:
        yield run
    finally:
        _current.remove(run)
        run.close()


def check_backend(backend: str) -> None:
    """Raise ReplicationError, before anything runs, for a backend that there is not or that is not installed."""
    if backend not in BACKENDS:
        raise ReplicationError(f"--track must be one of {', '.join(BACKENDS)}, not '{backend}'.")
    if backend != "none" and importlib.util.find_spec(backend) is None:
        raise ReplicationError(
            f"{backend} is not installed; install it with: python -m pip install {backend}; or run without --track."
        )


def where_it_goes(tracking: Tracking) -> str:
    """One line: what is written where, and how to look at it."""
    if tracking.backend == "tensorboard":
        return f"Curves: tensorboard --logdir {tracking.directory}"
    if wandb_mode() == "offline":
        why = "" if os.environ.get("WANDB_MODE") else "wandb has no key here (wandb login), so "
        return f"{why}curves are kept offline; upload them with: wandb sync {tracking.directory}/wandb/offline-run-*"
    return f"Curves: wandb, project {os.environ.get('WANDB_PROJECT', PROJECT)}"


def wandb_mode() -> str:
    """`WANDB_MODE`; else online where there is a key (`WANDB_API_KEY` or a netrc file), offline where there is none."""
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return "online"
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(Path(path).expanduser()).authenticators(host):
                return "online"
        except (OSError, netrc.NetrcParseError):
            continue
    return "offline"


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
