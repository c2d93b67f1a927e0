"""The report is generated from what is on disk, hides nothing, and touches read-me files only between its marks."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.claim_tables import counts
from grpo_replications.shared.harness.figures import draw_figures
from grpo_replications.shared.harness.measurements import CSV_COLUMNS, MEASUREMENTS
from grpo_replications.shared.harness.outcomes import (
    claim_outcomes,
    evaluate_profile,
    read_csv,
    read_verdicts,
    write_verdicts,
)
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.plots import paper_mark, save, style
from grpo_replications.shared.harness.readmes import update_marked_block
from grpo_replications.shared.harness.rendering import Details, Table, print_claims, to_markdown
from grpo_replications.shared.harness.report import build_report


def measure(toy: Path, results: Path, profile: str = "quick", shift: float = 1.0) -> Path:
    """Write measurements of the toy paper, its verdicts and a record, as a run would."""
    directory = results / "toy_paper" / profile
    directory.mkdir(parents=True, exist_ok=True)
    rows = [["draw", f"kind={kind}", seed, "", "residual", 0.0] for kind in "ab" for seed in range(3)]
    for lr, sign in ((0.5, 1), (1, -1)):
        for method in ("new", "old"):
            values = np.random.default_rng([int(10 * lr), ord(method[0])]).normal(0, 0.1, 8) + sign * shift * (
                method == "new"
            )
            rows += [["batch", f"lr={lr};method={method}", seed, 10, "score", v] for seed, v in enumerate(values)]
    pd.DataFrame(rows, columns=CSV_COLUMNS).to_csv(directory / MEASUREMENTS, index=False)
    (directory / "record.json").write_text(
        '{"command": "replicate run toy-paper", "complete": true, "finished": "2025-01-01T00:00:00+00:00",'
        ' "machine": {"cpu": "A CPU", "cores": 2, "gpus": []},'
        ' "experiments": {"batch": {"commits": {"0123456789abcdef+": 4}, "job_seconds": 30, "workers": 1,'
        ' "peak_memory_gib": 0.5, "jobs": 4, "jobs_finished": 4}}}'
    )
    paper = Paper.load(toy)
    write_verdicts(paper, evaluate_profile(paper, profile, directory), directory)
    return directory


@pytest.fixture
def results(toy: Path, tmp_path: Path) -> Path:
    directory = measure(toy, tmp_path / "results")
    draw_figures(Paper.load(toy), "quick", directory)
    return tmp_path / "results"


def test_the_report_has_every_claim_check_figure_and_the_origin(toy: Path, results: Path) -> None:
    paper = Paper.load(toy)
    text = build_report([paper], results).read_text()
    for claim in paper.claims:
        assert text.index(f"| {claim.statement}") < text.index("<details>")  # claims first, checks folded below
    for check in paper.checks:
        assert check.statement in text and f"`{check.id}`" in text
    assert "**reproduced under conditions**: New beats old on a toy. Paper 1; quick holds in 1 of 2 settings" in text
    assert "holds for lr 0.5; reversed for lr 1" in text
    assert "needs a day: `make replicate-toy-paper PROFILE=full ONLY=batch`" in text
    assert "`make replicate-toy-paper PROFILE=quick`" in text and "A CPU, 2 cores, no GPU" in text
    assert "0123456789ab with uncommitted changes" in text
    for path in re.findall(r"\]\(([^)]+\.(?:png|pdf|csv))\)", text):
        assert (results / path).is_file(), path


def test_a_claim_has_two_answers_and_controls_are_no_claims(toy: Path, results: Path) -> None:
    text = (toy / "claims.toml").read_text()
    start = text.index("[[claim.check]]")
    end = text.index("[[claim]]", start)
    control = text[start:end].replace("toy-paper/identity", "toy-paper/control").replace('"published"', '"control"')
    (toy / "claims.toml").write_text(text[:end] + control + text[end:])
    directory = measure(toy, results)
    lines = {line["id"]: line for line in read_csv(directory / "claims.csv")}
    assert set(lines) == {"toy-paper/theorem", "toy-paper/gain"}
    theorem, gain = lines["toy-paper/theorem"], lines["toy-paper/gain"]
    assert (theorem["published"], theorem["here"]) == ("reproduced", "") and theorem["published_checks"] == "1"
    assert (gain["published"], gain["here"]) == ("not run", "reproduced under conditions")
    assert gain["published_reason"] == "needs a day" and gain["here_setting"] == "a toy"
    paper = Paper.load(toy)
    counted = dict(counts(claim_outcomes(paper, read_verdicts(paper, "quick", directory))))
    assert counted == {
        "the paper's claims as published": "1 reproduced, 1 not run (of 2)",
        "the paper's claims here, scaled down": "1 reproduced under conditions (of 1)",
        "controls": "1 hold (of 1)",
    }


def test_a_setting_of_the_paper_without_a_check_is_not_run(toy: Path, results: Path) -> None:
    claims = (toy / "claims.toml").read_text()
    start = claims.rindex("[[claim.check]]")
    (toy / "claims.toml").write_text(claims[:start])
    (line,) = [line for line in read_csv(measure(toy, results) / "claims.csv") if line["id"] == "toy-paper/gain"]
    assert (line["published"], line["published_checks"]) == ("not run", "0")


def test_the_same_files_give_the_same_report(toy: Path, results: Path) -> None:
    names = ("REPORT.md", "index.html", "numbers.csv", "numbers.tex")
    build_report([Paper.load(toy)], results)
    before = [(results / name).read_bytes() for name in names]
    build_report([Paper.load(toy)], results)
    assert [(results / name).read_bytes() for name in names] == before


def test_a_report_survives_a_round_trip_through_verdicts(toy: Path, results: Path) -> None:
    paper, directory = Paper.load(toy), results / "toy_paper" / "quick"
    before = (directory / "verdicts.csv").read_bytes(), (directory / "verdict_cells.csv").read_bytes()
    verdicts = evaluate_profile(paper, "quick", directory)
    write_verdicts(paper, verdicts, directory)
    assert ((directory / "verdicts.csv").read_bytes(), (directory / "verdict_cells.csv").read_bytes()) == before
    lines = read_verdicts(paper, "quick", directory)
    assert [line.verdict for line in lines] == [verdict.verdict for verdict in verdicts]
    assert lines[1].cells[0].won == (8, 0, 0) and lines[1].ours == "holds in 1 of 2 settings"


def test_a_claim_that_was_added_later_is_not_run(toy: Path, results: Path) -> None:
    claims = (toy / "claims.toml").read_text()
    (toy / "claims.toml").write_text(claims.replace("toy-paper/identity", "toy-paper/new-name"))
    text = build_report([Paper.load(toy)], results).read_text()
    assert "added after this profile was last judged" in text


def test_smoke_is_left_out_unless_it_is_alone(toy: Path, results: Path, tmp_path: Path) -> None:
    measure(toy, results, "smoke")
    assert "Profile **smoke**" not in build_report([Paper.load(toy)], results).read_text()
    measure(toy, tmp_path / "other", "smoke")
    assert "Profile **smoke**" in build_report([Paper.load(toy)], tmp_path / "other").read_text()


def test_readmes_are_filled_between_the_marks_from_the_most_complete_profile(toy: Path, results: Path) -> None:
    root = results.parent
    (root / "README.md").write_text("above\n<!-- generated:findings -->\nstale\n<!-- /generated:findings -->\nbelow\n")
    name = "generated:findings-toy-paper"
    (toy / "README.md").write_text(f"<!-- {name} --><!-- /{name} -->")
    build_report([Paper.load(toy)], results, root)
    text = (root / "README.md").read_text()
    assert text.startswith("above\n<!--") and text.endswith("-->\nbelow\n") and "stale" not in text
    assert "New beats old." in text and "**reproduced under conditions**" in text and "1.0 against 0.0" in text
    page = (toy / "README.md").read_text()
    assert "**not run**: needs a day" in page and "a model of 1 T parameters: 1 check, none run" in page
    assert "toy-paper/identity" not in text + page  # claims alone; single checks are in the report
    measure(toy, results, "full")
    build_report([Paper.load(toy)], results, root)
    assert "needs a day" not in (toy / "README.md").read_text()


def test_a_page_s_first_lines_answer_questions_with_the_numbers_of_checks(toy: Path, results: Path) -> None:
    claims = toy / "claims.toml"
    before, check = claims.read_text().split("[[claim.check]]", 1)
    claims.write_text(before + '[[claim.check]]\nheadline = "Is it exact?"' + check)
    marks = "".join(
        f"<!-- generated:{name}-toy-paper --><!-- /generated:{name}-toy-paper -->" for name in ("headlines", "claims")
    )
    (toy / "README.md").write_text(marks)
    build_report([Paper.load(toy)], results, results.parent)
    first, rest = (toy / "README.md").read_text().split("<!-- /generated:headlines-toy-paper -->")
    assert "- **Is it exact?**" in first and ": **reproduced**, ours " in first
    assert "New beats old." in rest and "toy-paper/identity" not in rest, "claims without their checks"


def test_smoke_never_reaches_a_readme(toy: Path, tmp_path: Path) -> None:
    measure(toy, tmp_path / "results", "smoke")
    text = "<!-- generated:findings -->kept<!-- /generated:findings -->"
    (tmp_path / "README.md").write_text(text)
    build_report([Paper.load(toy)], tmp_path / "results", tmp_path)
    assert (tmp_path / "README.md").read_text() == text


def test_marks_are_replaced_or_complained_about(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    assert not update_marked_block(path, "x", "new")
    path.write_text("no marks")
    assert not update_marked_block(path, "x", "new") and path.read_text() == "no marks"
    path.write_text("<!-- generated:x -->\nold")
    with pytest.raises(ReplicationError, match="only one of the marks"):
        update_marked_block(path, "x", "new")
    path.write_text("a<!-- generated:x -->old<!-- /generated:x -->b")
    assert update_marked_block(path, "x", "new")
    assert path.read_text() == "a<!-- generated:x -->\n\nnew\n\n<!-- /generated:x -->b"


def test_no_results_are_no_error(toy: Path, tmp_path: Path) -> None:
    text = build_report([Paper.load(toy)], tmp_path / "results").read_text()
    assert "No results yet: `make replicate-toy-paper`" in text


def test_tables_escape_what_would_break_them() -> None:
    table = Table(["a"], [["x | y\nz <b>"]])
    assert "| x \\| y z &lt;b> |" in to_markdown([table])
    assert "<summary>a &lt; b</summary>\n\n| a |" in to_markdown([Details("a < b", [table])])


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_table_fits_the_terminal(toy: Path, results: Path, width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    paper = Paper.load(toy)
    outcomes = claim_outcomes(paper, read_verdicts(paper, "quick", results / "toy_paper" / "quick"))
    print_claims(console, outcomes, counts(outcomes))
    printed = console.export_text()
    assert max(map(len, printed.splitlines())) <= width
    assert "1 reproduced" in " ".join(printed.split())


def test_equal_figures_are_equal_files(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    contents = []
    for name in ("one", "two"):
        style()
        figure, axes = plt.subplots()
        paper_mark(axes, 1, 2)
        paper_mark(axes, 2, 2)
        assert axes.get_legend_handles_labels()[1] == ["paper"]
        contents.append([path.read_bytes() for path in save(figure, tmp_path / name)])
    assert contents[0] == contents[1]
    assert not plt.get_fignums()


def test_a_broken_figure_costs_no_other(toy: Path, results: Path) -> None:
    code = (toy / "figures.py").read_text()
    broken = 'FIGURES = {"broken": lambda frame: 1 / 0, "empty": lambda frame: None, '
    (toy / "figures.py").write_text(code.replace("FIGURES = {", broken))
    directory = results / "toy_paper" / "quick"
    (directory / "figures" / "empty.png").touch()
    assert draw_figures(Paper.load(toy), "quick", directory) == {"broken": "ZeroDivisionError: division by zero"}
    assert sorted(path.name for path in (directory / "figures").iterdir()) == ["scores.pdf", "scores.png"]
