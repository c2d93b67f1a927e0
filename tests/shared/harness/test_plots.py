"""Figures are laid out so that they can be read in a column of 3.3 inches, and are written whole or not at all."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from grpo_replications.shared.harness import plots
from grpo_replications.shared.harness.captions import Caption, read_captions, runs, write_captions
from grpo_replications.shared.harness.figure_layout import (
    SMALL_TYPE,
    WIDTH,
    faults,
    finish,
    plain_number,
    smallest_type,
)
from grpo_replications.shared.statistics.estimates import Estimate


def curves(labels: int = 4):
    figure, axes = plots.panels(1, 2)
    for axis in axes[0]:
        for place in range(labels):
            axis.plot([0, 1], [place, place + 1], label=f"a method with a long name, {place}")
        axis.legend()
        axis.set_xlabel("step")
    plots.titled(axes, "first", "second")
    return figure


def test_legends_move_above_their_panels_and_the_figure_grows() -> None:
    figure = curves()
    before = figure.get_figheight()
    assert any("legend lies over" in fault for fault in faults(figure))
    finish(figure)
    assert faults(figure) == []
    assert figure.get_figwidth() == WIDTH and smallest_type(figure) == SMALL_TYPE
    height = figure.get_figheight()
    assert height > before
    assert finish(figure).get_figheight() == height  # laid out once


def test_faults_are_found() -> None:
    figure, axes = plots.panels(1, 1)
    axes[0, 0].set_xticks(np.linspace(0, 1, 9), ["a long label"] * 9)
    axes[0, 0].text(0.2, 0.5, "tiny", fontsize=4)
    axes[0, 0].set_title("words that run out of the figure" * 3)
    found = "\n".join(faults(finish(figure)))
    for words in ("'a long label' lies over", "type below 6.5 points: 'tiny'", "cut off: 'words that run out"):
        assert words in found
    figure.set_figwidth(2 * WIDTH)
    assert "6.6 inches wide" in faults(figure)[0] and smallest_type(figure) == 2.0


def test_panels_that_do_not_fit_go_below_each_other_in_order() -> None:
    for width, across in ((3.3, 1), (1.6, 2), (1.1, 3)):
        figure, axes = plots.panels(2, 6, width=width)
        assert axes.shape == (2, 6) and figure.get_figwidth() == WIDTH
        assert [axis.get_subplotspec().num1 for axis in axes.flat] == list(range(12))
        assert axes[0, 0].get_subplotspec().get_gridspec().ncols == across


def test_no_band_goes_beyond_what_the_quantity_can_be() -> None:
    _, axes = plots.panels(1, 2)
    wide = Estimate(np.array([0.1, 0.9]), np.array([-0.5, 0.5]), np.array([0.6, 1.4]), 3)
    plots.line_with_interval(axes[0, 0], [0, 1], wide, limits=plots.PROBABILITY)
    heights = axes[0, 0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0 and heights.max() == 1
    one = [Estimate(0.1, -0.5, 0.6, 3), Estimate(0.2, -math.inf, math.inf, 1)]
    plots.points_with_interval(axes[0, 1], [0, 1], one, limits=plots.NOT_NEGATIVE)
    ends = [segment[:, 1].tolist() for segment in axes[0, 1].containers[0].lines[2][0].get_segments()]
    assert ends == [pytest.approx([0, 0.6]), pytest.approx([0.2, 0.2])]


def test_no_two_methods_look_alike_nor_like_the_paper() -> None:
    looks = list(plots.METHODS.values())
    assert len({(one.color, one.marker) for one in looks}) == len({one.label for one in looks}) == len(looks)
    assert all(one.marker != "D" and one.color != plots.PAPER_COLOR for one in looks)
    assert plots.look("never heard of").label == "never heard of"


def test_captions_keep_their_parts_and_can_be_typeset(tmp_path: Path) -> None:
    one = Caption("λ_t of 5 % & more", "The paper: −0.2.", f"{runs([20, 12])}; {runs([1])}.").measured(3.3, 2, 6.5, [])
    write_captions({"a": one}, tmp_path)
    assert read_captions(tmp_path) == {"a": one}
    assert one.text == "λ_t of 5 % & more The paper: −0.2. n = 12–20 seeds; n = 1 seed."
    assert one.latex.startswith(r"$\lambda$\_t of 5 \% \& more The paper: $-$0.2.")
    assert read_captions(tmp_path / "absent") == {}
    assert [plain_number(x) for x in (0.01, 1e-8, -2.5e-5, 500)] == ["0.01", "1e−8", "−2.5e−5", "500"]


def test_equal_figures_are_equal_files(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        figure = curves()
        plots.paper_mark(figure.axes[0], 1, 2)
        plots.paper_mark(figure.axes[0], 2, 2)
        assert figure.axes[0].get_legend_handles_labels()[1].count("paper") == 1
        contents.append([path.read_bytes() for path in plots.save(figure, tmp_path / name)])
    assert contents[0] == contents[1]
    assert not plt.get_fignums()
