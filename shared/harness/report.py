"""Results on disk -> REPORT.md, index.html, numbers.csv, numbers.tex, references.bib and tables inside read-me files.

Nothing is typed by hand and nothing is run: the same files on disk give the same report.  Results of the `smoke`
profile are a test of the machinery; they are left out unless a paper has no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_replications.shared.harness.calibration_table import calibration_blocks
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.number_ids import add_ids, known_ids
from grpo_replications.shared.harness.number_latex import numbers_tex
from grpo_replications.shared.harness.numbers import Number, profile_numbers, write_numbers
from grpo_replications.shared.harness.page import to_page, to_report
from grpo_replications.shared.harness.page_views import paper_view
from grpo_replications.shared.harness.papers import Paper, check_apart
from grpo_replications.shared.harness.profile_results import (
    SMOKE,
    ProfileResults,
    best_outcomes,
    collect,
    without_smoke,
)
from grpo_replications.shared.harness.readmes import update_readmes
from grpo_replications.shared.harness.references import references_bib


def build_report(papers: Sequence[Paper], results: Path, root: Path | None = None) -> Path:
    """Write every generated file under `results` and return the path of REPORT.md.

    With `root`, the checkout that `results` belongs to, also references.bib, the table of ids, and the generated tables
    inside its README.md and inside each paper's.
    """
    check_apart(papers)
    found = {paper.slug: without_smoke(collect(paper, results)) for paper in papers}
    numbers = numbers_of(papers, found)
    views = [paper_view(paper, found[paper.slug], numbers, results) for paper in papers]
    blocks = calibration_blocks(results)
    results.mkdir(parents=True, exist_ok=True)
    write_atomic(results / "REPORT.md", to_report(views, blocks))
    write_atomic(results / "index.html", to_page(views, blocks))
    write_numbers(results / "numbers.csv", numbers.values())
    write_atomic(results / "numbers.tex", numbers_tex(list(numbers.values())))
    if root is not None:
        citation = root / "CITATION.cff"
        if citation.is_file():
            write_atomic(results / "references.bib", references_bib(citation, papers))
        add_ids([paper for paper in papers if paper.directory.is_relative_to(root)])
        committed = {slug: [one for one in own if one.profile != SMOKE] for slug, own in found.items()}
        best = {paper.slug: best_outcomes(paper, committed[paper.slug]) for paper in papers}
        update_readmes(papers, best, results, root)
    return results / "REPORT.md"


def numbers_of(papers: Sequence[Paper], found: Mapping[str, Sequence[ProfileResults]]) -> dict[str, Number]:
    """Every number of these profiles (paper's name -> its profiles) by id."""
    aliases = {known.id: known.alias for known in known_ids(papers).values()}
    return {
        number.id: number
        for own in found.values()
        for one in own
        for number in profile_numbers(one.paper, one.profile, one.record, one.lines, aliases)
    }
