"""Logs read as groups: what stock TRL writes, what this project's trainer writes, and files that are neither."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog
from grpo_replications.shared.planning.diagnostics import diagnose
from grpo_replications.shared.planning.read_log import read_run_log
from grpo_replications.shared.training.group_log import GroupLog
from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer

G = 4


class Lucky:
    """A reward of 1 for about one completion in three; keeps what it gave in training, in the order of the calls."""

    __name__ = "lucky"

    def __init__(self) -> None:
        self.given: list[list[float]] = []
        self.model: Any = None

    def __call__(self, completion_ids: list[list[int]], log_extra: Any = None, **_: Any) -> list[float]:
        rewards = [float(sum(ids) % 3 == 0) for ids in completion_ids]
        if self.model.training:
            self.given.append(rewards)
        if log_extra is not None:
            log_extra("tokens", [len(ids) for ids in completion_ids])
            log_extra("words", ["x"] * len(completion_ids))
        return rewards

    @property
    def groups(self) -> np.ndarray:
        return np.array([reward for call in self.given for reward in call]).reshape(-1, G)


def train(directory: Path, trainer_class: type = GRPOTrainer, more_rewards: tuple = (), **changes: Any) -> Lucky:
    """A few steps of the tiny model with completions logged; every group's rewards as the reward function gave them."""
    lucky = Lucky()
    model, tokenizer = catalog.load("tiny-random")
    lucky.model = model
    settings = {
        "output_dir": str(directory),
        "per_device_train_batch_size": 8,
        "num_generations": G,
        "max_completion_length": 5,
        "max_steps": 4,
        "learning_rate": 1e-4,
        "optim": "sgd",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 7,
        "log_completions": True,
        "num_completions_to_print": 0,
    }
    evaluation = {"eval_dataset": prompts(4)} if "eval_steps" in changes else {}
    extra = {"group_log": directory / "groups.jsonl"} if trainer_class is TokenWeightedGRPOTrainer else {}
    trainer = trainer_class(
        model=model,
        reward_funcs=[lucky, *more_rewards],
        args=GRPOConfig(**{**settings, **changes}),
        train_dataset=prompts(12),
        processing_class=tokenizer,
        **evaluation,
        **extra,
    )
    trainer.train()
    trainer.save_state()
    return lucky


def prompts(count: int) -> Dataset:
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"{i}+{i + 1}="}] for i in range(count)]})


def short(completions: list[Any], **_: Any) -> list[float]:
    return [0.25 * (len(str(completion)) % 2) for completion in completions]


# --- logs of stock TRL ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lucky]:
    directory = tmp_path_factory.mktemp("stock")
    return directory, train(directory)


def test_a_stock_log_gives_the_groups_that_were_rewarded(stock: tuple[Path, Lucky], tmp_path: Path) -> None:
    directory, lucky = stock
    for path in (directory, directory / "completions"):
        log = read_run_log(path)
        assert log.group_size == G and np.array_equal(log.rewards, lucky.groups)
        assert log.steps.tolist() == [1, 1, 2, 2, 3, 3, 4, 4] and len(set(log.prompts)) == 8
        assert log.length_unit == "characters" and log.distinct.max() <= G
    d = diagnose(log)
    assert d.shares.silent.value == np.mean(np.ptp(lucky.groups, axis=1) == 0)
    assert d.shares.all_wrong.value == np.mean(lucky.groups.max(axis=1) == 0)
    assert d.gradient_norms.steps == 4 and d.entropy.of == "nats" and d.length.of == "tokens"
    one = read_run_log(directory / "completions" / "completions_00003.parquet")
    assert np.array_equal(one.rewards, lucky.groups[4:6]) and len(one.history) == 5
    joined = pd.concat([pd.read_parquet(file) for file in sorted((directory / "completions").iterdir())])
    joined.to_parquet(tmp_path / "all.parquet")
    assert np.array_equal(read_run_log(tmp_path / "all.parquet").rewards, lucky.groups)


