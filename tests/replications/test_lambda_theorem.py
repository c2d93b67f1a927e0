"""The theorem's check: it holds where it must, its controls break, and it would notice a wrong step advantage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_replications.replications.lambda_grpo import theorem
from grpo_replications.replications.lambda_grpo.objectives import (
    enumerate_process_sets,
    sequence_level,
    token_level,
    token_terms,
)
from grpo_replications.replications.lambda_grpo.settings import NoSettings, TheoremSettings
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.shared.models import catalog
from grpo_replications.shared.theory.process_sets import process_set_sizes, step_advantages

ERRORS = ("value_error", "gradient_error", "set_contribution_error", "set_contribution_error_lambda")
ROLLOUTS = {
    "source": "rollouts",
    "groups": 3,
    "group_size": 4,
    "max_new_tokens": 6,
    "model": "tiny-random",
    "system_message": "Answer briefly.",
}


@pytest.fixture
def context(tmp_path: Path) -> JobContext:
    return JobContext(tmp_path / "job")


def random_group(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return theorem._random_group(torch.Generator().manual_seed(seed))


# --- random groups ----------------------------------------------------------------------------------------------------


def test_the_equality_holds_to_rounding_and_its_controls_break(context: JobContext) -> None:
    found = theorem.random_groups(60, 0, context)
    assert all(found[name] < 1e-12 for name in ERRORS), found
    assert found["control_sequence_norm"] > 1e-3 and found["control_two_updates"] > 1e-3
    assert found["two_updates_unclipped"] < 1e-12
    assert found["groups"] == 60


def test_another_seed_draws_other_groups(context: JobContext) -> None:
    one, again, other = (theorem.random_groups(5, seed, context) for seed in (1, 1, 2))
    assert one == again and one["control_sequence_norm"] != other["control_sequence_norm"]


def test_the_random_groups_cover_what_the_theorem_is_about() -> None:
    groups = [random_group(seed) for seed in range(100)]
    assert any(len(set(rewards.tolist())) == 1 for _, _, rewards in groups), "silent groups"
    assert any(not float(rewards).is_integer() for _, _, values in groups for rewards in values), "any real reward"
    assert any((~mask).any() for _, mask, _ in groups), "unequal lengths"
    shared = [max(len(rows) for _, rows in enumerate_process_sets(ids, mask)) for ids, mask, _ in groups]
    deep = [max([t for t, rows in enumerate_process_sets(ids, m) if len(rows) > 1], default=-1) for ids, m, _ in groups]
    assert max(shared) > 5 and max(deep) > 4


def population(*arguments: Any, **options: Any) -> Tensor:
    """The step advantage over another standard deviation than the completions' advantages."""
    return step_advantages(*arguments, **{**options, "ddof": 0})


def one_token_late(*arguments: Any, **options: Any) -> Tensor:
    """Every token gets the advantage of its completion's next process set."""
    right = step_advantages(*arguments, **options)
    return torch.cat([right[:, 1:], right[:, -1:]], dim=1) * arguments[1]


def half_of_the_group(ids: Tensor, mask: Tensor, rewards: Tensor, group_size: int, **options: Any) -> Tensor:
    """Rewards are averaged over part of each set only: completions of other halves of the group are not looked at."""
    ids = ids * 2 + (torch.arange(len(ids)) % 2).unsqueeze(1)
    return step_advantages(ids, mask, rewards, group_size, **options)


@pytest.mark.parametrize("wrong", [population, one_token_late])
def test_a_wrong_step_advantage_is_noticed(
    wrong: Callable[..., Tensor], context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theorem, "step_advantages", wrong)
    found = theorem.random_groups(20, 0, context)
    assert found["gradient_error"] > 1e-2 and found["value_error"] > 1e-3
    assert found["set_contribution_error"] > 1e-2 and found["set_contribution_error_lambda"] > 1e-2


