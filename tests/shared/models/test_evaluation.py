"""Accuracy of a tiny random model: the numbers, and what an evaluation must leave untouched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from shared.models.evaluation import evaluate_benchmark, greedy_accuracy
from shared.statistics.estimates import wilson_interval

WORDS = ["<end>", "<unknown>", *"abcdefgh"]


@pytest.fixture(scope="module")
def policy() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.padding_side = "right"
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            initializer_range=0.5,
            eos_token_id=0,
            pad_token_id=0,
        )
        model = LlamaForCausalLM(config)
    return model, fast


def problems() -> Dataset:
    prompts = ["a b c", "d", "e f g h a b", "h h", "c a"]
    return Dataset.from_list([{"prompt": prompt, "answer": WORDS[2 + i]} for i, prompt in enumerate(prompts)])


def contains(completions: list[Any], answer: list[str], prompts: list[Any], **_: Any) -> list[float]:
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(gold in text.split()) for text, gold in zip(texts, answer)]


def test_batches_and_padding_do_not_change_greedy_answers(policy: Any) -> None:
    model, tokenizer = policy
    one = greedy_accuracy(model, tokenizer, problems(), contains, max_new_tokens=6, batch_size=1)
    many = greedy_accuracy(model, tokenizer, problems(), [contains], max_new_tokens=6, batch_size=5)
    assert one.completions == many.completions
    assert len({row[0] for row in one.completions}) > 1
    assert (one.correct == many.correct).all()
    assert one.correct.shape == (5, 1)
    assert one.estimate == wilson_interval(int(one.correct.sum()), 5)


def test_completions_are_those_of_the_model_alone(policy: Any) -> None:
    model, tokenizer = policy
    ids = tokenizer("e f g h a b", return_tensors="pt")["input_ids"]
    for _ in range(6):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
        if ids[0, -1] == 0:
            break
    expected = tokenizer.decode(ids[0, 6:], skip_special_tokens=True)
    assert greedy_accuracy(model, tokenizer, problems(), contains, max_new_tokens=6).completions[2] == [expected]


def test_nothing_global_changes(policy: Any) -> None:
    model, tokenizer = policy
    torch.manual_seed(5)
    state, numpy_state, config = torch.get_rng_state(), np.random.get_state()[1].copy(), model.generation_config
    for training in (True, False):
        model.train(training)
        evaluate_benchmark(model, tokenizer, problems(), contains, max_new_tokens=4, samples=3, temperature=1.0)
        assert model.training is training
    assert torch.equal(state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()
    assert tokenizer.padding_side == "right"
    assert model.generation_config is config

    def broken(**_: Any) -> list[float]:
        raise RuntimeError("reward failed")

    model.train()
    with pytest.raises(RuntimeError):
        greedy_accuracy(model, tokenizer, problems(), broken, max_new_tokens=2)
    assert model.training


def test_sampling_follows_its_seed(policy: Any) -> None:
    model, tokenizer = policy
    settings: dict[str, Any] = {"max_new_tokens": 5, "samples": 4, "temperature": 1.0}
    first, again = (evaluate_benchmark(model, tokenizer, problems(), contains, seed=1, **settings) for _ in range(2))
    other = evaluate_benchmark(model, tokenizer, problems(), contains, seed=2, **settings)
    assert first.completions == again.completions != other.completions
    assert first.correct.shape == (5, 4)
    assert first.estimate.value == pytest.approx(first.correct.mean())
    assert first.estimate.n == 5


def test_conversations_reach_the_reward_as_messages(policy: Any) -> None:
    model, tokenizer = policy
    seen: list[Any] = []

    def watch(completions: list[Any], prompts: list[Any], **columns: Any) -> list[float]:
        seen.append((completions[0][0]["role"], prompts[0], sorted(columns)))
        return [1.0] * len(completions)

    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "a b"}], "answer": "a"}])
    result = greedy_accuracy(model, tokenizer, rows, watch, max_new_tokens=2, precision="bfloat16")
    assert seen == [("assistant", [{"role": "user", "content": "a b"}], ["answer"])]
    assert result.estimate.value == 1.0


def test_wrong_requests(policy: Any) -> None:
    model, tokenizer = policy
    with pytest.raises(ValueError, match="temperature"):
        evaluate_benchmark(model, tokenizer, problems(), contains, max_new_tokens=2, samples=2)
    with pytest.raises(ValueError, match="precision"):
        greedy_accuracy(model, tokenizer, problems(), contains, max_new_tokens=2, precision="float8")
    with pytest.raises(ValueError, match="no problem"):
        greedy_accuracy(model, tokenizer, problems().select([]), contains, max_new_tokens=2)


def test_an_adapter_is_evaluated_and_left_as_it_was(policy: Any) -> None:
    from copy import deepcopy

    from peft import LoraConfig, get_peft_model

    model, tokenizer = policy
    plain = greedy_accuracy(model, tokenizer, problems(), contains, max_new_tokens=6)
    adapted = get_peft_model(deepcopy(model), LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    adapted.get_base_model().generation_config.repetition_penalty = 5.0  # which must not leak into the answers
    config = adapted.get_base_model().generation_config
    result = greedy_accuracy(adapted, tokenizer, problems(), contains, max_new_tokens=6)
    assert result.completions == plain.completions
    assert adapted.get_base_model().generation_config is config
    assert "generation_config" not in vars(adapted)
