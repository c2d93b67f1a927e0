"""Redraws of silent groups: what is drawn, kept, counted and trained on, against a bookkeeping of its own."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training.dynamic_sampling import check_redraws, silent_groups, summed_rewards
from grpo_replications.shared.training.group_log import read_group_log
from grpo_replications.shared.training.token_weights import TOKEN_WEIGHTS
from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer
from tests.shared.training import grpo_oracle as oracle
from tests.shared.training.redraw_bookkeeping import Recorded, kept_by_hand, threshold
from tests.shared.training.test_trainer import GROUP, make_trainer, mixed_reward, oracle_gradient, policy, relative

TIMINGS = ("time", "runtime", "per_second", "flos")


def redrawing(max_redraws: int, redraw: str = "samples") -> Any:
    return functools.partial(TokenWeightedGRPOTrainer, max_redraws=max_redraws, redraw=redraw)


def prompts(rows: int = 12) -> Dataset:
    """As the data set of the trainer's tests, with a column that says which row it is."""
    return Dataset.from_dict({"prompt": [f"{i}+{i + 1}=" for i in range(rows)], "number": list(range(rows))})


def constant(completions: list[Any], **_: Any) -> list[float]:
    return [0.35] * len(completions)


def never_equal(completion_ids: list[Any], **_: Any) -> list[float]:
    return [reward + 10 * i for i, reward in enumerate(mixed_reward(completion_ids))]


def history(trainer: Any) -> str:
    entries = [{k: v for k, v in e.items() if not any(t in k for t in TIMINGS)} for e in trainer.state.log_history]
    return json.dumps(entries)


def policy_that_stops() -> Any:
    """The trainer tests' policy, with end of sequence as likely as one of its frequent tokens: lengths differ."""
    model, tokenizer = policy()
    with torch.no_grad():
        model.lm_head.weight[0] = model.lm_head.weight[9]
    return model, tokenizer


# --- which groups are silent ------------------------------------------------------------------------------------------


def test_rewards_are_summed_as_trl_sums_them_and_silence_is_exact() -> None:
    per_function = torch.tensor([[1.0, 2.0], [math.nan, 4.0], [math.nan, math.nan], [0.0, 0.0]])
    total = summed_rewards(per_function, torch.tensor([1.0, 0.5]))
    assert total[[0, 1, 3]].tolist() == [2.0, 2.0, 0.0] and total[2].isnan()
    nan = math.nan
    rewards = torch.tensor([[0.35] * 4, [0.35, 0.35, 0.35, 0.3500001], [1.0, nan, 1.0, nan], [nan] * 4, [1, 0, 1, nan]])
    assert silent_groups(rewards.flatten(), 4).tolist() == [True, False, True, False, False]


