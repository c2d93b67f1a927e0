"""A rehearsal goes through every step, changes sizes alone, and can be taken for no result."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from grpo_replications.replications import rehearsal
from grpo_replications.replications.__main__ import main
from grpo_replications.replications.rehearsal import ENDING, MARK, SAMPLES, SIZES, RehearsedPaper, root, shrunk, smaller
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.models.stand_ins import kind_of

ROOT = Path(__file__).parents[2]
DERIVED = {"gradient_accumulation_steps", "processes", "use_vllm", "precision"}


def test_sizes_shrink_by_one_rule_and_every_other_setting_is_the_papers() -> None:
    assert [root(size) for size in (1, 4, 6, 16, 25, 81, 125, 1000, 4096)] == [1, 2, 2, 2, 3, 3, 4, 6, 8]
    assert smaller([2, 4, 32]) == [2, 3]
    for name in ("lambda_grpo", "grpo_sg", "sigma_identity"):
        paper = Paper.load(ROOT / "replications" / name)
        whole = paper.profile("paper")
        for plan in shrunk(paper, whole, "any").plans.values():
            for cell in plan.cells:
                same = [one for one in whole.plans[plan.experiment].cells if _kept(one) == _kept(cell)]
                assert same, (plan.experiment, cell)
                sizes = [key for key in SIZES if cell.get(key) and key != "save_every"]
                assert sizes and all(cell[key] == smaller(same[0][key]) for key in sizes)
                assert not cell.get("save_every") or 0 <= cell["save_every"] - root(same[0]["save_every"]) <= 3
                settings = paper.experiment(plan.experiment).parse(cell, "here")
                if same[0].get("gradient_accumulation_steps", 1) > 1:  # micro-batches of one in these profiles
                    assert settings.prompts_per_step * settings.group_size == settings.gradient_accumulation_steps
            settings.check()


def _kept(cell: dict) -> dict:
    return {key: value for key, value in cell.items() if key not in (*SIZES, *SAMPLES, *DERIVED)}


def test_a_rehearsal_has_a_profile_that_no_other_command_knows() -> None:
    paper = Paper.load(ROOT / "replications" / "lambda_grpo")
    rehearsed = RehearsedPaper(paper.directory, "paper")
    plans = rehearsed.profile("paper" + ENDING).plans
    assert len(plans["table2"].cells) == 10 and rehearsed.profile("paper") == paper.profile("paper")
    assert "paper" + ENDING not in paper.profiles and not any("paper" + ENDING in c.profiles for c in paper.checks)
    assert main(["run", "lambda-grpo", "--profile", "smoke", "--rehearse"]) == 2
    assert main(["run", "lambda-grpo", "--profile", "paper" + ENDING]) == 2
    with pytest.raises(ReplicationError, match="no stand-in for org/unknown"):
        kind_of("org/unknown")


@pytest.mark.slow
def test_table2_is_filled_from_a_run_that_is_killed_at_a_random_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One model, three methods, one seed: checks, training, kill, continuation, benchmarks, table; all of it marked."""
    monkeypatch.setattr(rehearsal, "ROWS", ("method",))
    monkeypatch.setattr(rehearsal, "SEEDS", 1)
    # A worker of an earlier run in this process, which does not know where the stand-ins lie.
    earlier = ["run", "lambda-grpo", "--profile", "smoke", "--only", "flaw", "--measure-only"]
    assert main([*earlier, "--results", str(tmp_path / "earlier")]) == 0
    results = tmp_path / "results"
    command = ["run", "lambda-grpo", "--profile", "paper", "--rehearse", "--only", "table2", "--results", str(results)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "the same rows and group log as an undisturbed job" in said and "yields no verdicts" in said
    directory = results / "lambda_grpo" / "paper-rehearsal"
    assert [path.name for path in (results / "lambda_grpo").iterdir()] == [directory.name]
    assert not list(results.rglob("verdicts.csv")) and not list(results.rglob("index.html"))
    record = json.loads((directory / "record.json").read_text())
    killed = record["rehearsal_facts"]["killed"]
    assert (
        record["rehearsal"] == MARK and record["profile"] == directory.name and len(record["preflight"]["overlap"]) == 5
    )
    assert killed["same_as_undisturbed"] and killed["in_step"] > killed["resumed_from"] >= 3
    assert not list(directory.glob("jobs/*/checkpoints"))
    text = (directory / "tables" / "table2.csv").read_text()
    assert text.startswith(f"# {MARK}\n")
    table = pd.read_csv(directory / "tables" / "table2.csv", comment="#")
    assert list(table["method"].value_counts()) == [6, 6, 6] and table["paper"].notna().all()
    assert set(table["benchmark"]) == {"AIME24", "MATH-500", "AMC23", "Minerva", "OlympiadBench", "mean"}
