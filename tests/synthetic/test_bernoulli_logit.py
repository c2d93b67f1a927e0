"""The simulator: exact draws, gradients equal to the slow way's, closed forms met, and wrong advantages caught."""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from scipy import stats

from grpo_replications.shared.theory.closed_forms import expected_update, silent_rate
from grpo_replications.shared.theory.groups import grpo_advantages
from grpo_replications.synthetic import bench, bernoulli_logit
from grpo_replications.synthetic.bernoulli_logit import (
    METHODS,
    Method,
    gradient_from_counts,
    gradient_from_rewards,
    gradient_tables,
    mean_field,
    reference_step,
    simulate,
    with_redraws,
)
from grpo_replications.synthetic.binomial_sampler import LARGEST_GROUP, binomial_counts, distribution_function, invert

# --- draws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [1, 2, 3, 8, 33, 64, LARGEST_GROUP])
def test_table_and_refinement_are_inversion(group_size: int) -> None:
    generator = np.random.default_rng(group_size)
    spread = 10.0 ** generator.uniform(-12, 0, 20_000)
    p = np.concatenate([generator.random(60_000), spread, 1 - spread, [0.0, 1.0, 0.5, 1 - 2**-53, 1024 / 2048]])
    words = generator.integers(0, 2**16, len(p), dtype=np.uint16)
    bits = generator.random(len(p))
    counts = binomial_counts(p, group_size, words, lambda chosen: bits[chosen])
    assert np.array_equal(counts, invert(p, (words + bits) / 2**16, group_size))
    assert counts[-5] == 0 and counts[-4] == group_size


@pytest.mark.parametrize("group_size", [2, 8, 64])
def test_distribution_function(group_size: int) -> None:
    p = np.array([1e-9, 0.01, 0.3, 0.5, 0.77, 0.999])
    expected = np.cumsum(
        [[comb(group_size, k) * q**k * (1 - q) ** (group_size - k) for k in range(group_size + 1)] for q in p], axis=1
    )
    assert distribution_function(p, group_size) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("group_size", "p"), [(2, 0.5), (8, 0.02), (8, 0.4), (8, 0.993), (64, 0.05), (64, 0.61)])
def test_counts_are_binomial_and_agree_with_bernoulli_draws(group_size: int, p: float) -> None:
    number = 200_000
    rates = np.full(number, p)
    fast = bernoulli_logit.SeedDraws([3], number).counts(rates, group_size)
    slow, _ = reference_step(rates, METHODS["grpo"], group_size, np.random.default_rng(4))
    expected = number * stats.binom.pmf(np.arange(group_size + 1), group_size, p)
    kept = expected > 10
    for counts in (fast, slow):
        found = np.bincount(counts, minlength=group_size + 1)
        observed = np.append(found[kept], found[~kept].sum())
        wanted = np.append(expected[kept], max(expected[~kept].sum(), 1e-9))
        assert ((observed - wanted) ** 2 / wanted)[wanted > 1].sum() < stats.chi2.ppf(1 - 1e-5, kept.sum())


def test_refused_group_sizes() -> None:
    words = np.zeros(1, dtype=np.uint16)
    for size in (0, LARGEST_GROUP + 1):
        with pytest.raises(ValueError, match="group_size"):
            binomial_counts(np.array([0.5]), size, words, lambda chosen: np.zeros(len(chosen)))


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("group_size", [2, 3, 8, 64])
def test_gradient_from_counts_is_that_of_every_completion(name: str, group_size: int) -> None:
    generator = np.random.default_rng(0)
    counts = np.repeat(np.arange(group_size + 1), 5)
    p = generator.random(len(counts))
    rewards = generator.permuted((np.arange(group_size) < counts[:, None]).astype(float), axis=1)
    fast = gradient_from_counts(p, counts, gradient_tables(METHODS[name], group_size))
    assert fast == pytest.approx(gradient_from_rewards(p, rewards, METHODS[name]), abs=2e-15)


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("group_size", [2, 8, 64])
def test_expected_gradient_is_the_closed_form(name: str, group_size: int) -> None:
    p = np.array([0.003, 0.05, 0.4, 0.5, 0.97])
    k = np.arange(group_size + 1)
    weights = stats.binom.pmf(k, group_size, p[:, None])
    right, wrong = gradient_tables(METHODS[name], group_size)
    gradient = right * (1 - p[:, None]) - wrong * p[:, None]
    if name == "dapo":  # silent with every draw, or the first group that is not
        silent = weights[:, 0] + weights[:, -1]
        draws = sum(silent**j for j in range(METHODS[name].max_redraws + 1))
        weights[:, 1:-1] *= draws[:, None]
    closed = expected_update(p, group_size, METHODS[name].closed_form, METHODS[name].max_redraws or None)
    assert (weights * gradient)[:, 1:-1].sum(axis=1) == pytest.approx(closed, rel=1e-11)


