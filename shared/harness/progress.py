"""Bars on a terminal, a line now and then elsewhere: how far a run is and how long it will still take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_EVERY_SECONDS = 30.0


@dataclass
class Forecast:
    """How long the rest of a run will take.

    `expected`: seconds per experiment, in order, from an earlier record or an even share of the budget.  What has
    run so far corrects it: the same factor is applied to what has not begun.
    """

    expected: dict[str, float]
    spent: dict[str, float] = field(default_factory=dict)
    foreseen: float = 0.0  # expected seconds of what has been done

    def remaining(self, current: str, fraction: float, elapsed: float) -> float:
        """Seconds left when `current` is `fraction` done (of what was left of it) after `elapsed` seconds."""
        names = list(self.expected)
        later = sum(self.expected[name] for name in names[names.index(current) + 1 :])
        own = self.expected[current]
        foreseen = self.foreseen + own * fraction
        factor = (sum(self.spent.values()) + elapsed) / foreseen if foreseen > 0 else 1.0
        # A measured pace of the current experiment is worth more the further it is.
        here = elapsed * (1 - fraction) / fraction if fraction > 0.05 else own * factor * (1 - fraction)
        return here + later * factor

    def finish(self, name: str, elapsed: float) -> None:
        """Note that an experiment took `elapsed` seconds."""
        self.spent[name] = elapsed
        self.foreseen += self.expected[name]


class RunProgress:
    """One bar per experiment and the time left overall; without a terminal, a line at most every 30 seconds."""

    def __init__(self, console: Console, forecast: Forecast) -> None:
        self.console, self.forecast = console, forecast
        self.live = console.is_terminal
        self.bars: Progress | None = None
        self.task: TaskID | None = None
        self.name, self.total, self.already = "", 0, 0
        self.started, self.last_line = 0.0, 0.0
        self.left = 0.0  # seconds of the whole run, as of the last update

    def __enter__(self) -> RunProgress:
        if self.live:
            self.bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[counts]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=self.console,
                expand=True,
            )
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def begin(self, name: str, total: int, already: int) -> None:
        """Start an experiment of `total` jobs, `already` of them finished by an earlier run."""
        self.name, self.total, self.already = name, total, already
        self.started = self.last_line = time.monotonic()
        if self.bars is not None:
            self.task = self.bars.add_task(name, total=total, completed=already, counts=f"{already}/{total}", left="")
        elif already < total:
            known = f", {already} of them finished earlier" if already else ""
            self.console.print(f"{name}: {total} job{'s' if total > 1 else ''}{known}", soft_wrap=True)

    def update(self, done: int, inside: float) -> None:
        """`done` jobs of the experiment are finished; those running have come `inside` jobs' worth further."""
        elapsed = time.monotonic() - self.started
        to_do = self.total - self.already
        fraction = min((done - self.already + inside) / to_do, 1.0) if to_do else 1.0
        left = self.left = self.forecast.remaining(self.name, fraction, elapsed)
        if self.bars is not None and self.task is not None:
            text = f"about {duration(left)} left in all" if self.total > done else ""
            self.bars.update(self.task, completed=done + inside, counts=f"{done}/{self.total}", left=text)
        elif time.monotonic() - self.last_line >= LINE_EVERY_SECONDS:
            self.last_line = time.monotonic()
            times = f"{duration(elapsed)} so far, about {duration(left)} left in all"
            self.console.print(f"{self.name}: {done}/{self.total} jobs, {times}", soft_wrap=True)

    def end(self, done: int) -> None:
        """The experiment is over, with `done` jobs finished."""
        elapsed = time.monotonic() - self.started
        self.forecast.finish(self.name, elapsed)
        if self.bars is not None and self.task is not None:
            self.bars.update(self.task, completed=done, counts=f"{done}/{self.total}", left="")
            self.bars.stop_task(self.task)
        elif self.already < self.total:
            self.console.print(f"{self.name}: {done}/{self.total} jobs after {duration(elapsed)}", soft_wrap=True)


def duration(seconds: float) -> str:
    """`8 s`, `4 min`, `2 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