# --- what is drawn, kept and counted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("redraw", ["samples", "prompts"])
def test_draws_kept_groups_and_counts_follow_the_rule(tmp_path: Path, redraw: str) -> None:
    recorded = Recorded(threshold)
    trainer, _ = make_trainer(
        tmp_path,
        reward=recorded,
        trainer_class=redrawing(2, redraw),
        per_device_train_batch_size=16 * GROUP,
        max_steps=3,
        learning_rate=0.002,
        optim="adamw_torch",
        train_dataset=prompts(48),
        model=policy_that_stops(),
    )
    trainer.train()
    log = list(read_group_log(tmp_path / "groups.jsonl"))
    seen = {"draws": set(), "exhausted": set(), "lengths changed": set()}
    tokens = 0
    for step, rounds in enumerate(recorded.rollouts()):
        kept, draws = kept_by_hand(rounds, GROUP)
        groups = log[16 * step : 16 * step + 16]
        assert [group["step"] for group in groups] == [step + 1] * 16
        for group, rows, count in zip(groups, kept, draws, strict=True):
            assert group["completion_ids"] == [row.ids for row in rows]
            assert group["rewards"] == [row.reward for row in rows]
            assert {row.prompt for row in rows} == {group["prompt"]}, "a group has one prompt"
            assert group["draws"] == count
            silent = len({row.reward for row in rows}) == 1
            assert (group["silent"] is not None) == silent and (not silent or not any(group["advantages"]))
            assert group["redraws_exhausted"] == silent and (not silent or count == 3)
            seen["exhausted"].add(silent)
        rows = [row for rows in kept for row in rows]
        metrics = trainer.state.log_history[step]
        spent = sum(map(len, rounds))
        seen["draws"] |= set(draws)
        assert metrics["groups/samples_spent"] == spent
        assert metrics["groups/redrawn"] == pytest.approx(sum(d > 1 for d in draws) / 16)
        assert metrics["groups/exhausted"] == metrics["groups/silent"]
        # TRL's own metrics: of the groups kept, but for the tokens, which are of all draws.
        lengths = [len(row.ids) for row in rows]
        seen["lengths changed"].add(sum(lengths) != sum(len(row.ids) for row in rounds[0]))
        finished = [len(row.ids) for row in rows if row.ids[-1] == 0] or [0]
        assert metrics["completions/mean_length"] == pytest.approx(sum(lengths) / len(lengths))
        assert metrics["completions/max_length"] == max(lengths)
        assert metrics["completions/mean_terminated_length"] == pytest.approx(sum(finished) / len(finished))
        assert metrics["completions/clipped_ratio"] == pytest.approx(sum(row.ids[-1] != 0 for row in rows) / len(rows))
        assert metrics["reward"] == pytest.approx(sum(row.reward for row in rows) / len(rows))
        tokenized = trainer.processing_class([row.prompt for draw in rounds for row in draw])["input_ids"]
        tokens += sum(map(len, tokenized)) + sum(len(row.ids) for draw in rounds for row in draw)
        assert metrics["num_tokens"] == tokens
        assert trainer.state.num_input_tokens_seen >= tokens
    assert seen["draws"] == {1, 2, 3} and seen["exhausted"] == {True, False}, "all cases must occur"
    assert True in seen["lengths changed"], "TRL's metrics must tell the kept completions from the first"
    # The completions log of the last rollout, and the extra column that the reward function wrote into it.
    assert list(trainer._logs["prompt"]) == [row.prompt for row in rows]
    assert list(trainer._logs["rewards"]["recorded"]) == [row.reward for row in rows]
    sums = [sum(row.ids) for row in rows]
    assert list(trainer._logs["extra"]["ids_sum"]) == sums != [sum(row.ids) for row in rounds[0]]


def test_new_prompts_bring_their_columns_and_are_trained_on(tmp_path: Path) -> None:
    def right_for_even_numbers(prompts: list[str], completion_ids: list[Any], number: list[int], **_: Any) -> Any:
        assert prompts == [f"{i}+{i + 1}=" for i in number], "columns must follow the prompt"
        mixed = mixed_reward(completion_ids)
        return [1.0 if n % 2 == 0 else reward for n, reward in zip(number, mixed, strict=True)]

    trainer, _ = make_trainer(
        tmp_path,
        reward=right_for_even_numbers,
        trainer_class=redrawing(10, "prompts"),
        per_device_train_batch_size=4 * GROUP,
        train_dataset=prompts(48),
    )
    trainer.train()
    groups = list(read_group_log(tmp_path / "groups.jsonl"))
    assert any(group["draws"] > 1 for group in groups)
    assert all(int(group["prompt"].split("+")[0]) % 2 for group in groups), "even prompts are always silent"
    (batch,) = trainer._buffered_inputs
    tokenizer = trainer.processing_class
    for ids, mask, row in zip(batch["prompt_ids"], batch["prompt_mask"], batch["row"], strict=True):
        assert tokenizer.decode(ids[mask.bool()]) == groups[int(row) // GROUP]["prompt"]


def test_log_probabilities_that_sampling_returns_follow_the_completions_kept(tmp_path: Path) -> None:
    class WithLogps(TokenWeightedGRPOTrainer):
        """Stands in for vLLM: sampling returns a log-probability with every token, here minus its id."""

        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            ids, logps = super()._generate_single_turn(*args, **kwargs)
            return ids, [[-float(token) for token in row] for row in ids] if logps is None else logps

    trainer, _ = make_trainer(
        tmp_path,
        reward=threshold,
        trainer_class=functools.partial(WithLogps, max_redraws=2),
        per_device_train_batch_size=6 * GROUP,
    )
    trainer.train()
    assert any(group["draws"] > 1 for group in read_group_log(tmp_path / "groups.jsonl"))
    (batch,) = trainer._buffered_inputs
    mask = batch["completion_mask"].bool()
    assert torch.equal(batch["sampling_per_token_logps"][mask], -batch["completion_ids"][mask].float())


def test_a_bound_reached_is_said_and_moves_nothing(tmp_path: Path) -> None:
    trainer, recorder = make_trainer(
        tmp_path,
        reward=constant,
        trainer_class=redrawing(2),
        learning_rate=0.01,
        optim="adamw_torch",
        max_steps=2,
        scale_rewards="batch",
    )
    trainer.train()
    for entry in trainer.state.log_history[:2]:
        names = ("groups/silent", "groups/redrawn", "groups/exhausted", "groups/samples_spent")
        assert [entry[name] for name in names] == [1.0, 1.0, 1.0, 3 * 2 * GROUP]
    groups = list(read_group_log(tmp_path / "groups.jsonl"))
    assert all(group["draws"] == 3 and group["redraws_exhausted"] for group in groups)
    after = trainer.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in recorder.weights[0].items())


