"""The experiment `dynamic-sampling`: exact solve rates, expected counts, and what would make its check fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from grpo_replications.replications.sigma_identity import dynamic_figures, dynamic_sampling
from grpo_replications.replications.sigma_identity.dynamic_sampling import Counts, count_variances, expected_counts
from grpo_replications.replications.sigma_identity.settings import DynamicSamplingSettings
from grpo_replications.shared.harness.jobs import JobContext
from grpo_replications.synthetic.tree_task import LEFT, RIGHT, path_model

DEPTH = 3
SETTINGS = {
    "depth": 2,
    "steps": 6,
    "group_size": 4,
    "max_redraws": 1,
    "lr": 1e-3,
    "precision": "float32",
    "window": 3,
}


# --- the task ---------------------------------------------------------------------------------------------------------


def test_prompt_k_accepts_k_paths_and_the_reward_reads_the_column() -> None:
    data = dynamic_sampling.threshold_dataset(DEPTH)
    assert data["prompt"][:3] == ["<path> L L R", "<path> L R L", "<path> L R R"] and len(data) == 7
    reward = dynamic_sampling.threshold_reward(DEPTH)
    paths = [[LEFT if bit == "0" else RIGHT for bit in f"{leaf:03b}"] for leaf in range(8)]
    for k in data["right_leaves"]:
        right = reward(completion_ids=paths, right_leaves=[k] * 8)
        assert sum(right) == k and right == sorted(right, reverse=k % 2 == 1)


def test_solve_rates_are_the_probabilities_of_the_accepted_paths() -> None:
    model, tokenizer = path_model("random-small", seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2.0  # far from uniform
    rates = dynamic_sampling.solve_rates(model, DEPTH)
    for k, (prompt, rate) in enumerate(rates.items(), start=1):
        total = 0.0
        for leaf in range(2**DEPTH) if k % 2 else reversed(range(2**DEPTH)):
            ids = tokenizer(prompt)["input_ids"]
            probability = 1.0
            for bit in f"{leaf:03b}":
                token = RIGHT if bit == "1" else LEFT
                with torch.no_grad():
                    probability *= float(model(torch.tensor([ids])).logits[0, -1].double().softmax(dim=-1)[token])
                ids = [*ids, token]
            total += probability
            if leaf == (k - 1 if k % 2 else 2**DEPTH - k):
                break
        assert rate == pytest.approx(total, abs=1e-6)
    assert np.ptp(list(rates.values())) > 0.1


# --- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_expected_counts_are_the_truncated_geometric_ones(bound: int) -> None:
    rates = np.array([0.0, 0.01, 0.3, 0.5, 0.95, 1.0])
    silent = rates**4 + (1 - rates) ** 4
    expected = expected_counts(rates, 4, bound)
    inner = silent[1:-1]
    draws = 2 * (bound + 1) + ((1 - inner ** (bound + 1)) / (1 - inner)).sum()
    assert expected == pytest.approx((silent.sum(), draws, (silent ** (bound + 1)).sum()), rel=1e-12)


def simulated(rates: np.ndarray, size: int, bound: int, new_prompts: bool, runs: int) -> np.ndarray:
    """Counts of `runs` simulated steps, (runs, 3), drawing every completion."""
    generator = np.random.default_rng(0)
    prompts = np.tile(rates, (runs, 1))
    right = generator.binomial(size, prompts)
    silent = (right == 0) | (right == size)
    first, draws = silent.sum(axis=1), np.full(runs, len(rates))
    for _ in range(bound):
        draws = draws + silent.sum(axis=1)
        chosen = generator.choice(rates, size=prompts.shape) if new_prompts else prompts
        right = generator.binomial(size, chosen)
        silent &= (right == 0) | (right == size)
    return np.stack([first, draws, silent.sum(axis=1)], axis=1)


@pytest.mark.parametrize("new_prompts", [False, True])
def test_means_and_variances_agree_with_a_simulation(new_prompts: bool) -> None:
    rates = np.array([0.1, 0.3, 0.6, 0.9])
    runs = 20_000
    counts = simulated(rates, 4, 3, new_prompts, runs)
    expected = np.array(expected_counts(rates, 4, 3, new_prompts))
    variances = np.array(count_variances(rates, 4, 3, new_prompts))
    assert np.all(np.abs(counts.mean(axis=0) - expected) < 4.5 * np.sqrt(variances / runs))
    assert counts.var(axis=0) == pytest.approx(variances, rel=0.05)


def compare(measured: np.ndarray, rates: np.ndarray, new_prompts: bool = False) -> dict[str, float]:
    steps = [Counts(*row) for row in measured.astype(float)]
    rows = dynamic_sampling._comparison(steps, [rates] * len(steps), 4, 3, new_prompts)
    return {row["metric"]: row["value"] for row in rows}


def test_the_check_passes_right_counts_and_fails_wrong_ones() -> None:
    rates = np.linspace(1 / 16, 15 / 16, 15)
    right = simulated(rates, 4, 3, False, 40)
    values = compare(right, rates)
    assert abs(values["first_silent_z"]) < 4.5 and abs(values["draws_z"]) < 4.5
    assert abs(values["first_silent_z_double"]) > 5 and values["first_silent_error_one_less"] < 0
    assert abs(compare(simulated(rates, 8, 3, False, 40), rates)["first_silent_z"]) > 5, "groups of another size"
    assert abs(compare(simulated(rates, 4, 2, False, 200), rates)["draws_z"]) > 4.5, "one redraw too few"
    new = compare(simulated(rates, 4, 3, True, 40), rates, new_prompts=True)
    assert abs(new["draws_z"]) < 4.5 and new["draws_error_same_prompt"] < 0


# --- with the trainer -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return {
        redraw: dynamic_sampling.dynamic_sampling(
            DynamicSamplingSettings(**{**SETTINGS, "redraw": redraw}),
            0,
            JobContext(tmp_path_factory.mktemp(redraw) / "job"),
        )
        for redraw in ("samples", "prompts")
    }


@pytest.mark.parametrize("redraw", ["samples", "prompts"])
def test_a_run_reports_counts_that_agree_with_their_predictions(runs: dict[str, Any], redraw: str) -> None:
    values = {row["metric"]: row["value"] for row in runs[redraw] if "step" not in row}
    assert values["accounting_error"] == 0
    assert abs(values["first_silent_z"]) < 4.5 and abs(values["draws_z"]) < 4.5
    assert values["draws"] == values["samples_ratio"] == pytest.approx(1 + values["first_silent"])
    assert ("draws_error_same_prompt" in values) == (redraw == "prompts")
    assert 0.3 < values["mean_solve_rate"] < 0.9
    curve = [row for row in runs[redraw] if row["metric"] == "solve_rate"]
    assert [row["step"] for row in curve] == [0, 3] and curve[0]["value"] == pytest.approx(0.5, abs=0.1)


def test_the_figure_is_drawn_from_measurements_and_left_out_without_them(runs: dict[str, Any], tmp_path: Path) -> None:
    rows = [
        {"experiment": "dynamic-sampling", "seed": 0, "group_size": 4, "max_redraws": 1, "redraw": redraw, **row}
        for redraw, own in runs.items()
        for row in own
    ]
    frame = pd.DataFrame(rows)
    figure = dynamic_figures.dynamic_sampling(frame)
    assert figure is not None and len(figure.axes) == 3
    figure.savefig(tmp_path / "figure.png")
    assert dynamic_figures.dynamic_sampling(frame.iloc[:0]) is None
