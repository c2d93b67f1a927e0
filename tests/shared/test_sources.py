"""One's own models and data are found by their names on the hub; a commit is part of a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_replications.shared import sources
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.tables import read_table


def test_own_models_and_data_are_found_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sources.DATA, str(tmp_path))
    for path in ("open-rs.jsonl", "maths/AIME_24.parquet", "models/org/a/config.json", "models/b/config.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert sources.local_table("knoveleng/OpenRS") == tmp_path / "open-rs.jsonl"
    assert sources.local_table("HuggingFaceH4/aime_2024", "AIME24") == tmp_path / "maths" / "AIME_24.parquet"
    assert sources.local_table("org/other") is None and sources.local_folder("org/Maths") == tmp_path / "maths"
    assert sources.local_model("org/a") == tmp_path / "models" / "org" / "a"
    assert sources.local_model("any/b") == tmp_path / "models" / "b" and sources.local_model("org/c") is None
    (tmp_path / "OPEN_RS.csv").touch()
    with pytest.raises(ReplicationError, match=r"2 files could be .*Leave one"):
        sources.local_table("knoveleng/open-rs")
    monkeypatch.setenv(sources.DATA, str(tmp_path / "absent"))
    with pytest.raises(ReplicationError, match="no such directory"):
        sources.local_model("org/a")


def test_a_commit_is_part_of_a_name_but_not_of_a_path(tmp_path: Path) -> None:
    assert sources.split_revision(sources.pinned("org/a", {"org/a": "c0ffee"})) == ("org/a", "c0ffee")
    assert sources.split_revision(sources.pinned("org/b", {"org/a": "c0ffee"})) == ("org/b", None)
    (tmp_path / "x@y").mkdir()
    assert sources.split_revision(str(tmp_path / "x@y")) == (str(tmp_path / "x@y"), None)


def test_a_file_that_was_cut_off_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"p": 1}\n\n{"p": 2}\n{"p": ')
    with pytest.raises(ReplicationError, match=r"a\.jsonl .*line 4 is no JSON.*last line: was the file cut off"):
        read_table(path)
    path.write_text('{"p": 1}\n{"p"\n{"p": 3}\n')
    with pytest.raises(ReplicationError, match=r"line 2 is no JSON.* at column 5\)"):
        read_table(path)