def test_two_rollouts_within_one_step_draw_different_new_prompts(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def silent(prompts: list[str], **_: Any) -> list[float]:
        asked.append(prompts[::GROUP])
        return [1.0] * len(prompts)

    trainer, _ = make_trainer(
        tmp_path,
        reward=silent,
        trainer_class=redrawing(2, "prompts"),
        gradient_accumulation_steps=2,
        steps_per_generation=1,
        train_dataset=prompts(),
    )
    trainer.train()
    redraws = [tuple(groups) for i, groups in enumerate(asked) if i % 3]
    assert len(redraws) == 4 == len(set(redraws))
    assert all(len(set(groups)) == 2 for groups in redraws), "without replacement within a round"


# --- the gradient -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss_type", "redraw"), [("dapo", "samples"), ("grpo", "prompts")])
def test_gradient_is_the_formulas_on_the_completions_kept(tmp_path: Path, loss_type: str, redraw: str) -> None:
    trainer, recorder = make_trainer(
        tmp_path,
        TOKEN_WEIGHTS["lambda-grpo"],
        reward=threshold,
        trainer_class=redrawing(3, redraw),
        loss_type=loss_type,
        beta=0.3,
        per_device_train_batch_size=2 * GROUP,
        gradient_accumulation_steps=2,
        num_iterations=2,
        max_steps=2,
        learning_rate=0.02,
        seed=11,
    )
    trainer.train()
    groups = list(read_group_log(tmp_path / "groups.jsonl"))
    assert {group["draws"] for group in groups} > {1} and not all(group["silent"] for group in groups)
    kept = oracle.regroup(trainer._buffered_inputs)
    assert kept == [ids for group in groups for ids in group["completion_ids"]]
    for step in (0, 1):
        expected = oracle_gradient(trainer, recorder.weights[step], recorder.weights[0], slice(None), threshold)
        assert relative(recorder.gradients[step], expected) < 5e-5


@pytest.mark.parametrize("scale", ["none", "batch"])
def test_other_scalings_keep_silent_groups_at_exactly_zero(tmp_path: Path, scale: str) -> None:
    def silent_for_even_numbers(completion_ids: list[Any], number: list[int], **_: Any) -> list[float]:
        return [0.35 if n % 2 == 0 else r for n, r in zip(number, mixed_reward(completion_ids), strict=True)]

    trainer, _ = make_trainer(
        tmp_path,
        reward=silent_for_even_numbers,
        trainer_class=redrawing(1),
        scale_rewards=scale,
        per_device_train_batch_size=6 * GROUP,
        train_dataset=prompts(),
    )
    trainer.train()
    groups = list(read_group_log(tmp_path / "groups.jsonl"))
    assert {group["silent"] for group in groups} == {"all wrong", None}
    rewards = torch.tensor([group["rewards"] for group in groups], dtype=torch.float64)
    expected = rewards - rewards.mean(dim=1, keepdim=True)
    if scale == "batch":
        expected /= rewards.std() + 1e-4
    advantages = torch.tensor([group["advantages"] for group in groups], dtype=torch.float64)
    assert torch.allclose(advantages, expected, atol=1e-5)
    assert not advantages[[group["silent"] is not None for group in groups]].any()


# --- nothing else changes ---------------------------------------------------------------------------------------------


def test_without_a_silent_group_or_without_redraws_the_run_is_trls_to_the_last_bit(tmp_path: Path) -> None:
    gradients, weights = {}, {}
    for name, trainer_class in {
        "stock": GRPOTrainer,
        "off": redrawing(0),
        "samples": redrawing(3),
        "prompts": redrawing(3, "prompts"),
    }.items():
        trainer, recorder = make_trainer(
            tmp_path / name,
            reward=never_equal,
            trainer_class=trainer_class,
            max_steps=2,
            learning_rate=0.05,
            optim="adamw_torch",
        )
        trainer.train()
        gradients[name], weights[name] = recorder.gradients, trainer.model.state_dict()
    for name in ("off", "samples", "prompts"):
        assert all(group["draws"] == 1 for group in read_group_log(tmp_path / name / "groups.jsonl"))
        assert all(map(torch.equal, gradients[name], gradients["stock"]))
        assert all(torch.equal(weights[name][key], value) for key, value in weights["stock"].items())


def test_the_seed_decides_the_redraws_and_a_resumed_run_repeats_them(tmp_path: Path) -> None:
    def run(name: str, seed: int, resume: bool = False) -> tuple[str, str, Any]:
        trainer, _ = make_trainer(
            tmp_path / name,
            reward=threshold,
            trainer_class=redrawing(2, "prompts"),
            seed=seed,
            max_steps=4,
            learning_rate=0.01,
            optim="adamw_torch",
            save_strategy="steps",
            save_steps=2,
        )
        trainer.train(**({"resume_from_checkpoint": str(tmp_path / name / "checkpoint-2")} if resume else {}))
        return history(trainer), (tmp_path / name / "groups.jsonl").read_text(), trainer.model.state_dict()

    first, again, other = run("a", 1), run("b", 1), run("c", 2)
    assert '"draws":2' in first[1] and first[:2] == again[:2] and first[1] != other[1]
    resumed = run("a", 1, resume=True)
    assert resumed[1] == first[1]
    assert all(torch.equal(first[2][key], value) for key, value in resumed[2].items())


def test_evaluation_redraws_nothing(tmp_path: Path) -> None:
    recorded = Recorded(constant)
    trainer, _ = make_trainer(tmp_path, reward=recorded, trainer_class=redrawing(3), num_generations_eval=GROUP)
    trainer.evaluate(eval_dataset=prompts(4))
    assert sum(map(len, recorded.calls)) == 4 * GROUP


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_redraws", "redraw", "message"),
    [
        (-1, "samples", "max_redraws is -1"),
        (1.5, "samples", "max_redraws is 1.5"),
        (True, "samples", "max_redraws is True"),
        (0, "groups", "redraw is 'groups'; use one of samples, prompts"),
    ],
)
def test_nonsense_is_refused_before_anything_is_sampled(
    tmp_path: Path, max_redraws: Any, redraw: str, message: str
) -> None:
    with pytest.raises(ReplicationError, match=message):
        make_trainer(tmp_path, trainer_class=redrawing(max_redraws, redraw))


