"""The GPU check: every part in miniature on a CPU, what fails is said, and a machine without a GPU is told so."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo_replications.replications import gpu_check, gpu_check_parts
from grpo_replications.replications.__main__ import main
from grpo_replications.replications.gpu_check_parts import Line, Place, at_least, at_most
from grpo_replications.shared.errors import ReplicationError

MINIATURE = ("gpu-check", "--device", "cpu", "--miniature", "--minutes", "1000")  # however busy the machine is
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this process sees a GPU, which the CPU check hides")


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPLICATE_RESULTS", str(tmp_path))
    for name in ("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # the command sets both: back to what they were after the test
    return tmp_path / "gpu-check-miniature"


def read(results: Path) -> tuple[dict, dict[tuple[str, str], dict]]:
    record = json.loads((results / "record.json").read_text())
    return record, {(line["part"], line["name"]): line for line in record["lines"]}


def test_every_part_passes_in_miniature(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(MINIATURE)
    printed = capsys.readouterr().out
    record, lines = read(results)
    assert code == 0 and record["passed"], printed
    assert record["miniature"] and record["machine"]["cpu"] and record["packages"]["torch"] and record["commit"]
    assert lines["lambda-grpo, 6 tokens", "smallest token weight"]["value"] < 1
    assert 1 < lines["sharpness, 6 tokens", "largest token weight"]["value"] <= 1.4 + 1e-6
    assert lines["theorem, float64", "relative error of the gradient"]["value"] < 1e-12
    assert lines["identity, grpo, float64", "relative error of the update"]["value"] < 1e-12
    for name in ("dynamic sampling, 6 tokens", "grpo, 12 tokens", "lambda-grpo, 12 tokens"):
        assert lines[name, "tokens sampled and trained on"]["value"] > 0
    judged = [line for line in lines.values() if line["passed"] is not None]
    assert printed.count("pass  ") == len(judged) > 50
    table = (results / "table.md").read_text()
    assert table.startswith("# GPU check, in miniature: passed") and table.count("| pass |") == len(judged)


def test_what_fails_is_a_line_and_the_other_parts_run(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers() -> Iterator[Line]:
        yield at_most("numbers", "large", 2.0, 1)
        yield at_least("numbers", "not a number", float("nan"), 1)
        yield at_least("numbers", "enough", 1.0, 1)

    def broken() -> Iterator[Line]:
        yield at_most("broken", "before it", 0.0, 1)
        raise RuntimeError("CUDA error: out of memory\nand more")

    monkeypatch.setattr(gpu_check_parts, "parts", lambda _: {"broken": broken, "numbers": numbers})
    assert main(MINIATURE) == 1
    captured = capsys.readouterr()
    record, lines = read(results)
    failing = [name for (_, name), line in lines.items() if line["passed"] is False]
    assert failing == ["stopped: RuntimeError: CUDA error: out of memory", "large", "not a number"]
    assert not record["passed"] and captured.out.count("FAIL") == 3 and "3 of 6 lines pass" in captured.out
    assert lines["numbers", "not a number"]["value"] == "nan"
    assert main((*MINIATURE, "--minutes", "0")) == 1
    assert capsys.readouterr().out.count("not run: out of time") == 2


def test_what_only_a_gpu_is_asked_is_asked_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that the miniature does not reach on a CPU, with a GPU that is no more than its numbers."""
    asked: list[str] = []
    for name in ("empty_cache", "reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: asked.append(name))
    properties = SimpleNamespace(name="a GPU", total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    place = Place("cuda", gpu_check_parts.MINIATURE, tmp_path)
    place.free()
    place.wait()
    assert asked == ["empty_cache", "reset_peak_memory_stats", "synchronize"]
    found = gpu_check._accelerator("cuda")
    assert {key: found[key] for key in ("name", "memory_gib", "capability")} == {
        "name": "a GPU",
        "memory_gib": 80.0,
        "capability": "9.0",
    }
    history = [{"step_time": 2.0, "groups/samples_spent": 8.0}] * 2
    settings = gpu_check_parts.training_settings(gpu_check_parts.Training("t", "grpo", 6), place.sizes)
    lines = {line.name: line.value for line in gpu_check_parts._speed(place, "t", settings, history, [])}
    assert lines["peak GPU memory"] == 3.0 and lines["tokens sampled and trained on"] == 8 * 6 / 2
    gpu_check._choose_device(Namespace(device="cuda", miniature=False))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(ReplicationError, match="hide it: CUDA_VISIBLE_DEVICES= the command"):
        gpu_check._choose_device(Namespace(device="cpu", miniature=True, command="the command"))


def test_wrong_process_sets_and_wrong_step_rewards_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("cpu", gpu_check_parts.MINIATURE, tmp_path)
    sizes = gpu_check_parts.process_set_sizes
    monkeypatch.setattr(gpu_check_parts, "process_set_sizes", lambda *a: sizes(*a) + (sizes(*a) > 1).long())
    monkeypatch.setattr(gpu_check_parts, "step_rewards", lambda ids, mask, r, _: (r + 0.01).unsqueeze(1) * mask)
    assert [line.passed for line in gpu_check_parts.process_sets(place)] == [True, *[False] * 9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("gpu-check",), "torch finds no GPU here"), (("gpu-check", "--device", "cpu"), "--device cpu --miniature")],
)
def test_without_a_gpu_it_says_what_to_do(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and captured.err.count("\n") == 1
