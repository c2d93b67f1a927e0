"""Where a result comes from: commit, uncommitted changes, source."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from shared.harness.provenance import git_state, machine, package_versions, source_fingerprint


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for name in ("shared", "replications", "results"):
        (root / name).mkdir(parents=True)
        (root / name / "a.py").write_text("x = 1\n")
    (root / "README.md").write_text("words\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return root


def test_a_clean_checkout_and_changes_that_are_no_source(checkout: Path) -> None:
    (checkout / "results" / "a.py").write_text("x = 2\n")
    (checkout / "results" / "new.csv").write_text("1\n")
    (checkout / "README.md").write_text("generated\n")
    state = git_state(checkout)
    assert len(state.commit or "") == 40 and not state.dirty and state.diff == ""
    assert str(state) == (state.commit or "")[:12]


def test_changed_and_new_source_is_dirty(checkout: Path) -> None:
    (checkout / "shared" / "a.py").write_text("x = 2\n")
    state = git_state(checkout)
    assert state.dirty and "+x = 2" in state.diff and "uncommitted" in str(state)
    (checkout / "shared" / "a.py").write_text("x = 1\n")
    (checkout / "shared" / "b.py").write_text("")
    assert git_state(checkout).dirty and git_state(checkout).untracked == ("shared/b.py",)


def test_outside_a_checkout_nothing_is_claimed(tmp_path: Path) -> None:
    state = git_state(tmp_path)
    assert state.commit is None and str(state) == "not a git checkout"
    assert git_state(tmp_path / "absent").commit is None


def test_the_fingerprint_follows_every_source_file_and_nothing_else(checkout: Path) -> None:
    paper = checkout / "replications"
    before = source_fingerprint(checkout, paper)
    (checkout / "results" / "a.py").write_text("x = 3\n")
    assert source_fingerprint(checkout, paper) == before
    (checkout / "shared" / "a.py").write_text("x = 3\n")
    assert source_fingerprint(checkout, paper) != before


def test_a_paper_outside_the_suite_is_part_of_its_source(checkout: Path, tmp_path: Path) -> None:
    paper = tmp_path / "paper"
    paper.mkdir()
    (paper / "experiments.py").write_text("1")
    before = source_fingerprint(checkout, paper)
    (paper / "experiments.py").write_text("2")
    assert source_fingerprint(checkout, paper) != before


def test_the_machine_is_described_without_its_name() -> None:
    described = machine()
    assert set(described) == {"cpu", "cores", "memory_gib", "gpus", "system", "python"}
    assert described["cores"] >= 1 and "numpy" in package_versions()
