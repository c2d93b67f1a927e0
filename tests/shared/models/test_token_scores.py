"""Log-probabilities and entropies of tokens, and their gradients, against the definitions in float64."""

from __future__ import annotations

import pytest
import torch

from grpo_replications.shared.models import token_scores


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_scores_and_gradients_are_those_of_the_definitions(
    temperature: float, known: bool, entropy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_scores, "TILE_BYTES", 8 * 50 * 3)  # three tokens a tile, the last one shorter
    torch.manual_seed(0)
    hidden, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((8, 6), (50, 6)))
    labels, g, h = torch.randint(50, (8,)), torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    logp = (hidden @ weight.t() / temperature).log_softmax(dim=1)
    expected = logp.gather(1, labels.unsqueeze(1)).squeeze(1), -(logp.exp() * logp).sum(dim=1)
    logits = (hidden @ weight.t()).detach() if known else None
    found = token_scores.token_scores(hidden, weight, labels, temperature, logits)
    gradients = []
    for scores in (expected, found):
        total = (scores[0] * g).sum() + ((scores[1] * h).sum() if entropy else 0)
        gradients.append(torch.autograd.grad(total, [hidden, weight]))
    for one, other in zip([*expected, *gradients[0]], [*found, *gradients[1]], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