def test_averaging_over_a_part_of_a_set_keeps_the_sum_but_not_the_sets(
    context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The equality of the losses holds for any averaging within sets: the contributions of the sets tell them apart."""
    monkeypatch.setattr(theorem, "step_advantages", half_of_the_group)
    found = theorem.random_groups(20, 0, context)
    assert found["gradient_error"] < 1e-12
    assert found["set_contribution_error_lambda"] > 1e-2


def test_a_policy_that_is_no_function_of_the_prefix_breaks_the_equality(
    context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FreePolicy(theorem.PrefixPolicy):
        """Rows with equal prefixes have probabilities of their own: the fact that the theorem rests on is gone."""

        def forward(self, ids: Tensor) -> Tensor:
            scale = torch.linspace(0.5, 1.5, ids.size(0), dtype=torch.float64).unsqueeze(1)
            return super().forward(ids) * scale

    monkeypatch.setattr(theorem, "PrefixPolicy", FreePolicy)
    assert theorem.random_groups(20, 0, context)["gradient_error"] > 1e-2


def test_the_recurrent_policy_depends_on_the_prefix_alone() -> None:
    policy = theorem.PrefixPolicy(3, 6, torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 1, 2, 0], [0, 1, 1, 2], [2, 1, 2, 0]])
    logps = policy(ids)
    assert logps.dtype == torch.float64 and torch.equal(logps[0, :2], logps[1, :2])
    assert (logps[0, 1:] - logps[2, 1:]).abs().min() > 1e-6
    every = policy(torch.cartesian_prod(*[torch.arange(3)] * 2)).sum(dim=1).exp()
    assert every.sum().item() == pytest.approx(1)


# --- rollouts of a language model -------------------------------------------------------------------------------------


def test_the_equality_holds_on_completions_of_a_transformer(context: JobContext) -> None:
    torch.manual_seed(0)
    rows = {row["metric"]: row["value"] for row in theorem.theorem(TheoremSettings(**ROLLOUTS), 0, context)}
    assert all(rows[name] < 1e-11 for name in ERRORS), rows
    assert rows["groups"] == 3 and 0 <= rows["groups_with_inner_sets"] <= 3


def test_a_wrong_step_advantage_is_noticed_on_rollouts_too(
    context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theorem, "step_advantages", population)
    torch.manual_seed(0)
    settings = TheoremSettings(**{**ROLLOUTS, "groups": 1})
    assert theorem.model_rollouts(settings, 0, context)["gradient_error"] > 1e-2


def test_equal_prefixes_agree_to_float64_in_whatever_row_they_stand() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 98, (7, 24), generator=generator)
    ids[:, :16] = ids[0, :16]
    exact = theorem.in_float64(catalog.load("tiny-random", dtype="float64")[0])
    with torch.no_grad():
        logits = exact(input_ids=ids).logits[:, :16]
        alone = exact(input_ids=ids[:1, :16]).logits
        plain = catalog.load("tiny-random", dtype="float64")[0](input_ids=ids).logits[:, :16]
    assert logits.dtype == torch.float64
    assert float((logits - logits[:1]).abs().max()) < 1e-12 and float((logits[:1] - alone).abs().max()) < 1e-12
    # The same function, of the same parameters, where the library's layers round to float32 on the way.
    assert 0 < float((logits - plain).abs().max()) < 1e-5
    names = set(dict(catalog.load("tiny-random")[0].named_parameters()))
    assert set(dict(exact.named_parameters())) == names


def test_tokens_after_the_end_of_a_completion_are_not_real() -> None:
    ids = torch.tensor([[5, 0, 0, 0], [5, 6, 7, 8], [0, 5, 0, 5], [5, 6, 7, 0]])
    expected = [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert theorem._until_end(ids, 0).int().tolist() == expected


# --- the worked example and the pieces --------------------------------------------------------------------------------


def test_the_printed_example() -> None:
    example = theorem.worked_example()
    assert round(example.advantage, 2) == -0.22 and example.advantage == pytest.approx(-0.0833333 / 0.3763863, rel=1e-5)
    assert round(example.advantage_population, 2) == -0.24


def test_the_flaw_goes_both_ways(context: JobContext) -> None:
    values = {row["metric"]: row["value"] for row in theorem.flaw(NoSettings(), 0, context)}
    assert values["best_advantage"] > 0 > values["prefix_push_lambda_grpo"] > values["prefix_push_grpo"]
    assert values["prefix_push_grpo"] == pytest.approx(3 * values["prefix_push_lambda_grpo"])
    assert values["popular_over_rare_grpo"] == 3.0 and values["popular_over_rare_lambda_grpo"] == 1.0


def test_the_experiment_reports_errors_controls_and_the_example(context: JobContext) -> None:
    rows = theorem.theorem(TheoremSettings(**{**ROLLOUTS, "source": "random", "groups": 3}), 0, context)
    metrics = {row["metric"]: row["value"] for row in rows}
    assert len(metrics) == len(rows) and set(ERRORS) <= set(metrics)
    assert {"control_sequence_norm", "control_two_updates", "two_updates_unclipped"} <= set(metrics)
    assert round(metrics["worked_example_advantage"], 2) == -0.22


@pytest.mark.parametrize("seed", range(20))
def test_process_sets_by_comparing_prefixes_are_those_of_the_trie(seed: int) -> None:
    ids, mask, _ = random_group(seed)
    sizes = process_set_sizes(ids, mask, len(ids))
    listed = torch.zeros_like(sizes)
    for t, rows in enumerate_process_sets(ids, mask):
        listed[list(rows), t] = len(rows)
    assert torch.equal(listed, sizes)


def test_normalizations_by_hand() -> None:
    terms = torch.tensor([[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert float(token_level(terms, mask)) == pytest.approx(15 / 5)
    assert float(sequence_level(terms, mask)) == pytest.approx((1.5 + 4) / 2)


def test_terms_by_hand() -> None:
    logps, old = torch.tensor([[-1.0, -1.0]]).double(), torch.tensor([[-1.5, -0.5]]).double()
    ref = torch.tensor([[-2.0, -1.0]]).double()
    up, down = 2.718281828459045**0.5, 2.718281828459045**-0.5
    for a, clipped in ((1.0, [1.2, down]), (-1.0, [-up, -0.8])):
        advantage = torch.tensor([[a]]).double()
        assert token_terms(logps, old, None, advantage).tolist()[0] == pytest.approx([up * a, down * a])
        assert token_terms(logps, old, None, advantage, clip=0.2).tolist()[0] == pytest.approx(clipped)
        k3 = 2.718281828459045**-1 + 1 - 1
        expected = [up * a - 0.1 * k3, down * a]
        assert token_terms(logps, old, ref, advantage, beta=0.1).tolist()[0] == pytest.approx(expected)


def test_relative_differences_do_not_divide_by_nothing() -> None:
    zero, small, one = torch.zeros(2), torch.full((2,), 1e-14), torch.ones(2)
    assert theorem.relative(zero, zero) == 0.0 and theorem.relative(zero, small) < 1e-13
    assert theorem.relative(zero, one) == 1.0 and theorem.relative(one, 1.5 * one) == pytest.approx(1 / 3)
    mask = torch.ones(1, 2)
    terms = torch.tensor([[2.0, -2.0]])  # a sum that cancels is measured against the size of what cancels
    assert theorem.value_error(torch.tensor(0.0), torch.tensor(1.0), terms, mask) == 0.5
    assert theorem.value_error(torch.tensor(0.0), torch.tensor(0.0), 0 * terms, mask) == 0.0
