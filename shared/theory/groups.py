"""Group mathematics: mean, standard deviation, silent groups and the advantages of GRPO, Dr. GRPO and RLOO.

Shapes: rewards (..., G), the G completions of a group on the last axis; leading axes are groups. A flat batch with
adjacent rows is `rewards.view(-1, G)`. Torch tensors give torch tensors of the same device and dtype, numpy arrays
give numpy arrays; integers and booleans give float64. Everything is computed in float64 and rounded once, at the end.

A group is *silent* if its largest reward equals its smallest: a zero-variance group (TRL: `frac_reward_zero_std`). Its
standard deviation and advantages are then exactly zero. Computed naively they are not: `[0.35] * 8` has a float32
standard deviation of 3e-8, and an optimizer that normalizes its step, such as Adam, turns such remains into full steps.

NaN or infinite rewards, a group of no completion and a `ddof` other than 0 or 1 raise ValueError.

What follows from the solve rate and the group size alone is in `shared.theory.closed_forms` and can be imported from
here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_replications.shared.theory.arrays import Array, for_arrays
from grpo_replications.shared.theory.closed_forms import (
    attenuation,
    difficulty_weight,
    expected_update,
    fidelity,
    gradient_mass_shares,
    group_size_law,
    sigma,
    silent_fraction,
    silent_fraction_without_replacement,
    silent_rate,
    silent_rate_branches,
    smallest_group_size,
)

__all__ = [
    "attenuation",
    "difficulty_weight",
    "dr_grpo_advantages",
    "expected_update",
    "fidelity",
    "gradient_mass_shares",
    "group_mean",
    "group_size_law",
    "group_std",
    "grpo_advantages",
    "is_silent",
    "rloo_advantages",
    "sigma",
    "silent_fraction",
    "silent_fraction_without_replacement",
    "silent_rate",
    "silent_rate_branches",
    "smallest_group_size",
]

Rewards = Array


def _checked(rewards: Tensor, _: str) -> Tensor:
    """Rewards as float64, or ValueError if they are no groups of finite numbers."""
    if rewards.ndim == 0 or rewards.shape[-1] == 0:
        raise ValueError(f"rewards must have shape (..., G) with G >= 1, got {tuple(rewards.shape)}")
    if not torch.isfinite(rewards).all():
        raise ValueError("rewards must be finite: NaN or infinity found")
    return rewards.to(torch.float64)


def _silent(rewards: Tensor) -> Tensor:
    return rewards.amax(dim=-1) == rewards.amin(dim=-1)


def _mean(rewards: Tensor) -> Tensor:
    # A sum of equal numbers, divided by their count, need not give the number back.
    return torch.where(_silent(rewards), rewards[..., 0], rewards.mean(dim=-1))


def _std(rewards: Tensor, ddof: int) -> Tensor:
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 (population) or 1 (sample), got {ddof!r}")
    silent = _silent(rewards)
    deviation = rewards - _mean(rewards).unsqueeze(-1)
    scale = deviation.abs().amax(dim=-1)  # squares of deviations as small as 1e-200 would vanish without it
    scale = torch.where(silent, 1.0, scale)
    squares = (deviation / scale.unsqueeze(-1)).square().sum(dim=-1)
    return torch.where(silent, 0.0, scale * (squares / max(rewards.shape[-1] - ddof, 1)).sqrt())


@for_arrays(_checked)
def group_mean(rewards: Tensor) -> Tensor:
    """Mean reward of each group: rewards (..., G) to (...)."""
    return _mean(rewards)


@for_arrays(_checked)
def group_std(rewards: Tensor, ddof: int = 1) -> Tensor:
    """Standard deviation of each group, (..., G) to (...): `ddof` 1 sample, 0 population; exactly 0 if silent.

    A group of one completion is silent, so its deviation is 0 for either `ddof`.
    """
    return _std(rewards, ddof)


@for_arrays(_checked)
def is_silent(rewards: Tensor) -> Tensor:
    """Whether all rewards of a group are equal, max == min exactly: (..., G) to bool (...). G = 1 is always silent."""
    return _silent(rewards)


@for_arrays(_checked)
def grpo_advantages(rewards: Tensor, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """GRPO: a_i = (r_i - mean) / (std + eps), (..., G) to (..., G); exactly 0 in silent groups.

    Shao et al., arXiv:2402.03300, section 4.1.2. The defaults are those of TRL; the paper writes eps = 0.
    """
    if eps < 0:
        raise ValueError(f"eps must not be negative, got {eps}")
    divisor = torch.where(_silent(rewards), 1.0, _std(rewards, ddof) + eps)
    return (rewards - _mean(rewards).unsqueeze(-1)) / divisor.unsqueeze(-1)


@for_arrays(_checked)
def dr_grpo_advantages(rewards: Tensor) -> Tensor:
    """Dr. GRPO: a_i = r_i - mean, (..., G) to (..., G); exactly 0 in silent groups. Liu et al., arXiv:2503.20783."""
    return rewards - _mean(rewards).unsqueeze(-1)


@for_arrays(_checked)
def rloo_advantages(rewards: Tensor) -> Tensor:
    """RLOO: a_i = r_i - mean of the other rewards = G / (G - 1) (r_i - mean), (..., G) to (..., G); 0 if silent.

    Ahmadian et al., arXiv:2402.14740, equation 8. A group of one has no others: its advantage is 0.
    """
    size = rewards.shape[-1]
    return (rewards - _mean(rewards).unsqueeze(-1)) * (size / max(size - 1, 1))