def test_a_rollout_used_for_several_updates_counts_once(tmp_path: Path) -> None:
    lucky = train(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=4)
    assert len(list((tmp_path / "completions").iterdir())) == 4
    log = read_run_log(tmp_path)
    assert np.array_equal(log.rewards, lucky.groups) and log.rewards.shape == (8, G)
    assert log.steps.tolist() == [1] * 4 + [3] * 4
    assert any("2 logged steps repeat the rows" in note for note in log.notes)


def test_steps_that_an_evaluation_wrote_over_are_left_out(tmp_path: Path) -> None:
    lucky = train(tmp_path, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=8)
    log = read_run_log(tmp_path)
    assert log.steps.tolist() == [1, 1, 3, 3] and np.array_equal(log.rewards, lucky.groups[[0, 1, 4, 5]])
    assert any("2 logged steps left out: an evaluation" in note for note in log.notes)


@pytest.mark.parametrize("scale", ["group", "none", "batch"])
def test_rewards_are_told_from_extra_columns_by_the_advantages(tmp_path: Path, scale: str) -> None:
    lucky = train(tmp_path, more_rewards=(short,), scale_rewards=scale, max_steps=3, logging_steps=2)
    log = read_run_log(tmp_path)
    # Steps 2 and 3 (the end of training) are logged; of the rollout of step 1 nothing is left.
    assert log.rewards.shape == (4, G) and log.group_size == G
    assert any("Reward: lucky + short" in note for note in log.notes)
    accuracy = read_run_log(tmp_path, rewards={"lucky": 1.0})
    assert np.array_equal(accuracy.rewards, lucky.groups[2:])
    assert np.all(log.rewards - accuracy.rewards <= 0.25) and np.any(log.rewards != accuracy.rewards)
    with pytest.raises(ReplicationError, match=r"no column of numbers 'words'; there are: lucky, short, tokens"):
        read_run_log(tmp_path, rewards={"words": 1.0})


def test_weighted_rewards_must_be_named(tmp_path: Path) -> None:
    train(tmp_path, more_rewards=(short,), reward_weights=[1.0, -3.0], max_steps=2)
    with pytest.raises(ReplicationError, match=r"several columns of numbers \(lucky, short, tokens\).*--reward NAME"):
        read_run_log(tmp_path)
    log = read_run_log(tmp_path, rewards={"lucky": 1.0, "short": -3.0})
    assert log.rewards.shape == (4, G) and any("Reward: lucky + -3 x short" in note for note in log.notes)


def test_both_logs_of_this_projects_trainer_agree(tmp_path: Path) -> None:
    lucky = train(tmp_path, TokenWeightedGRPOTrainer)
    ours, trl = read_run_log(tmp_path), read_run_log(tmp_path / "completions")
    assert ours.kind == "group log" and trl.kind == "TRL completions"
    assert np.array_equal(ours.rewards, lucky.groups) and np.array_equal(trl.rewards, lucky.groups)
    assert np.array_equal(ours.prompts, trl.prompts)
    assert ours.length_unit == "tokens" and np.isfinite(ours.entropy).all()
    a, b = diagnose(ours), diagnose(trl)
    assert a.shares == b.shares and a.predicted == b.predicted and a.sizes == b.sizes
    assert np.array_equal(read_run_log(tmp_path, group_size=G, rewards={"lucky": -2.0}).rewards, -2 * lucky.groups)
    with pytest.raises(ReplicationError, match=f"has groups of {G} completions; leave --group-size out"):
        read_run_log(tmp_path, group_size=G + 1)
    with pytest.raises(ReplicationError, match=r"no reward function 'words'; there are: lucky \(weight 1\)"):
        read_run_log(tmp_path, rewards={"words": 1.0})


# --- group sizes ------------------------------------------------------------------------------------------------------


