"""The language-model experiments: every kind of cell runs, rows that mean what they say, and a hub that is away."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_replications.replications.lambda_grpo import language_model
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.runs import jobs_of
from grpo_replications.shared.models import catalog
from grpo_replications.shared.training import comparison
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.synthetic.binary_tree import BinaryTree
from grpo_replications.synthetic.tree_task import leaf_probability, path_model

ROOT = Path(__file__).parents[2]
PAPER = Paper.load(ROOT / "replications" / "lambda_grpo")
LANGUAGE_MODEL = ("theorem", "table1-lm", "overlap", "training", "overhead", "table2")
SMALL_TABLE2 = {
    "model": "tiny-random",
    "steps": 1,
    "prompts_per_step": 2,
    "group_size": 4,
    "max_new_tokens": 6,
    "precision": "float32",
    "eval_batch_size": 4,
    "eval_max_new_tokens": 3,
    "processes": 1,
}

Run = Callable[..., list[Row]]


def smoke(experiment: str, **changes: Any) -> dict[str, Any]:
    """The settings of the last cell of the smoke profile, changed."""
    return {**PAPER.profile("smoke").plans[experiment].cells[-1], **changes}


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small file of mathematics problems, for training and as a benchmark."""
    path = tmp_path_factory.mktemp("data") / "problems.jsonl"
    path.write_text("\n".join(json.dumps({"problem": f"{i} + {i}?", "answer": str(2 * i)}) for i in range(6)))
    return str(path)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs an experiment as the paper registers it; each call has a directory of its own."""
    calls = []

    def call(experiment: str, settings: dict[str, Any], seed: int = 0) -> list[Row]:
        calls.append(experiment)
        torch.manual_seed(seed)
        context = JobContext(tmp_path / f"{experiment}-{len(calls)}")
        chosen = PAPER.experiment(experiment)
        return chosen.function(chosen.parse(settings, experiment), seed, context)

    return call


def value(rows: list[Row], metric: str, step: int | None = None) -> float:
    (found,) = [row["value"] for row in rows if row["metric"] == metric and row.get("step") == step]
    return found


def series(rows: list[Row], metric: str) -> dict[int, float]:
    return {row["step"]: row["value"] for row in rows if row["metric"] == metric}


# --- profiles and claims ----------------------------------------------------------------------------------------------


def test_the_profiles_are_those_the_suite_promises() -> None:
    assert list(PAPER.profiles) == ["smoke", "quick", "full", "gpu", "paper", "authors-code"]
    needs = {name: profile.requires for name, profile in PAPER.profiles.items()}
    assert needs == {"smoke": None, "quick": None, "full": None, "gpu": "gpu", "paper": "hub", "authors-code": "hub"}
    assert all(profile.description for profile in PAPER.profiles.values())


@pytest.mark.parametrize("name", PAPER.profiles)
def test_every_experiment_of_a_profile_is_registered_and_gives_jobs(name: str) -> None:
    for plan in PAPER.profile(name).plans.values():
        jobs = jobs_of(plan, PAPER.experiment(plan.experiment))
        assert len({job.key for job in jobs}) == len(jobs) > 0


def test_every_experiment_is_used_and_the_smoke_profile_has_all_that_need_no_hub() -> None:
    used = {name for profile in PAPER.profiles.values() for name in profile.plans}
    assert used == set(PAPER.experiments)
    assert set(PAPER.profile("smoke").plans) == used - {"table2"}


def test_checks_fit_the_profiles_and_every_experiment_serves_one() -> None:
    assert PAPER.slug == "lambda-grpo" and len(PAPER.checks) > 50
    served = {check.experiment for check in PAPER.checks}
    assert served == set(PAPER.experiments), "an experiment that no check needs, or a check without its experiment"


# --- every kind of cell ------------------------------------------------------------------------------------------


def kinds_of_cells() -> list[tuple[str, str]]:
    """One profile for each set of settings that an experiment is given anywhere."""
    kinds: dict[tuple[str, frozenset[str]], tuple[str, str]] = {}
    for name, profile in PAPER.profiles.items():
        for plan in profile.plans.values():
            if plan.experiment in LANGUAGE_MODEL:
                keys = frozenset(key for cell in plan.cells for key in cell)
                kinds.setdefault((plan.experiment, keys), (plan.experiment, name))
    return list(kinds.values())


@pytest.mark.parametrize(("experiment", "profile"), kinds_of_cells())
def test_every_kind_of_cell_runs(experiment: str, profile: str, problems: str, run: Run) -> None:
    small = SMALL_TABLE2 if experiment == "table2" else smoke(experiment)
    instead = {"dataset": problems, "validation": problems, "benchmarks": [f"AIME24={problems}"]}
    instead |= {"use_vllm": False, "lora_rank": 2, "gradient_checkpointing": False, "temperature": 1.0}
    instead |= {"gradient_accumulation_steps": 2, "validation_size": 2, "eval_every": 1, "save_every": 1}
    cells = {(frozenset(cell), cell.get("source")): cell for cell in PAPER.profile(profile).plans[experiment].cells}
    for cell in cells.values():
        shrunk = {**small, **instead}
        shrunk.pop("source", None), shrunk.pop("method", None)
        assert run(experiment, {key: shrunk.get(key, chosen) for key, chosen in cell.items()})


@pytest.mark.parametrize("fixed", [{"method": "grpo"}, {"lr": 1e-3}])
def test_what_an_experiment_decides_by_itself_cannot_be_set(run: Run, fixed: dict[str, Any]) -> None:
    with pytest.raises(ReplicationError, match=next(iter(fixed))):
        run("overhead", smoke("overhead", **fixed))


# --- Table 1 through the trainer --------------------------------------------------------------------------------------


def test_table1_lm_measures_the_target_of_its_seed_before_every_step(run: Run) -> None:
    rows = run("table1-lm", smoke("table1-lm", steps=12, last=1), seed=2)
    target = BinaryTree(4, 1).random_target(2)
    start = leaf_probability(path_model("random-small", 2)[0], target, 4)
    probabilities = series(rows, "target_probability")
    assert set(probabilities) == {0, 10}
    assert value(rows, "start_probability") == probabilities[0] == pytest.approx(start, rel=1e-6)
    assert probabilities[10] != probabilities[0]
    shorter = run("table1-lm", smoke("table1-lm", steps=12, last=12), seed=2)
    assert value(shorter, "target_frequency") != value(rows, "target_frequency")
    assert series(shorter, "target_probability") == probabilities


def test_table1_lm_answers_to_every_setting(run: Run) -> None:
    base = value(run("table1-lm", smoke("table1-lm")), "target_frequency")
    assert value(run("table1-lm", smoke("table1-lm")), "target_frequency") == base
    changes: list[dict[str, Any]] = [{"method": "grpo"}, {"lr": 5e-3}, {"n": 2}, {"r_neg": -0.5}, {"group_size": 8}]
    changes += [{"optimizer": "sgd"}, {"precision": "bfloat16"}, {"steps": 5}, {"last": 2}, {"depth": 3}]
    seen = [value(run("table1-lm", smoke("table1-lm", **change)), "target_frequency") for change in changes]
    seen.append(value(run("table1-lm", smoke("table1-lm"), seed=1), "target_frequency"))
    assert base not in seen and len(set(seen)) == len(seen)
    for fixed in ({"beta": 0.5}, {"prompts_per_step": 2}, {"max_new_tokens": 3}):
        with pytest.raises(ReplicationError, match=next(iter(fixed))):
            run("table1-lm", smoke("table1-lm", **fixed))


# --- overlap, training, overhead --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model so sure of its next token that completions share prefixes."""
    model, tokenizer = catalog.tiny_random()
    with torch.no_grad():
        model.model.norm.weight *= 12
    directory = tmp_path_factory.mktemp("sharp")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def test_overlap_counts_the_trees_of_its_own_log(run: Run, tmp_path: Path, sharp: str) -> None:
    rows = run("overlap", smoke("overlap", model=sharp, steps=5, prompts_per_step=3))
    groups = list(read_group_log(tmp_path / "overlap-1" / "groups.jsonl"))
    flat = [group["flat"] for group in groups]
    assert value(rows, "groups") == len(groups) == 15
    assert value(rows, "nonflat_groups") == flat.count(False) > 0
    assert value(rows, "nonflat_share") == pytest.approx(flat.count(False) / 15)
    by_step: dict[int, list[float]] = {}
    for group in groups:
        by_step.setdefault(group["step"] - 1, []).extend(group["path_depth"])
    depth = series(rows, "path_depth")
    assert depth == pytest.approx({step: statistics.fmean(values) for step, values in by_step.items()})
    assert value(rows, "path_depth_rise") == pytest.approx(depth[4] - depth[0])
    shares = series(rows, "flat_share")
    assert statistics.fmean(shares.values()) == pytest.approx(1 - value(rows, "nonflat_share"))
    proportion = series(rows, "intermediate_proportion")
    assert value(rows, "intermediate_proportion_rise") == pytest.approx(proportion[4] - proportion[0])


