"""A citation says what the number is, finds it by any of its names, and notices when it changed; its LaTeX compiles."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.citations import (
    changes,
    default_names,
    find,
    latex_citation,
    pinned_file,
    read_pins,
    sentence,
    text_citation,
)
from grpo_replications.shared.harness.number_latex import latex_text, numbers_tex
from grpo_replications.shared.harness.numbers import UNKNOWN_INTERVAL, Number

LEAD = Number(
    id="p-q/held-out/rival@full",
    alias="pq-rival",
    value=-0.0490123,
    low=-0.077,
    high=-0.019,
    unit="solve rate, chance of a right sample",
    statistic="mean difference",
    interval="95 % CI, Student's t and Hall",
    n=20,
    n_of="seeds",
    seeds="0-19",
    definition="solve rate λ ≤ 1, the first method minus the second",
    verdict="not reproduced",
    state="fails",
    caveat="scaled analogue, not the paper's own experiment",
    statement="The new method is better.",
    selection="step=last; method=new minus method=old",
    model="a small transformer on addition",
    setting="small models",
    metric="solve_rate",
    paper_value=0.1,
    threshold=None,
    margin=0.02,
    machine="One CPU, 2 cores, no GPU",
    commit="0123456789abcdef 1123456789abcdef",
    command="make replicate-p-q PROFILE=full ONLY=training",
    read_with="p-q/best/rival",
)
QUICK = replace(LEAD, id="p-q/held-out/rival@quick", value=-0.04)
TINY = replace(LEAD, id="p-q/norm@quick", alias="pq-norm", value=-3.90845e-14, low=None, high=None, interval="", n=0)
MANY = replace(TINY, id="p-q/problems@full", alias="pq-problems", value=215608.0, unit="problems", n=1)
CELL = replace(LEAD, id="p-q/tree[lr=0.5;method=a_b]@full", alias="pq-tree[lr=0.5;method=a_b]")
WON = replace(CELL, id="p-q/tree[lr=0.5;method=a_b]:won@full", alias="pq-tree[lr=0.5;method=a_b]:won")
NUMBERS = [QUICK, LEAD, TINY, MANY, CELL, WON]
WITHDRAWN = {"p-q/old/*": "`p-q/held-out/rival`"}


def test_a_number_is_found_by_its_names() -> None:
    assert find("p-q/held-out/rival", NUMBERS, {}) is LEAD and find("pq-rival", NUMBERS, {}) is LEAD
    assert find("pq-rival@quick", NUMBERS, {}) is QUICK
    assert find("pq-norm", NUMBERS, {}) is TINY  # measured in quick only
    assert find("pq-tree[lr=0.5;method=a_b]:won", NUMBERS, {}) is WON


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("pq-rivol", "near it are:\n  pq-rival"),
        ("held-out", "near it are:\n  p-q/held-out/rival"),
        ("nothing-like-it", "none is near"),
        ("p-q/*", "is a pattern; cite takes whole ids and aliases"),
        ("pq-rival@gpu", "not measured in the profile 'gpu'; it was in: quick, full"),
        ("p-q/tree", r"several settings; cite one of them .*\n  p-q/tree\[lr=0.5;method=a_b\]@full$"),
        ("p-q/old/thing", "was withdrawn; now: `p-q/held-out/rival`"),
    ],
)
def test_an_unknown_name_is_told_what_is_near(asked: str, said: str) -> None:
    with pytest.raises(ReplicationError, match=said):
        find(asked, NUMBERS, WITHDRAWN)


def test_the_sentence_has_value_unit_interval_n_and_what_was_compared() -> None:
    assert sentence(LEAD) == (
        "A small transformer on addition: solve rate λ ≤ 1, the first method minus the second (step=last; "
        "method=new minus method=old): -0.049 (solve rate; 95 % CI -0.077 to -0.019; n = 20 seeds)."
    )
    assert "(lr=0.5, method=a_b): " in sentence(CELL)
    assert "215,608 (problems; n = 1 seed)" in sentence(MANY) and "-3.908e-14 (solve rate)" in sentence(TINY)
    single = replace(LEAD, low=None, high=None, interval=UNKNOWN_INTERVAL, n=1)
    assert "interval unknown; n = 1 seed" in sentence(single)
    central = replace(LEAD, interval="central 95 % of single runs")
    assert "central 95 % of single runs -0.077 to" in sentence(central) and "CI" not in sentence(central)


def test_the_citation_hides_nothing_and_breaks_no_word() -> None:
    text = text_citation(LEAD, "mine", [QUICK], 60)
    for part in (
        *("p-q/held-out/rival@full  (alias pq-rival)", "not reproduced; smallest effect that matters: 0.02"),
        *("scaled analogue", "p-q/held-out/rival@quick", "the paper prints 0.1", "seeds 0-19", "One CPU"),
        "git checkout 0123456789abcdef && make replicate-p-q PROFILE=full ONLY=training ARGS=--fresh",
        *(r"\repnum{mine}", "n = 20 seeds", "-0.077 to -0.019", "Student's t and Hall"),
    ):
        assert part in " ".join(text.split()) or part in text
    long = [line for line in text.splitlines() if len(line) > 60]
    assert all(line.split()[0] in ("regenerate", "LaTeX") for line in long)


def test_a_pinned_number_stands_until_it_changes() -> None:
    text = pinned_file({"lead": LEAD, "tree": CELL}, "replicate cite …")
    assert [pin.name for pin in read_pins(text)] == ["lead", "tree"]
    assert changes(text, NUMBERS, {}) == []
    elsewhere = replace(LEAD, commit="ffff", command="another", caveat="another")
    assert changes(text, [elsewhere, CELL], {}) == []  # measured again, the same
    (moved,) = changes(text, [replace(LEAD, value=-0.05, verdict="equivalent"), CELL], {})
    assert moved == (
        "lead (p-q/held-out/rival@full) changed: value -0.0490123 -> -0.05; verdict 'not reproduced' -> 'equivalent'"
    )
    (gone,) = changes(text, [CELL], {"p-q/held-out/*": "nothing"})
    assert gone == "lead (p-q/held-out/rival@full) is gone; now: nothing"
    (edited,) = changes(text.replace("{-0.049}", "{-0.094}", 1), NUMBERS, {})
    assert edited.startswith("lead") and "not defined in the file as it was pinned" in edited
    with pytest.raises(ReplicationError, match="pins no number"):
        read_pins("% nothing")
    with pytest.raises(ReplicationError, match="cannot be the name"):
        pinned_file({"50%": LEAD}, "")


def test_names_in_latex_are_short_and_differ() -> None:
    assert default_names(["pq-rival", "p-q/norm"], [LEAD, TINY]) == ["pq-rival", "pq-norm"]
    assert default_names(["pq-rival", "pq-rival@quick"], [LEAD, QUICK]) == ["pq-rival@full", "pq-rival@quick"]


def test_text_becomes_latex() -> None:
    assert latex_text("50 % of a_b & {x}") == r"50 \% of a\_b \& \{x\}"
    assert latex_text("λ ≤ π²₋, x̄ − é…") == (
        r"\ensuremath{\lambda} \ensuremath{\leq} \ensuremath{\pi}\ensuremath{^{2}}\ensuremath{_{-}}, "
        r"\ensuremath{\bar{x}} \ensuremath{-} é\ldots{}"
    )


PDFLATEX = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
PREAMBLES = {
    "plain": r"\input{cited}",
    "siunitx": r"\usepackage{siunitx}\sisetup{round-mode=places,round-precision=1}\input{cited}",
    "french": r"\usepackage[T1]{fontenc}\usepackage[french]{babel}\input{cited}",
    "french and siunitx": r"\usepackage[french]{babel}\usepackage{siunitx}\AtBeginDocument{\input{cited}}",
}
FILES = {"siunitx": "siunitx.sty", "french": "frenchb.ldf", "french and siunitx": "siunitx.sty"}


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
@pytest.mark.parametrize("preamble", PREAMBLES)
def test_a_document_compiles(preamble: str, tmp_path: Path) -> None:
    if preamble in FILES:
        found = subprocess.run(["kpsewhich", FILES[preamble]], capture_output=True, text=True, check=False)
        if not found.stdout:
            pytest.skip(f"LaTeX has no {FILES[preamble]} here")
    named = {"lead": LEAD, "tiny": TINY, "many": MANY, "pq-tree[lr=0.5;method=a_b]:won": WON}
    (tmp_path / "cited.tex").write_text(pinned_file(named, "replicate cite …"), encoding="utf-8")
    (tmp_path / "numbers.tex").write_text(numbers_tex(NUMBERS), encoding="utf-8")
    numbers = "" if "french" in preamble else r"\input{numbers}\replicationnumber{p-q/tree[lr=0.5;method=a_b]@full}"
    body = r"""\section{Lead \repnum{lead}} \repnum{tiny}, $x = \repval{tiny}$, \repnum{many};
    \repval{lead}~\repint{lead} \repunit{lead} \repn{lead} \texttt{\repcommit{lead}}
    \repnum{pq-tree[lr=0.5;method=a_b]:won} """
    document = (
        rf"\documentclass{{article}}{PREAMBLES[preamble]}\begin{{document}}{body}{numbers}"
        "\n\n" + latex_citation(LEAD).replace(r"~\cite{grpo-replications,p-q}", "") + "\n" + r"\end{document}"
    )
    (tmp_path / "a.tex").write_text(document, encoding="utf-8")
    result = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout.decode(errors="replace")[-1500:]
    if shutil.which("pdftotext"):
        printed = subprocess.run(["pdftotext", "a.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "−0.049" in printed.stdout and "[−0.077, −0.019]" in printed.stdout.replace(" ;", ",").replace(";", ",")
        assert "3.908 × 10" in printed.stdout.replace("·", "×") and "n = 20 seeds" in printed.stdout


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
def test_a_number_that_is_not_there_stops_latex(tmp_path: Path) -> None:
    (tmp_path / "cited.tex").write_text(pinned_file({"lead": LEAD}, ""), encoding="utf-8")
    (tmp_path / "a.tex").write_text(r"\documentclass{article}\input{cited}\begin{document}\repnum{load}\end{document}")
    result = subprocess.run(PDFLATEX, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode and "No replication number is called load" in result.stdout
