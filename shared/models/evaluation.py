"""Accuracy of a model on problems with a verifiable answer, with the interval that belongs to it.

The interval covers the choice of problems, for one trained model; it says nothing about other training seeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from shared.grading.rewards import RewardFunction
from shared.models.sampling import autocast, prompt_text
from shared.statistics.estimates import Estimate, mean_interval, wilson_interval


@dataclass(frozen=True)
class Evaluation:
    """`correct` (problems, samples) bool, `estimate` accuracy with its interval, `completions` as text, same order."""

    correct: np.ndarray
    estimate: Estimate
    completions: list[list[str]]


def greedy_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Dataset,
    reward: RewardFunction | Sequence[RewardFunction],
    max_new_tokens: int,
    batch_size: int = 32,
    precision: str = "float32",
) -> Evaluation:
    """Accuracy of greedy decoding: per-problem correctness and Wilson's interval over the problems.

    `problems`: column `prompt` (chat messages or text) and what the reward reads. `reward`: a TRL reward function, or
    several of which the first says what is correct (1.0). `precision="bfloat16"` decodes under autocast. The model's
    train/eval mode, the tokenizer's padding side and torch's global generators are left as they were.
    """
    return evaluate_benchmark(
        model, tokenizer, problems, reward, max_new_tokens=max_new_tokens, batch_size=batch_size, precision=precision
    )


def evaluate_benchmark(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Dataset,
    reward: RewardFunction | Sequence[RewardFunction],
    max_new_tokens: int,
    batch_size: int = 32,
    samples: int = 1,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    precision: str = "float32",
) -> Evaluation:
    """Accuracy over `samples` completions of each problem; temperature 0 is greedy decoding.

    One sample: Wilson's interval. Several: mean over problems of each problem's share of right completions, with the
    bootstrap interval over problems (its samples are not independent of each other). `seed` decides the sampling.
    Time grows with problems x samples x the longest completion of each batch; prompts of like length share a batch.
    """
    if samples < 1 or (samples > 1 and temperature == 0):
        raise ValueError(f"{samples} samples at temperature {temperature}: several need a temperature above 0")
    if len(problems) == 0:
        raise ValueError("no problem to evaluate on")
    prompts = [prompt_text(tokenizer, prompt) for prompt in problems["prompt"]]
    rows = [i for i in range(len(prompts)) for _ in range(samples)]
    rows.sort(key=lambda i: len(prompts[i]))
    config = _generation_config(model, tokenizer, max_new_tokens, temperature, top_p)
    texts: list[list[str]] = [[] for _ in prompts]
    with _undisturbed(model, tokenizer, seed), autocast(model, precision):
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            for row, text in zip(batch, _complete(model, tokenizer, [prompts[i] for i in batch], config)):
                texts[row].append(text)
    correct = _grade(reward, problems, texts)
    if samples == 1:
        return Evaluation(correct, wilson_interval(int(correct.sum()), len(prompts)), texts)
    return Evaluation(correct, mean_interval(correct.mean(axis=1)), texts)


def benchmark_accuracies(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    benchmarks: Mapping[str, Dataset],
    reward: RewardFunction | Sequence[RewardFunction],
    settings: Mapping[str, Any],
    seed: int,
) -> dict[str, float]:
    """Accuracy on each benchmark, sampled as `settings` say.

    Read from `settings`: `eval_max_new_tokens`, `eval_batch_size`, `eval_samples`, `eval_temperature`, `precision`.
    Other arguments: see `evaluate_benchmark`.
    """
    return {
        name: float(
            evaluate_benchmark(
                model,
                tokenizer,
                problems,
                reward,
                max_new_tokens=settings["eval_max_new_tokens"],
                batch_size=settings["eval_batch_size"],
                samples=settings["eval_samples"],
                temperature=settings["eval_temperature"],
                seed=seed,
                precision=settings["precision"],
            ).estimate.value
        )
        for name, problems in benchmarks.items()
    }


def _grade(reward: Any, problems: Dataset, texts: list[list[str]]) -> np.ndarray:
    """Correctness (problems, samples): the first reward function pays 1.0. It sees what TRL would show it."""
    check = reward if callable(reward) else reward[0]
    samples = len(texts[0])
    columns = {
        name: [value for value in problems[name] for _ in range(samples)]
        for name in problems.column_names
        if name != "prompt"
    }
    prompts = [prompt for prompt in problems["prompt"] for _ in range(samples)]
    chat = not isinstance(prompts[0], str)
    flat = [text for row in texts for text in row]
    completions = [[{"role": "assistant", "content": text}] for text in flat] if chat else flat
    paid = check(prompts=prompts, completions=completions, **columns)
    return np.array([value == 1.0 for value in paid], dtype=bool).reshape(len(texts), samples)


def _generation_config(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int, temperature: float, top_p: float
) -> GenerationConfig:
    own = model.generation_config
    end = own.eos_token_id if own is not None and own.eos_token_id is not None else tokenizer.eos_token_id
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {}
    return GenerationConfig(
        max_new_tokens=max_new_tokens, do_sample=temperature > 0, eos_token_id=end, pad_token_id=pad, **sampling
    )


def _complete(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], config: GenerationConfig
) -> list[str]:
    # A chat template has written its special tokens already.
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
    with torch.no_grad():
        ids = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], generation_config=config
        )
    return tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


@contextlib.contextmanager
def _undisturbed(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> Iterator[None]:
    """Evaluation mode, left padding and a generator of its own; everything restored afterwards, also on an error."""
    training, side = model.training, tokenizer.padding_side
    owner = (
        model.get_base_model() if hasattr(model, "get_base_model") else model
    )  # an adapter's generate() reads it there
    own_config = owner.generation_config
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        model.eval()
        tokenizer.padding_side = "left"
        # generate() fills what a given configuration leaves open from the model's own, such as a repetition penalty.
        owner.generation_config = GenerationConfig()
        try:
            yield
        finally:
            owner.generation_config = own_config
            tokenizer.padding_side = side
            model.train(training)
