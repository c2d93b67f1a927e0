"""Accuracy of a tiny random model: the numbers, and what an evaluation must leave untouched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from grpo_replications.shared.models import evaluation
from grpo_replications.shared.models.evaluation import evaluate_benchmark, greedy_accuracy
from grpo_replications.shared.statistics.estimates import wilson_interval

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


def test_processes_that_divide_the_work_give_the_numbers_of_one(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and their seeds are the same whoever decodes them; more processes than batches are no harm."""
    model, tokenizer = policy
    settings: dict[str, Any] = {"max_new_tokens": 5, "samples": 3, "temperature": 1.0, "batch_size": 4, "divided": True}
    alone = evaluate_benchmark(model, tokenizer, problems(), contains, **settings)
    for processes in (2, 5):
        parts: list[Any] = []
        for place in range(processes):
            launched = (place, processes, parts.__iadd__)
            monkeypatch.setattr(evaluation, "_processes", lambda launched=launched: launched)
            together = evaluate_benchmark(model, tokenizer, problems(), contains, **settings)
        assert together.completions == alone.completions and together.estimate == alone.estimate
        assert (together.correct == alone.correct).all() and len(parts) == 15


def test_conversations_reach_the_reward_as_messages(policy: Any) -> None:
    model, tokenizer = policy
    seen: list[Any] = []

    def watch(completions: list[Any], prompts: list[Any], **columns: Any) -> list[float]:
        seen.append((completions[0][0]["role"], prompts[0], sorted(columns)))
        return [1.0] * len(completions)

    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "a b"}], "answer": "a"}])
    result = greedy_accuracy(model, tokenizer, rows, watch, max_new_tokens=2, precision="bfloat16")
    trl = ["completion_ids", "log_extra", "log_metric", "trainer_state"]
    assert seen == [("assistant", [{"role": "user", "content": "a b"}], ["answer", *trl])]
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


SHIPPED = {"min_p": 0.9, "suppress_tokens": [4], "no_repeat_ngram_size": 1, "num_return_sequences": 2, "num_beams": 2}


@pytest.mark.parametrize("shipped", [dict([item]) for item in SHIPPED.items()], ids=list(SHIPPED))
def test_settings_that_ship_with_a_model_do_not_change_an_evaluation(policy: Any, shipped: dict[str, Any]) -> None:
    from copy import deepcopy

    model, tokenizer = policy
    changed = deepcopy(model)
    for name, value in shipped.items():
        setattr(changed.generation_config, name, value)
    samples = {"samples": 4, "temperature": 1.0} if "num_beams" not in shipped else {}
    plain, own = (
        evaluate_benchmark(one, tokenizer, problems(), contains, max_new_tokens=6, **samples)
        for one in (model, changed)
    )
    assert own.completions == plain.completions


def test_a_completion_ends_at_the_end_of_the_tokenizer_and_of_the_model(policy: Any) -> None:
    from copy import deepcopy

    model, tokenizer = policy
    changed = deepcopy(model)
    seen: list[list[list[int]]] = []

    def ids(completion_ids: list[list[int]], **_: Any) -> list[float]:
        seen.append(completion_ids)
        return [0.0] * len(completion_ids)

    options: dict[str, Any] = {"max_new_tokens": 8, "samples": 16, "temperature": 2.0}
    for own in (5, [0, 5]):
        changed.generation_config.eos_token_id = own
        evaluate_benchmark(changed, tokenizer, problems(), ids, **options)
        last = {row[-1] for row in seen[-1] if len(row) < 8}
        assert last == {0, 5} and not any(token in (0, 5) for row in seen[-1] for token in row[:-1])
        assert all(len(row) <= 8 for row in seen[-1])


def test_a_tokenizer_without_padding(policy: Any) -> None:
    from copy import deepcopy

    model, tokenizer = policy
    bare = deepcopy(tokenizer)
    bare.pad_token = None
    plain, own = (greedy_accuracy(model, one, problems(), contains, max_new_tokens=6) for one in (tokenizer, bare))
    assert own.completions == plain.completions and bare.pad_token is None


def test_raw_text_gets_the_beginning_of_sequence_that_it_gets_in_training(policy: Any) -> None:
    from copy import deepcopy

    from tokenizers.processors import TemplateProcessing

    from grpo_replications.shared.models.sampling import prompt_ids

    model, tokenizer = policy
    begins = deepcopy(tokenizer)
    begins.backend_tokenizer.post_processor = TemplateProcessing(
        single="b $A", special_tokens=[("b", WORDS.index("b"))]
    )
    assert prompt_ids(begins, "a") == tuple(begins("a")["input_ids"]) == (WORDS.index("b"), WORDS.index("a"))
    assert prompt_ids(begins, [{"role": "user", "content": "a"}]) == (WORDS.index("a"),)
    with_begin, as_text = (
        greedy_accuracy(model, one, data, contains, max_new_tokens=6).completions
        for one, data in (
            (begins, problems()),
            (tokenizer, problems().map(lambda row: {"prompt": "b " + row["prompt"]})),
        )
    )
    assert with_begin == as_text


def test_a_reward_sees_and_may_do_what_it_does_in_training(policy: Any) -> None:
    model, tokenizer = policy

    async def later(
        completions: list[str], completion_ids: Any, trainer_state: Any, log_extra: Any, log_metric: Any, **_: Any
    ) -> list[float]:
        log_extra("length", [len(ids) for ids in completion_ids])
        log_metric("steps", trainer_state.global_step)
        return [
            float(tokenizer.decode(ids, skip_special_tokens=True) == text)
            for ids, text in zip(completion_ids, completions)
        ]

    def lazily(completions: list[str], **_: Any) -> Any:
        return map(float, (True for _ in completions))

    for reward in (later, lazily):
        assert greedy_accuracy(model, tokenizer, problems(), reward, max_new_tokens=6).estimate.value == 1.0

    async def inside_a_loop() -> float:
        return greedy_accuracy(model, tokenizer, problems(), later, max_new_tokens=6).estimate.value

    import asyncio

    assert asyncio.run(inside_a_loop()) == 1.0
