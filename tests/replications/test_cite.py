"""`replicate cite` from the command line, and what is said of the committed papers in LaTeX and BibTeX."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_replications.replications.__main__ import ROOT, main
from grpo_replications.shared.harness.number_latex import latex_text
from grpo_replications.shared.harness.numbers import write_numbers
from grpo_replications.shared.harness.papers import discover
from grpo_replications.shared.harness.references import SUITE, entries, references_bib
from tests.shared.harness.test_citations import LEAD, NUMBERS

Run = Callable[..., tuple[int, str]]
OURS = replace(LEAD, id="grpo-sg/x@full", alias="sg-x")


@pytest.fixture
def cite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("REPLICATE_RESULTS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    write_numbers(tmp_path / "numbers.csv", [*NUMBERS, OURS])

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["cite", *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_formats(cite: Run) -> None:
    code, printed = cite("pq-rival")
    assert code == 0 and "-0.049 (solve rate; 95 % CI" in printed and "regenerate" in printed
    code, printed = cite("pq-rival", "pq-norm", "--json")
    first, second = json.loads(printed)
    assert first["value"] == -0.0490123 and first["macro"] == r"\repnum{pq-rival}" and second["low"] is None
    code, printed = cite("pq-rival", "--format", "latex")
    assert (
        r"$-0.049$ (solve rate; 95\,\% CI \mbox{[$-0.077$, $-0.019$]}" in printed
        and r"~\cite{grpo-replications,p-q}." in printed
    )
    code, printed = cite("sg-x", "--format", "bibtex")
    assert code == 0 and "@misc{grpo-sg," in printed and "commit 0123456789ab" in printed and "lambda" not in printed


def test_pins_are_written_and_checked(cite: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "cited.tex")
    assert cite("pq-rival", "p-q/norm", "--alias", "mine", "--alias", "norm", "-o", path)[0] == 0
    assert "replicate cite p-q/held-out/rival@full p-q/norm@quick --alias mine" in Path(path).read_text()
    assert cite("--check", path) == (0, f"{path}: all 2 numbers stand\n")
    write_numbers(tmp_path / "numbers.csv", [replace(LEAD, low=-0.08), *NUMBERS[2:]])
    code, printed = cite("--check", path)
    assert code == 1 and "mine (p-q/held-out/rival@full) changed: low -0.077 -> -0.08\n" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Name a number"),
        (("no-such-number-at-all",), "No number is called"),
        (("pq-rival", "--alias", "a", "--alias", "b"), "1 numbers and 2 times --alias"),
        (("pq-rival", "pq-rival"), "given twice"),
        (("--check", "absent.tex"), "absent.tex cannot be read"),
        (("pq-rival", "-o", "/no-such-directory/cited.tex"), "cited.tex cannot be written"),
        (("--check", "absent.tex", "pq-rival"), "--check takes a pinned file alone"),
    ],
)
def test_a_wrong_request_is_told_what_to_do(cite: Run, arguments: tuple[str, ...], said: str) -> None:
    code, printed = cite(*arguments)
    assert code == 2 and said in printed


def test_every_paper_has_an_entry() -> None:
    papers = discover(ROOT / "replications")
    found = entries(ROOT / "CITATION.cff", papers)
    assert next(iter(found)) == SUITE and set(found) == {SUITE, *(paper.slug for paper in papers)}
    for paper in papers:
        assert f"eprint = {{{paper.facts.arxiv}}}" in found[paper.slug]
        assert latex_text(paper.facts.title) in found[paper.slug]
        for family in paper.facts.authors.replace(" & ", ", ").split(", "):
            assert f"{family}, " in found[paper.slug]
    text = references_bib(ROOT / "CITATION.cff", papers)
    assert text.count("{") == text.count("}") and text.count("@misc") == 4


def test_latex_can_print_what_is_said_of_every_number() -> None:
    for paper in discover(ROOT / "replications"):
        texts = [text for claim in paper.claims for text in (claim.published_setting, claim.here_setting) if text]
        texts += [text for check in paper.checks for text in (check.unit, check.definition, check.statement)]
        for text in (*texts, *paper.facts.measured_on.values()):
            assert latex_text(text).count("?") == text.count("?"), text
