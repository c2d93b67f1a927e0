"""A resumed run is the run that never stopped, from any checkpoint, or it is refused before anything is sampled."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.saved_runs import RUN_FILE
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.resume import describe_data
from tests.shared.training.test_trainer import GROUP, dataset, make_trainer

TIMINGS = ("time", "runtime", "per_second", "flos")


def train(tmp_path: Path, resume: Any = None, **options: Any) -> Any:
    settings = {
        "train_dataset": dataset(6),
        "save_strategy": "steps",
        "save_steps": 1,
        "max_steps": 6,
        "learning_rate": 0.01,
        "optim": "adamw_torch",
        **options,
    }
    trainer, _ = make_trainer(tmp_path, settings.pop("token_weight", "lambda-grpo"), **settings)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def left_by(trainer: Any, tmp_path: Path) -> tuple[list[dict[str, Any]], str, list[torch.Tensor]]:
    """The metrics without timings, the group log and the weights."""
    history = [
        {k: v for k, v in entry.items() if not any(t in k for t in TIMINGS)}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    log = (tmp_path / "groups.jsonl").read_text()
    return history, log, [value.clone() for value in trainer.model.state_dict().values()]


def check_resumed(tmp_path: Path, steps: list[int], **options: Any) -> list[Any]:
    """Run once without a stop and once more from each checkpoint; returns the prompts in the order of the log."""
    history, log, weights = left_by(train(tmp_path, **options), tmp_path)
    for step in steps:
        again = left_by(train(tmp_path, str(tmp_path / f"checkpoint-{step}"), **options), tmp_path)
        assert again[:2] == (history, log)
        assert all(torch.equal(a, b) for a, b in zip(again[2], weights, strict=True))
    return [group["prompt"] for group in read_group_log(tmp_path / "groups.jsonl")]


@pytest.mark.parametrize("prompts", [6, 7])
def test_from_any_checkpoint_in_any_pass(tmp_path: Path, prompts: int) -> None:
    seen = check_resumed(tmp_path, [1, 3, 4, 6], max_steps=8, train_dataset=dataset(prompts))
    passes = [seen[i : i + 6] for i in (0, 6)]
    assert passes[0] != passes[1], "the passes must differ in their order, or nothing is tested"
    assert prompts != 6 or sorted(passes[0]) == sorted(passes[1])


def test_where_an_optimizer_step_takes_several_rollouts_and_the_last_of_a_pass_fewer(tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "steps_per_generation": 1}
    check_resumed(tmp_path, [1, 2, 3], max_steps=5, **options)


def test_of_an_adapter_with_dropout_and_evaluations_between(tmp_path: Path) -> None:
    from peft import LoraConfig

    adapter = LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.2)
    options = {"peft_config": adapter, "eval_strategy": "steps", "eval_steps": 1, "eval_dataset": dataset(4)}
    check_resumed(tmp_path, [2, 4], max_steps=5, per_device_eval_batch_size=GROUP, **options)


def test_by_passes_with_checkpoints_at_their_ends(tmp_path: Path) -> None:
    options = {"max_steps": -1, "num_train_epochs": 3, "save_strategy": "epoch", "num_iterations": 2}
    check_resumed(tmp_path, [6, 12], **options)


@pytest.mark.parametrize(
    "options",
    [
        {"token_weight": "lopti+ar"},
        {"num_iterations": 2},
        {"steps_per_generation": 2, "per_device_train_batch_size": GROUP},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": GROUP, "num_iterations": 2},
    ],
)
def test_at_the_end_of_a_generation_window(tmp_path: Path, options: dict[str, Any]) -> None:
    check_resumed(tmp_path, [2, 6], max_steps=8, save_steps=2, **options)


@pytest.mark.parametrize("shuffle", [True, False])
def test_of_a_stream(tmp_path: Path, shuffle: bool) -> None:
    rows = [dict(row) for row in dataset(6)]
    stream = IterableDataset.from_generator(lambda: iter(rows))
    check_resumed(tmp_path, [2, 3, 4], train_dataset=stream, shuffle_dataset=shuffle)


def test_with_redrawn_prompts(tmp_path: Path) -> None:
    def seldom(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(sum(ids) % 5 == 0) for ids in completion_ids]

    check_resumed(tmp_path, [4], reward=seldom, max_redraws=2, redraw="prompts")


def test_inside_a_generation_window_it_is_refused_and_warned_of_at_the_start(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"steps 1, 3, 5 fall inside .* multiple of 2"):
        train(tmp_path, num_iterations=2)
    with pytest.raises(ReplicationError, match=r"checkpoint-3 lies inside .*multiple of 2"):
        train(tmp_path, str(tmp_path / "checkpoint-3"), num_iterations=2)


def test_save_steps_that_fit_are_not_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*generation window")
        train(tmp_path, save_steps=2, num_iterations=2, max_steps=3)
        train(tmp_path, save_steps=0.5, num_iterations=2, max_steps=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_generations": 2}, "num_generations is 2 and was 4"),
        ({"per_device_train_batch_size": GROUP}, f"generation_batch_size is {GROUP} and was {2 * GROUP}"),
        ({"train_dataset": dataset(8)}, "training set is 8 rows .* and was 6 rows"),
        ({"train_dataset": Dataset.from_dict({"prompt": list("abcdef")})}, "training set is 6 rows .* and was 6 rows"),
        ({"seed": 8}, "seed is 8 and was 7"),
        ({"save_only_model": True}, "optimizer"),
        ({"ignore_data_skip": True}, "ignore_data_skip"),
    ],
)
def test_what_would_be_another_run_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    train(tmp_path, max_steps=2)
    log = (tmp_path / "groups.jsonl").read_text()
    with pytest.raises(ReplicationError, match=message):
        train(tmp_path, str(tmp_path / "checkpoint-1"), max_steps=2, **changes)
    assert (tmp_path / "groups.jsonl").read_text() == log, "nothing may be sampled or written"


def test_a_checkpoint_without_the_optimizer_or_of_another_trainer(tmp_path: Path) -> None:
    train(tmp_path, max_steps=3)
    (tmp_path / "checkpoint-1" / "optimizer.pt").unlink()
    with pytest.raises(ReplicationError, match="lacks the state of the optimizer"):
        train(tmp_path, str(tmp_path / "checkpoint-1"), max_steps=3)
    (tmp_path / "checkpoint-2" / RUN_FILE).unlink()
    with pytest.warns(UserWarning, match=f"no {RUN_FILE}"):
        train(tmp_path, str(tmp_path / "checkpoint-2"), max_steps=3)


def test_the_description_of_data_follows_content_alone() -> None:
    rows = Dataset.from_dict({"prompt": ["a", "b"], "image": [b"1", b"2"], "answer": [1.5, None]})
    assert describe_data(rows) == describe_data(rows.select([0, 1])) == describe_data(Dataset.from_list(list(rows)))
    others = [rows.select([1, 0]), rows.select([0]), rows.remove_columns("answer"), rows.rename_column("answer", "a")]
    assert len({describe_data(data) for data in (rows, *others)}) == 5


def test_the_run_file_holds_plain_json(tmp_path: Path) -> None:
    train(tmp_path, max_steps=1)
    saved = json.loads((tmp_path / "checkpoint-1" / RUN_FILE).read_text())
    assert saved["settings"]["num_generations"] == GROUP
    assert saved["budget"] == {
        "rollouts": 1,
        "completions": 2 * GROUP,
    }
