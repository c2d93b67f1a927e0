"""Sketched scores: exact where nothing is projected, unbiased where something is, and the model left as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grpo_replications.replications.sigma_identity.score_sketch import ScoreSketch, exact_gram
from grpo_replications.shared.models import catalog

PROMPT = [5, 9, 3, 7]
COMPLETIONS = [[4, 8, 0], [11, 2, 6, 13, 0], [7], [4, 8, 12]]


@pytest.fixture(scope="module")
def model() -> Any:
    return catalog.tiny_random()[0]


def score(model: Any, completion: list[int], temperature: float = 1.0) -> tuple[list[Tensor], float]:
    """Gradient of log pi of one completion with respect to every linear layer, by plain autograd, one row at a time.

    The output embedding is tied to the input's, so its layer gets a copy of its own.
    """
    head = model.lm_head.weight.detach().clone().requires_grad_(True)
    hidden = model.model(torch.tensor([[*PROMPT, *completion]])).last_hidden_state[0]
    logits = hidden @ head.T / temperature
    logps = logits[len(PROMPT) - 1 : -1].log_softmax(dim=-1)
    total = logps[range(len(completion)), completion].sum()
    layers = [module.weight for module in model.model.modules() if isinstance(module, nn.Linear)]
    return list(torch.autograd.grad(total, [*layers, head])), float(total.detach())


def plain_gram(model: Any, temperature: float = 1.0) -> Tensor:
    flat = [torch.cat([g.flatten() for g in score(model, c, temperature)[0]]) for c in COMPLETIONS]
    return torch.stack(flat) @ torch.stack(flat).T


def gram(model: Any, **options: Any) -> Tensor:
    sketches, _ = ScoreSketch(model, **options)(model, PROMPT, COMPLETIONS, batch_size=3)
    return sketches @ sketches.T


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_without_projection_the_sketch_is_the_score(model: Any, temperature: float) -> None:
    whole = ScoreSketch(model, rank=None)
    sketches, logps = whole(model, PROMPT, COMPLETIONS, temperature, batch_size=2)
    assert sketches.shape == (4, whole.size)
    for row, logp, completion in zip(sketches, logps, COMPLETIONS, strict=True):
        gradients, total = score(model, completion, temperature)
        assert float(logp) == pytest.approx(total, abs=1e-5)
        torch.testing.assert_close(row, torch.cat([g.flatten() for g in gradients]), rtol=1e-4, atol=1e-5)


def test_exact_inner_products_need_no_sketch(model: Any) -> None:
    for temperature in (1.0, 0.6):
        found = exact_gram(model, PROMPT, COMPLETIONS, temperature).float()
        torch.testing.assert_close(found, plain_gram(model, temperature), rtol=1e-4, atol=1e-4)


def test_inner_products_of_sketches_are_unbiased_and_their_error_falls_with_the_rank(model: Any) -> None:
    exact = plain_gram(model)
    size = exact.diag().mean()
    errors = {}
    for rank in (4, 16):
        drawn = torch.stack([gram(model, rank=rank, seed=seed) for seed in range(60)])
        bias = (drawn.mean(dim=0) - exact) / size
        spread = drawn.std(dim=0) / size
        assert (bias.abs() < 4 * spread / 60**0.5 + 1e-6).all()
        errors[rank] = float(spread.mean())
    assert errors[16] < errors[4] / 1.7
    assert not torch.equal(gram(model, rank=4, seed=0), gram(model, rank=4, seed=1))
    torch.testing.assert_close(gram(model, rank=4, seed=0), gram(model, rank=4, seed=0))


def test_a_sketch_is_linear_in_what_it_sketches(model: Any) -> None:
    """The sketch of a group's gradient is that combination of the sketches of its scores."""
    sketch = ScoreSketch(model, rank=6, seed=3)
    sketches, _ = sketch(model, PROMPT, COMPLETIONS)
    weights = torch.tensor([0.5, -0.25, 0.5, -0.75])
    gradients = [score(model, completion)[0] for completion in COMPLETIONS]
    combined = [sum(w * g[i] for w, g in zip(weights, gradients)) for i in range(len(gradients[0]))]
    parts = [
        (sketch._outputs[g.size(0)] @ g @ sketch._inputs[g.size(1)].T).flatten() if g.size(1) > 6 else None
        for g in combined
    ]
    torch.testing.assert_close(weights @ sketches, torch.cat(parts), rtol=1e-4, atol=1e-5)


def test_padding_and_batching_do_not_matter(model: Any) -> None:
    sketch = ScoreSketch(model, rank=8)
    together, logps = sketch(model, PROMPT, COMPLETIONS, batch_size=4)
    for i, completion in enumerate(COMPLETIONS):
        alone, logp = sketch(model, PROMPT, [completion])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-4, atol=1e-5)
        assert float(logp) == pytest.approx(float(logps[i]), abs=1e-5)


def test_the_mean_score_of_the_policy_vanishes(model: Any) -> None:
    """E[grad log pi] = 0 over all completions of one token: sampler and score fit together."""
    sketch = ScoreSketch(model, rank=None)
    vocabulary = model.config.vocab_size
    sketches, logps = sketch(model, PROMPT, [[token] for token in range(vocabulary)], batch_size=vocabulary)
    assert float(logps.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    mean = logps.exp() @ sketches
    assert float(mean.norm()) < 1e-4 * float(sketches.norm(dim=1).mean())


def test_the_model_is_left_as_it_was(model: Any) -> None:
    parameters = list(model.parameters())
    parameters[0].requires_grad_(False)
    model.train()
    try:
        with torch.no_grad():
            ScoreSketch(model, precision="bfloat16")(model, PROMPT, COMPLETIONS)
        assert model.training
        assert [p.requires_grad for p in parameters] == [False] + [True] * (len(parameters) - 1)
        assert all(p.grad is None for p in parameters)
        assert not any(module._forward_hooks for module in model.modules())
        with pytest.raises(IndexError):
            ScoreSketch(model)(model, PROMPT, [[10_000]])
        assert parameters[1].requires_grad and not any(module._forward_hooks for module in model.modules())
    finally:
        parameters[0].requires_grad_(True)
        model.eval()


def test_bfloat16_is_close_to_float32(model: Any) -> None:
    exact = exact_gram(model, PROMPT, COMPLETIONS)
    rough = exact_gram(model, PROMPT, COMPLETIONS, precision="bfloat16")
    assert not torch.equal(exact, rough)
    assert float((exact - rough).norm() / exact.norm()) < 0.05


def test_what_has_no_score_is_refused(model: Any) -> None:
    for completions in ([], [[]], [[3], []]):
        with pytest.raises(ValueError, match="at least one"):
            ScoreSketch(model)(model, PROMPT, completions)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ScoreSketch(model, rank=0)
    assert np.isfinite(gram(model).numpy()).all()
