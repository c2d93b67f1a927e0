"""The log of groups: what is written comes back, also after a kill, and a foreign file is not taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training.group_log import GroupLog, read_group_log

# Each of these ends a line for `str.splitlines`, or is more than one byte long.
AWKWARD = ["a\u2028b\u2029c", "a\nb\r\nc\rd", "\x0b\x0c\x1c\x85", 'quote " and \\ backslash', "Ω ∑ 数 🙂", "", "\x00"]


def group(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "rewards": [1.0, None], "advantages": [0.5, -0.5], "completions": AWKWARD, **more}


def steps(path: Path) -> list[int]:
    return [entry["step"] for entry in read_group_log(path)]


def test_what_is_written_comes_back_in_order_one_line_a_group(tmp_path: Path) -> None:
    log = GroupLog(tmp_path / "new" / "directory" / "groups.jsonl")
    chat = [{"role": "user", "content": "What is 1 + 1?\u2028"}]
    written = [group(0, prompt=chat), group(0, prompt="text", entropy=[0.1, 0.1 + 0.2]), group(1)]
    log.append(written[:2])
    log.append(iter(written[2:]))
    assert list(read_group_log(log.path)) == written
    assert log.path.read_bytes().count(b"\n") == 3


def test_a_new_log_replaces_an_older_one_at_its_first_write_only(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    GroupLog(path).append([group(7)])
    log = GroupLog(path)
    assert steps(path) == [7]
    log.append([group(0)])
    log.append([group(1)])
    assert steps(path) == [0, 1]


@pytest.mark.parametrize("ending", [*AWKWARD[-3:], "🙂"])
def test_a_last_line_cut_anywhere_is_left_out(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "groups.jsonl"
    GroupLog(path).append([group(0), group(1), {"step": 2, "rewards": [], "advantages": [], "prompt": ending}])
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):  # inside a character of several bytes too
        path.write_bytes(whole[:-cut])
        assert steps(path) == [0, 1]
    path.write_bytes(whole[:-last])
    assert steps(path) == [0, 1]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    GroupLog(path).append([group(0), group(1), group(2)])
    lines = path.read_bytes().split(b"\n")
    for damaged in (lines[1][:20], lines[1].replace(b'"step"', b'"stop"'), b"\xff" + lines[1], b""):
        path.write_bytes(b"\n".join([lines[0], damaged, *lines[2:]]))
        with pytest.raises(ReplicationError, match=r"groups\.jsonl, line 2: not a group log"):
            steps(path)


@pytest.mark.parametrize(
    "content", [b"step,reward\n0,1\n", b"[1, 2]\n", b'{"loss": 1}\n', b"PK\x03\x04\xff\xfe", b"3\n"]
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(ReplicationError, match=r"line 1: not a group log"):
        steps(path)


def test_missing_and_empty_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match=r"could not be read: .*No such file"):
        steps(tmp_path / "absent.jsonl")
    with pytest.raises(ReplicationError, match="could not be read"):
        steps(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ReplicationError, match="is empty"):
        steps(tmp_path / "empty.jsonl")


def test_keep_before_drops_what_a_resumed_run_writes_again(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    GroupLog(path).append([group(step) for step in (0, 0, 1, 1, 2)])
    with path.open("ab") as file:
        file.write(b'{"step":2,"rewa')  # the kill
    log = GroupLog(path)
    log.keep_before(1)
    assert steps(path) == [0, 0]
    log.append([group(1, again=True)])
    assert [entry.get("again", False) for entry in read_group_log(path)] == [False, False, True]
    GroupLog(tmp_path / "absent.jsonl").keep_before(1)
    assert not (tmp_path / "absent.jsonl").exists()


def test_a_log_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReplicationError, match=r"The group log .*groups\.jsonl could not be written"):
        GroupLog(tmp_path / "file" / "groups.jsonl").append([group(0)])


def test_a_log_of_the_first_format_is_read_with_its_steps_counted_from_1(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_text("".join(json.dumps(group(step)) + "\n" for step in (0, 0, 1)))
    assert steps(path) == [1, 1, 2]
    log = GroupLog(path)
    log.keep_before(2)  # a run of today resumes one of yesterday
    log.append([group(2)])
    assert steps(path) == [1, 1, 2]


def test_images_and_numbers_of_numpy_are_logged_as_what_they_are(tmp_path: Path) -> None:
    image = Image.new("RGB", (24, 16))
    content = [{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}]
    log = GroupLog(tmp_path / "groups.jsonl")
    log.append([group(1, prompt=[{"role": "user", "content": content}], raw=b"1234", number=np.float32(0.5))])
    read = next(read_group_log(log.path))
    assert read["prompt"][0]["content"] == [{"type": "image", "image": "<Image 24x16>"}, content[1]]
    assert read["raw"] == "<bytes 4>" and read["number"] == 0.5


def test_whether_a_log_can_be_written_is_known_before_and_leaves_no_trace(tmp_path: Path) -> None:
    GroupLog(tmp_path / "a" / "groups.jsonl").check()
    assert list((tmp_path / "a").iterdir()) == []
    (tmp_path / "old.jsonl").write_text("old")
    GroupLog(tmp_path / "old.jsonl").check()
    assert (tmp_path / "old.jsonl").read_text() == "old"
    with pytest.raises(ReplicationError, match="cannot be written"):
        GroupLog(tmp_path / "old.jsonl" / "groups.jsonl").check()
    with pytest.raises(ReplicationError, match="cannot be written"):
        GroupLog(tmp_path).check()
