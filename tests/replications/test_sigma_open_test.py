"""The open test: estimators without bias, rows that follow from the logs, and comparisons that can fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binom

from grpo_replications.replications.sigma_identity import open_figures, open_test, open_test_gradients
from grpo_replications.replications.sigma_identity.open_estimates import (
    by_count,
    classes,
    difficulty_bin,
    difficulty_trend,
    group_norm_squared,
    mean_gap,
    over_prompts,
    root_share_gaps,
    root_shares,
    share_gaps,
    shares,
    signal_squared,
    without_replacement,
)
from grpo_replications.replications.sigma_identity.settings import OpenTestGradientsSettings, OpenTestSettings
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.theory.closed_forms import expected_update, sigma, silent_rate
from grpo_replications.shared.training.group_log import read_group_log

SMALL: dict[str, Any] = {
    "model": "tiny-random",
    "group_size": 4,
    "prompts_per_step": 2,
    "steps": 4,
    "lr": 1e-2,
    "max_new_tokens": 3,
    "precision": "float32",
    "eval_every": 2,
    "prompts": 6,
    "highs": [9, 19],
    "reference_samples": 24,
    "fresh_samples": 8,
    "max_rows": 64,
    "system_message": "Answer briefly.",
}
GRADIENTS: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if key != "fresh_samples"},
    "prompts": 3,
    "scored_samples": 12,
    "sketch_rank": 16,
    "score_batch": 8,
    "group_sizes": [2, 4],
}


# --- estimators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("rate", [0.03, 0.5, 0.9])
def test_means_without_replacement_are_unbiased_for_the_closed_forms(size: int, rate: float) -> None:
    drawn = 24
    right = np.arange(drawn + 1)
    weights = binom.pmf(right, drawn, rate)
    closed = {
        "silent": silent_rate(rate, size),
        "all_right": rate**size,
        "all_wrong": (1 - rate) ** size,
        "grpo": expected_update(rate, size, "grpo"),
        "dr-grpo": expected_update(rate, size, "dr-grpo"),
        "noise": 1 - silent_rate(rate, size),
    }
    for quantity, expected in closed.items():
        estimates = without_replacement(by_count(quantity, size), right, drawn)
        assert weights @ estimates == pytest.approx(expected, abs=1e-12)
    plug_in = (right / drawn) ** size + (1 - right / drawn) ** size
    assert abs(weights @ plug_in - closed["silent"]) > 1e-3, "what the estimators are there to avoid"


def test_groups_larger_than_the_sample_and_unknown_quantities_are_refused() -> None:
    with pytest.raises(ValueError, match="no group of 8 can be drawn from 6"):
        without_replacement(by_count("silent", 8), np.array([3]), 6)
    with pytest.raises(ValueError, match="quantity must be one of silent"):
        by_count("rloo", 4)


def test_difficulty_bins_have_the_paper_s_edges() -> None:
    rates = [0, 0.0999, 0.1, 0.3999, 0.4, 0.6, 0.6001, 0.9, 0.9001, 1]
    assert difficulty_bin(rates).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def some_scores(seed: int, n: int = 9, dimension: int = 5) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    rewards = (np.arange(n) % 3 == 0).astype(int)
    return generator.normal(size=(n, dimension)) + rewards[:, None], rewards


@pytest.mark.parametrize("size", [2, 4, 5])
def test_the_group_norm_is_the_mean_over_all_groups_of_the_sample(size: int) -> None:
    scores, rewards = some_scores(size)
    by_right: dict[int, list[float]] = {}
    for members in itertools.combinations(range(len(scores)), size):
        r = rewards[list(members)]
        if 0 < r.sum() < size:
            advantage = (r - r.mean()) / r.std()
            by_right.setdefault(int(r.sum()), []).append(((advantage @ scores[list(members)]) / size).__pow__(2).sum())
    found = group_norm_squared(classes(scores @ scores.T, rewards), size)
    assert found[0] == found[size] == 0
    for k, values in by_right.items():
        assert found[k] == pytest.approx(np.mean(values))


def test_class_means_that_cannot_be_known_are_nan() -> None:
    gram = np.eye(3)
    lonely = classes(gram, np.array([1, 0, 0]))
    assert lonely.norm_right == 1 and np.isnan(lonely.pair_right) and np.isnan(lonely.delta_squared)
    assert np.isfinite(group_norm_squared(lonely, 2)).all(), "a pair needs one of each class and no more"
    assert np.isnan(classes(gram, np.zeros(3)).across)


def draw_scores(
    generator: np.random.Generator, n: int, rate: float, delta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A policy whose scores are (y - p) Delta plus noise that has nothing to do with the reward."""
    rewards = (generator.random(n) < rate).astype(int)
    return (rewards - rate)[:, None] * delta + generator.normal(size=(n, len(delta))), rewards


