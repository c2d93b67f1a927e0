"""Where a result comes from: commit, uncommitted changes, source."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from grpo_replications.shared.harness.provenance import (
    LARGEST_IN_PATCH,
    git_state,
    machine,
    package_versions,
    source_fingerprint,
)


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


def test_the_patch_restores_new_source_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    new = {"shared/b.py": b"y = 2\n", "shared/empty.py": b"", "replications/data.csv": b"1,2", "shared/c.bin": b"\0\1"}
    for name, content in {**new, "outputs.txt": b"1", "results/new.csv": b"1", "shared/page.md": b"1"}.items():
        (checkout / name).write_bytes(content)
    (checkout / "shared" / "a.py").write_text("x = 2\n")
    state = git_state(checkout)
    assert set(state.untracked) == set(new)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(checkout), str(clone)], check=True)
    subprocess.run(["git", "-C", str(clone), "apply", "-"], input=state.diff.encode(), check=True)
    assert {name: (clone / name).read_bytes() for name in new} == new
    assert (clone / "shared" / "a.py").read_text() == "x = 2\n" and not (clone / "outputs.txt").exists()


def test_files_that_are_no_source_are_no_change(checkout: Path) -> None:
    (checkout / "outputs.txt").write_text("1")
    assert not git_state(checkout).dirty


def test_a_large_new_file_is_named_in_the_patch(checkout: Path) -> None:
    (checkout / "shared" / "weights.bin").write_bytes(bytes(LARGEST_IN_PATCH + 1))
    state = git_state(checkout)
    assert state.dirty and "shared/weights.bin" in state.diff and len(state.diff) < 1000


def test_the_source_of_a_paper_outside_is_in_the_patch(checkout: Path, tmp_path: Path) -> None:
    paper = tmp_path / "elsewhere" / "paper"
    paper.mkdir(parents=True)
    (paper / "experiments.py").write_text("x = 5\n")
    (paper / "calls.txt").write_text("1")
    state = git_state(checkout, paper)
    assert state.dirty and state.untracked == ("paper/experiments.py",) and "+x = 5" in state.diff
    assert not git_state(checkout, checkout / "replications").dirty


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
    assert set(described) == {"cpu", "instructions", "cores", "memory_gib", "gpus", "system", "python"}
    assert described["cores"] >= 1 and "numpy" in package_versions()
