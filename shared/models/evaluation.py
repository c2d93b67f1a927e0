"""Accuracy of a model on problems with a verifiable answer, with the interval that belongs to it.

The interval covers the choice of problems, for one trained model; it says nothing about other training seeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainerState

from grpo_replications.shared.grading.rewards import RewardFunction
from grpo_replications.shared.models.divided import is_divided
from grpo_replications.shared.models.plain_sampling import plain_sampling
from grpo_replications.shared.models.sampling import autocast, end_tokens, prompt_ids, prompt_text
from grpo_replications.shared.models.settings import BenchmarkSettings
from grpo_replications.shared.statistics.estimates import Estimate, mean_interval, wilson_interval
from grpo_replications.shared.tasks.benchmarks import LoadedBenchmark

if TYPE_CHECKING:
    from grpo_replications.shared.models.vllm_engine import VllmEngine

SEEDS = 1_000_003  # apart are the seeds of two runs, of which each batch or request takes its own


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
    several of which the first says what is correct (1.0); it is called as in training (`call_reward`).
    `precision="bfloat16"` decodes under autocast. The model's train/eval mode and torch's global generators are left as
    they were. Prompts become tokens, and completions end, as in training with TRL.
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
    divided: bool = False,
    engine: VllmEngine | None = None,
) -> Evaluation:
    """Accuracy over `samples` completions of each problem (avg@k); temperature 0 is greedy decoding.

    One sample: Wilson's interval. Several: mean over problems of each problem's share of right completions, with the
    bootstrap interval over problems (its samples are not independent of each other). `seed` decides the sampling.
    `divided`: the processes that `accelerate launch` started each decode a part of the batches, and all get the whole;
    since a batch and its seed are the same whoever decodes it, so are the numbers, with any number of processes.
    `engine`: decodes in place of `model`, all problems at once, in the first process.
    Time grows with problems x samples x the longest completion of each batch; prompts of like length share a batch.
    """
    if samples < 1 or (samples > 1 and temperature == 0):
        raise ValueError(f"{samples} samples at temperature {temperature}: several need a temperature above 0")
    if len(problems) == 0:
        raise ValueError("no problem to evaluate on")
    prompts = [prompt_ids(tokenizer, prompt) for prompt in problems["prompt"]]
    lengths = [len(prompt_text(tokenizer, prompt)) for prompt in problems["prompt"]]
    rows = sorted(((i, k) for i in range(len(prompts)) for k in range(samples)), key=lambda row: lengths[row[0]])
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    place, processes, gather = _processes() if divided else (0, 1, list)
    own, completion_ids = [], []
    if engine is not None:
        own = rows if place == 0 else []
        seeds = [seed * SEEDS + i * samples + k for i, k in own]
        ends, limits = end_tokens(model, tokenizer), {"max_new_tokens": max_new_tokens, "temperature": temperature}
        completion_ids = engine.complete([prompts[i] for i, _ in own], seeds, ends, **limits, top_p=top_p)
    else:
        config = _generation_config(model, tokenizer, max_new_tokens, temperature, top_p)
        with _undisturbed(model), autocast(model, precision):
            for number in range(place, len(batches), processes):
                torch.manual_seed(seed * SEEDS + number)
                own += batches[number]
                completion_ids += _complete(model, [prompts[i] for i, _ in batches[number]], config)
    own_texts = tokenizer.batch_decode(completion_ids, skip_special_tokens=True) if own else []
    paid = _grade(reward, problems.select([i for i, _ in own]), completion_ids, own_texts)
    correct, texts = np.zeros((len(prompts), samples), bool), [[""] * samples for _ in prompts]
    for (i, k), right, text in gather(list(zip(own, paid, own_texts, strict=True))):
        correct[i, k], texts[i][k] = right, text
    if samples == 1:
        return Evaluation(correct, wilson_interval(int(correct.sum()), len(prompts)), texts)
    return Evaluation(correct, mean_interval(correct.mean(axis=1)), texts)


def _processes() -> tuple[int, int, Any]:
    """This process's place among those that were launched together, their number, and what gathers lists of all."""
    from accelerate import PartialState
    from accelerate.utils import gather_object

    state = PartialState()
    return state.process_index, state.num_processes, gather_object