@pytest.mark.parametrize(("method", "size"), [("grpo", 4), ("grpo", 8), ("dr-grpo", 4)])
def test_the_signal_is_the_squared_norm_of_the_expected_update_without_the_noise(method: str, size: int) -> None:
    generator = np.random.default_rng(1)
    rate, delta = 0.3, np.array([1.5, 0.0, -1.0])
    expected = expected_update(rate, size, method) ** 2 * (delta @ delta)
    signals, norms, differences = [], [], []
    for _ in range(1500):
        scores, rewards = draw_scores(generator, 20, rate, delta)
        gram = scores @ scores.T
        signals.append(signal_squared(gram, rewards, by_count(method, size), 4, generator))
        means = classes(gram, rewards)
        differences.append(means.delta_squared)
        probabilities = np.array([without_replacement(row, rewards.sum(), 20) for row in np.eye(size + 1)])
        norms.append(np.nansum(probabilities * np.nan_to_num(group_norm_squared(means, size))))
    error = np.std(signals) / len(signals) ** 0.5
    assert abs(np.mean(signals) - expected) < 4 * error < 0.35 * expected
    assert np.mean(norms) > 1.5 * expected, "the norm of a single group is mostly noise here"
    known = np.array(differences)[np.isfinite(differences)]
    assert abs(known.mean() - delta @ delta) < 4 * known.std() / len(known) ** 0.5


@pytest.mark.parametrize(("a", "b"), [(0.0, 0.0), (-0.5, 0.0), (0.3, -0.4)])
def test_the_trend_of_delta_is_found_in_noisy_even_negative_squares(a: float, b: float) -> None:
    generator = np.random.default_rng(3)
    p = generator.uniform(0.05, 0.95, size=4000)
    truth = 7.0 * (4 * p * (1 - p)) ** (2 * a) * np.exp(2 * b * (2 * p - 1))
    noisy = truth + generator.normal(size=len(p)) * 8
    assert (noisy < 0).mean() > 0.05
    levels = (p > 0.5).astype(int)  # a level of its own for some units, as for checkpoints, is told from a trend
    found = difficulty_trend(noisy * (1 + levels), p, levels)
    assert found == pytest.approx([a, b], abs=0.2)
    assert difficulty_trend(noisy, p, np.zeros(len(p))) == pytest.approx([a, b], abs=0.12)
    assert np.isnan(difficulty_trend(-np.ones(10), np.full(10, 0.5), np.zeros(10))).all()


def test_the_slope_within_prompts_tells_signal_from_noise() -> None:
    size, rewards = 8, np.array([1] * 10 + [0] * 14)
    x = np.log(sigma(np.arange(1, size), size))
    signal = np.outer(rewards - 0.4, rewards - 0.4)
    for gram, slope in ((signal, 1.0), (np.eye(24), 0.0)):
        squared = group_norm_squared(classes(gram, rewards), size)[1:size]
        levels = np.array([1.0, 50.0])[:, None]  # prompts of different size must not matter
        found = open_test_gradients.within_prompts_slope(x, levels * squared, np.ones((2, size - 1)))
        assert found == pytest.approx(slope, abs=1e-9)
    # Orthogonal scores of norm n = 1: every mixed group has the gradient norm n / sqrt(G).
    assert group_norm_squared(classes(np.eye(24), rewards), size)[1:size] == pytest.approx(np.full(7, 1 / size))


# --- intervals over prompts -------------------------------------------------------------------------------------------


