"""`replicate compare`: two results side by side, from directories, commits, profiles, or the paper."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from grpo_replications.replications import places
from grpo_replications.replications.places import COMMITTED, committed_results, own_results
from grpo_replications.replications.tools import to_json
from grpo_replications.shared.errors import ReplicationError

if TYPE_CHECKING:
    from grpo_replications.shared.harness.committed import CommittedResults
    from grpo_replications.shared.harness.compare import Comparison
    from grpo_replications.shared.harness.snapshots import Snapshot

HEAD, MINE, PAPER = "committed", "mine", "paper"
_TEXT = """
Compare two results: which numbers moved and by how much against their intervals, which verdicts changed and why,
commits, packages and machines. Timings never repeat; they are shown apart and do not count.

A and B are each one of
  committed     the results of the checkout's last commit (the default for A)
  mine          the results of your own runs, results-mine/ (the default for B)
  DIR           a directory of results, or that of one paper or profile in it
  COMMIT        a commit hash, tag or branch of the checkout
  PROFILE       a profile of the results on disk, as in: replicate compare quick full --paper lambda-grpo
  paper         the values that the paper prints: does each lie inside our interval?

Exit code: 0 where nothing but timings differs, 1 where something does or nothing was measured on both sides, 2 for a
wrong request or damaged results.
"""
_EXAMPLES = """
examples:
  replicate compare                                          the committed results against your own runs
  replicate compare results-a results-b --figures out.html   figures and numbers side by side, in one file
  replicate compare 516d736 committed --paper lambda-grpo    what changed between two commits
  replicate compare --profiles quick,full --only-changed     verdicts on which two profiles disagree
  replicate compare paper full --paper sigma-identity        the paper's values against ours
"""


@dataclass(frozen=True)
class Side:
    """One side: a directory of results or a commit, with the paper or the profile it stands for, if it is one."""

    name: str
    place: Path | CommittedResults
    paper: str | None = None
    profile: str | None = None

    def profiles(self) -> list[tuple[str, str]]:
        """(directory of the paper, profile) of everything judged that lies there."""
        if isinstance(self.place, Path):
            found = [(path.parts[-3], path.parts[-2]) for path in sorted(self.place.glob("*/*/verdicts.csv"))]
        else:
            found = self.place.profiles()
        return [
            (paper, profile)
            for paper, profile in found
            if self.paper in (None, paper) and self.profile in (None, profile)
        ]

    def snapshot(self, paper: str, profile: str, scratch: Path) -> Snapshot:
        """The results of one profile; those of a commit are written below `scratch` first."""
        from grpo_replications.shared.harness.snapshots import read_snapshot

        if isinstance(self.place, Path):
            return read_snapshot(self.place / paper / profile, self.name)
        return read_snapshot(self.place.fetch(paper, profile, scratch / self.place.commit), self.name)


def add_command(commands: Any) -> None:
    """Add `compare` to the sub-parsers `commands` of a parser."""
    parser = commands.add_parser(
        "compare",
        help="compare two results: numbers, verdicts, figures, origin",
        description=_TEXT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", nargs="?", help="left side (default: committed)")
    parser.add_argument("b", metavar="B", nargs="?", help="right side (default: mine)")
    parser.add_argument("--paper", metavar="P", help="only this paper")
    parser.add_argument("--profile", metavar="Q", help="only this profile")
    parser.add_argument("--profiles", metavar="Q1,Q2", help="compare two profiles of A (default: of those on disk)")
    parser.add_argument("--only-changed", action="store_true", help="list changed verdicts and their numbers only")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="write figures and numbers side by side to FILE")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print everything as JSON")
    how.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.set_defaults(action=_compare)


def against_committed(paper: str, profile: str, results: Path) -> Comparison | None:
    """The last commit's results of a profile against those under `results`; None where the commit has none."""
    from grpo_replications.shared.harness.compare import compare

    committed = _committed()
    if committed is None or committed.place == results or (paper, profile) not in committed.profiles():
        return None
    name = MINE if results == own_results() else str(results)
    with tempfile.TemporaryDirectory(prefix="replicate-") as scratch:
        first = committed.snapshot(paper, profile, Path(scratch))
        return compare(first, Side(name, results).snapshot(paper, profile, Path(scratch)))


