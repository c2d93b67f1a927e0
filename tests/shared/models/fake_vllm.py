"""A module with the part of vLLM's offline interface that is used here, which generates by transformers on the CPU.

Names, defaults and limits of `LLM`, `SamplingParams` and the outputs are those that vLLM documents; an argument that is
not among them fails here as it would there.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer  # noqa: F401  (TRL looks for vLLM when it is imported: before there is this one)

made: list[LLM] = []


@dataclass
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    detokenize: bool = True

    def __post_init__(self) -> None:
        assert self.n == 1 and (self.temperature == 0 or 0.01 <= self.temperature <= 2) and 0 < self.top_p <= 1
        assert self.top_k in (0, -1) and not self.min_p and self.repetition_penalty == 1.0 and not self.min_tokens
        assert not self.presence_penalty and not self.frequency_penalty, "nothing here that changes the distribution"


class LLM:
    def __init__(
        self,
        model: str,
        *,
        tokenizer: str | None = None,
        dtype: str = "auto",
        seed: int = 0,
        generation_config: str = "auto",
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.9,
    ) -> None:
        assert generation_config == "vllm" and 0 < gpu_memory_utilization <= 1
        self.directory, self.longest = Path(model), max_model_len
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.end = AutoTokenizer.from_pretrained(tokenizer or model).eos_token_id
        self.asked: list[SamplingParams] = []
        made.append(self)

    def generate(
        self,
        prompts: Sequence[dict[str, list[int]]],
        sampling_params: Sequence[SamplingParams],
        *,
        use_tqdm: bool = True,
    ) -> list[Any]:
        self.asked += sampling_params
        return [self._answer(*pair) for pair in zip(prompts, sampling_params, strict=True)]

    @torch.no_grad()
    def _answer(self, prompt: dict[str, list[int]], sampling: SamplingParams) -> Any:
        ids, ends = list(prompt["prompt_token_ids"]), {self.end, *(sampling.stop_token_ids or ())}
        start, generator = len(ids), torch.Generator().manual_seed(sampling.seed)
        assert start + sampling.max_tokens <= self.longest
        while len(ids) < start + sampling.max_tokens and not (len(ids) > start and ids[-1] in ends):
            logits = self.model(torch.tensor([ids])).logits[0, -1].float()
            if sampling.temperature == 0:
                ids.append(int(logits.argmax()))
            else:
                probabilities = (logits / sampling.temperature).softmax(-1)
                ids.append(int(torch.multinomial(probabilities, 1, generator=generator)))
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(ids[start:]))])


def install(monkeypatch: pytest.MonkeyPatch) -> list[LLM]:
    """Let `import vllm` find this module, where there seems to be a GPU; returns the engines as they are made."""
    from grpo_replications.shared.models import vllm_engine

    module = types.ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(vllm_engine, "has_gpu", lambda: True)
    monkeypatch.setattr(vllm_engine, "free_share", lambda: 0.5)
    made.clear()
    return made
