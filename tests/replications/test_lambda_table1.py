"""Table 1's experiments: rows, seeds, learning rates chosen on other seeds, and the statistics drawn from them."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_replications.replications.lambda_grpo.settings import Table1BestSettings, Table1TabularSettings
from grpo_replications.replications.lambda_grpo.table1 import (
    SELECTION_OFFSET,
    explained_share,
    five_seed_mean_quantile,
    paper_table,
    table1_best,
    table1_tabular,
)
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.synthetic.binary_tree import BinaryTree, run_tabular

SETTINGS = {
    "n": 1,
    "r_neg": -0.5,
    "method": "lambda-grpo",
    "optimizer": "sgd",
    "lr": 3.0,
    "group_size": 16,
    "steps": 60,
    "last": 20,
    "depth": 4,
    "ddof": 1,
    "eps": 1e-4,
    "beta": 0.0,
}


class Progress:
    def __init__(self) -> None:
        self.fractions: list[float] = []

    def progress(self, fraction: float) -> None:
        self.fractions.append(fraction)


def best_settings(**changes):
    settings = {**SETTINGS, "lrs": [0.5, 2.0, 5.0], "selection_seeds": 40, **changes}
    del settings["lr"]
    return Table1BestSettings.parse(settings, "table1-best")


def tabular(**changes):
    return Table1TabularSettings.parse({**SETTINGS, **changes}, "table1-tabular")


def values_of(rows, metric):
    return [row["value"] for row in rows if row["metric"] == metric]


def frequencies(rows):
    return {row["seed"]: row["value"] for row in rows if row["metric"] == "target_frequency"}


def test_one_target_frequency_per_seed_to_six_decimals():
    rows = table1_tabular(tabular(), range(3, 23), Progress())
    run = run_tabular(BinaryTree(), "lambda-grpo", "sgd", 3.0, steps=60, seeds=range(3, 23))
    assert list(frequencies(rows)) == list(range(3, 23))
    assert list(frequencies(rows).values()) == [round(v, 6) for v in run.target_frequency(20).tolist()]
    assert values_of(rows, "update_norm") == [pytest.approx(run.update_norm.mean())]
    assert values_of(rows, "silent_share") == [pytest.approx(run.silent.mean())]
    assert all("seed" not in row for row in rows if row["metric"] != "target_frequency")


@pytest.mark.parametrize("key, value", [(k, v) for k, v in {
    "n": 2, "r_neg": -1.5, "method": "grpo", "optimizer": "adam", "lr": 1.0, "group_size": 8, "steps": 50, "last": 10,
    "depth": 3, "ddof": 0, "eps": 0.5, "beta": 0.5,
}.items()])  # fmt: skip
def test_every_setting_does_something(key, value):
    changed = table1_tabular(tabular(**{key: value}), range(10), Progress())
    assert frequencies(changed) != frequencies(table1_tabular(tabular(), range(10), Progress()))


def test_more_seeds_only_add_seeds():
    few = frequencies(table1_tabular(tabular(), range(5), Progress()))
    many = frequencies(table1_tabular(tabular(), range(30), Progress()))
    assert few == {seed: many[seed] for seed in range(5)}


def test_same_seeds_same_rows():
    settings = tabular(steps=250, last=50)
    assert table1_tabular(settings, range(10), Progress()) == table1_tabular(settings, range(10), Progress())


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": -1.0},
        {"method": "ppo"},
        {"n": 4},
        {"last": 61},
        {"group_size": 1},
        {"optimizer": "lion"},
        {"momentum": 0.9},
        {"beta": None},
    ],
)
def test_bad_settings_are_one_message(changes):
    with pytest.raises(ReplicationError, match=next(iter(changes)) + r"|profiles\.toml"):
        table1_tabular(tabular(**changes), range(2), Progress())


def test_best_takes_the_rate_that_selection_seeds_prefer_and_reports_others():
    progress = Progress()
    rows = table1_best(best_settings(), range(20), progress)
    selection = range(SELECTION_OFFSET, SELECTION_OFFSET + 40)
    means = {
        lr: run_tabular(BinaryTree(), "lambda-grpo", "sgd", lr, steps=60, seeds=selection).target_frequency(20).mean()
        for lr in (0.5, 2.0, 5.0)
    }
    chosen = max(means, key=means.get)
    assert values_of(rows, "chosen_lr") == [chosen]
    assert values_of(rows, "selection_mean") == [pytest.approx(means[chosen])]
    assert frequencies(rows) == frequencies(table1_tabular(tabular(lr=chosen), range(20), Progress()))
    assert progress.fractions == sorted(progress.fractions) and progress.fractions[-1] == 1.0


@pytest.mark.parametrize("lrs, edge", [([0.1, 1.0, 5.0], 1.0), ([0.1, 5.0, 1e4], 0.0), ([5.0, 1e4], 1.0)])
def test_a_rate_on_the_grids_edge_is_flagged(lrs, edge):
    rows = table1_best(best_settings(lrs=lrs), range(5), Progress())
    assert values_of(rows, "chosen_lr") == [5.0] and values_of(rows, "edge") == [edge]


@pytest.mark.parametrize(
    "changes, seeds",
    [({"lrs": []}, range(2)), ({"lrs": [2.0, 1.0]}, range(2)), ({}, range(SELECTION_OFFSET + 1)),
     ({"selection_seeds": 0}, range(2))],
)  # fmt: skip
def test_selection_must_be_possible_and_separate(changes, seeds):
    with pytest.raises(ReplicationError, match="table1-best"):
        table1_best(best_settings(**changes), seeds, Progress())


def test_the_papers_table_is_the_published_one():
    table = paper_table()
    assert len(table) == 12
    assert table[1, -0.5, "grpo"] == 0.3995 and table[1, -0.5, "lambda-grpo"] == 0.5663
    assert table[2, -1.5, "grpo"] == 0.0 and table[2, -1.5, "lambda-grpo"] == 0.3820
    assert sum(table[n, r, "lambda-grpo"] - table[n, r, "grpo"] for n in (1, 2) for r in (-0.5, -1.0, -1.5)) == (
        pytest.approx(2.0922)
    )


def test_the_papers_numbers_are_placed_only_at_the_papers_settings():
    assert not values_of(table1_tabular(tabular(), range(5), Progress()), "paper_quantile")
    paper = tabular(steps=250, last=50)
    rows = table1_tabular(paper, range(50), Progress())
    placed = five_seed_mean_quantile(np.array(list(frequencies(rows).values())), 0.5663)
    assert values_of(rows, "paper_quantile") == [pytest.approx(placed.quantile, abs=1e-6)]
    assert values_of(rows, "five_seed_mean_low") == [pytest.approx(placed.low, abs=1e-6)]
    assert not values_of(table1_tabular(paper.changed(method="grpo-matched"), range(5), Progress()), "paper_quantile")


def test_five_seed_means_of_coin_flips():
    values = np.array([0.0, 1.0] * 500)
    quantile, low, high = five_seed_mean_quantile(values, 0.4)
    assert quantile == pytest.approx((6 / 32) + (10 / 32) / 2, abs=0.01)  # P(0 or 1 of 5) + P(2 of 5) / 2
    assert (low, high) == (0.0, 1.0)  # each has probability 1/32, above 2.5 %
    assert five_seed_mean_quantile(values, 0.4) == (quantile, low, high)


def test_zero_in_the_paper_means_zero_to_four_decimals():
    collapsed = np.full(100, 3e-6)
    assert five_seed_mean_quantile(collapsed, 0.0) == (0.5, 0.0, 0.0)
    assert five_seed_mean_quantile(collapsed + 1e-3, 0.0).quantile == 0.0


def test_explained_share_of_known_effects():
    generator = np.random.default_rng(0)
    grpo = generator.normal(0.3, 0.05, 400)
    noise = generator.normal(0, 0.02, (2, 400))
    for matched_effect, share in ((0.2, 0.0), (0.1, 0.5), (0.0, 1.0), (-0.1, 1.5), (0.3, -0.5)):
        result = explained_share(grpo, grpo + 0.2 + noise[0], grpo + matched_effect + noise[1])
        assert result.value == pytest.approx(share, abs=0.03)
        assert result.low < result.value < result.high and result.high - result.low < 0.1
    reversed_effect = explained_share(grpo, grpo - 0.2 + noise[0], grpo + 0.3 + noise[1])
    assert reversed_effect.value == pytest.approx(2.5, abs=0.05)


def test_nothing_to_explain_without_a_difference():
    generator = np.random.default_rng(1)
    grpo, lam, matched = generator.normal(size=(3, 50))
    result = explained_share(grpo, lam, matched)
    assert np.isnan(result.value) and result.low == -np.inf and result.high == np.inf
