"""The report shows how often the rules of judging are wrong."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.calibration_table import CALIBRATION, calibration_blocks, write_calibration
from grpo_replications.shared.harness.rendering import to_markdown


def test_the_table_repeats_and_the_report_shows_its_worst_row(tmp_path: Path) -> None:
    assert calibration_blocks(tmp_path) == []
    first = write_calibration(tmp_path, samples=100).read_bytes()
    assert write_calibration(tmp_path, samples=100).read_bytes() == first
    table = pd.read_csv(tmp_path / CALIBRATION)
    own = table[(table["kind"] == "equivalence") & (table["data"] == "skewed right")].reset_index(drop=True)
    worst = own.loc[(own["wrong"] - own["allowed"]).idxmax()]
    (line,) = [row for row in to_markdown(calibration_blocks(tmp_path)).splitlines() if "equivalence | skewed r" in row]
    assert f"{worst['wrong']:.1%} | {worst['allowed']:.1%} | {worst['n']:g}" in line
    assert f"{own['coverage'].min():.1%}" in line


def test_a_handful_of_studies_is_refused_and_a_foreign_table_too(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="100 or more"):
        write_calibration(tmp_path, samples=5)
    (tmp_path / CALIBRATION).write_text("a,b\n1,2\n")
    with pytest.raises(ReplicationError, match="replicate calibrate"):
        calibration_blocks(tmp_path)