def benchmark_estimates(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    benchmarks: Mapping[str, LoadedBenchmark],
    settings: BenchmarkSettings,
    precision: str,
    seed: int,
    scratch: Path | None = None,
) -> dict[str, Estimate]:
    """Accuracy on each loaded benchmark, sampled as `settings` say, with its interval over the problems.

    `scratch`: where vLLM gets the weights, if it decodes. Other arguments: see `evaluate_benchmark`; launched processes
    divide the work. Raises ReplicationError where vLLM is asked for and cannot be had.
    """
    with _engine(model, tokenizer, benchmarks, settings, precision, scratch) as engine:
        return {
            name: evaluate_benchmark(
                model,
                tokenizer,
                one.problems,
                one.reward,
                max_new_tokens=settings.eval_max_new_tokens,
                batch_size=settings.eval_batch_size,
                samples=settings.eval_samples,
                temperature=settings.eval_temperature,
                seed=seed,
                precision=precision,
                divided=True,
                engine=engine,
            ).estimate
            for name, one in benchmarks.items()
        }


def _engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    benchmarks: Mapping[str, LoadedBenchmark],
    settings: BenchmarkSettings,
    precision: str,
    scratch: Path | None,
) -> contextlib.AbstractContextManager[VllmEngine | None]:
    """What decodes all benchmarks in place of the model; None where the model itself does."""
    if settings.eval_engine != "vllm":
        return contextlib.nullcontext()
    from grpo_replications.shared.models.vllm_engine import check_engine, vllm_engine

    check_engine(settings, _processes()[1])
    prompts = (prompt for one in benchmarks.values() for prompt in one.problems["prompt"])
    longest = max(len(prompt_ids(tokenizer, prompt)) for prompt in prompts)
    return vllm_engine(model, tokenizer, precision, longest + settings.eval_max_new_tokens, scratch)


def call_reward(reward: RewardFunction, inputs: Mapping[str, Sequence[Any]]) -> list[float | None]:
    """The rewards of completions, called as TRL calls a reward function in training; it may be asynchronous.

    `inputs`: `prompts`, `completions`, `completion_ids` and the columns of the data set. Added to them is what TRL
    passes: a `trainer_state` (that of no step), `log_extra` and `log_metric`, which log nothing here.
    """
    trl = {"trainer_state": TrainerState(), "log_extra": lambda column, values: None}
    paid = reward(**{**inputs, **trl, "log_metric": lambda name, value: None})
    return list(_awaited(paid) if inspect.isawaitable(paid) else paid)


def _awaited(result: Any) -> Any:
    async def wait() -> Any:
        return await result

    with ThreadPoolExecutor(1) as pool:  # a thread of its own: the caller may be inside an event loop, as notebooks are
        return pool.submit(asyncio.run, wait()).result()


def _grade(reward: Any, problems: Dataset, completion_ids: list[list[int]], texts: list[str]) -> list[bool]:
    """Correctness of one completion of each row: the first reward function pays 1.0. It sees what TRL would show it."""
    if not texts:
        return []
    check = reward if callable(reward) else reward[0]
    columns = {
        name: list(problems[name])
        for name in problems.column_names
        if name not in ("prompt", "completion", "completion_ids")
    }
    prompts = list(problems["prompt"])
    chat = not isinstance(prompts[0], str)
    completions = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
    asked = {**columns, "prompts": prompts, "completions": completions, "completion_ids": completion_ids}
    return [value == 1.0 for value in call_reward(check, asked)]


def _generation_config(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int, temperature: float, top_p: float
) -> GenerationConfig:
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {}
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=temperature > 0,
        eos_token_id=end_tokens(model, tokenizer) or None,
        pad_token_id=_padding(tokenizer),
        **sampling,
    )


def _padding(tokenizer: PreTrainedTokenizerBase) -> int:
    """A token to fill up with; which one does not matter, for it is masked in prompts and cut off completions."""
    return next((token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0)


def _complete(model: PreTrainedModel, prompts: list[tuple[int, ...]], config: GenerationConfig) -> list[list[int]]:
    """Token ids of one completion of each prompt, up to its first end of sequence, that included."""
    width = max(map(len, prompts))
    filled = [[config.pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    with torch.no_grad():
        ids = model.generate(
            input_ids=torch.tensor(filled, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=config,
            synced_gpus=is_divided(model),  # a whole model waits for no other process, whatever trains beside it
        )
    ends = set(config.eos_token_id or ())
    completions = []
    for row in ids[:, width:].tolist():
        end = next((position + 1 for position, token in enumerate(row) if token in ends), len(row))
        completions.append(row[:end])
    return completions


@contextlib.contextmanager
def _undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, plain sampling and a generator to be seeded; all restored afterwards, also on an error."""
    training = model.training
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), plain_sampling(model):
        model.eval()
        try:
            yield
        finally:
            model.train(training)
