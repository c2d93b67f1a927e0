"""Sampling by the tree of prefixes: the distribution of the model's own, independent draws, and nothing disturbed."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, chisquare

from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.sampling import Sample, end_tokens, sample_completions, sample_rows

PROMPTS = ["ab", "xyz", "ba"]


@pytest.fixture(scope="module")
def tiny() -> Any:
    """A tiny model so sure of its next token that a handful of completions carries most of the probability."""
    model, tokenizer = catalog.tiny_random()
    with torch.no_grad():
        model.model.norm.weight *= 9
    return model, tokenizer


def sample(tiny: Any, prompts: Any = PROMPTS, count: int = 50, seed: int = 0, **options: Any) -> list[Sample]:
    options = {"max_new_tokens": 3, "generator": torch.Generator().manual_seed(seed), **options}
    return sample_completions(*tiny, prompts, count, **options)


def exact_distribution(tiny: Any, prompt: str, tokens: int, temperature: float = 1.0) -> dict[tuple[int, ...], float]:
    """Probability of every completion of at most `tokens` tokens, by evaluating every prefix by itself."""
    model, tokenizer = tiny
    ends = end_tokens(model, tokenizer)
    done: dict[tuple[int, ...], float] = {}
    prefixes = {(): 1.0}
    start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    for length in range(1, tokens + 1):
        following = {}
        for prefix, probability in prefixes.items():
            with torch.no_grad():
                logits = model(torch.tensor([[*start, *prefix]])).logits[0, -1].double()
            for token, share in enumerate((logits / temperature).softmax(dim=-1).tolist()):
                whole = (*prefix, token)
                target = done if token in ends or length == tokens else following
                target[whole] = probability * share
        # Prefixes that could not matter to any test are left out, or there would be a million of them.
        prefixes = {prefix: p for prefix, p in following.items() if p > 1e-4}
    return done


@pytest.mark.parametrize("options", [{}, {"temperature": 1.3}, {"max_rows": 2}])
def test_completions_have_the_model_s_distribution(tiny: Any, options: dict[str, Any]) -> None:
    exact = exact_distribution(tiny, "xyz", 2, options.get("temperature", 1.0))
    count = 4000
    (found,) = sample(tiny, ["xyz"], count, max_new_tokens=2, **options)
    drawn = Counter(found.completions[i] for i in found.draws)
    common = [whole for whole, p in exact.items() if p * count >= 8]
    assert len(common) > 10
    observed = [drawn[whole] for whole in common]
    expected = [exact[whole] * count for whole in common]
    observed.append(count - sum(observed))
    expected.append(count - sum(expected))
    assert chisquare(observed, expected).pvalue > 1e-3
    wrong = np.array(expected) ** 0.8  # the test has the power to see a policy that is a little flatter
    assert chisquare(observed, wrong * count / wrong.sum()).pvalue < 1e-6


def test_rows_of_prompts_of_different_lengths_have_the_model_s_distribution(tiny: Any) -> None:
    """The shorter prompts are padded; each row's completion is one of its own prompt."""
    model, tokenizer = tiny
    prompts = {text: tokenizer(text)["input_ids"] for text in ("xyzxyz", "ab")}
    rows = ["xyzxyz", *["ab", "ab", "xyzxyz"] * 700]
    drawn = sample_rows(
        model,
        [prompts[text] for text in rows],
        end_tokens(model, tokenizer),
        max_new_tokens=2,
        generator=torch.Generator().manual_seed(1),
    )
    for text in prompts:
        own = [ids for row, ids in zip(rows, drawn, strict=True) if row == text]
        expected = {whole: p * len(own) for whole, p in exact_distribution(tiny, text, 2).items() if p * len(own) >= 8}
        observed = [Counter(own)[whole] for whole in expected]
        rest = len(own) - sum(observed), len(own) - sum(expected.values())
        assert len(observed) >= 3
        assert chisquare([*observed, rest[0]], [*expected.values(), rest[1]]).pvalue > 1e-3


def test_completions_of_a_prompt_are_independent(tiny: Any) -> None:
    """Counts of a token among eight draws are binomial; draws that shared a random number would be spread out more."""
    exact = exact_distribution(tiny, "ab", 1)
    (first, _), share = max(exact.items(), key=lambda item: min(item[1], 1 - item[1])), None
    share = exact[first]
    (found,) = sample(tiny, ["ab"], 8 * 1500, max_new_tokens=1)
    hits = np.array([found.completions[i] == first for i in found.draws]).reshape(1500, 8)
    observed = np.bincount(hits.sum(axis=1), minlength=9).astype(float)
    expected = 1500 * binom.pmf(np.arange(9), 8, share)
    usual = expected >= 5
    observed = [*observed[usual], observed[~usual].sum()]
    expected = [*expected[usual], expected[~usual].sum()]
    assert chisquare(observed, expected).pvalue > 1e-3


