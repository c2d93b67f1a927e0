"""Every committed figure can be read in a column of 3.3 inches and says what it shows, of how many runs."""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

import pandas as pd
import pytest

from grpo_replications.replications.__main__ import main
from grpo_replications.replications.grpo_sg.training_figures import PAPER_GAINS
from grpo_replications.replications.lambda_grpo.figures import table2_intervals
from grpo_replications.shared.harness import jobs
from grpo_replications.shared.harness.captions import read_captions
from grpo_replications.shared.harness.figure_layout import SMALL_TYPE, WIDTH
from grpo_replications.shared.harness.figures import Unfinished, draw_figures
from grpo_replications.shared.harness.measurements import CSV_COLUMNS, MEASUREMENTS
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.plots import save

ROOT = Path(__file__).resolve().parents[2]
DIRECTORIES = sorted(ROOT.glob("results/*/*/figures"))


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_committed_figures_are_readable_and_explained(directory: Path) -> None:
    found = read_captions(directory)
    assert {path.stem for path in directory.glob("*.png")} == set(found)
    for name, one in found.items():
        assert one.faults == (), name
        assert one.width <= WIDTH + 0.01 and one.height <= 8 and one.smallest_type >= SMALL_TYPE, name
        for part in (one.shows, one.paper, one.sample):
            assert len(part) > 20 and part.endswith("."), name
        assert "paper" in one.paper.lower(), name
        assert re.search(r"\bn = \d", one.sample), name
        assert re.search("interval|central 95 %|five-seed", one.sample), name
        assert (directory / f"{name}.txt").read_text(encoding="utf-8").strip() == one.text
        pixels, _ = struct.unpack(">II", (directory / f"{name}.png").read_bytes()[16:24])
        assert pixels == round(300 * one.width), name


def test_a_figure_drawn_again_is_the_same_to_the_byte(tmp_path: Path) -> None:
    frame = pd.DataFrame({"experiment": ["table2-intervals"]})
    first, second = ([path.read_bytes() for path in save(table2_intervals(frame), tmp_path / name)] for name in "ab")
    assert first == second


def test_the_gain_that_figures_draw_is_the_margin_of_the_checks() -> None:
    checks = Paper.load(ROOT / "replications" / "grpo_sg").checks
    margins = {check.margin for check in checks if check.id.startswith("grpo-sg/sensitivity/")}
    assert {round(100 * margin, 6) for margin in margins} == {PAPER_GAINS[0]}


def test_a_full_disk_keeps_what_is_finished(toy: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    code = (toy / "figures.py").read_text()
    (toy / "figures.py").write_text(code.replace("FIGURES = {", 'FIGURES = {"first": lambda f: scores(f), '))
    directory = tmp_path / "results" / "toy_paper" / "quick"
    (directory / "figures").mkdir(parents=True)
    rows = [["batch", "lr=1;method=new", seed, 10, "score", 0.5] for seed in range(3)]
    pd.DataFrame(rows, columns=CSV_COLUMNS).to_csv(directory / MEASUREMENTS, index=False)
    old = directory / "figures" / "scores.png"
    old.write_bytes(b"old")

    def full(source: Path, target: Path) -> None:
        if Path(target).name == "scores.png":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        Path(source).rename(target)

    monkeypatch.setattr(jobs.os, "replace", full)
    with pytest.raises(Unfinished, match=r"The figure scores of toy-paper .* No space left .* 1 figures before it"):
        draw_figures(Paper.load(toy), "quick", directory)
    assert old.read_bytes() == b"old" and (directory / "figures" / "first.png").stat().st_size > 1000
    assert not [path for path in (directory / "figures").iterdir() if path.suffix == ".tmp"]
    assert set(read_captions(directory / "figures")) == {"first"}
    monkeypatch.setenv("REPLICATE_RESULTS", str(tmp_path / "results"))
    assert main(["figures", "toy-paper"], toy.parent) == 1
    assert capsys.readouterr().err.count("No space left") == 1
