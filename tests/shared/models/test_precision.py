"""Models that compute in float64 throughout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.precision import in_float64, with_exact_rotary


def test_rotary_positions_do_not_matter_in_float64() -> None:
    ids = torch.randint(2, 98, (1, 20), generator=torch.Generator().manual_seed(0))
    exact = with_exact_rotary(in_float64(catalog.load("tiny-random", dtype="float64")[0]))
    norms_only = in_float64(catalog.load("tiny-random", dtype="float64")[0])

    def shift(model: Any) -> float:
        positions = torch.arange(20).unsqueeze(0)
        with torch.no_grad():
            near, far = (model(input_ids=ids, position_ids=positions + by).logits for by in (0, 137))
        return float((near - far).abs().max())

    assert shift(exact) < 1e-14 < 1e-11 < shift(norms_only)


def test_the_exact_model_is_the_same_function_of_the_same_parameters() -> None:
    ids = torch.randint(2, 98, (2, 9), generator=torch.Generator().manual_seed(0))
    plain = catalog.load("tiny-random", dtype="float64")[0]
    exact = with_exact_rotary(in_float64(catalog.load("tiny-random", dtype="float64")[0]))
    with torch.no_grad():
        difference = float((plain(input_ids=ids).logits - exact(input_ids=ids).logits).abs().max())
    assert 0 < difference < 1e-6
    assert list(dict(exact.named_parameters())) == list(dict(plain.named_parameters()))


def test_frequencies_that_change_with_length_are_refused() -> None:
    class ScaledRotaryEmbedding(nn.Module):
        rope_type = "dynamic"

    with pytest.raises(ValueError, match="dynamic"):
        with_exact_rotary(nn.ModuleDict({"rotary": ScaledRotaryEmbedding()}))
