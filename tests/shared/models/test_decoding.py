"""What makes a decoding step cheap leaves its numbers what they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from grpo_replications.shared.models.decoding import ROOM, laid_out, roomy_cache, select_rows


def test_a_cache_with_room_holds_what_transformers_own_holds() -> None:
    """Over more tokens than there is room for, rows chosen, doubled, and split into two parts that go on apart."""
    generator = torch.Generator().manual_seed(0)

    def states(rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.randn(rows, 2, tokens, 3, generator=generator) for _ in range(2))

    plain, roomy = DynamicCache(), roomy_cache()
    chosen = torch.tensor([2, 0, 2, 1])
    for tokens in (5, *[1] * ROOM, 4):
        added = states(3, tokens)
        for one, other in zip(plain.update(*added, 0), roomy.update(*added, 0), strict=True):
            assert torch.equal(one, other)
    assert roomy.get_seq_length() == plain.get_seq_length() == ROOM + 9
    expected = [kept[chosen] for kept in (plain.layers[0].keys, plain.layers[0].values)]
    roomy = select_rows(roomy, chosen)
    halves = [select_rows(roomy, slice(0, 2)), select_rows(roomy, slice(2, 4))]
    for rows, half in ((slice(0, 2), halves[0]), (slice(2, 4), halves[1])):
        added = states(2, 1)
        for before, new, found in zip(expected, added, half.update(*added, 0), strict=True):
            assert torch.equal(torch.cat([before[rows], new], dim=2), found)


def test_weights_laid_out_multiply_as_before_and_are_put_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 40), nn.Linear(40, 8, bias=False), nn.Linear(8, 24, bias=False))
    few, many = torch.randn(3, 5, 8), torch.randn(100, 8)
    with torch.no_grad():
        expected = model(few), model(many)
        with pytest.raises(RuntimeError), laid_out(model):
            assert ["forward" in module.__dict__ for module in model] == [True, False, True]
            for one, other in zip(expected, (model(few), model(many)), strict=True):
                torch.testing.assert_close(one, other)
            raise RuntimeError
    assert not any("forward" in module.__dict__ for module in model)
