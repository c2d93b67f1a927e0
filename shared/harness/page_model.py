"""What the report shows, as plain data: papers, claims, lines, checks and their runs.

A claim has one *line* for each answer (as published, here) and one for its controls, and a line has one *reading* a
profile: what that profile alone says.  A check has one *run* a profile.  `shared.harness.page_views` makes all of it
from the files of results, `shared.harness.page` writes it as HTML and Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo_replications.shared.harness.claims import OURS
from grpo_replications.shared.harness.entries import CONTROL, HERE, PUBLISHED
from grpo_replications.shared.harness.profile_results import FigureFile
from grpo_replications.shared.harness.verdicts import NOT_RUN

SOURCES = {
    PUBLISHED: "the paper's claims, as published",
    HERE: "the paper's claims here, scaled down",
    OURS: "our own claims",
    CONTROL: "controls of our machinery",
}
LABELS = {PUBLISHED: "as published", HERE: "here", OURS: "here", CONTROL: "controls"}


@dataclass(frozen=True)
class Tally:
    """How the claims (or controls) of one source came out: `counts` of the verdicts that occur, in their order."""

    source: str
    name: str
    counts: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Claims with such an answer; for controls, checks."""
        return sum(number for _, number in self.counts)


@dataclass(frozen=True)
class Reading:
    """What one profile says on a line of a claim: its verdict, and numbers or counts in words."""

    profile: str
    verdict: str
    text: str


@dataclass(frozen=True)
class Line:
    """One answer to a claim, or the controls that stand under it.

    `verdict` and `text` rest on each check's most complete profile; `verdicts` are those of single controls, or the
    answer's own.
    """

    source: str
    setting: str
    verdict: str
    text: str
    verdicts: tuple[str, ...]
    readings: tuple[Reading, ...]
    command: str

    @property
    def label(self) -> str:
        """The line's name in two words."""
        return LABELS[self.source]

    @property
    def differs(self) -> bool:
        """Whether two profiles that measured it disagree."""
        return len({one.verdict for one in self.readings} - {NOT_RUN}) > 1


@dataclass(frozen=True)
class CellView:
    """One combination of a check's conditions; `name` is the id of its number."""

    name: str
    conditions: str
    verdict: str
    value: str
    interval: str
    n: str
    won: str
    reason: str


@dataclass(frozen=True)
class Run:
    """What one profile measured for a check, in words; without `commit` nothing was, and `reason` says why.

    `value` and `interval` are those of a single cell; several are in `cells`, and `holds` counts them.
    """

    profile: str
    verdict: str
    value: str
    interval: str
    statistic: str
    interval_kind: str
    n: str
    seeds: str
    won: str
    holds: str
    model: str
    conditions: str
    reason: str
    caveat: str
    commit: str
    machine: str
    date: str
    command: str
    citation: str
    cells: tuple[CellView, ...]

    @property
    def measured(self) -> bool:
        """Whether there is anything to show but the reason."""
        return self.verdict != NOT_RUN

    @property
    def short(self) -> str:
        """The number for a narrow column: value and interval, or in how many settings the check holds."""
        return " ".join(part for part in (self.value, self.interval) if part) or self.holds


@dataclass(frozen=True)
class CheckView:
    """A check with its criterion, the paper's number and one run a profile."""

    id: str
    alias: str
    statement: str
    where: str
    kind: str
    criterion: str
    metric: str
    unit: str
    definition: str
    paper: str
    experiment: str
    verdict: str
    profile: str
    runs: tuple[Run, ...]

    @property
    def differs(self) -> bool:
        """Whether two profiles that measured it disagree."""
        return len({run.verdict for run in self.runs} - {NOT_RUN}) > 1


@dataclass(frozen=True)
class ClaimView:
    """A claim with its lines, figures and checks, the checks grouped by what they decide."""

    id: str
    statement: str
    where: str
    source: str
    reports: str
    rule: str
    lines: tuple[Line, ...]
    groups: tuple[tuple[str, tuple[CheckView, ...]], ...]
    figures: tuple[FigureFile, ...]

    @property
    def checks(self) -> int:
        """How many checks stand under the claim."""
        return sum(len(checks) for _, checks in self.groups)


@dataclass(frozen=True)
class Origin:
    """Where the numbers of one experiment of a profile come from."""

    experiment: str
    seeds: str
    commits: tuple[str, ...]
    work: str
    command: str


@dataclass(frozen=True)
class ProfileView:
    """Machine, time and experiments of one profile's results.

    `missing` says what was not finished, `again` which jobs were measured again and how that came out.
    """

    name: str
    command: str
    machine: str
    finished: str
    work: str
    memory: str
    missing: str
    again: str
    origins: tuple[Origin, ...]

    @property
    def commits(self) -> tuple[str, ...]:
        """Every commit that had a hand in it, in the order of the experiments."""
        return tuple(dict.fromkeys(commit for origin in self.origins for commit in origin.commits))


@dataclass(frozen=True)
class PaperView:
    """One paper: its tallies, claims by source, profiles, and figures that no claim names."""

    slug: str
    title: str
    authors: str
    arxiv: str
    url: str
    columns: tuple[str, ...]
    tallies: tuple[Tally, ...]
    sections: tuple[tuple[str, tuple[ClaimView, ...]], ...]
    profiles: tuple[ProfileView, ...]
    other_figures: tuple[FigureFile, ...]

    @property
    def claims(self) -> tuple[ClaimView, ...]:
        """Every claim, the paper's first, then ours, then blocks of controls."""
        return tuple(claim for _, claims in self.sections for claim in claims)
