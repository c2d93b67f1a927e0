"""An untested TRL is named at import, and the package asks for the tested ones only."""

from __future__ import annotations

import importlib.metadata
import tomllib
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from grpo_replications.shared.training.versions import TESTED_TRL, warn_of_untested_trl

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_an_untested_trl_is_named_with_the_tested_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.0.1")
    with pytest.warns(UserWarning, match=rf"TRL 9\.0\.1 .* tested with TRL {TESTED_TRL[0]}"):
        warn_of_untested_trl()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{TESTED_TRL[0]}.7")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untested_trl()


def test_the_package_asks_for_tested_versions() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    (trl,) = [one for one in map(Requirement, project["dependencies"]) if one.name == "trl"]
    minors = {f"1.{minor}" for minor in range(40) if f"1.{minor}.1" in trl.specifier}
    assert minors == set(TESTED_TRL)
    manual = PROJECT.parent / "shared" / "training" / "README.md"
    assert f"Tested with TRL {' and '.join(TESTED_TRL)}\n" in manual.read_text(encoding="utf-8")