def table(rewards: np.ndarray, prompts: list[Any] | None = None, step: int = 1, **columns: Any) -> pd.DataFrame:
    """A log as TRL writes it, from rewards (groups, G)."""
    n, size = rewards.shape
    spread = rewards.std(axis=1, ddof=1, keepdims=True)
    return pd.DataFrame(
        {
            "step": step,
            "prompt": np.repeat(prompts or [f"p{i}" for i in range(n)], size),
            "completion": [f"{step} {i}" for i in range(n * size)],
            "reward": rewards.ravel(),
            **columns,
            "advantage": ((rewards - rewards.mean(axis=1, keepdims=True)) / (spread + 1e-4)).ravel(),
        }
    )


def written(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_parquet(path)
    return path


MIXED = np.array([[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 0]], dtype=float)


@pytest.mark.parametrize(
    "prompts", [None, ["same"] * 6, ["a", "a", "b", "b", "b", "b"], ["a", "b", "a", "b", "a", "b"]]
)
def test_neighboring_groups_of_one_prompt_are_told_apart(prompts: list[str] | None, tmp_path: Path) -> None:
    log = read_run_log(written(table(MIXED, prompts), tmp_path / "log.parquet"))
    assert np.array_equal(log.rewards, MIXED) and log.notes == []
    assert len(set(log.prompts)) == len(set(prompts or range(6)))


def test_rounding_of_equal_rewards_is_not_taken_for_an_advantage(tmp_path: Path) -> None:
    frame = table(np.where(MIXED == 0, 0.35, MIXED), ["same"] * 6)
    frame.loc[8:11, "advantage"] = 3e-4  # what TRL leaves of the standard deviation of four times 0.35
    assert read_run_log(written(frame, tmp_path / "log.parquet")).group_size == 4


def test_a_log_of_silent_groups_takes_the_size_from_prompts_or_asks(tmp_path: Path) -> None:
    silent = np.zeros((6, 4))
    log = read_run_log(written(table(silent), tmp_path / "log.parquet"))
    assert log.group_size == 4 and "inferred from runs of equal prompts alone" in log.notes[0]
    for prompts in (["same"] * 6, ["a", "a", "b", "c", "c", "d"]):
        path = written(table(silent, prompts), tmp_path / "log.parquet")
        with pytest.raises(ReplicationError, match=r"group size cannot be inferred; possible are 2, .*--group-size N"):
            read_run_log(path)
        assert read_run_log(path, group_size=4).rewards.shape == (6, 4)


def test_without_advantages_the_prompts_decide(tmp_path: Path) -> None:
    log = read_run_log(written(table(MIXED).drop(columns="advantage"), tmp_path / "log.parquet"))
    assert np.array_equal(log.rewards, MIXED) and "prompts alone" in log.notes[0]


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (1, "at least 2"),
        (5, "24 rows, which do not divide into groups of 5"),
        (8, r"Rows 1 to 8 of step 1 have different prompts"),
    ],
)
def test_a_wrong_group_size_is_refused(size: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match=message):
        read_run_log(written(table(MIXED), tmp_path / "log.parquet"), group_size=size)


def test_prompts_that_form_no_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="no common length of 2 or more"):
        read_run_log(written(table(MIXED).sample(frac=1.0, random_state=1), tmp_path / "log.parquet"))


# --- errors -----------------------------------------------------------------------------------------------------------


