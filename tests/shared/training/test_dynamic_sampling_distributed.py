"""Redraws over two CPU processes: a group that is split between them, and rows that do not divide evenly."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from grpo_replications.shared.models import catalog
from grpo_replications.shared.training.group_log import read_group_log
from tests.shared.training import grpo_oracle as oracle
from tests.shared.training.redraw_bookkeeping import Recorded, kept_by_hand
from tests.shared.training.test_trainer import relative
from tests.shared.training.test_trainer_distributed import launch


@pytest.mark.slow
def test_two_processes_agree_on_a_split_group_and_on_surplus_rows(tmp_path: Path) -> None:
    """G = 4: 6 rows a process, so that a group is split. G = 3: one silent group does not divide by 2."""
    catalog.prepare("tiny-random")
    ranks = launch(tmp_path, script="redraw_script")
    for size, redraw in ((4, "samples"), (3, "prompts")):
        runs = [rank[str(size)] for rank in ranks]
        calls = [[[Recorded.row(*row) for row in call] for call in run["calls"]] for run in runs]
        assert list(map(len, calls[0])) == list(map(len, calls[1])), "equal shares"
        rounds = [[*first, *second] for first, second in zip(*calls, strict=True)]
        kept, draws = kept_by_hand(rounds, size)
        assert max(draws) > 1
        surplus = [len(later) > size * sum(d > i for d in draws) for i, later in enumerate(rounds[1:], start=1)]
        assert any(surplus) == (size == 3)
        completions = [ids for run in runs for ids in oracle.regroup(run["micro_batches"])]
        assert completions == [row.ids for rows in kept for row in rows]
        log = list(read_group_log(tmp_path / f"{size}" / "groups.jsonl"))
        assert [group["draws"] for group in log] == draws
        assert [ids for group in log for ids in group["completion_ids"]] == completions
        assert [group["prompt"] for group in log] == [rows[0].prompt for rows in kept]
        assert {run["samples_spent"] for run in runs} == {sum(map(len, rounds))}
        if redraw == "samples":
            assert [group["prompt"] for group in log] == [row.prompt for row in rounds[0][::size]]
        a = oracle.advantages([row.reward for rows in kept for row in rows], size)
        model = oracle.double_precision(catalog.load("tiny-random")[0])
        model.load_state_dict({k: v.double() for k, v in runs[0]["weights"].items()})
        total = 0.0
        for rank, run in enumerate(runs):
            for batch in run["micro_batches"]:
                rows = [int(row) + rank * len(completions) // 2 for row in batch["row"]]
                logps = oracle.completion_logps(model, batch)
                weights = torch.ones_like(logps)
                advantages = torch.tensor([a[row] for row in rows], dtype=torch.float64)
                total = total + oracle.loss(
                    "dapo",
                    logps,
                    logps.detach(),
                    None,
                    advantages,
                    weights,
                    batch["completion_mask"].double(),
                    beta=0.0,
                    normalizer=sum(map(len, completions)),
                )
        assert torch.equal(runs[0]["gradient"], runs[1]["gradient"])
        assert relative(runs[0]["gradient"], oracle.flat_gradient(total, model)) < 2e-5
        for group in itertools.chain(*(run["prompt_texts"].items() for run in runs)):
            row, text = group
            assert text == log[row // size]["prompt"], "prompts trained on are those of the groups kept"
