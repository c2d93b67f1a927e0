"""Typed settings: what is wrong in any cell of any profile is said before a job starts, in one message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import Field
from rich.console import Console

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.runs import Options, run_profile
from grpo_replications.shared.settings import Settings


class Small(Settings):
    """Some settings."""

    lr: float = Field(gt=0)
    steps: int = 3
    kind: str = "a"


class Larger(Small):
    """More settings."""

    more: list[float] = Field(default_factory=list)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"here: setting 'lr' is missing\. Known settings: lr, steps, kind\."),
        ({"lr": 1, "lrr": 2}, "unknown setting 'lrr'"),
        ({"lr": "1"}, "lr = '1'"),
        ({"lr": 1, "steps": 2.5}, "steps = 2.5"),
        ({"lr": 1, "steps": True}, "steps = True"),
        ({"lr": 0}, "lr = 0: Input should be greater than 0"),
        ({"lr": 1, "kind": 1}, "kind = 1"),
    ],
)
def test_a_mistake_names_place_key_and_known_names(values: dict, message: str) -> None:
    with pytest.raises(ReplicationError, match=message):
        Small.parse(values, "here")


def test_settings_of_one_kind_make_those_of_another() -> None:
    larger = Larger(lr=1, more=[2, 0.5])
    assert Small.of(larger, kind="b") == Small(lr=1.0, kind="b")
    assert larger.changed(steps=4) == Larger(lr=1, steps=4, more=[2.0, 0.5]) and larger.steps == 3
    assert Larger.defaults() == {"steps": 3, "kind": "a", "more": []}
    with pytest.raises(ValueError, match="greater than 0"):
        larger.changed(lr=-1)


@pytest.mark.parametrize(
    ("profile", "change", "message"),
    [
        (
            "quick",
            ("scale = 2.0", "scale = 2.0\nscall = 1"),
            r"\[quick.draw\]: unknown setting 'scall'\. Known settings: s",
        ),
        ("full", ("scale = 2.0", "scale = 'x'"), r"profiles.toml, \[quick.draw\]: scale = 'x'.*\n.*\[smoke.draw\]"),
        ("quick", ("scale = 1.0", ""), r"\[gpu.draw\]: setting 'scale' is missing"),
        ("quick", ("lr = [0.5, 1]", "lr = [0.5, 1, 'x']"), r"\[quick.batch\]: lr = 'x'"),
    ],
)
def test_a_mistake_in_any_profile_stops_a_run_before_its_first_job(
    toy: Path, calls: Callable[[], list[str]], profile: str, change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    text = (toy / "profiles.toml").read_text()
    (toy / "profiles.toml").write_text(text.replace(*change))
    with pytest.raises(ReplicationError, match=message):
        run_profile(Paper.load(toy), profile, tmp_path / "results", toy, Console(quiet=True), Options())
    assert calls() == []


def test_what_only_libraries_know_stops_a_run_before_its_first_job(
    toy: Path, calls: Callable[[], list[str]], tmp_path: Path
) -> None:
    code = (toy / "experiments.py").read_text()
    training = '"late": Experiment(batch, "trains", settings=TrainingSettings),\n    "batch"'
    code = code.replace('"batch"', training, 1).replace(
        "from grpo_replications.shared.settings",
        "from grpo_replications.shared.training.settings import TrainingSettings\n"
        "from grpo_replications.shared.settings",
    )
    (toy / "experiments.py").write_text(code)
    text = (toy / "profiles.toml").read_text()
    late = '[quick.late]\nseeds = 1\nmethod = "lamda-grpo"\n'
    (toy / "profiles.toml").write_text(text.replace("[smoke]", f"{late}[smoke]", 1))
    with pytest.raises(ReplicationError, match=r"\[quick.late\]: method = 'lamda-grpo': unknown method.*lambda-grpo"):
        run_profile(Paper.load(toy), "quick", tmp_path / "results", toy, Console(quiet=True), Options())
    assert calls() == []
