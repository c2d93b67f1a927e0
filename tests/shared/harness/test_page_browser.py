"""The report in a real browser: filters, search, links, keys, both colour schemes, paper, a wide screen and a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_replications.shared.harness.calibration_table import calibration_blocks
from grpo_replications.shared.harness.page import slug, to_page
from grpo_replications.shared.harness.page_model import ClaimView, PaperView
from grpo_replications.shared.harness.page_views import paper_view
from grpo_replications.shared.harness.papers import discover
from grpo_replications.shared.harness.profile_results import collect, without_smoke
from grpo_replications.shared.harness.report import numbers_of

ROOT = Path(__file__).parents[3]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE = 60_000  # milliseconds, for machines that are busy

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome on this machine"
)

# Smallest contrast between the text of elements and what is painted behind them, and the element that has it.
CONTRAST = """(selector) => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255)
    .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  const seen = new Set();
  for (const element of document.querySelectorAll(selector)) {
    const kind = `${element.tagName} ${element.className} in ${element.parentElement.className}`;
    if (seen.has(kind) || !element.getClientRects().length) continue;
    seen.add(kind);
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, kind];
  }
  return worst;
}"""
VISIBLE = "() => [...document.querySelectorAll('.claim')].filter((one) => one.offsetParent).map((one) => one.id)"
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN = """() => {
  for (const check of document.querySelectorAll(".check")) fill(check);
  for (const box of document.querySelectorAll("details")) box.open = true;
}"""
TOP = "(id) => document.getElementById(id).getBoundingClientRect().top"


@pytest.fixture(scope="module")
def papers() -> list[PaperView]:
    """What the committed results say: every claim, of its groups of checks the two that say most."""
    results, known = ROOT / "results", discover(ROOT / "replications")
    found = {paper.slug: without_smoke(collect(paper, results)) for paper in known}
    numbers = numbers_of(known, found)
    return [slim(paper_view(paper, found[paper.slug], numbers, results)) for paper in known]


def slim(paper: PaperView) -> PaperView:
    """A page of hundreds of checks takes a busy machine long, and their kinds are few."""

    def own(claim: ClaimView) -> ClaimView:
        groups = [(title, tuple(sorted(checks, key=lambda one: -len(str(one)))[:2])) for title, checks in claim.groups]
        return replace(claim, groups=tuple(groups))

    return replace(paper, sections=tuple((title, tuple(map(own, claims))) for title, claims in paper.sections))


@pytest.fixture(scope="module")
def address(papers: list[PaperView], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(to_page(papers, calibration_blocks(ROOT / "results")), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=BROWSER, args=list(FLAGS), timeout=PATIENCE)
        yield running
        running.close()


@pytest.fixture(scope="module")
def wide(browser: playwright.Browser, address: str) -> playwright.Page:
    """The page at 1280 pixels; each test puts it in the state that it needs."""
    page = browser.new_page(viewport=WIDE, color_scheme="light")
    page.set_default_timeout(PATIENCE)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(address)
    return page


def go(page: playwright.Page, fragment: str) -> list[str]:
    """Follow a link inside the page; the ids of the claims that are then shown."""
    page.evaluate("(hash) => { location.hash = hash; readAddress(); }", fragment)
    return page.evaluate(VISIBLE)


def expected(papers: list[PaperView], paper: str, source: str, verdict: str) -> list[str]:
    """Claims with a line of this source and verdict, an empty text standing for any."""
    return [
        claim.id
        for one in papers
        if paper in ("", one.slug)
        for claim in one.claims
        if any(source in ("", line.source) and verdict in ("", *line.verdicts) for line in claim.lines)
    ]


def test_filters_work_together_and_stand_in_the_address(wide: playwright.Page, papers: list[PaperView]) -> None:
    assert go(wide, "") == expected(papers, "", "", "")
    for paper, source, verdict in (
        ("lambda-grpo", "", ""),
        ("", "published", "not run"),
        ("sigma-identity", "here", "reproduced"),
        ("", "control", "not reproduced"),
    ):
        go(wide, "")
        for name, value in (("paper", paper), ("source", source), ("verdict", slug(verdict))):
            wide.select_option(f"#{name}", value)
        want = expected(papers, paper, source, verdict)
        assert want and wide.evaluate(VISIBLE) == want, (paper, source, verdict)
        assert wide.inner_text("#shown").startswith(f"{len(want)} of ")
        state = wide.evaluate("() => location.hash")
        assert go(wide, "") != want and go(wide, state) == want, "the address alone brings the filters back"
    wide.click("#clear")
    assert wide.evaluate(VISIBLE) == expected(papers, "", "", "") and not wide.evaluate("() => location.hash")
    assert not wide.errors


def test_counts_lead_to_what_they_count(wide: playwright.Page, papers: list[PaperView]) -> None:
    go(wide, "")
    paper = papers[-1]
    tally = next(one for one in paper.tallies if one.source == "published")
    verdict, number = tally.counts[-1]
    wide.click(f".tally-words a[href*='paper={paper.slug}&source=published&verdict={slug(verdict)}']")
    wide.wait_for_function("() => document.getElementById('source').value === 'published'")
    assert len(wide.evaluate(VISIBLE)) == number


def test_search_finds_words_of_checks_and_marks_them(wide: playwright.Page, papers: list[PaperView]) -> None:
    go(wide, "")
    check = next(own for one in papers for claim in one.claims for _, group in claim.groups for own in group)
    wide.keyboard.press("/")
    assert wide.evaluate("() => document.activeElement.id") == "search"
    wide.fill("#search", f"{check.id} {check.criterion[:9]}".upper())
    wide.wait_for_function("() => document.getElementById('shown').textContent.startsWith('1 of')")
    assert wide.evaluate("() => location.hash").startswith("#q=")
    assert check.id in wide.evaluate("() => [...document.querySelectorAll('.check.hit')].map((one) => one.id)")
    wide.fill("#search", "nothing has these words")
    wide.wait_for_selector("#nothing", state="visible")
    wide.keyboard.press("Escape")
    assert wide.input_value("#search") == "" and not wide.is_visible("#nothing")


def test_a_link_opens_its_claim_or_check_even_where_it_was_filtered_out(wide: playwright.Page, papers) -> None:
    claim = papers[-1].claims[-1]
    check = next(own for _, group in claim.groups for own in group)
    go(wide, f"paper={papers[0].slug}")
    for fragment, name in ((claim.id, claim.id), (f"{check.id}[lr=0.5]:won@full", check.id)):
        assert claim.id in go(wide, fragment)
        assert wide.evaluate("(id) => document.getElementById(id).open", name)
        assert 0 <= wide.evaluate(TOP, name) < WIDE["height"] / 2
    assert wide.evaluate("(id) => document.getElementById(id).closest('.claim').open", check.id)


def test_keys_go_from_claim_to_claim(wide: playwright.Page) -> None:
    shown = go(wide, "")
    wide.evaluate("() => document.activeElement.blur()")
    focused = "() => document.activeElement.closest('.claim')?.id"
    for key, place in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        wide.keyboard.press(key)
        assert wide.evaluate(focused) == shown[place]
    before = wide.evaluate("(id) => document.getElementById(id).open", shown[1])
    wide.keyboard.press("Enter")
    assert wide.evaluate("(id) => document.getElementById(id).open", shown[1]) is not before
    assert wide.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_copied_citations_say_the_number_and_its_name(wide: playwright.Page, papers: list[PaperView]) -> None:
    checks = [own for one in papers for claim in one.claims for _, group in claim.groups for own in group]
    own, run = next((own, run) for own in checks for run in own.runs if run.interval and run.profile == own.profile)
    go(wide, own.id)
    copied = wide.evaluate(
        "(id) => [...document.getElementById(id).querySelectorAll('.copy')].map((one) => one.dataset.copy)", own.id
    )
    assert run.citation in copied and run.command in copied
    assert f"{own.id}@{run.profile}" in run.citation and own.statement.rstrip(".") in run.citation


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes_and_the_button_turns_them(wide: playwright.Page, scheme: str) -> None:
    wide.emulate_media(color_scheme=scheme)
    go(wide, "")
    text = ".statement, .where, .reading, .setting, .chip, .note, .reports, .contents a, .tally a, p, button, select"
    ratio, name = wide.evaluate(CONTRAST, text)
    assert ratio >= 4.5, name
    dark = wide.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 25)"
    assert dark == (scheme == "dark")
    for _ in range(2):
        wide.keyboard.press("t")
    assert wide.evaluate("() => document.documentElement.dataset.theme") == scheme
    wide.keyboard.press("t")
    wide.emulate_media(color_scheme="light")


def test_on_paper_every_claim_is_open_and_no_control_is_printed(wide: playwright.Page) -> None:
    go(wide, "")
    wide.evaluate("() => { for (const claim of document.querySelectorAll('.claim')) claim.open = false; }")
    wide.emulate_media(media="print", color_scheme="dark")
    height = "() => document.querySelector('.claim .group').getBoundingClientRect().height"
    assert wide.evaluate(height) > 0, "closed claims are printed open"
    assert not wide.is_visible(".bar") and not wide.is_visible(".contents")
    assert wide.evaluate("() => getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    wide.emulate_media(media="screen", color_scheme="light")


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_nothing_is_wider_than_the_screen(browser: playwright.Browser, address: str, size: dict[str, int]) -> None:
    page = browser.new_page(viewport=size)
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    assert page.evaluate(OVERFLOW) == 0
    if size == PHONE:
        card = page.locator(".claim").first.bounding_box()
        chip = page.locator(".claim .verdict .chip").first.bounding_box()
        assert card["x"] >= 0 and chip["x"] + chip["width"] <= card["x"] + card["width"] <= PHONE["width"]
        assert not page.is_visible(".contents nav") and page.is_visible("#search")
    page.evaluate(OPEN)
    assert page.evaluate(OVERFLOW) == 0
    page.close()