def test_a_standard_error_counts_prompts_not_groups() -> None:
    generator = np.random.default_rng(0)
    level = generator.normal(size=40)
    once = mean_gap(level, np.zeros(40), np.arange(40))
    often = mean_gap(np.repeat(level, 25), np.zeros(1000), np.repeat(np.arange(40), 25))
    assert once.value[0] == pytest.approx(level.mean()) and often.value[0] == pytest.approx(level.mean())
    assert often.error[0] == pytest.approx(once.error[0]) == pytest.approx(level.std(ddof=1) / 40**0.5, rel=0.1)
    same = over_prompts(np.ones((3, 1)), np.arange(3), lambda sums: sums - 3)
    assert same.z == pytest.approx([0.0])


def test_shares_add_up_and_gaps_vanish_where_prediction_is_measurement() -> None:
    generator = np.random.default_rng(2)
    mass, bins, prompts = generator.random(60), generator.integers(5, size=60), np.arange(60) % 20
    found = shares(mass, bins)
    assert found[:5].sum() == pytest.approx(1) and found[5] == found[0] + found[4] and found[6] == found[2]
    assert np.abs(share_gaps(mass, 3 * mass, bins, prompts).value).max() < 1e-12
    assert np.abs(root_share_gaps(mass, 3 * mass, bins, prompts).value).max() < 1e-12
    tilted = share_gaps(mass, mass * (1 + (bins == 0)), bins, prompts)
    assert tilted.value[0] < 0 < tilted.error[0]
    uniform = root_shares(np.full(60, 4.0), bins)
    assert uniform[:5] == pytest.approx(np.bincount(bins, minlength=5) / 60)


# --- the training experiment ------------------------------------------------------------------------------------------

Run = Callable[..., list[Row]]


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with a preference, so that solve rates differ between prompts."""
    model, tokenizer = catalog.tiny_random()
    with torch.no_grad():
        model.model.norm.weight *= 4
    directory = tmp_path_factory.mktemp("sharp")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


@pytest.fixture(autouse=True)
def paid_by_first_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward that a random model earns now and then, by prompt: addition would pay it nothing."""
    plain = open_test.open_problems

    def with_reward(settings: dict[str, Any], seed: int) -> Any:
        problems, _ = plain(settings, seed)

        def reward(completions: Any, answer: Any, **_: Any) -> list[float]:
            text = [completion[0]["content"] for completion in completions]
            return [float(ord(t[:1] or "a") % 16 < 2 + int(gold) % 13) for t, gold in zip(text, answer, strict=True)]

        return problems, reward

    monkeypatch.setattr(open_test, "open_problems", with_reward)
    monkeypatch.setattr(open_test_gradients, "open_problems", with_reward)


def call(function: Any, settings: dict[str, Any], path: Path, seed: int = 0) -> list[Row]:
    torch.manual_seed(seed)
    model = OpenTestSettings if function is open_test.open_test else OpenTestGradientsSettings
    return function(model(**settings), seed, JobContext(path))


def value(rows: list[Row], metric: str, step: int | None = None) -> float:
    (found,) = [row["value"] for row in rows if row["metric"] == metric and row.get("step") == step]
    return found


def frame(rows: list[Row], experiment: str, **columns: Any) -> pd.DataFrame:
    table = pd.DataFrame(rows).assign(experiment=experiment, seed=0, settings="", **columns)
    return table if "step" in table else table.assign(step=np.nan)


def test_prompts_spread_over_the_ranges_and_belong_to_the_seed() -> None:
    settings = OpenTestSettings(**{**SMALL, "prompts": 12, "highs": [3, 99]})
    problems, _ = open_test.open_problems(settings, 0)
    pairs = list(zip(problems["a"], problems["b"], strict=True))
    assert len(set(pairs)) == 12
    assert all(max(pair) <= 3 for pair in pairs[:6]) and max(max(pair) for pair in pairs[6:]) > 20
    assert problems["prompt"] != open_test.open_problems(settings, 1)[0]["prompt"]