def test_training_summarizes_its_own_curve(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = iter([0.25, 0.75, 0.75, 0.5])

    class Seen:
        def __init__(self) -> None:
            self.estimate = type("E", (), {"value": next(accuracies)})

    monkeypatch.setattr(comparison, "greedy_accuracy", lambda *_, **__: Seen())
    rows = run("training", smoke("training", steps=5))
    assert series(rows, "validation_accuracy") == {0: 0.25, 2: 0.75, 4: 0.75, 5: 0.5}
    summary = {name: value(rows, name) for name in ("peak_accuracy", "steps_to_peak", "final_accuracy")}
    assert summary == {"peak_accuracy": 0.75, "steps_to_peak": 2, "final_accuracy": 0.5}
    assert value(rows, "mean_accuracy") == pytest.approx(0.5625)
    assert set(series(rows, "reward")) == set(series(rows, "grad_norm")) == set(range(5))


def test_training_answers_to_method_and_seed(run: Run, sharp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = language_model._data

    def paid_by_last_letter(settings: dict[str, Any], seed: int) -> Any:
        """The same prompts, but a reward that a random model earns: addition would pay it nothing."""
        train, validation, _ = data(settings, seed)
        return train, validation, [lambda completions, **_: [float(ord(str(c)[-4])) for c in completions]]

    monkeypatch.setattr(language_model, "_data", paid_by_last_letter)

    def trace(seed: int = 0, **changes: Any) -> dict[str, list[float]]:
        rows = run("training", smoke("training", model=sharp, group_size=8, **changes), seed)
        assert series(rows, "silent_share")[0] < 1
        return {name: list(series(rows, name).values()) for name in ("reward", "entropy", "grad_norm")}

    base = trace()
    assert trace() == base
    other = trace(method="grpo")
    assert (other["reward"][0], other["entropy"][0]) == (base["reward"][0], base["entropy"][0]), "the same start"
    assert other["grad_norm"][0] != pytest.approx(base["grad_norm"][0], rel=1e-3)
    assert trace(seed=1)["entropy"][0] != base["entropy"][0]


def test_overhead_gives_timings_only_one_a_step_after_the_first(run: Run, tmp_path: Path) -> None:
    for seed in (0, 1):
        rows = run("overhead", smoke("overhead", steps=4), seed=seed)
        assert all(row["timing"] for row in rows) and len(rows) == 12
        for metric in ("step_ratio", "step_ratio_stock", "step_seconds_stock", "weights_share"):
            assert set(series(rows, metric)) == {1, 2, 3} and min(series(rows, metric).values()) > 0
        assert max(series(rows, "weights_share").values()) < 0.5
        log = tmp_path / f"overhead-{seed + 1}" / "ours" / "groups.jsonl"
        assert all("weights" in group for group in read_group_log(log)), "what is timed is lambda-GRPO"


# --- without the hub --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", PAPER.profile("paper").plans)
def test_each_experiment_of_the_paper_profile_says_that_it_needs_the_hub(
    experiment: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cell = PAPER.profile("paper").plans[experiment].cells[0]
    with pytest.raises(ReplicationError, match=rf"The model {cell['model']} could not be fetched .*`hf download`"):
        run(experiment, cell)


@pytest.mark.slow
def test_the_paper_profile_stops_before_it_computes_with_one_message(tmp_path: Path) -> None:
    environment = {**os.environ, "REPLICATE_RESULTS": str(tmp_path / "results"), "HF_HUB_OFFLINE": "1"}
    environment["HF_HOME"] = str(tmp_path / "hub")
    command = [sys.executable, "-m", "replications", "run", "lambda-grpo", "--profile", "paper"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "error: The model openai-community/gpt2, the model" in done.stderr and "Nothing was started" in done.stderr
    for help_ in ("hf download", "HF_ENDPOINT", "HF_HUB_OFFLINE=1", "in place of the hub id"):
        assert help_ in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