def _compare(options: argparse.Namespace, console: Console) -> int:
    if options.figures and PAPER in (options.a, options.b):
        raise ReplicationError("--figures compares two results; the figures of a paper's run show its values already.")
    with tempfile.TemporaryDirectory(prefix="replicate-") as scratch:
        if PAPER in (options.a, options.b):
            return _against_paper(options, console, Path(scratch))
        a, b = _sides(options)
        pairs = _pairs(a, b, options)
        from grpo_replications.shared.harness.compare import compare

        comparisons = [
            compare(a.snapshot(*first, Path(scratch)), b.snapshot(*second, Path(scratch))) for first, second in pairs
        ]
        _show(options, console, comparisons)
        if not options.json and not options.markdown and None in (a.profile, b.profile):
            for side, other in ((a, b), (b, a)):
                _say_lone(console, side, other, options)
        if options.figures:
            from grpo_replications.shared.harness.compare_figures import write_page

            write_page(options.figures, comparisons, options.only_changed)
            if not options.json and not options.markdown:
                console.print(f"Side by side: {options.figures}", markup=False, highlight=False, soft_wrap=True)
    return 1 if any(one.differs or not one.compared for one in comparisons) else 0


def _show(options: argparse.Namespace, console: Console, comparisons: Sequence[Comparison]) -> None:
    from grpo_replications.shared.harness.compare_text import blocks, page_head, print_comparison, side_names
    from grpo_replications.shared.harness.rendering import to_markdown

    if options.json:
        print(to_json([as_json(one) for one in comparisons]))
    elif options.markdown:
        page = page_head(*side_names(comparisons[0]))
        print(to_markdown([*page, *(block for one in comparisons for block in blocks(one, options.only_changed))]))
    else:
        for one in comparisons:
            print_comparison(console, one, options.only_changed)


def _against_paper(options: argparse.Namespace, console: Console, scratch: Path) -> int:
    from grpo_replications.shared.harness.compare_paper import paper_listing, paper_summary, paper_values
    from grpo_replications.shared.harness.compare_text import print_listing, print_summary
    from grpo_replications.shared.harness.rendering import Heading, Table, to_markdown

    other = options.b if options.a == PAPER else options.a
    side = _resolve(other or str(committed_results() or own_results()), options)
    chosen = [one for one in side.profiles() if _wanted(options, *one)]
    if not chosen:
        raise ReplicationError(f"{side.name} holds no results{_of(options)}.")
    code, page, lists = 0, [], []
    for paper, profile in chosen:
        results = side.snapshot(paper, profile, scratch)
        values = paper_values(results)
        code = 1 if any(one.inside is False for one in values) else code
        title = f"{paper.replace('_', '-')}, {profile}: the paper | {side.name}"
        listing, lines = paper_listing(values, options.only_changed), paper_summary(results, values)
        lists.append({"paper": paper.replace("_", "-"), "profile": profile, "values": values})
        page += [Heading(title, 2), Table(("", ""), lines), Table(listing.header, listing.rows)]
        if not options.json and not options.markdown:
            console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
            print_summary(console, lines)
            print_listing(console, listing)
    if options.json:
        print(to_json(lists))
    elif options.markdown:
        print(to_markdown(page))
    return code


