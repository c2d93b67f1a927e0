"""Training comparisons: the same start and samples for every method, honest counts, and measurements that can fail."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from grpo_replications.replications.grpo_sg import (
    training,
    training_figures,
    training_kk,
    training_maths,
    training_metrics,
    training_small,
)
from grpo_replications.replications.grpo_sg.settings import (
    AdditionTrainingSettings,
    AgenticSettings,
    MathsTrainingSettings,
    PuzzleTrainingSettings,
    SensitivitySettings,
    ShiftedTrainingSettings,
    SmallSettings,
)
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.models import small_transformer
from grpo_replications.shared.models.evaluation import greedy_accuracy
from grpo_replications.shared.training.group_log import read_group_log

TINY: dict[str, Any] = {
    "width": 16,
    "layers": 1,
    "low": 0,
    "high": 9,
    "train_size": 60,
    "validation_size": 12,
    "longer_low": 10,
    "longer_high": 19,
    "pretrain_size": 40,
    "pretrain_longer": 20,
    "pretrain_accuracy": 0.05,
    "pretrain_max_steps": 400,
    "prompts_per_step": 2,
    "group_size": 4,
    "rollouts": 2,
    "eval_every": 1,
    "lr": 1e-3,
}
SMALL = SmallSettings(**TINY)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Starts made here do not fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def context(tmp_path: Path) -> JobContext:
    return JobContext(tmp_path / "job")


def values(rows: list[Row]) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in rows if "step" not in row}


# --- the small model --------------------------------------------------------------------------------------------------


def test_no_held_out_pair_of_operands_is_met_in_training() -> None:
    data = small_transformer.problems(SMALL, 3)
    for trained, held_out in ((data.train, data.held_out), (data.longer_train, data.longer)):
        met, kept = ({frozenset((row["a"], row["b"])) for row in part} for part in (trained, held_out))
        assert not met & kept and kept
    assert all(
        row["prompt"] == f"{row['a']}+{row['b']}=" and int(row["answer"]) == row["a"] + row["b"] for row in data.train
    )
    other = small_transformer.problems(SMALL, 4)
    assert list(other.held_out["prompt"]) == list(data.held_out["prompt"])
    assert list(other.train["prompt"]) != list(data.train["prompt"])


def test_the_tokenizer_has_a_token_per_character() -> None:
    tokenizer = small_transformer.small_tokenizer()
    ids = tokenizer("12+34=")["input_ids"]
    assert len(ids) == 6 and tokenizer.decode([*ids, small_transformer.END], skip_special_tokens=True) == "12+34="
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == small_transformer.END


def test_answers_are_those_of_greedy_decoding_and_of_token_by_token_probabilities() -> None:
    model = small_transformer.pretrained(SMALL.changed(pretrain_accuracy=0.3), 0)
    rows = small_transformer.problems(SMALL, 0).train
    solved, chance = small_transformer.answers(model, *small_transformer.encode(rows))
    assert 0 < solved.mean() < 1

    def exact(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]

    greedy = greedy_accuracy(model, small_transformer.small_tokenizer(), rows, exact, max_new_tokens=4)
    assert np.array_equal(solved, greedy.correct[:, 0])
    ids, is_answer = small_transformer.encode(rows.select([5]))
    expected = 1.0
    for t in range(ids.size(1)):
        if is_answer[0, t]:
            with torch.no_grad():
                expected *= float(model(input_ids=ids[:, :t]).logits[0, -1].softmax(dim=0)[ids[0, t]])
    assert chance[5] == pytest.approx(expected, rel=1e-4)


def test_a_start_is_made_once_and_depends_on_settings_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = small_transformer.small_start(SMALL, 0)
    made: list[int] = []
    real = small_transformer.pretrained
    monkeypatch.setattr(
        small_transformer, "pretrained", lambda settings, seed: made.append(seed) or real(settings, seed)
    )
    assert small_transformer.small_start(SMALL.changed(method="lopti", lr=1.0), 0) == first and not made
    assert small_transformer.small_start(SMALL, 1) != first and made == [1]
    assert small_transformer.small_start(SMALL.changed(pretrain_lr=2e-3), 0) != first
    weights = [real(SMALL, 0).state_dict() for _ in range(2)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_start_that_cannot_be_reached_says_so() -> None:
    with pytest.raises(ReplicationError, match="pretrain_max_steps"):
        small_transformer.pretrained(SMALL.changed(pretrain_accuracy=1.0, pretrain_max_steps=20), 0)


# --- metrics ----------------------------------------------------------------------------------------------------------


def history(norms: list[float], passes: int = 1) -> list[dict[str, Any]]:
    entries = []
    for i, norm in enumerate(norms):
        entry = {"step": i + 1, "grad_norm": norm, "entropy": 0.5, "budget/rollouts": i // passes + 1}
        entry |= {"budget/pass": i % passes + 1, "budget/completions": 8 * (i // passes + 1)}
        if i % passes == 0:
            entry["reward"] = 0.1 * (i // passes)
        entries.append(entry)
    return entries


def test_smoothness_of_a_run_with_one_spike() -> None:
    norms = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 9.0, 1.0, 1.0]
    found = training_metrics.smoothness(history(norms))
    assert found["grad_norm_median"] == 1.0 and found["grad_norm_spikes"] == 1
    assert found["grad_norm_tail"] == pytest.approx(np.quantile(norms, 0.99))
    assert found["reward_mean"] == pytest.approx(0.45) and found["reward_last"] == pytest.approx(0.85)
    assert found["reward_roughness"] == pytest.approx(0.0, abs=1e-12)  # a steady rise is not rough
    assert math.isnan(found["kl_start"])
    assert training_metrics.smoothness(history([1.0] * 10))["grad_norm_spikes"] == 0


def test_windows_and_budget_count_rollouts_whatever_the_passes() -> None:
    twice = history([1.0, 3.0, 5.0, 7.0, 9.0, 11.0], passes=2)
    assert training_metrics.windows(twice, "grad_norm", 2) == [(0, 4.0), (2, 10.0)]
    assert training_metrics.windows(twice, "reward", 2) == [(0, pytest.approx(0.05)), (2, pytest.approx(0.2))]
    found = training_metrics.budget(twice, planned=24)
    assert found["rollouts"] == 3 and found["optimizer_steps"] == 6 and found["steps_per_rollout"] == 2
    assert found["budget_gap"] == 0 and training_metrics.budget(twice, planned=32)["budget_gap"] == -8


# --- training the small model -----------------------------------------------------------------------------------------


def test_methods_share_start_and_samples_and_their_steps_are_counted(tmp_path: Path) -> None:
    asked = {"grpo": {}, "lopti": {"method": "lopti"}, "half": {"method": "lopti", "equal": "steps"}}
    rows = {}
    for name, changes in asked.items():
        rows[name] = training_small.training_small(SMALL.changed(**changes), 0, context(tmp_path))
    found = {name: values(each) for name, each in rows.items()}
    assert len({each["start_accuracy"] for each in found.values()}) == 1
    assert [each["completions"] for each in found.values()] == [16, 16, 8]
    assert [each["budget_gap"] for each in found.values()] == [0, 0, -8]
    assert [each["optimizer_steps"] for each in found.values()] == [2, 4, 2]
    for each in rows.values():
        steps = [row["step"] for row in each if row["metric"] == "held_out_accuracy" and "step" in row]
        assert steps == list(range(len(steps)))


def test_inert_weights_are_grpo_and_the_audit_says_so() -> None:
    grpo = training_small.small_run(SMALL, 0)
    inert = training_small.small_run(SMALL.changed(method="sharpness"), 0)
    awake = training_small.small_run(SMALL.changed(method="sharpness", tau=0.5), 0)
    assert training_metrics.weights(inert.history)["weight_inert"] == 1
    assert max(training_small.distances(inert, grpo).values()) == 0
    assert training_metrics.weights(awake.history)["weight_share_between"] > 0
    assert training_small.distances(awake, grpo)["policy_distance"] > 0


def test_a_shift_of_the_logits_moves_weights_and_not_grpo(tmp_path: Path) -> None:
    settings = ShiftedTrainingSettings(**TINY, method="sharpness", shifts=[12, 60])
    found = values(training_small.identifiability_training(settings, 0, context(tmp_path)))
    assert found["weight_mean/0"] == 1 and 1 < found["weight_mean/12"] < 1.4
    assert found["weight_mean/60"] == pytest.approx(1.4) and found["weight_inert/60"] == 1
    assert found["curve_distance/0_to_grpo"] == 0
    assert found["policy_distance/grpo_shift"] < 1e-3 < found["policy_distance/grpo_reseeded"]
    assert found["grad_norm_ratio/60"] > 1.2


def test_sensitivity_moves_one_constant_at_a_time(tmp_path: Path) -> None:
    lists = {"alphas": [1.6], "taus": [], "mus": [], "lowers": [], "uppers": [1.2]}
    settings = SensitivitySettings(**TINY, method="sharpness", tau=1.0, **lists)
    found = values(training_small.sensitivity(settings, 0, context(tmp_path)))
    assert {"accuracy_change/alpha=1.6", "train_change/upper=1.2", "accuracy_change/other_samples"} <= set(found)
    assert found["weight_mean/upper=1.2"] <= 1.2 and "weight_share_between/alpha=1.6" in found


# --- language models --------------------------------------------------------------------------------------------------

ADDITION = {
    "model": "tiny-random", "method": "lopti", "rollouts": 2, "prompts_per_step": 2, "group_size": 4, "lr": 1e-3,
    "max_new_tokens": 4, "precision": "float32", "eval_every": 0, "eval_batch_size": 4, "low": 0, "high": 9,
    "train_size": 20, "validation_size": 3, "longer_low": 100, "longer_high": 109, "longer_size": 2,
    "system_message": "Answer briefly.",
}  # fmt: skip


def test_the_language_model_comparison_counts_and_measures(tmp_path: Path) -> None:
    rows = training.training(AdditionTrainingSettings(**ADDITION), 0, context(tmp_path))
    found = values(rows)
    assert found["completions"] == 16 and found["optimizer_steps"] == 4 and found["budget_gap"] == 0
    assert {"final_held_out_accuracy", "final_longer_accuracy", "grad_norm_median", "reward_mean"} <= set(found)


KK = PuzzleTrainingSettings(**{
    "model": "tiny-random", "method": "sharpness", "people": [2], "reward": "strict", "warm_steps": 12, "warm_batch": 4,
    "warm_lr": 1e-2, "rollouts": 1, "prompts_per_step": 2, "group_size": 2, "lr": 1e-3, "max_new_tokens": 3,
    "precision": "float32", "eval_every": 0, "eval_batch_size": 4, "train_size": 8, "validation_size": 2,
    "system_message": "Answer.",
})  # fmt: skip


def test_knights_and_knaves_start_is_taught_the_form_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = training_kk.catalog.load("tiny-random")
    taught, _ = training_kk.taught_form(KK, 0)
    rows = training_kk.encoded(training_kk._task(KK, [2], 0).train, tokenizer)
    assert all(answer[-1] == tokenizer.eos_token_id for _, answer in rows)
    assert tokenizer.decode(rows[0][1][:-1]).startswith("<think></think><answer>(1) ")
    with torch.no_grad():
        before, after = (float(training_kk._answer_loss(each, rows)) for each in (model, taught))
    assert after < before - 0.5
    found = values(training_kk.training_kk(KK, 0, context(tmp_path)))
    assert found["shared_puzzles"] == 0 and found["budget_gap"] == 0 and 0 <= found["kk_accuracy"] <= 1
    monkeypatch.setattr(training_kk, "taught_form", lambda *_: pytest.fail("made again"))
    assert (training_kk.warm_start(KK, 0) / "model.safetensors").exists()


@pytest.mark.parametrize("profile", ["paper", "authors-code"])
def test_the_paper_profiles_run_in_miniature(profile: str, tmp_path: Path) -> None:
    """Public puzzles, a begun answer, text around the tags, mini-batches and both bounds of the clip, as they say."""
    statements = (
        "(('not', ('telling-truth', 1)), ('and', ('lying', 0), ('lying', 1)))",
        "(('or', ('telling-truth', 0), ('telling-truth', 1)), ('and', ('lying', 0), ('lying', 1)))",
    )
    rows = [
        {"quiz": "Who?", "names": ["Ann", "Bob"], "solution": solution, "statements": text}
        for text, solution in zip(statements, ([True, False], [True, False]), strict=True)
    ]
    (tmp_path / "train").mkdir()
    lines = [rows[0]] * 899 + [rows[1]] * 101
    (tmp_path / "train" / "people2_num1000.jsonl").write_text("\n".join(map(json.dumps, lines)))
    paper = Paper.load(Path(training_kk.__file__).parent)
    plan = paper.profile(profile).plans["training-kk"]
    cell = {key: value for key, value in plan.cells[0].items() if key != "threads"}
    small = {"model": "tiny-random", "people": [2], "public": str(tmp_path), "rollouts": 2, "prompts_per_step": 2}
    small |= {"group_size": 2, "gradient_accumulation_steps": 2, "max_new_tokens": 3, "save_every": 2}
    small |= {
        "use_vllm": False,
        "precision": "float32",
        "gradient_checkpointing": False,
        "eval_batch_size": 4,
        "validation_size": 2,
    }
    settings = PuzzleTrainingSettings(**{**cell, **small})
    settings.check()
    job = context(tmp_path / "job")
    found = values(training_kk.training_kk(settings, 0, job))
    assert found["optimizer_steps"] == 4 and found["rollouts"] == 2 and found["budget_gap"] == 0
    assert found["shared_puzzles"] == 0 and found["left_out_of_train"] == 1
    group = next(read_group_log(job.directory / "groups.jsonl"))
    assert group["prompt"].endswith("<think>") and "logical reasoning problem" in group["prompt"]
    assert {one["name"] for one in group["reward_functions"]} == {
        "paper": {"strict_reward", "loose_shaping_reward"},
        "authors-code": {"ar_lopti_reward", "ar_lopti_loose_shaping_reward"},
    }[profile]


def test_maths_reports_gains_within_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text("\n".join(json.dumps({"problem": f"{i} + {i}?", "answer": str(2 * i)}) for i in range(6)))
    settings = {
        "model": "tiny-random", "prompts_per_step": 2, "group_size": 4, "lr": 1e-3, "max_new_tokens": 4,
        "precision": "float32", "methods": ["grpo", "sharpness"], "rollouts": 1, "window": 1, "dataset": str(problems),
        "benchmarks": [f"AMC23={problems}"], "eval_batch_size": 4, "eval_max_new_tokens": 2, "eval_samples": 1,
        "eval_temperature": 0.0,
    }  # fmt: skip
    found = values(training_maths.training_maths(MathsTrainingSettings(**settings), 0, context(tmp_path)))
    assert found["gain/sharpness"] == found["mean/sharpness"] - found["mean/grpo"]
    assert {"accuracy/AMC23/grpo", "lead/grpo", "budget_gap/sharpness"} <= set(found)
    with pytest.raises(ReplicationError, match="must hold"):
        alone = MathsTrainingSettings(**{**settings, "methods": ["grpo"]})
        training_maths.training_maths(alone, 0, context(tmp_path))


def test_agentic_question_answering_is_refused_and_not_faked(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="search tool"):
        training_maths.agentic_qa(AgenticSettings(model="Qwen/Qwen2.5-3B", method="grpo"), 0, context(tmp_path))


# --- figures ----------------------------------------------------------------------------------------------------------


def measured() -> pd.DataFrame:
    """Rows of every experiment that a figure draws, with made-up values."""
    draw = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []

    def add(experiment: str, metrics: list[str], by_step: tuple[str, ...] = (), **cell: Any) -> None:
        for seed in range(6):
            for metric in (*metrics, *by_step):
                for step in (0, 10) if metric in by_step else (None,):
                    own = {"experiment": experiment, "seed": seed, "step": step, "metric": metric}
                    rows.append({**own, "value": draw.random(), **cell})

    ends = ["final_accuracy", "final_longer_accuracy", "reward_mean", "grad_norm_median", "grad_norm_tail"]
    curves = ("held_out_accuracy", "grad_norm", "entropy", "reward")
    for method, more in (
        ("grpo", {}),
        ("sharpness", {"tau": 9.0}),
        ("sharpness", {"tau": 2.6}),
        ("lopti", {"equal": "steps"}),
    ):
        add("training-small", ends, curves, method=method, lr=3e-4, **more)
        add("training-small-lr", ends, method=method, lr=6e-4, **more)
    for method in ("grpo", "sharpness"):
        add("training", ends, curves, method=method)
    add("sensitivity", ["accuracy_change/tau=2", "accuracy_change/other_samples"])
    add("placement", ends, method="sharpness", placement="inside", weight_kl=True)
    for c in (0, 12):
        add("identifiability-training", [f"{name}/{c}" for name in ("weight_mean", "weight_share_between")])
        add("identifiability-training", [f"policy_distance/{c}_to_grpo"])
    add("identifiability-training", ["policy_distance/grpo_shift", "policy_distance/grpo_reseeded"])
    return pd.DataFrame(rows)


@pytest.mark.parametrize("name", list(training_figures.FIGURES))
def test_figures_draw_what_is_there_and_nothing_else(name: str) -> None:
    frame = measured()
    figure = training_figures.FIGURES[name](frame)
    figure.canvas.draw()
    assert training_figures.FIGURES[name](frame[frame["experiment"] == "other"]) is None