@pytest.mark.parametrize("name", list(METHODS))
def test_sampled_steps_average_to_the_closed_form(name: str) -> None:
    for p in (0.04, 0.3, 0.9):
        start = np.full(100_000, p)
        run = simulate(start, [name], steps=1, lr=1.0, seeds=[5])[name]
        step = np.log(run.final_p[0] / (1 - run.final_p[0])) - np.log(p / (1 - p))
        expected = expected_update(p, 8, METHODS[name].closed_form, METHODS[name].max_redraws or None)
        assert abs(step.mean() - expected) < 5 * step.std() / np.sqrt(len(step))
        assert run.gradient_mass[0, 0].sum() == pytest.approx(np.abs(step).sum())


# --- the identity, and advantages that must break it ------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [2, 8, 64])
def test_every_method_keeps_its_identity(group_size: int) -> None:
    start = np.linspace(0.02, 0.98, 500)
    for name, run in simulate(start, list(METHODS), group_size=group_size, steps=30, seeds=range(2)).items():
        assert run.identity_error.max() < 1e-14, name


def without_mean(rewards: np.ndarray) -> np.ndarray:
    deviation = rewards.std(axis=-1, keepdims=True)
    return np.divide(rewards, deviation, out=np.zeros_like(rewards), where=deviation > 0)


def with_misprinted_sigma(rewards: np.ndarray) -> np.ndarray:
    right, size = rewards.sum(axis=-1, keepdims=True), rewards.shape[-1]
    misprint = np.sqrt(right * (size - right) / size)
    return np.divide(rewards - right / size, misprint, out=np.zeros_like(rewards), where=misprint > 0)


WRONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "no mean": without_mean,
    "sample deviation": lambda rewards: grpo_advantages(rewards, ddof=1, eps=0.0),
    "misprinted sigma": with_misprinted_sigma,
    "TRL's epsilon": lambda rewards: grpo_advantages(rewards, ddof=0, eps=1e-4),
    "not divided": METHODS["dr-grpo"].advantages,
    "wrong sign": lambda rewards: -grpo_advantages(rewards, ddof=0, eps=0.0),
    "off by one completion": lambda rewards: grpo_advantages(np.roll(rewards, 1, axis=-1), ddof=0, eps=0.0),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_advantage_breaks_the_identity(name: str) -> None:
    wrong = Method(WRONG[name], METHODS["grpo"].gain, "grpo")
    run = simulate(np.linspace(0.02, 0.98, 500), {name: wrong}, steps=3, seeds=[0])[name]
    assert run.identity_error.min() > 1e-5


def test_a_wrong_gain_breaks_the_identity() -> None:
    wrong = Method(METHODS["rloo"].advantages, METHODS["dr-grpo"].gain, "rloo")
    run = simulate(np.linspace(0.02, 0.98, 500), {"rloo": wrong}, steps=3, seeds=[0])["rloo"]
    assert run.identity_error.min() > 1e-2


# --- whole runs -------------------------------------------------------------------------------------------------------


def small(**options: object) -> dict[str, bernoulli_logit.Trajectories]:
    start = np.linspace(0.03, 0.9, 40)
    return simulate(start, **{"methods": list(METHODS), "steps": 12, "seeds": range(3), **options})


def same(one: bernoulli_logit.Trajectories, other: bernoulli_logit.Trajectories, seeds: slice = slice(None)) -> bool:
    names = [name for name in bernoulli_logit.Trajectories.__dataclass_fields__ if name != "final_p"]
    pairs = [(getattr(one, name)[:, seeds], getattr(other, name)) for name in names]
    return all(np.array_equal(*pair) for pair in [*pairs, (one.final_p[seeds], other.final_p)])