def as_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison for programs: every number of both sides, changed verdicts, origin."""
    from grpo_replications.shared.harness.compare_text import summary

    a, b = comparison.a, comparison.b
    return {
        "paper": b.paper.replace("_", "-"),
        "a": {"side": a.side, "profile": a.profile},
        "b": {"side": b.side, "profile": b.profile},
        "differs": comparison.differs,
        "summary": [{"what": what, "text": text} for what, text in summary(comparison)],
        "verdicts": comparison.verdicts,
        "answers": comparison.answers,
        "judged_only_in_a": comparison.lone_a,
        "judged_only_in_b": comparison.lone_b,
        "experiments_only_in_a": comparison.only_a,
        "experiments_only_in_b": comparison.only_b,
        "measurements_identical": comparison.identical_bytes,
        "measured_rows": comparison.rows,
        "numbers": [
            {
                "id": one.name,
                "unit": one.unit,
                "timing": one.timing,
                "moved": one.moved,
                "standard_errors": one.standard_errors,
                "overlap": one.overlap,
                "paper": one.paper_value,
                **{name: _bare(number) for name, number in (("a", one.a), ("b", one.b))},
            }
            for one in comparison.numbers
        ],
    }


def _bare(number: Any) -> dict[str, Any]:
    return {name: getattr(number, name) for name in ("value", "low", "high", "n", "seeds", "state")}


def _sides(options: argparse.Namespace) -> tuple[Side, Side]:
    if options.profiles is None:
        return _resolve(options.a or HEAD, options), _resolve(options.b or MINE, options)
    names = options.profiles.split(",")
    if len(names) != 2 or options.b or options.profile:
        raise ReplicationError("--profiles takes two names, as in quick,full, with at most one side, and no --profile.")
    side = _resolve(options.a or str(committed_results() or own_results()), options)
    name = COMMITTED if side.place == committed_results() else side.name
    first, second = (Side(name, side.place, side.paper, profile) for profile in names)
    return first, second


def _resolve(name: str, options: argparse.Namespace) -> Side:
    """What a name on the command line stands for; ReplicationError says what it might have been."""
    from grpo_replications.shared.harness.committed import CommittedResults

    if name == HEAD:
        committed = _committed()
        if committed is None:
            raise ReplicationError("There are no committed results here: this is no checkout of the suite.")
        return committed
    if name == MINE:
        return Side(MINE, own_results())
    directory = Path(name)
    if directory.is_dir():
        return _directory(name, directory.resolve())
    place = committed_results() or own_results()
    if any(place.glob(f"*/{name}/verdicts.csv")):
        return Side(place.name, place, profile=name)
    commit = CommittedResults.of(places.ROOT, name) if places.is_checkout() else None
    if commit is None:
        raise ReplicationError(
            f"'{name}' is neither {HEAD}, {MINE} or {PAPER}, nor a directory, a profile with results, or a commit."
        )
    return Side(name, commit)


def _directory(name: str, directory: Path) -> Side:
    """A directory of results, or that of one paper or one profile in it."""
    if (directory / "verdicts.csv").is_file():
        return Side(name, directory.parents[1], directory.parent.name, directory.name)
    if any(directory.glob("*/verdicts.csv")):
        return Side(name, directory.parent, directory.name)
    return Side(name, directory)


def _committed() -> Side | None:
    """The results of the last commit, or those on disk of a checkout that is no git repository (an archive of one)."""
    from grpo_replications.shared.harness.committed import CommittedResults

    place = committed_results()
    if place is None:
        return None
    commit = CommittedResults.of(places.ROOT, "HEAD")
    if commit is not None:
        return Side(HEAD, commit)
    return Side(HEAD, place) if place.is_dir() and not (places.ROOT / ".git").exists() else None


def _pairs(a: Side, b: Side, options: argparse.Namespace) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """What is held against what: the same profile of the same paper, or the two profiles that the sides name."""
    left = [one for one in a.profiles() if _wanted(options, *one)]
    right = [one for one in b.profiles() if _wanted(options, *one)]
    cross = a.profile is not None and b.profile is not None
    pairs = [
        (first, second)
        for first in left
        for second in right
        if first[0] == second[0] and (cross or first[1] == second[1])
    ]
    if not pairs:
        raise ReplicationError(
            f"There is nothing to compare{_of(options)}: {a.name} has {_named(a)}; {b.name} has {_named(b)}."
        )
    return pairs


def _wanted(options: argparse.Namespace, paper: str, profile: str) -> bool:
    named = Path(options.paper).name.replace("-", "_") if options.paper else None
    return named in (None, paper) and options.profile in (None, profile)


def _of(options: argparse.Namespace) -> str:
    words = [f" of {options.paper}" if options.paper else "", f" in {options.profile}" if options.profile else ""]
    return "".join(words)


def _say_lone(console: Console, side: Side, other: Side, options: argparse.Namespace) -> None:
    """Name the results that the other side might have had and has not."""
    there = other.profiles()
    lone = [
        one
        for one in side.profiles()
        if one not in there
        and _wanted(options, *one)
        and other.paper in (None, one[0])
        and other.profile in (None, one[1])
    ]
    if lone:
        text = f"only in {side.name}: {_listed(lone)} (not compared)"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _named(side: Side) -> str:
    return _listed(side.profiles()) or "no results"


def _listed(profiles: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{paper.replace('_', '-')} {profile}" for paper, profile in profiles)