def with_reward(value: float | None, row: int = 5) -> pd.DataFrame:
    frame = table(MIXED)
    frame.loc[row, "reward"] = value
    return frame


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1 and then junk", "could not be read as a parquet file"),
        (pd.DataFrame({"a": [1]}), r"column step, prompt, completion is missing \(it has: a\)"),
        (table(MIXED).drop(columns="reward"), "no column of rewards between"),
        (table(MIXED).iloc[:0], "has no rows"),
        (table(MIXED).assign(step="one"), "'step' does not hold numbers"),
        (table(MIXED).assign(reward="good"), "no column of rewards"),
        (with_reward(math.nan), r"1 completions in 1 of 6 groups have no reward.*--skip-unscored"),
        (with_reward(math.inf), "1 rewards are infinite"),
    ],
)
def test_wrong_parquet_files_are_one_clear_error(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(content) if isinstance(content, bytes) else written(content, path)
    with pytest.raises(ReplicationError, match=message):
        read_run_log(path, group_size=None if isinstance(content, bytes) else 4)


def test_every_way_to_cut_a_parquet_file_is_an_error(tmp_path: Path) -> None:
    whole = written(table(MIXED), tmp_path / "log.parquet").read_bytes()
    for length in range(1, len(whole), 97):
        (tmp_path / "log.parquet").write_bytes(whole[:length])
        with pytest.raises(ReplicationError, match="could not be read as a parquet file"):
            read_run_log(tmp_path / "log.parquet")


def test_unscored_groups_can_be_left_out(tmp_path: Path) -> None:
    path = written(with_reward(math.nan), tmp_path / "log.parquet")
    log = read_run_log(path, group_size=4, skip_unscored=True)
    assert np.array_equal(log.rewards, np.delete(MIXED, 1, axis=0)) and "1 groups with unscored" in log.notes[-1]


def test_files_of_different_runs_in_one_directory_are_refused(tmp_path: Path) -> None:
    written(table(MIXED), tmp_path / "completions_00001.parquet")
    written(table(MIXED, step=2, other=1.0), tmp_path / "completions_00002.parquet")
    with pytest.raises(ReplicationError, match="other columns"):
        read_run_log(tmp_path)


def group(**more: Any) -> dict[str, Any]:
    return {"step": 0, "prompt": "p", "rewards": [1.0, 0.0], "advantages": [0.7, -0.7], **more}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "is empty"),
        (["step,reward"], "not a group log"),
        ([group(), group(rewards=[1.0])], "groups of 1, 2 rewards"),
        ([group(rewards=["a", "b"])], "'rewards' does not hold the same number of numbers"),
        ([group(), group(rewards=[1.0, None])], "1 completions in 1 of 2 groups have no reward"),
        ([group(step=None)], "has no step"),
        ([group(lengths=[1]), group(lengths=[1, 2])], "'lengths' does not hold the same number"),
    ],
)
def test_wrong_group_logs_are_one_clear_error(groups: list[Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in groups))
    with pytest.raises(ReplicationError, match=message):
        read_run_log(path)


def test_missing_places_are_said(tmp_path: Path) -> None:
    with pytest.raises(ReplicationError, match="no file or directory"):
        read_run_log(tmp_path / "absent")
    with pytest.raises(ReplicationError, match=r"neither groups\.jsonl nor completions_\*\.parquet"):
        read_run_log(tmp_path)
    (tmp_path / "junk").write_bytes(bytes(range(256)))
    with pytest.raises(ReplicationError, match="not a group log"):
        read_run_log(tmp_path / "junk")


def test_a_group_log_is_put_in_order_and_its_history_found(tmp_path: Path) -> None:
    log = GroupLog(tmp_path / "groups.jsonl")
    log.append([group(step=2, prompt="b", draws=3, redraws_exhausted=True, entropy=[1.0, None]), group(step=1)])
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-10").mkdir()
    for step in (2, 10):
        state = {"log_history": [{"step": step, "grad_norm": 1.0}]}
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    read = read_run_log(tmp_path)
    assert read.steps.tolist() == [1, 2] and read.prompts.tolist() == [1, 0]
    assert read.entropy[1] == 1.0 and math.isnan(read.entropy[0])
    assert read.draws is None and read.exhausted is None  # not in every group: an older log was continued
    assert read.history == [{"step": 10, "grad_norm": 1.0}]
    (tmp_path / "trainer_state.json").write_text("{")
    with pytest.raises(ReplicationError, match=r"trainer_state\.json beside the log is damaged"):
        read_run_log(tmp_path)
