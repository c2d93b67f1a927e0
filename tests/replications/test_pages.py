"""Numbers in the sentences of a paper's page are those of the results: nothing is typed that no measurement says.

In the sections "In short" and "Findings" of a page, outside generated blocks, every text with a number is followed, in
the same paragraph, by a mark that says where it comes from: `<!-- NAME@PROFILE, NAME@PROFILE -->`. A name is that of a
line of `results/numbers.csv` without its profile, with `*` for any text, or `mean:EXPERIMENT:METRIC[key=value;...]`,
the mean over the seeds of the measurements with these settings. A number must be, to as many digits as it has, one of
the values, ends of intervals or counts of seeds that the mark names, or a number of the check itself: its settings,
threshold, margin, horizon, or the paper's value.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from grpo_replications.shared.harness.measurements import MEASUREMENTS, load_measurements
from grpo_replications.shared.harness.papers import Paper, discover
from grpo_replications.shared.harness.profile_results import best_outcomes, collect
from grpo_replications.shared.harness.profiles import parse_value
from grpo_replications.shared.harness.readmes import front_block

ROOT = Path(__file__).parents[2]
COVERED = ("In short", "Findings")
MARK = re.compile(r"<!-- ((?:mean:)?[\w./*\[\]=;:, @-]+@\w+) -->")
NAMES = "|".join(
    (
        r"(?<![\w.])[A-Za-z$§][\w.]*-?\d[\w.-]*",  # GPT-2, SmolLM2-135M, AIME24
        r"(?:Table|Figure|[Ss]ection) \d[\d.]*",
        r"\bn = \d",
        r"r_neg = [−-]?[\d.]+",
        r"[Gβ] = [\d.]+\d|[Gβ] = \d",
    )
)
NUMBER = re.compile(r"(?<![\w.])[−-]?(?:\d+\.?\d*|\.\d+)(?:e[−-]?\d+)?(?: %)?")


def pages() -> list[Path]:
    """Pages of papers that have a covered section."""
    found = sorted((ROOT / "replications").glob("*/README.md"))
    return [page for page in found if list(paragraphs(page.read_text(encoding="utf-8")))]


def paragraphs(page: str) -> Iterator[str]:
    """Paragraphs, items and table rows of the covered sections, outside generated blocks and code."""
    page = re.sub(r"<!-- generated:(\S+) -->.*?<!-- /generated:\1 -->", "", page, flags=re.S)
    page = re.sub(r"```.*?```|!?\[([^\]]*)\]\([^)]*\)", r"\1", page, flags=re.S)
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        if title.strip() in COVERED:
            yield from re.split(r"\n\s*\n|\n(?=[-|*] )", body)


def statements(paragraph: str) -> Iterator[tuple[str, str | None]]:
    """(text, names in the mark after it), and the text after the last mark with None."""
    parts = MARK.split(paragraph)
    yield from zip(parts[::2], [*parts[1::2], None])


def numbers(text: str) -> list[str]:
    """Numbers of a text that claim something: not those inside names, table numbers or settings."""
    bare = re.sub(r"`[^`]*`", "", text)
    return NUMBER.findall(re.sub(NAMES, "", bare))


@lru_cache
def lines() -> dict[str, dict[str, str]]:
    with (ROOT / "results" / "numbers.csv").open(encoding="utf-8", newline="") as file:
        return {line["id"]: line for line in csv.DictReader(file)}


@lru_cache
def check_numbers(directory: Path) -> dict[str, str]:
    """What each check says of itself, as text."""
    return {
        check.id: json.dumps(check.model_dump(exclude={"criterion"}), default=str) for check in Paper(directory).checks
    }


@lru_cache
def measurements(paper: str, profile: str):
    return load_measurements(ROOT / "results" / paper / profile / MEASUREMENTS)


def mean_of(paper: str, name: str, profile: str) -> float:
    experiment, metric, chosen = re.fullmatch(r"mean:([^:]+):([^\[]+)(?:\[(.*)\])?", name).groups()
    rows = measurements(paper, profile)
    rows = rows[(rows["experiment"] == experiment) & (rows["metric"] == metric)]
    for part in (chosen or "").split(";") if chosen else ():
        key, _, value = part.partition("=")
        rows = rows[rows[key] == parse_value(value)]
    assert len(rows), f"nothing is measured of {name}"
    return float(rows["value"].mean())


def known(page: Path, names: str) -> list[float]:
    """Every number that the mark's names stand for."""
    values: list[float] = []
    for name, profile in (part.strip().rsplit("@", 1) for part in re.split(r", (?=lambda|grpo|sigma|mean:)", names)):
        if name.startswith("mean:"):
            values.append(mean_of(page.parent.name, name, profile))
            values += [float(number) for number in re.findall(r"=(-?[\d.]+(?:e-?\d+)?)", name)]
            continue
        pattern = re.compile(re.escape(f"{name}@{profile}").replace(r"\*", ".*"))
        found = [line for identity, line in lines().items() if pattern.fullmatch(identity)]
        assert found, f"{name}@{profile} is no line of results/numbers.csv"
        for line in found:
            values += [float(line[key]) for key in ("value", "low", "high", "n") if line[key]]
            check = re.split(r"[\[:@]", line["id"])[0]
            text = line["id"] + " " + check_numbers(page.parent)[check]
            values += [float(number) for number in re.findall(r"\d+\.?\d*(?:e-?\d+)?", text)]
    return values


def said_by(number: str, values: list[float]) -> bool:
    """Whether one of the values is the number, to its own digits; a percentage is of a share."""
    digits, percent = number.removesuffix(" %").replace("−", "-"), number.endswith("%")
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0) - 0
    unit = 10.0**-decimals
    return any(abs(abs(value * (100 if percent else 1)) - abs(float(digits))) <= 0.5001 * unit for value in values)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.parent.name)
def test_every_number_has_a_source_that_says_it(page: Path) -> None:
    wrong = []
    for paragraph in paragraphs(page.read_text(encoding="utf-8")):
        for text, names in statements(paragraph):
            found = numbers(text)
            if found and names is None:
                wrong.append(f"no mark after: {' '.join(text.split())}")
            elif names is not None:
                values = known(page, names)
                wrong += [f"{number} is not in {names}" for number in found if not said_by(number, values)]
    assert not wrong, "\n".join(wrong)


def test_the_front_page_shows_every_paper_as_its_results_are() -> None:
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    for paper in discover(ROOT / "replications"):
        outcomes = best_outcomes(paper, collect(paper, ROOT / "results"))
        assert front_block(paper, outcomes, ROOT / "results", ROOT) in front, "run `replicate report`"
        assert f"make replicate-{paper.slug} " in front
        assert paper.facts.front, "words for the front page"


def test_a_wrong_number_is_found() -> None:
    assert said_by("0.39", [0.3949]) and not said_by("0.39", [0.3951])
    assert said_by("−.25", [-0.251]) and said_by("12 %", [0.1249]) and not said_by("13 %", [0.1249])
    assert numbers("GPT-2 at 1e-5, Table 1, n = 2: .36 to 0.75, SmolLM2-135M, 54 %") == ["1e-5", ".36", "0.75", "54 %"]
    assert list(statements("a 1. <!-- x/y@full --> b 2.")) == [("a 1. ", "x/y@full"), (" b 2.", None)]
