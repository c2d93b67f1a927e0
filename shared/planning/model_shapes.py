"""Sizes of language models, from which their memory, their arithmetic and their cache follow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_replications.shared.errors import ReplicationError


@dataclass(frozen=True)
class ModelShape:
    """A decoder of the Llama family (`gated`), or of GPT-2's (not gated, learned positions)."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    tied: bool = False  # input and output embeddings are one matrix
    attention_bias: bool = False
    gated: bool = True
    positions: int = 0

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the linear maps of one layer."""
        query, key = self.heads * self.head_width, self.kv_heads * self.head_width
        attention = [(self.width, query), (self.width, key), (self.width, key), (query, self.width)]
        return attention + [(self.width, self.inner)] * (2 if self.gated else 1) + [(self.inner, self.width)]

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2) + self.positions * self.width
        query, key = self.heads * self.head_width, self.kv_heads * self.head_width
        biases = (query + 2 * key) if self.attention_bias else 0
        if not self.gated:
            biases = query + 2 * key + 2 * self.width + self.inner + 2 * self.width  # of every map and of both norms
        layer = sum(a * b for a, b in self.matrices) + biases + 2 * self.width
        return embeddings + self.layers * layer + self.width * (1 if self.gated else 2)

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of a low-rank adapter on all linear maps of the layers."""
        return self.layers * rank * sum(a + b for a, b in self.matrices)

    def cache_bytes(self, bytes_per_number: int) -> int:
        """Bytes of keys and values that one token of context takes."""
        return 2 * self.layers * self.kv_heads * self.head_width * bytes_per_number

    def forward_flops(self, context: float) -> float:
        """Floating-point operations to evaluate one token with `context` tokens before it."""
        return 2.0 * self.parameters + 4.0 * self.layers * self.heads * self.head_width * context


_QWEN = {"attention_bias": True, "head_width": 128, "vocabulary": 151_936}
_LLAMA = {"head_width": 128, "vocabulary": 128_256}
KNOWN: dict[str, ModelShape] = {
    "embedded": ModelShape(30, 576, 1536, 9, 3, 64, 49_152, tied=True),
    "openai-community/gpt2": ModelShape(12, 768, 3072, 12, 12, 64, 50_257, tied=True, gated=False, positions=1024),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": ModelShape(28, 1536, 8960, 12, 2, **_QWEN),
    "Qwen/Qwen2.5-1.5B-Instruct": ModelShape(28, 1536, 8960, 12, 2, **_QWEN, tied=True),
    "Qwen/Qwen2.5-3B": ModelShape(36, 2048, 11_008, 16, 2, **_QWEN, tied=True),
    "Qwen/Qwen2.5-7B": ModelShape(28, 3584, 18_944, 28, 4, **{**_QWEN, "vocabulary": 152_064}),
    "meta-llama/Llama-3.2-1B-Instruct": ModelShape(16, 2048, 8192, 32, 8, 64, 128_256, tied=True),
    "meta-llama/Llama-3.1-8B-Instruct": ModelShape(32, 4096, 14_336, 32, 8, **_LLAMA),
    "mistralai/Mistral-7B-Instruct-v0.3": ModelShape(32, 4096, 14_336, 32, 8, 128, 32_768),
}
"""Models of the profiles, by the numbers of their configurations."""
for _name, _same in (
    ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-3B"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B"),
    ("Qwen/Qwen2.5-7B-Instruct-1M", "Qwen/Qwen2.5-7B"),
):
    KNOWN[_name] = KNOWN[_same]


def shape_of(name: str) -> ModelShape:
    """The shape of a model by its name, or of a directory that holds its `config.json`.

    Raises ReplicationError for another name: its configuration is not known without fetching it.
    """
    if name in KNOWN:
        return KNOWN[name]
    file = Path(name).expanduser() / "config.json"
    if not file.is_file():
        raise ReplicationError(
            f"The size of the model {name} is not known here; give the directory that holds its config.json in place "
            f"of the name. Known: {', '.join(KNOWN)}."
        )
    return shape_from_config(json.loads(file.read_text(encoding="utf-8")))


def shape_from_config(config: dict[str, Any]) -> ModelShape:
    """The shape that a `config.json` of a Llama-like model states; ReplicationError where it states another kind."""
    try:
        heads = config["num_attention_heads"]
        return ModelShape(
            layers=config["num_hidden_layers"],
            width=config["hidden_size"],
            inner=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_width=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bool(config.get("attention_bias", False)) or config.get("model_type") == "qwen2",
        )
    except KeyError as error:
        raise ReplicationError(f"The configuration of the model has no {error}; its size cannot be told.") from error
