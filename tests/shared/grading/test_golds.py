"""Gold answers are checked once on a machine; those that cannot be used are named with their reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_replications.shared.grading import golds


def test_golds_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_CACHE", str(tmp_path))
    many = [*map(str, range(golds._FEW + 1)), r"\frac{1}{"]
    found = golds.unusable_golds(many, workers=2)
    assert list(found) == [r"\frac{1}{"] and "cannot be read" in found[r"\frac{1}{"]
    monkeypatch.setattr(golds, "_reason", lambda gold, pool: f"checked {gold}")
    assert golds.unusable_golds(["1", "2", r"\frac{1}{", "new"]) == {
        r"\frac{1}{": r"checked \frac{1}{", "new": "checked new",
    }  # fmt: skip
    monkeypatch.setenv("REPLICATE_CACHE", "/dev/null/nowhere")
    assert golds.unusable_golds(["1"]) == {"1": "checked 1"}