def test_log_probabilities_are_those_of_the_model_and_of_its_generate(tiny: Any) -> None:
    model, _ = tiny
    for found in sample(tiny, count=40, max_new_tokens=4):
        start = list(found.prompt_ids)
        for completion, logp in zip(found.completions, found.logps, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([[*start, *completion]])).logits[0, len(start) - 1 : -1]
            alone = logits.log_softmax(dim=-1)[range(len(completion)), list(completion)].sum()
            assert logp == pytest.approx(float(alone), abs=1e-4)
    (found,) = sample(tiny, ["xyz"], 400, max_new_tokens=2)
    logps = dict(zip(found.completions, found.logps, strict=True))
    ids = torch.tensor([found.prompt_ids] * 200)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=2,
            min_new_tokens=2,
            output_logits=True,
            return_dict_in_generate=True,
        )
    scores = model.compute_transition_scores(out.sequences, out.logits, normalize_logits=True).sum(dim=1)
    shared = 0
    for row, score in zip(out.sequences[:, ids.size(1) :].tolist(), scores.tolist(), strict=True):
        if tuple(row) in logps:
            shared += 1
            assert logps[tuple(row)] == pytest.approx(score, abs=1e-4)
    assert shared > 100


def test_completions_end_at_the_first_end_of_sequence_or_at_the_limit(tiny: Any) -> None:
    model, tokenizer = tiny
    ends = end_tokens(model, tokenizer)
    assert ends == [tokenizer.eos_token_id] == [tokenizer.pad_token_id]
    hot = sample(tiny, ["ab"], 3000, temperature=50.0, max_new_tokens=3)[0]  # nearly uniform: every token occurs
    lengths = Counter(len(completion) for completion in hot.completions)
    assert set(lengths) == {1, 2, 3}
    for completion in hot.completions:
        assert not any(token in ends for token in completion[:-1])
        assert completion[-1] in ends or len(completion) == 3
    assert (hot.draws >= 0).all() and set(hot.draws) == set(range(len(hot.completions)))
    assert len(set(hot.completions)) == len(hot.completions) == len(hot.logps)


def test_the_order_of_prompts_and_the_batching_change_nothing_but_the_draws(tiny: Any) -> None:
    forward, backward = sample(tiny, count=3), sample(tiny, PROMPTS[::-1], count=3)
    assert [found.prompt_ids for found in forward] == [found.prompt_ids for found in backward[::-1]]
    assert all(len(found.draws) == 3 for found in forward)
    chat = [[{"role": "user", "content": "hi"}]]
    (found,) = sample(tiny, chat, count=2)
    assert found.texts(tiny[1]) == tiny[1].batch_decode([list(c) for c in found.completions], skip_special_tokens=True)
    assert tiny[1].decode(list(found.prompt_ids)) == "u:hi\na:"


def test_the_generator_decides_and_the_global_one_is_left_alone(tiny: Any) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    one, again, other = sample(tiny), sample(tiny), sample(tiny, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)

    def drawn(samples: list[Sample]) -> list[tuple[int, ...]]:
        return [found.completions[i] for found in samples for i in found.draws]

    assert drawn(one) == drawn(again) != drawn(other)


def test_mode_and_gradients_of_the_model_stay_as_they_were(tiny: Any) -> None:
    model, _ = tiny
    model.train()
    sample(tiny, precision="bfloat16")
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "at least 1: 0, 3, 256"),
        ({"max_new_tokens": 0}, "at least 1: 50, 0, 256"),
        ({"max_rows": 0}, "at least 1: 50, 3, 0"),
        ({"temperature": 0.0}, "temperature above 0"),
        ({"precision": "float16"}, "not 'float16'"),
    ],
)
def test_what_cannot_be_sampled_is_refused(tiny: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(tiny, **options)


def test_shared_prefixes_are_evaluated_once(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny
    rows = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *a, **k: rows.append(k["input_ids"].shape) or forward(*a, **k))
    found = sample(tiny, ["ab", "ba"], 200)
    prefixes = [{c[:n] for c in one.completions if len(c) > n} for one in found for n in range(3)]
    assert sum(shape[0] for shape in rows) == sum(map(len, prefixes))
    assert rows[0] == (2, 2) and all(shape[1] == 1 for shape in rows[1:])
    assert sum(map(len, prefixes)) < 0.7 * sum(len(one.completions[i]) for one in found for i in one.draws)
    assert list(itertools.accumulate(shape[0] for shape in rows))[-1] <= 2 * 200 * 3