def test_what_cannot_be_put_together_from_several_draws_is_refused(tmp_path: Path) -> None:
    def tool(x: int) -> int:
        """A tool.

        Args:
            x: a number
        """
        return x

    with pytest.raises(ReplicationError, match="together with tools"):
        make_trainer(tmp_path, trainer_class=functools.partial(redrawing(1), tools=[tool]))
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    stream = prompts().to_iterable_dataset()
    check_redraws(config, stream, 1, "samples")
    check_redraws(config, stream, 0, "prompts", ("tools",))
    with pytest.raises(ReplicationError, match="not a stream"):
        check_redraws(config, stream, 1, "prompts")
    with pytest.raises(ReplicationError, match="together with column 'image'"):
        check_redraws(config, Dataset.from_dict({"prompt": ["a"], "image": ["b"]}), 1, "samples")
    config.multi_objective_aggregation = "normalize_then_sum"
    with pytest.raises(ReplicationError, match="sum_then_normalize"):
        check_redraws(config, prompts(), 1, "samples")


def test_an_infinite_reward_is_not_hidden_by_a_redraw(tmp_path: Path) -> None:
    async def later(completions: list[Any], **_: Any) -> list[float]:
        return [math.inf] * len(completions)

    trainer, recorder = make_trainer(tmp_path, reward=later, trainer_class=redrawing(1))
    with pytest.raises(ReplicationError, match="later returned inf"):
        trainer.train()
    assert not recorder.gradients


def test_a_column_logged_twice_is_refused(tmp_path: Path) -> None:
    def twice(completions: list[Any], log_extra: Any, **_: Any) -> list[float]:
        log_extra("a", list(completions))
        log_extra("a", list(completions))
        return [1.0] * len(completions)

    trainer, _ = make_trainer(tmp_path, reward=twice, trainer_class=redrawing(1))
    with pytest.raises(ReplicationError, match="logged 16 values in column 'a' for 8 completions"):
        trainer.train()
