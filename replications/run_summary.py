"""What `replicate run` says at its end: answers in counts, what differs from the committed results, what is next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from grpo_replications.replications.places import committed_results, own_results
from grpo_replications.shared.words import counted

if TYPE_CHECKING:
    from grpo_replications.shared.harness.compare import Comparison
    from grpo_replications.shared.harness.papers import Paper

LISTED = 3  # changed verdicts and missing experiments that are named; more of them are counted


@dataclass(frozen=True)
class RunSummary:
    """A finished run in about ten lines.

    `counted`: (what, how its answers come out); `judged`: number of checks with a verdict.
    """

    paper: Paper
    profile: str
    results: Path
    report: Path
    counted: Sequence[tuple[str, str]]
    judged: int
    against: Comparison | None
    failures: int

    @property
    def directory(self) -> Path:
        """Where the profile's files are."""
        return self.results / self.paper.name / self.profile

    def committed(self) -> str:
        """How the results compare with the committed ones, in one line."""
        from grpo_replications.shared.harness.compare_text import verdict_in_one_line

        if self.against is None:
            return "there are no committed results of this profile"
        words = verdict_in_one_line(self.against)
        missing = self.against.only_a
        if missing:
            words += (
                f"; not run here: {', '.join(missing) if len(missing) <= LISTED else f'{len(missing)} experiments'}"
            )
        return words.replace("identical:", "identical to the committed results:", 1)

    def next_command(self) -> str:
        """The command that follows: resume, look at what differs, or hold our numbers against the paper's."""
        arguments = f"{self.paper.slug} --profile {self.profile}"
        if self.failures:
            return f"replicate run {arguments}{self._results_option()}"
        if not self.judged:
            return f"replicate run {self.paper.slug}"
        if self.against is not None and self.results != committed_results():
            return f"replicate compare committed {self._side()} --paper {arguments}"
        return f"replicate compare paper {self._side()} --paper {arguments}"

    def lines(self) -> list[tuple[str, str]]:
        """(what, text), a line each."""
        found = [*self.counted, ("against the committed results", self.committed())]
        changed = self.against.changed if self.against is not None else []
        found += [("changed", f"{one.check}: {one.a} → {one.b} ({one.reasons[0]})") for one in changed[:LISTED]]
        if len(changed) > LISTED:
            found.append(("changed", f"and {len(changed) - LISTED} more"))
        claims = f"replicate verdicts {self.paper.slug} --profile {self.profile}{self._results_option()}"
        return [
            *found,
            ("results", f"{shown(self.directory)}, report {shown(self.report.with_name('index.html'))}"),
            ("every claim", claims),
            ("next", self.next_command()),
        ]

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        from grpo_replications.replications.compare import as_json

        return {
            "paper": self.paper.slug,
            "profile": self.profile,
            "answers": dict(self.counted),
            "failed_jobs": self.failures,
            "results": str(self.directory),
            "report": str(self.report),
            "identical_to_committed": not self.against.differs if self.against and self.against.compared else None,
            "against_committed": None if self.against is None else as_json(self.against),
            "next": self.next_command(),
        }

    def _side(self) -> str:
        return "mine" if self.results == own_results() else shown(self.results)

    def _results_option(self) -> str:
        if self.results == committed_results():
            return ""
        return f" --results {shown(self.results)}"


def print_run_summary(console: Console, summary: RunSummary) -> None:
    """Print the lines, aligned."""
    from grpo_replications.shared.harness.compare_text import print_summary

    console.print(f"\n{summary.paper.slug}, {summary.profile}", style="bold", highlight=False)
    print_summary(console, summary.lines())


def print_part_summary(console: Console, part: str, jobs: int, failures: int, as_json: bool) -> None:
    """Say how a part of a run came out and what ends the whole."""
    if as_json:
        print(json.dumps({"part": part, "jobs": jobs, "failed_jobs": failures}))
        return
    console.print(
        f"{part[0].upper()}{part[1:]}: {jobs - failures} of {counted(jobs, 'job')} done. When every part "
        "has ended, the same command without --part runs what is missing, judges and reports.",
        soft_wrap=True,
        highlight=False,
    )


def shown(path: Path) -> str:
    """A path as short as it can be from where the user stands."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
