"""Completions of given prompts by vLLM's offline engine, for benchmarks: `eval_engine = "vllm"`.

The same prompts (token ids), limits, ends and temperatures as with transformers, from the same weights, an adapter
added to them. What differs: vLLM holds all weights in the precision of the activations, its kernels round otherwise, so
that greedy completions may part where two tokens are nearly as likely; and samples are drawn by a seed of each request,
so that they do not depend on what is decoded beside them.

The policy waits in main memory while vLLM has its GPU. One process decodes, on one GPU.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models.settings import BenchmarkSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LEAST_TEMPERATURE, LARGEST_TEMPERATURE = 0.01, 2.0  # vLLM raises a lower one to the first and refuses a higher one
SHARE_OF_FREE = 0.9  # of the GPU's free memory that vLLM may take


def vllm_problem(asked: str, otherwise: str) -> str | None:
    """A sentence where this machine cannot do by vLLM what was `asked`; None where it can."""
    if importlib.util.find_spec("vllm") is None:
        return f"{asked}, but vLLM is not installed: pip install 'trl[vllm]' (a GPU is needed), or {otherwise}."
    if not has_gpu():
        return f"{asked}, but torch finds no GPU here: run it where there is one, or {otherwise}."
    return None


def check_engine(settings: BenchmarkSettings, processes: int = 1) -> None:
    """Raise ReplicationError where benchmarks are to be decoded by vLLM and this machine or these settings cannot."""
    if settings.eval_engine != "vllm":
        return
    asked, otherwise = 'eval_engine = "vllm"', 'set eval_engine = "transformers"'
    problem = vllm_problem(asked, otherwise)
    if problem:
        raise ReplicationError(problem)
    if processes > 1:
        raise ReplicationError(
            f"{asked} decodes in one process, and processes = {processes}: set processes to 1, or {otherwise}."
        )
    temperature = settings.eval_temperature
    if temperature and not LEAST_TEMPERATURE <= temperature <= LARGEST_TEMPERATURE:
        raise ReplicationError(
            f"{asked} samples at temperatures from {LEAST_TEMPERATURE:g} to {LARGEST_TEMPERATURE:g}, or "
            f"greedily at 0; eval_temperature = {temperature:g}."
        )


class VllmEngine:
    """An engine that holds the weights of one model."""

    def __init__(self, directory: Path, precision: str, max_tokens: int) -> None:
        from vllm import LLM

        self._llm: Any = LLM(
            model=str(directory),
            tokenizer=str(directory),
            dtype=precision,
            seed=0,  # requests have seeds of their own
            generation_config="vllm",  # nothing of the model's own generation settings
            max_model_len=max_tokens,
            gpu_memory_utilization=free_share(),
        )

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        ends: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float = 1.0,
    ) -> list[list[int]]:
        """Token ids of one completion of each prompt, up to the first of `ends`, that included; 0 decodes greedily."""
        from vllm import SamplingParams

        stated = {"n": 1, "temperature": temperature, "top_p": top_p, "top_k": -1, "min_p": 0.0}
        stated |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        stated |= {"max_tokens": max_new_tokens, "min_tokens": 0, "stop_token_ids": list(ends), "detokenize": False}
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        sampling = [SamplingParams(seed=seed, **stated) for seed in seeds]
        answers = self._llm.generate(asked, sampling_params=sampling, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

    def close(self) -> None:
        """Give the engine's memory back."""
        self._llm = None
        _free()


@contextmanager
def vllm_engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    precision: str,
    max_tokens: int,
    scratch: Path | None = None,
) -> Iterator[VllmEngine]:
    """An engine with the weights of `model`, which is on its device again afterwards, unchanged.

    `max_tokens`: of a prompt and its completion together, at most. The weights are written below `scratch` (None: where
    the system has its temporary files), 2 bytes a parameter in bfloat16 and 4 in float32, and removed at the end.
    """
    device = model.device
    with TemporaryDirectory(prefix="vllm-", dir=scratch) as work:
        write_plain(model, tokenizer, Path(work), precision)
        model.to("cpu")
        _free()
        engine = None
        try:
            engine = VllmEngine(Path(work), precision, max_tokens)
            yield engine
        finally:
            if engine is not None:
                engine.close()
            model.to(device)


@torch.no_grad()
def write_plain(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path, precision: str) -> None:
    """Write a model with its adapter, if it has one, added to its weights, and its tokenizer."""
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    dtype = getattr(torch, precision)
    weights = {name: value.to(dtype).cpu() for name, value in _plain_weights(plain).items()}
    plain.save_pretrained(directory, state_dict=weights, safe_serialization=True)
    tokenizer.save_pretrained(directory)


def _plain_weights(plain: Any) -> dict[str, Tensor]:
    """Weights by the names that the model has without an adapter."""
    weights = {
        name.replace(".base_layer.", "."): value for name, value in plain.state_dict().items() if ".lora_" not in name
    }
    for name, layer in plain.named_modules():
        if hasattr(layer, "get_delta_weight"):
            for adapter in layer.active_adapters:
                weights[f"{name}.weight"] = weights[f"{name}.weight"] + layer.get_delta_weight(adapter)
    return weights


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    return torch.cuda.is_available()


def free_share() -> float:
    """The share of the whole GPU that vLLM may take: most of what is free."""
    free, total = torch.cuda.mem_get_info()
    return round(SHARE_OF_FREE * free / total, 3)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
