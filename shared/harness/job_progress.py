"""How far a running job is: one small file beside its results, replaced now and then, gone when the job ends."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

ENDING = ".progress"


@dataclass(frozen=True)
class JobProgress:
    """`fraction`: done, from 0 to 1; `elapsed` and `remaining`: seconds, None where nothing is known yet.

    `training`: what its training run said last, with the keys of `shared.live`; empty for a job that trains nothing.
    """

    fraction: float
    elapsed: float
    remaining: float | None = None
    training: dict[str, float] = field(default_factory=dict)

    def after(self, seconds: float) -> JobProgress:
        """The same when it was said `seconds` ago and nothing since."""
        left = None if self.remaining is None else round(max(self.remaining - seconds, 0.0), 1)
        return replace(self, elapsed=round(self.elapsed + seconds, 1), remaining=left)

    def as_text(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


def read_progress(path: Path) -> JobProgress | None:
    """What a job says of itself; None where there is no such file, or one of another version of the suite."""
    try:
        return JobProgress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class Stopwatch:
    """Fractions done at moments -> seconds left, from the pace since the first of them above 0.

    The first one may be that of a job that went on from a checkpoint, so what came before it says nothing of the pace.
    """

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.first: tuple[float, float] | None = None  # (moment, fraction)
        self.last = (self.started, 0.0)

    def note(self, fraction: float) -> None:
        """So much is done now."""
        self.last = (time.monotonic(), min(max(fraction, 0.0), 1.0))
        if self.first is None and fraction > 0:
            self.first = self.last

    def read(self, training: Mapping[str, float]) -> JobProgress:
        """Where the job is, with what its training says, numbers rounded to what anyone reads."""
        now, (moment, fraction) = time.monotonic(), self.last
        since, at = (self.started, 0.0) if self.first in (None, self.last) else self.first
        pace = (fraction - at) / (moment - since) if moment > since else 0.0
        remaining = max((1 - fraction) / pace - (now - moment), 0.0) if pace > 0 else None
        finite = {name: float(f"{value:.6g}") for name, value in training.items() if math.isfinite(value)}
        elapsed = round(now - self.started, 1)
        return JobProgress(round(fraction, 4), elapsed, None if remaining is None else round(remaining, 1), finite)
