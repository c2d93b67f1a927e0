"""What is on disk for the profiles of a paper: verdicts, record and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.outcomes import (
    VERDICTS_FILE,
    CheckLine,
    ClaimOutcome,
    claim_outcomes,
    read_verdicts,
)
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.records import read_record
from grpo_replications.shared.harness.verdicts import NOT_RUN

SMOKE = "smoke"
PREFERENCE = ("full", "quick", "gpu", "paper")  # whose verdict on a check the pages show
CAPTIONS = "captions.json"  # beside the figures, where their drawing wrote one


@dataclass(frozen=True)
class ProfileResults:
    """What is on disk for one profile of one paper."""

    paper: Paper
    profile: str
    directory: Path
    record: dict[str, Any]
    lines: list[CheckLine]


@dataclass(frozen=True)
class FigureVersion:
    """One profile's files of a figure, by path from the directory of results; `printable` is empty without a PDF."""

    profile: str
    path: str
    printable: str
    size: tuple[int, int]


@dataclass(frozen=True)
class FigureFile:
    """A figure in every profile that has it, the most complete first."""

    name: str
    caption: str
    versions: tuple[FigureVersion, ...]

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ").replace("-", " ")


def collect(paper: Paper, results: Path) -> list[ProfileResults]:
    """Every profile of a paper that has verdicts on disk, in the order of `profiles.toml`."""
    found = []
    for profile in paper.profiles:
        directory = results / paper.name / profile
        if (directory / VERDICTS_FILE).exists():
            lines = read_verdicts(paper, profile, directory)
            found.append(ProfileResults(paper, profile, directory, read_record(directory), lines))
    return found


def without_smoke(found: list[ProfileResults]) -> list[ProfileResults]:
    """Results of `smoke` test the machinery; they are left out unless a paper has no others."""
    return [one for one in found if one.profile != SMOKE] or found


def ranked(found: Sequence[ProfileResults]) -> list[ProfileResults]:
    """The most complete profile first."""
    known = [one for name in PREFERENCE for one in found if one.profile == name]
    return known + [one for one in found if one.profile not in (*PREFERENCE, SMOKE)]


def best_outcomes(paper: Paper, found: Sequence[ProfileResults]) -> list[ClaimOutcome]:
    """Every claim, each check with its verdict from the most complete profile that has one; empty without results."""
    choices = ranked(found)
    if not choices:
        return []
    best = []
    for position in range(len(choices[0].lines)):
        lines = [one.lines[position] for one in choices]
        best.append(next((line for line in lines if line.verdict != NOT_RUN), lines[0]))
    return claim_outcomes(paper, best)


def figure_files(found: Sequence[ProfileResults], results: Path) -> list[FigureFile]:
    """Every figure of a paper's profiles, by name; its caption is that of the most complete profile."""
    versions: dict[str, list[FigureVersion]] = {}
    captions: dict[str, str] = {}
    for one in ranked(found) or found:
        directory = one.directory / "figures"
        words = _captions(directory)
        for path in sorted(directory.glob("*.png")):
            versions.setdefault(path.stem, []).append(_version(path, results))
            captions.setdefault(path.stem, words.get(path.stem, ""))
    return [FigureFile(name, captions[name], tuple(own)) for name, own in sorted(versions.items())]


def _version(path: Path, results: Path) -> FigureVersion:
    printable = path.with_suffix(".pdf")
    link = printable.relative_to(results).as_posix() if printable.exists() else ""
    return FigureVersion(path.parent.parent.name, path.relative_to(results).as_posix(), link, png_size(path))


def png_size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG file in pixels, from its first bytes; zeros where it is none."""
    with open(path, "rb") as stream:
        head = stream.read(24)
    if head[:8] != b"\x89PNG\r\n\x1a\n" or len(head) < 24:
        return 0, 0
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def _captions(directory: Path) -> dict[str, str]:
    """The caption of each figure in a directory, as one text; nothing where its drawing wrote none."""
    path = directory / CAPTIONS
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: entry["text"] for name, entry in entries.items()}