def test_the_training_run_is_compared_through_its_own_log(sharp: str, tmp_path: Path) -> None:
    rows = call(open_test.open_test, {**SMALL, "model": sharp}, tmp_path / "run")
    log = list(read_group_log(tmp_path / "run" / "groups.jsonl"))
    silent = [len(set(group["rewards"])) == 1 for group in log]
    assert value(rows, "run_training_groups") == len(log) == 8
    assert value(rows, "run_training_silent") == pytest.approx(np.mean(silent))
    halves = [np.mean(silent[:4]), np.mean(silent[4:])]
    assert [value(rows, "training_silent", step) for step in (1, 3)] == pytest.approx(halves)
    for name, step in (("fresh", 0), ("fresh", 4), ("training", 1), ("run_fresh", None), ("run_training", None)):
        gap = value(rows, f"{name}_silent", step) - value(rows, f"{name}_silent_predicted", step)
        assert value(rows, f"{name}_silent_gap", step) == pytest.approx(gap)
        branches = [value(rows, f"{name}_{branch}", step) for branch in ("all_right", "all_wrong")]
        assert sum(branches) == pytest.approx(value(rows, f"{name}_silent", step))
    assert 0 < value(rows, "run_training_silent") < 1 and 0 < value(rows, "solve_rate", 0) < 1
    assert value(rows, "run_fresh_groups") == 3 * 6 * 2
    bins = [value(rows, f"run_fresh_mass/grpo/{i}") for i in range(5)]
    assert sum(bins) == pytest.approx(1)
    assert value(rows, "run_fresh_mass/grpo/extreme") == pytest.approx(bins[0] + bins[4])
    assert open_figures.open_silent(frame(rows, "open-test", group_size=4)) is not None
    again = call(open_test.open_test, {**SMALL, "model": sharp}, tmp_path / "again")
    assert again == rows
    other = call(open_test.open_test, {**SMALL, "model": sharp}, tmp_path / "other", seed=1)
    assert value(other, "solve_rate", 0) != value(rows, "solve_rate", 0)


def test_looking_at_checkpoints_does_not_change_the_training(sharp: str, tmp_path: Path) -> None:
    for name, more in (("one", {}), ("two", {"eval_every": 4, "reference_samples": 48})):
        call(open_test.open_test, {**SMALL, "model": sharp, **more}, tmp_path / name)
    logs = [list(read_group_log(tmp_path / name / "groups.jsonl")) for name in ("one", "two")]
    assert logs[0] == logs[1]


def group_entries(problems: Any, sizes: list[tuple[int, int]], size: int, step: int = 1) -> list[dict[str, Any]]:
    return [
        {"prompt": problems["prompt"][i], "rewards": [1.0] * k + [0.0] * (size - k), "step": step} for i, k in sizes
    ]


def test_groups_that_are_no_independent_draws_are_found_out() -> None:
    """Copies of one completion make every group silent: the gap must stand out; honest groups must not."""
    size, count = 8, 24
    problems, _ = open_test.open_problems(OpenTestSettings(**{**SMALL, "prompts": count}), 0)
    generator = np.random.default_rng(5)
    rates = generator.uniform(0.05, 0.95, size=count)
    looks = [
        open_test.checkpoint(step, (generator.random((count, 64)) < rates[:, None]).astype(int), 64, size)
        for step in (0, 8)
    ]
    prompts = np.tile(np.arange(count), 10)
    honest = [(int(i), int(generator.binomial(size, rates[i]))) for i in prompts]
    copied = [(int(i), size * int(generator.random() < rates[i])) for i in prompts]
    for groups, stands_out in ((honest, False), (copied, True)):
        _, compared = open_test.training_groups(group_entries(problems, groups, size), problems, looks, size)
        rows = open_test._comparison("training", compared, size)
        assert (abs(value(rows, "run_training_silent_z")) > 4) == stands_out
        if not stands_out:
            assert abs(value(rows, "run_training_silent_gap")) < 0.06
            assert abs(value(rows, "run_training_mass_gap/grpo/extreme")) < 0.05
            assert value(rows, "run_training_one_rate_gap") > 0.1, "the control: one solve rate for all"
            assert abs(value(rows, "run_training_mass_uniform_gap/grpo/extreme")) > 0.05


