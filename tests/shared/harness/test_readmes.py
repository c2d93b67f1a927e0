"""The front page's block of a paper: rows of plain words whose verdicts and numbers are those of the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.outcomes import (
    ClaimOutcome,
    claim_outcomes,
    evaluate_profile,
    read_verdicts,
    write_verdicts,
)
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.readmes import front_block, page_blocks
from grpo_replications.shared.harness.rendering import to_markdown
from tests.shared.harness.test_report import measure

FRONT = """[front]
name = "Toys"
picture = "scores"
caption = "A toy, means of {toy-paper/direction[lr=1]|n} seeds."
seen = "New is higher."
holds = "Nothing is left over: {toy-paper/identity}."
depends_on = "The rate: {toy-paper/direction[lr=0.5]|signed} and {toy-paper/direction[lr=1]|signed}."
not_shown = "{toy-paper/huge|points} points."

"""
WORDS = """short = "New wins."
reported_short = "1 against 0"
here_found = "{toy-paper/direction[lr=0.5]|signed} at rate 0.5, n = {toy-paper/direction[lr=0.5]|n}"
"""


@pytest.fixture
def block(toy: Path, tmp_path: Path) -> str:
    claims = (toy / "claims.toml").read_text()
    claims = claims.replace("[[claim]]", FRONT + "[[claim]]", 1)
    claims = claims.replace('statement = "New beats old."\n', 'statement = "New beats old."\n' + WORDS)
    (toy / "claims.toml").write_text(claims)
    results = tmp_path / "results"
    picture = measure(toy, results) / "figures" / "scores.png"
    picture.parent.mkdir(exist_ok=True)
    picture.touch()
    return front_block(Paper.load(toy), outcomes(toy, results), results, tmp_path)


def outcomes(toy: Path, results: Path) -> list[ClaimOutcome]:
    paper, directory = Paper.load(toy), results / "toy_paper" / "quick"
    write_verdicts(paper, evaluate_profile(paper, "quick", directory), directory)
    return claim_outcomes(paper, read_verdicts(paper, "quick", directory))


def test_a_row_has_words_verdict_and_the_measured_number(block: str) -> None:
    (row,) = [line for line in block.splitlines() if line.startswith("| New wins.")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["New wins.", "1 against 0", "not run"]
    assert cells[3].startswith("**reproduced under conditions**: +") and cells[3].endswith("at rate 0.5, n = 8")
    assert "Nothing is left over. |" not in block, "claims without a short form are shown on the paper's own page"


def test_picture_sentences_counts_and_links_follow(block: str) -> None:
    picture = "results/toy_paper/quick/figures/scores.png"
    assert f"![Toys: New is higher.]({picture})\n\n*A toy, means of 8 seeds. New is higher.*" in block
    assert "- **Holds:** Nothing is left over: 0.\n- **Depends on:** The rate: +" in block
    assert "- **Not shown:** not measured yet." in block, "a sentence without its number is not shown"
    assert (
        "controls" not in block
        and "The paper's claims as published: 1 reproduced, 1 not run; here, scaled down: 1 " in block
    )
    assert "[All findings and tests](papers/toy_paper/README.md)" in block


def test_a_page_says_findings_first_and_folds_the_tests_with_their_command(toy: Path, tmp_path: Path) -> None:
    measure(toy, tmp_path / "results")
    page = to_markdown(page_blocks(outcomes(toy, tmp_path / "results"), "toy-paper"))
    findings, folded = page.split("<details>")
    assert "New beats old. (Table 1)" in findings and "holds for lr 0.5; reversed for lr 1" in findings
    assert "| `make replicate-toy-paper` and |" in folded and "`PROFILE=quick ONLY=batch`" in folded


def test_a_mark_of_no_check_is_refused_with_its_place(toy: Path) -> None:
    claims = toy / "claims.toml"
    claims.write_text(claims.read_text().replace("[[claim]]", FRONT.replace("/huge", "/hug") + "[[claim]]", 1))
    with pytest.raises(ReplicationError, match=r"\[front\], not_shown: \{toy-paper/hug\} is no check of the paper"):
        _ = Paper.load(toy).claims
