"""Many small transformers at once: each is the model of transformers it stands for, and none knows of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.many_transformers import (
    MASKED,
    Architecture,
    ManyTransformers,
    SeedStreams,
    draw_index,
)
from grpo_replications.shared.models.precision import in_float64, with_exact_rotary
from grpo_replications.shared.models.token_tree import TokenTree

VOCABULARY, S, B, G, P, T = 11, 3, 2, 4, 5, 6


def alike(seed: int, **config: Any) -> Any:
    """A random model of transformers, sharp enough that its logits differ clearly."""
    model = catalog.random_llama(VOCABULARY, 32, 2, seed, **config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    return model.eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def reference_logits(model: Any, prompts: Tensor, completions: Tensor) -> Tensor:
    """(B, G, T, V) by the model of transformers, one sequence at a time."""
    rows = torch.cat([prompts.unsqueeze(1).expand(-1, completions.size(1), -1), completions], dim=2)
    logits = model(input_ids=rows.flatten(0, 1), use_cache=False).logits
    return logits[:, prompts.size(1) - 1 : -1].unflatten(0, completions.shape[:2])


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_logits_are_those_of_transformers(tied: bool) -> None:
    originals = [
        with_exact_rotary(in_float64(alike(seed, tie_word_embeddings=tied, rope_theta=500.0).double()))
        for seed in range(S)
    ]
    many = ManyTransformers.of(originals)
    assert many.architecture.tied == tied
    prompts, completions = tokens(S, B, P), tokens(S, B, G, T)
    logits = many.completion_logits(prompts, completions)
    for s, model in enumerate(originals):
        torch.testing.assert_close(
            logits[s], reference_logits(model, prompts[s], completions[s]), rtol=1e-11, atol=1e-11
        )


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_a_model_taken_out_of_a_stack_has_the_same_logits_and_goes_back_in(tied: bool) -> None:
    bias = [0.0] * VOCABULARY
    bias[:3] = [MASKED, MASKED, 0.7]
    many = ManyTransformers.initial(
        Architecture(VOCABULARY, width=32, inner=48, heads=2, tied=tied), range(S), bias=bias
    )
    prompts, completions = tokens(S, B, P), tokens(S, B, G, T)
    logits = many.completion_logits(prompts, completions)
    taken = [many.export(s) for s in range(S)]
    for s, model in enumerate(taken):
        torch.testing.assert_close(logits[s], reference_logits(model, prompts[s], completions[s]), rtol=1e-5, atol=1e-5)
    again = ManyTransformers.of(taken)
    assert again.architecture == many.architecture
    assert all(torch.equal(again.parameters[name], value) for name, value in many.parameters.items())


@torch.no_grad()
def test_the_cache_changes_nothing() -> None:
    many = ManyTransformers.of([alike(s) for s in range(S)]).to(torch.float64)
    ids = tokens(S, B, P + T)
    whole, _ = many.logits(ids)
    first, cache = many.logits(ids[..., :P])
    rest, _ = many.logits(ids[..., P:], cache=cache)
    torch.testing.assert_close(torch.cat([first, rest], dim=2), whole, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_samples_follow_the_policy_and_the_uniforms_alone() -> None:
    many = ManyTransformers.of([alike(s) for s in range(S)]).to(torch.float64)
    prompts = tokens(S, 1, P)
    uniforms = SeedStreams(range(S), 1).uniforms(1, 2000, 2)
    drawn = many.sample(prompts, uniforms, temperature=0.8)
    logits = many.completion_logits(prompts, drawn[:, :, :50]) / 0.8
    probability = logits[:, 0, 0, 0].softmax(dim=-1)  # of the first token
    frequency = torch.nn.functional.one_hot(drawn[:, 0, :, 0], VOCABULARY).double().mean(dim=1)
    assert float((probability - frequency).abs().max()) < 4 * (0.25 / 2000) ** 0.5
    # The inverse distribution function, token by token, from the logits of the sequences as drawn.
    edges = logits.softmax(dim=-1).cumsum(dim=-1)
    expected = (edges < uniforms[:, :, :50].unsqueeze(-1)).sum(dim=-1)
    assert torch.equal(expected, drawn[:, :, :50])


def test_a_token_of_no_probability_is_never_drawn() -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.5, 0.0]], dtype=torch.float64)
    uniforms = torch.tensor([0.0, 0.25, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw_index(probabilities.expand(4, -1), uniforms).tolist() == [1, 1, 2, 2]


@torch.no_grad()
def test_a_tree_computes_every_path_as_a_sequence_of_its_own() -> None:
    many = ManyTransformers.of([alike(s) for s in range(S)]).to(torch.float64)
    prompt, paths = [1, 4], [[2, 2, 2], [2, 2, 3], [2, 3, 2], [3, 5, 2]]
    tree = TokenTree.of(prompt, paths)
    assert len(tree.ids) == 2 + 5  # the prompt; 2, 3, 22, 23, 35
    prompts = torch.tensor(prompt).expand(S, 1, -1)
    completions = torch.tensor(paths).expand(S, 1, -1, -1)
    expected = many.completion_logits(prompts, completions)[:, 0]
    torch.testing.assert_close(tree.path_logits(many), expected, rtol=1e-12, atol=1e-12)
    logps = expected.log_softmax(dim=-1).gather(3, completions[:, 0].unsqueeze(3)).squeeze(3).sum(dim=2)
    torch.testing.assert_close(tree.path_probabilities(many), logps.exp(), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_model_depends_on_its_own_seed_alone() -> None:
    architecture = Architecture(VOCABULARY)
    together = ManyTransformers.initial(architecture, [5, 3, 9])
    alone = ManyTransformers.initial(architecture, [3])
    assert all(torch.equal(value[0], together.parameters[name][1]) for name, value in alone.parameters.items())
    assert not torch.equal(together.parameters["head"][0], together.parameters["head"][1])
    assert torch.equal(SeedStreams([5, 3, 9], 1).uniforms(4)[1], SeedStreams([3], 1).uniforms(4)[0])
    assert not torch.equal(SeedStreams([3], 1).uniforms(4), SeedStreams([3], 2).uniforms(4))
    ids = tokens(3, B, P)
    torch.testing.assert_close(together.logits(ids)[0][1], alone.logits(ids[1:2])[0][0], rtol=1e-6, atol=1e-7)


def test_a_head_of_zeros_starts_uniform() -> None:
    many = ManyTransformers.initial(Architecture(4), range(2), head_std=0.0, bias=[MASKED, MASKED, 0, 0])
    tree = TokenTree.of([1], [[a, b] for a in (2, 3) for b in (2, 3)])
    assert torch.equal(tree.path_probabilities(many), torch.full((2, 4), 0.25, dtype=torch.float64))


def test_models_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ReplicationError, match="architectures"):
        ManyTransformers.of([alike(0), alike(1, tie_word_embeddings=True)])
    with pytest.raises(ReplicationError, match="key heads"):
        ManyTransformers.of([alike(0, num_key_value_heads=2)])