def test_predictions_are_interpolated_between_checkpoints() -> None:
    size = 2
    problems, _ = open_test.open_problems(OpenTestSettings(**{**SMALL, "prompts": 2}), 0)
    never, always = np.zeros((2, 8), dtype=int), np.ones((2, 8), dtype=int)
    looks = [open_test.checkpoint(step, right, 8, size) for step, right in ((0, never), (4, always))]
    log = [entry for step in range(4) for entry in group_entries(problems, [(step % 2, 1)], size, step + 1)]
    steps, groups = open_test.training_groups(log, problems, looks, size)
    assert steps.tolist() == [0, 1, 2, 3]
    assert groups.predicted["rate"] == pytest.approx([0, 0.25, 0.5, 0.75])
    assert groups.predicted["all_right"] == pytest.approx([0, 0.25, 0.5, 0.75])
    assert groups.predicted["silent"] == pytest.approx(np.ones(4)) and groups.bins.tolist() == [0, 1, 2, 3]


def test_binning_and_prediction_use_different_completions() -> None:
    right = np.array([[1] * 4 + [0] * 4 + [1, 0, 0, 0]])
    look = open_test.checkpoint(0, right, 8, 2)
    assert (look.binning[0], look.reference[0], look.half) == (4, 0, 4)
    assert look.fresh.tolist() == [[1, 0]] and look.rates[0] == 0.5
    groups = open_test.fresh_groups(look, 2)
    assert groups.bins.tolist() == [4, 4] and groups.predicted["grpo"].tolist() == [0.0, 0.0]
    assert groups.predicted["silent"] == pytest.approx(np.full(2, 12 / 28)), "no bins: all eight completions predict"


# --- the gradient experiment ------------------------------------------------------------------------------------------


def test_gradients_are_measured_at_checkpoints_of_a_real_run(sharp: str, tmp_path: Path) -> None:
    rows = call(open_test_gradients.open_test_gradients, {**GRADIENTS, "model": sharp}, tmp_path / "run")
    assert {row["step"] for row in rows if row["metric"].startswith("rate/")} == {0, 2, 4}
    assert 0 < value(rows, "sketch_error", 0) < 1
    for kind, method, size in itertools.product(("expected", "single"), ("grpo", "dr-grpo"), (2, 4)):
        names = [f"run_{kind}_share/{method}/{size}/{i}" for i in range(5)]
        found = [row["value"] for row in rows if row["metric"] in names]
        assert len(found) in (0, 5) and sum(found) == pytest.approx(len(found) / 5)
    assert value(rows, "run_units") == 9
    table = frame(rows, "open-test-gradients")
    units = open_figures.prompt_table(table)
    assert len(units) == 9 and {"rate", "norm_squared"} <= set(units)
    drawn = [figure(table) for figure in open_figures.FIGURES.values()]
    assert sum(figure is not None for figure in drawn) >= 2
    assert all(figure(table.iloc[:0]) is None for figure in open_figures.FIGURES.values())


def test_the_measured_mean_score_vanishes_and_an_unfit_score_is_seen(sharp: str, tmp_path: Path) -> None:
    """E[s] = 0 only if scores are taken at the policy that was sampled from."""
    from grpo_replications.replications.sigma_identity.score_sketch import ScoreSketch
    from grpo_replications.shared.models.sampling import sample_completions

    model, tokenizer = catalog.load(sharp)
    (found,) = sample_completions(
        model, tokenizer, ["What"], 1500, max_new_tokens=2, generator=torch.Generator().manual_seed(0)
    )
    ratios = []
    for temperature in (1.0, 3.0):
        gram = open_test_gradients._gram(ScoreSketch(model, 16), model, found, found.draws, temperature, 256)
        ratios.append(open_test_gradients._off_diagonal(gram) / np.diag(gram).mean())
    assert abs(ratios[0]) < 0.004 < ratios[1]


