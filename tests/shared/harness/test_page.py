"""The report's page says what the files say, as elements and never as marks, and holds for any text in the claims."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from threading import Thread

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.figures import draw_figures
from grpo_replications.shared.harness.formatting import interval_texts, pretty, tidy
from grpo_replications.shared.harness.page import to_page, to_report
from grpo_replications.shared.harness.page_model import PaperView
from grpo_replications.shared.harness.page_views import paper_view, profile_view
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profile_results import ProfileResults, collect
from grpo_replications.shared.harness.rendering import Heading, Paragraph, Table
from grpo_replications.shared.harness.report import numbers_of
from grpo_replications.shared.harness.serving import server
from grpo_replications.shared.statistics.estimates import Estimate
from tests.shared.harness.test_report import measure

VOID = {"meta", "link", "input", "img", "br", "wbr"}


class Page(HTMLParser):
    """Elements in order, text outside scripts and styles, and whether every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data

    def values(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [attributes[name] or "" for _, attributes in self.elements if name in attributes]


@pytest.fixture
def results(toy: Path, tmp_path: Path) -> Path:
    with open(toy / "claims.toml", "a") as stream:
        stream.write('\n[figures]\nscores = ["toy-paper/gain"]\n')
    for profile, shift in (("quick", 0.001), ("full", 1.0)):
        draw_figures(Paper.load(toy), profile, measure(toy, tmp_path / "results", profile, shift))
    return tmp_path / "results"


def view_of(toy: Path, results: Path) -> PaperView:
    paper = Paper.load(toy)
    found = collect(paper, results)
    return paper_view(paper, found, numbers_of([paper], {paper.slug: found}), results)


def test_a_claim_has_what_each_profile_says_and_the_most_complete_one_decides(toy: Path, results: Path) -> None:
    view = view_of(toy, results)
    assert view.columns == ("quick", "full")
    theorem, gain = view.claims
    assert [line.source for line in theorem.lines] == ["published"]
    assert [line.source for line in gain.lines] == ["published", "here"]
    here = gain.lines[1]
    assert here.verdict == "reproduced under conditions" and here.differs
    assert [reading.verdict for reading in here.readings] == ["inconclusive", "reproduced under conditions"]
    assert [reading.text for reading in here.readings] == ["holds in 0 of 2 settings", "holds in 1 of 2 settings"]
    published = gain.lines[0]
    assert published.verdict == "not reproduced" and not published.differs
    assert [(one.verdict, bool(one.text)) for one in published.readings] == [
        ("not run", False),
        ("not reproduced", True),
    ]
    counted = {one.source: dict(one.counts) for one in view.tallies}
    assert counted == {"published": {"reproduced": 1, "not reproduced": 1}, "here": {"reproduced under conditions": 1}}


def test_a_check_has_criterion_number_interval_n_origin_and_command(toy: Path, results: Path) -> None:
    (_, checks), *_ = view_of(toy, results).claims[0].groups
    (identity,) = checks
    assert identity.criterion == "Every selected value lies within 10⁻¹² of 0." and identity.unit == "length"
    run = identity.runs[-1]
    assert (run.profile, run.value, run.interval, run.n) == ("full", "0", "", "n = 3 seeds")
    direction = next(
        own
        for claim in view_of(toy, results).claims
        for _, group in claim.groups
        for own in group
        if own.id == "toy-paper/direction"
    )
    assert direction.paper == "1" and direction.profile == "full" and direction.differs
    run = direction.runs[-1]
    assert run.commit == "0123456789ab with uncommitted changes" and run.machine.startswith("A CPU")
    assert run.command == "make replicate-toy-paper PROFILE=full ONLY=batch" and run.date == "2025-01-01"
    assert "95 % CI" in run.interval_kind and run.statistic == "mean difference" and run.n == "n = 8 seeds"
    assert [cell.conditions for cell in run.cells] == ["lr 0.5", "lr 1"] and run.cells[0].won.endswith("8 of 8 seeds")
    assert [cell.name for cell in run.cells] == [f"toy-paper/direction[lr={lr}]@full" for lr in ("0.5", "1")]
    assert "toy-paper/identity@full" in identity.runs[-1].citation and "git checkout" not in run.citation


def test_figures_stand_with_the_claims_that_they_are_about(toy: Path, results: Path) -> None:
    words = {"scores": {"text": "Scores. n = 8 seeds.", "faults": []}}
    (results / "toy_paper" / "full" / "figures" / "captions.json").write_text(json.dumps(words))
    view = view_of(toy, results)
    assert not view.claims[0].figures and not view.other_figures
    (figure,) = view.claims[1].figures
    assert figure.caption == "Scores. n = 8 seeds." and [one.profile for one in figure.versions] == ["full", "quick"]
    assert all((results / path).is_file() for one in figure.versions for path in (one.path, one.printable))
    assert all(side > 100 for one in figure.versions for side in one.size)
    text = (toy / "claims.toml").read_text()
    (toy / "claims.toml").write_text(text.replace('["toy-paper/gain"]', '["toy-paper/gone"]'))
    with pytest.raises(ReplicationError, match="scores is said to be about toy-paper/gone"):
        view_of(toy, results)


def test_the_page_is_whole_names_everything_once_and_links_to_what_is_there(toy: Path, results: Path) -> None:
    view = view_of(toy, results)
    (results / "numbers.csv").touch()
    (results / "numbers.tex").touch()
    (results / "REPORT.md").write_text(to_report([view]))
    page = Page(to_page([view], [Heading("Calibration", 2), Paragraph("`a` **b**"), Table(["x"], [["`c` | d"]])]))
    assert not page.open
    names = Counter(page.values("id"))
    assert max(names.values()) == 1
    paper = Paper.load(toy)
    assert {entry.id for entry in (*paper.claims, *paper.checks)} <= set(names)
    for link in (*page.values("href"), *page.values("src")):
        if link.startswith("#"):
            assert link[1:] in names or link.startswith("#paper=")
        elif not link.startswith(("https://arxiv.org/", "data:")):
            assert (results / link).is_file(), link
    assert not page.values("srcset") and not re.search(r"url\(|@import|fetch\(", to_page([view]))
    assert "**" not in page.text and "`" not in page.text
    assert "needs a day" in page.text and "holds for lr 0.5; reversed for lr 1" in page.text


def test_any_text_stands_for_itself(toy: Path, results: Path) -> None:
    text = 'a <script>alert("x")</script> & "b" | *c* `d`'
    view = view_of(toy, results)
    title, claims = view.sections[0]
    view = replace(view, title=text, sections=((title, (replace(claims[0], statement=text, reports=text),)),))
    page = Page(to_page([view]))
    assert not page.open and page.text.count(text) == 4  # title, contents, statement, what the paper reports
    row = next(line for line in to_report([view]).splitlines() if line.startswith("| a "))
    assert "\\<script>" in row and "\\|" in row and "\\*c\\*" in row


def test_unfinished_and_unknown_results_say_so(toy: Path) -> None:
    paper = Paper.load(toy)
    record = {"complete": False, "experiments": {"e": {"jobs": 5, "jobs_finished": 2}}}
    one = ProfileResults(paper, "quick", toy, record, [])
    assert profile_view("toy-paper", one).missing == "incomplete: 2 of 5 jobs finished"
    assert "origin unknown" in profile_view("toy-paper", replace(one, record={})).machine
    empty = to_page([paper_view(paper, [], {}, toy)])
    assert "No results yet" in empty and not Page(empty).open


def test_numbers_are_written_as_people_write_them() -> None:
    assert [pretty(value) for value in (0, -12, 215608, 0.3442, 1.66533e-16, -1e-12, float("inf"))] == [
        *("0", "−12", "215,608", "0.3442", "1.665 × 10⁻¹⁶", "−10⁻¹²", "∞"),
    ]
    assert interval_texts(Estimate(3.486, 3.4561, 3.5137, 9)) == ("3.486", "[3.456, 3.514]")
    assert interval_texts(Estimate(1.0, float("-inf"), float("inf"), 1)) == ("1", "")
    assert tidy("-1.2e-06 at lr 1e-4, p-3, [-0.5, 2]") == "−1.2 × 10⁻⁶ at lr 10⁻⁴, p-3, [−0.5, 2]"


def test_the_server_shows_the_results_directory_and_nothing_else(tmp_path: Path) -> None:
    directory = tmp_path / "results"
    with pytest.raises(ReplicationError, match="replicate report"):
        server(directory)
    directory.mkdir()
    (directory / "index.html").write_text("the report")
    (tmp_path / "secret").write_text("not for you")
    with server(directory, 0) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        address = f"http://{running.server_address[0]}:{running.server_port}"
        assert running.server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(f"{address}/") as answer:
            assert answer.read() == b"the report"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{address}/../secret")
        with pytest.raises(ReplicationError, match="give another by --port"):
            server(directory, running.server_port)
        running.shutdown()