def test_a_seed_depends_on_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, again = small(), small()
    for name in METHODS:
        assert same(runs[name], again[name])
        assert same(small(seeds=range(7))[name], runs[name], slice(0, 3)), "more seeds"
        assert same(runs[name], small(seeds=[2])[name], slice(2, 3)), "another order"
        assert same(runs[name], small(methods=[name])[name]), "methods beside it"
    monkeypatch.setattr(bernoulli_logit, "_BLOCK", 41)
    assert all(same(run, runs[name]) for name, run in small().items()), "another block"
    assert not np.array_equal(runs["grpo"].final_p[0], runs["grpo"].final_p[1])


def test_redraws_are_bounded_counted_and_help() -> None:
    start = np.full(50_000, 0.05)
    silent = silent_rate(0.05, 8)
    for bound in (0, 1, 3):
        run = simulate(start, {"dapo": with_redraws(METHODS["grpo"], bound)}, steps=1, seeds=[1])["dapo"]
        expected = 8 * sum(silent**j for j in range(bound + 1))
        assert run.samples[0, 0] == pytest.approx(expected, rel=0.01)
        left = np.isclose(run.final_p[0], start, rtol=1e-9).mean()
        assert left == pytest.approx(silent ** (bound + 1), abs=0.01)
        assert run.silent[0, 0] == pytest.approx(silent, abs=0.01), "the first draw, whatever follows"
    with pytest.raises(ValueError, match="max_redraws"):
        with_redraws(METHODS["dapo"], -1)


def test_metrics_describe_the_prompts() -> None:
    start = np.array([0.05, 0.15, 0.5, 0.95])
    tracked = np.array([True, False, False, True])
    run = simulate(start, ["grpo"], steps=5, seeds=range(2), tracked=tracked)["grpo"]
    assert run.mean_p[0] == pytest.approx([start.mean()] * 2) and run.tracked_p[0] == pytest.approx([0.5] * 2)
    assert run.mean_p[-1] == pytest.approx(run.final_p.mean(axis=1))
    assert run.tracked_p[-1] == pytest.approx(run.final_p[:, [0, 3]].mean(axis=1))
    assert run.predicted_silent[0] == pytest.approx([np.mean(silent_rate(start, 8))] * 2)
    assert np.all(run.gradient_mass[:, :, [2, 3, 4, 6, 7, 8]] == 0)
    assert np.all((run.all_right <= run.silent) & (run.silent <= 1)) and np.all(run.samples == 8)


@pytest.mark.parametrize("name", list(METHODS))
def test_mean_field_moves_by_the_expected_update(name: str) -> None:
    start = np.array([0.02, 0.4, 0.9])
    path = mean_field(start, name, steps=2)
    theta = np.log(start / (1 - start))
    for step in range(3):
        assert path[step] == pytest.approx(1 / (1 + np.exp(-theta)), rel=1e-12)
        theta += 0.5 * expected_update(path[step], 8, METHODS[name].closed_form, METHODS[name].max_redraws or None)


def test_refused_arguments() -> None:
    start = np.array([0.2, 0.5])
    for message, arguments, options in (
        ("methods", (start, ["reinforce"]), {}),
        ("methods", (start, "grpo"), {}),
        ("between 0 and 1", ([0.0, 0.5],), {}),
        ("between 0 and 1", ([np.nan, 0.5],), {}),
        ("shape", (np.full((3, 2), 0.5),), {"seeds": range(2)}),
        ("seeds", (start,), {"seeds": [1, 1]}),
        ("seeds", (start,), {"seeds": []}),
        ("steps", (start,), {"steps": 0}),
        ("steps", (start,), {"lr": 0.0}),
        ("group_size", (start,), {"group_size": 1000}),
        ("tracked", (start,), {"tracked": np.array([False, False])}),
    ):
        with pytest.raises(ValueError, match=message):
            simulate(*arguments, **options)


def test_the_bench_measures_what_it_says() -> None:
    rows = bench.bernoulli_logit_bench(prompts=50, seeds=2, steps=2, repeats=1)
    assert len({row.name for row in rows}) == len(rows) and all(row.ratio > 0 for row in rows)