def test_the_summary_finds_a_flat_delta_flat_and_counts_what_it_used() -> None:
    """Units of a Bernoulli-logit policy: Delta = 1 for every prompt, every closed form holds."""
    generator = np.random.default_rng(0)
    units = []
    for prompt in range(150):
        rate = generator.uniform(0.08, 0.92)
        rewards = (generator.random(32) < rate).astype(int)
        score = rewards - rate
        counts = generator.binomial(32, rate, size=3)
        units.append(open_test_gradients.Unit(prompt, 0, np.outer(score, score), rewards, *map(int, counts), 32))
    found = {row["metric"]: row["value"] for row in open_test_gradients._summary(units, [8], 0)}
    assert found["delta_exponent"] == pytest.approx(0, abs=1e-6) and found["delta_tilt"] == pytest.approx(0, abs=1e-6)
    assert found["norm_exponent/8"] == pytest.approx(1, abs=1e-6)
    assert found["norm_error_signal/8"] == pytest.approx(0, abs=1e-6)
    for method in ("grpo", "dr-grpo"):
        gap, error = (found[f"expected_{part}/{method}/8/extreme"] for part in ("gap", "gap_error"))
        assert abs(gap) < 4 * error < 0.15
    shape = {m: found[f"expected_share/{m}/8/extreme"] for m in ("grpo", "dr-grpo")}
    assert shape["grpo"] > shape["dr-grpo"]
    steep = [
        open_test_gradients.Unit(
            u.prompt, 0, u.gram / (u.rate * (1 - u.rate)), u.rewards, u.binning, u.first, u.second, 32
        )
        for u in units
    ]
    tilted = {row["metric"]: row["value"] for row in open_test_gradients._summary(steep, [8], 0)}
    assert tilted["delta_exponent"] == pytest.approx(-0.5, abs=1e-6)
    assert tilted["expected_gap/grpo/8/extreme"] > found["expected_gap/grpo/8/extreme"] + 0.02


def some_units(
    generator: np.random.Generator, prompts: int, noise_right: float, noise_wrong: float
) -> list[open_test_gradients.Unit]:
    """Units of a policy whose right and wrong scores scatter differently around class means Delta apart."""
    units = []
    for prompt in range(prompts):
        rate, n, dimension = generator.uniform(0.2, 0.8), 64, 12
        rewards = (generator.random(n) < rate).astype(int)
        noise = np.where(rewards == 1, noise_right, noise_wrong)[:, None] * generator.normal(size=(n, dimension))
        scores = (rewards - rate)[:, None] * np.eye(dimension)[0] + noise
        counts = generator.binomial(32, rate, size=3)
        units.append(open_test_gradients.Unit(prompt, 0, scores @ scores.T, rewards, *map(int, counts), 32))
    return units


def test_the_formula_predicts_groups_that_it_has_not_seen_and_equal_noise_does_not() -> None:
    units = some_units(np.random.default_rng(3), 150, 0.3, 0.9)
    found = {row["metric"]: row["value"] for row in open_test_gradients._summary(units, [8], 0)}
    assert found["norm_error_formula/8"] < 0.03 < 0.1 < found["norm_error_both/8"]
    assert found["spread_ratio"] == pytest.approx(1 / 9, rel=0.1)
    for k in (1, 4, 7):
        assert found[f"norm_formula/8/{k}"] == pytest.approx(found[f"norm_held_out/8/{k}"], rel=0.1)
    lonely = [replace(unit, rewards=np.eye(64, dtype=int)[0]) for unit in units[:3]]
    assert not [row for row in open_test_gradients._summary(lonely, [8], 0) if "formula" in row["metric"]]


def test_a_tilt_between_prompts_is_no_tilt_within_them() -> None:
    generator = np.random.default_rng(4)
    prompts, steps = np.repeat(np.arange(40), 3), np.tile(np.arange(3), 40)
    level = generator.uniform(-1, 1, 40)
    rates = 1 / (1 + np.exp(-(2 * level[prompts] + 0.5 * steps + 0.3 * generator.normal(size=120) - 0.5)))
    delta = np.exp(-2 * level[prompts] + 0.4 * steps)  # of the prompt and the step, whatever the rate
    both = np.stack([steps, prompts], axis=1)
    assert difficulty_trend(delta, rates, steps)[1] < -0.5
    assert difficulty_trend(delta, rates, both) == pytest.approx([0, 0], abs=1e-6)
    tilted = delta * np.exp(2 * -0.7 * (2 * rates - 1))
    assert difficulty_trend(tilted, rates, both)[1] == pytest.approx(-0.7, abs=1e-6)
