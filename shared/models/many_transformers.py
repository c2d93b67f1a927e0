"""Many small transformers at once: S models of one architecture with stacked parameters, computed side by side.

The architecture is that of Llama without grouped attention: root-mean-square norms before attention and before a gated
feed-forward layer, rotary positions, no biases. Any such model of transformers can be put into a stack, and any model
of a stack can be taken out as a model of transformers, with the same logits up to rounding.

Models never mix: model s reads parameters `[s]` only, so the gradient of a sum of losses over models holds the gradient
of each model's own loss. All rows that one call computes have one length; prompts are not padded.

Shape legend: S models, B prompts, G completions of a prompt, P tokens of a prompt, T tokens of a completion,
V vocabulary, H width, N sequences (or trees) of a model, M positions of one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from grpo_replications.shared.errors import ReplicationError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MASKED = -1e4
"""Bias that makes a token impossible: exp(-1e4) is exactly 0 in every float format, and no gradient becomes NaN."""

INITIAL_STD = 0.02
"""Standard deviation of new weights, that of transformers."""

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (S N, heads, M, head width) each."""


class ModelStack(Protocol):
    """What training and token trees need of S models: `ManyTransformers`, or a single model (`stack_of_one`)."""

    def __len__(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def trainable(self) -> list[Tensor]: ...

    def copy(self) -> ModelStack: ...

    def logits(self, ids: Tensor, positions: Tensor | None = None, visible: Tensor | None = None) -> tuple: ...


@dataclass(frozen=True)
class Architecture:
    """Sizes of a model. `tied`: the head is the embedding. Raises ValueError for a width that heads do not divide."""

    vocabulary: int
    width: int = 64
    layers: int = 2
    heads: int = 4
    inner: int = 128
    tied: bool = False
    rotary_base: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of twice the number of heads, got {self.width}, {self.heads}")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter of one model, by name.

        Matrices are (in, out), the transpose of those of transformers, so that their gradients lie in memory as they
        do; `query_key_value` and `gate_up` hold several side by side.
        """
        of_layer = {
            "attention_norm": (self.width,),
            "query_key_value": (self.width, 3 * self.width),
            "attention_output": (self.width, self.width),
            "feed_forward_norm": (self.width,),
            "gate_up": (self.width, 2 * self.inner),
            "down": (self.inner, self.width),
        }
        shapes = {"embedding": (self.vocabulary, self.width)}
        shapes |= {f"{i}.{name}": shape for i in range(self.layers) for name, shape in of_layer.items()}
        shapes["norm"] = (self.width,)
        return shapes if self.tied else {**shapes, "head": (self.width, self.vocabulary)}


@dataclass(frozen=True)
class ManyTransformers:
    """S models: `parameters[name]` (S, *shape of the parameter), and a constant `bias` (V,) on everyone's logits.

    The bias is no parameter: it masks tokens (`MASKED`) or gives the policy a lean to start from.
    """

    architecture: Architecture
    parameters: dict[str, Tensor]
    bias: Tensor

    @classmethod
    def initial(
        cls,
        architecture: Architecture,
        seeds: Sequence[int],
        *,
        head_std: float = INITIAL_STD,
        bias: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> ManyTransformers:
        """One new model per seed: normal weights of standard deviation `INITIAL_STD`, norms of one.

        A model is a function of its own seed alone. With `head_std` 0 all tokens that `bias` treats alike start equally
        likely. Raises ValueError for a `head_std` that a tied head cannot have.
        """
        if architecture.tied and head_std != INITIAL_STD:
            raise ValueError("a tied head has the standard deviation of the embedding")
        shapes = architecture.shapes()
        parameters = {name: torch.empty(len(seeds), *shape, dtype=dtype) for name, shape in shapes.items()}
        for s, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(int(seed))
            for name, shape in shapes.items():
                std = head_std if name == "head" else INITIAL_STD
                new = torch.ones(shape) if name.endswith("norm") else std * torch.randn(shape, generator=generator)
                parameters[name][s] = new
        return cls(architecture, parameters, _bias(bias, architecture.vocabulary, dtype))

    @classmethod
    def of(cls, models: Sequence[PreTrainedModel]) -> ManyTransformers:
        """The stack of some Llama models of transformers (copies of their weights), all of one architecture.

        Raises ReplicationError for models that the architecture does not cover or that differ in it.
        """
        architectures = {_architecture_of(model) for model in models}
        if len(architectures) != 1:
            raise ReplicationError(f"Models of {len(architectures)} architectures cannot be stacked: give one or more "
                                   "models of the same sizes.")  # fmt: skip
        architecture = architectures.pop()
        biases = [_head_bias(model) for model in models]
        if any(not torch.equal(bias, biases[0]) for bias in biases):
            raise ReplicationError("Models whose heads have different biases cannot be stacked: the bias is constant.")
        named = [_stack_names(model, architecture) for model in models]
        return cls(
            architecture, {name: torch.stack([one[name] for one in named]) for name in architecture.shapes()}, biases[0]
        )

    def export(self, s: int, end: int = 0) -> PreTrainedModel:
        """Model s as a model of transformers, in evaluation mode; `end` is its end of sequence.

        A bias other than 0 becomes that of the head, which is not trained.
        """
        from torch import nn
        from transformers import LlamaConfig, LlamaForCausalLM

        a = self.architecture
        config = LlamaConfig(
            vocab_size=a.vocabulary,
            hidden_size=a.width,
            intermediate_size=a.inner,
            num_hidden_layers=a.layers,
            num_attention_heads=a.heads,
            rms_norm_eps=a.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": a.rotary_base},
            tie_word_embeddings=a.tied,
            bos_token_id=None,
            eos_token_id=end,
        )
        with torch.random.fork_rng():
            model = LlamaForCausalLM(config).to(self.bias.dtype)
        state = named_as_in_transformers(self.trainable(), a, s)
        if a.tied:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        model.load_state_dict(state)
        if self.bias.any():
            head = nn.utils.skip_init(nn.Linear, a.width, a.vocabulary, bias=True)
            head.weight = model.get_output_embeddings().weight
            head.bias = nn.Parameter(self.bias.clone(), requires_grad=False)
            model.set_output_embeddings(head)
        return model.eval()

    def __len__(self) -> int:
        return self.parameters["embedding"].size(0)

    @property
    def dtype(self) -> torch.dtype:
        """What the models compute in."""
        return self.bias.dtype

    def trainable(self) -> list[Tensor]:
        """The stacked parameters, which gradients are taken of, in a fixed order."""
        return [self.parameters[name] for name in self.architecture.shapes()]

    def copy(self) -> ManyTransformers:
        """The same models with parameters of their own."""
        return replace(self, parameters={name: value.detach().clone() for name, value in self.parameters.items()})

    def to(self, dtype: torch.dtype) -> ManyTransformers:
        """Copies that compute in `dtype`."""
        copies = {name: value.detach().to(dtype, copy=True) for name, value in self.parameters.items()}
        return replace(self, parameters=copies, bias=self.bias.to(dtype))

    def select(self, chosen: slice | Sequence[int]) -> ManyTransformers:
        """Copies of some of the models, in the order given; a model may be taken several times."""
        rows = torch.arange(len(self))[chosen]
        return replace(self, parameters={name: value.detach()[rows] for name, value in self.parameters.items()})

    def logits(
        self, ids: Tensor, positions: Tensor | None = None, visible: Tensor | None = None, cache: Cache | None = None
    ) -> tuple[Tensor, Cache]:
        """Logits (S, N, M, V) of the token after each of `ids` (S, N, M), and the cache that holds these tokens too.

        `positions` (M,): position of each token in its text; by default they follow those of the cache. `visible`
        (M, tokens of the cache + M) bool: which tokens each one attends to, itself among them; by default all before
        it. Several texts with a common beginning can thus be computed as one, each token attending to its own past.
        Cost: O(S N M (parameters of a model + M H)).
        """
        a = self.architecture
        models, rows, length = ids.shape
        before = cache[0][0].size(2) if cache else 0
        if positions is None:
            positions = torch.arange(before, before + length)
        if visible is None:
            visible = torch.ones(length, before + length, dtype=torch.bool).tril(before)
        offset = a.vocabulary * torch.arange(models).view(-1, 1)
        x = embedding(ids.reshape(models, -1) + offset, self.parameters["embedding"].flatten(0, 1))  # (S, N M, H)
        turn = _rotary(positions, a, x.dtype)
        new_cache: Cache = []
        for i in range(a.layers):
            h = self._norm(x, f"{i}.attention_norm")
            h = self._linear(h, f"{i}.query_key_value").view(models * rows, length, 3 * a.heads, -1).transpose(1, 2)
            query, key, value = h.split(a.heads, dim=1)
            query, key = _turned(query, turn), _turned(key, turn)
            if cache:
                key, value = torch.cat([cache[i][0], key], dim=2), torch.cat([cache[i][1], value], dim=2)
            new_cache.append((key, value))
            seen = scaled_dot_product_attention(query, key, value, attn_mask=visible)
            seen = seen.transpose(1, 2).reshape(models, rows * length, a.width)
            x = x + self._linear(seen, f"{i}.attention_output")
            gate, up = self._linear(self._norm(x, f"{i}.feed_forward_norm"), f"{i}.gate_up").chunk(2, dim=-1)
            x = x + self._linear(silu(gate) * up, f"{i}.down")
        head = self.parameters["embedding"].transpose(1, 2) if a.tied else self.parameters["head"]
        out = torch.bmm(self._norm(x, "norm"), head) + self.bias
        return out.view(models, rows, length, -1), new_cache

    def completion_logits(self, prompts: Tensor, completions: Tensor) -> Tensor:
        """Logits of every completion token, (S, B, G, T, V): prompts (S, B, P), completions (S, B, G, T).

        The completions of a prompt are computed as one text with the prompt at its head, so the prompt costs once.
        Attention costs O(S B (P + G T)^2 H).
        """
        group, length = completions.shape[2:]
        start = prompts.size(2)
        ids = torch.cat([prompts, completions[..., :-1].flatten(2)], dim=2)
        own = torch.arange(start, start + length - 1).repeat(group)
        positions = torch.cat([torch.arange(start), own])
        visible = torch.zeros(ids.size(2), ids.size(2), dtype=torch.bool)
        visible[:, :start] = True
        visible[:start, :start] = visible[:start, :start].tril()
        causal = torch.ones(length - 1, length - 1, dtype=torch.bool).tril()
        visible[start:, start:] = torch.block_diag(*[causal] * group) if length > 1 else False
        logits, _ = self.logits(ids, positions, visible)
        first = logits[:, :, start - 1 : start].unsqueeze(2).expand(-1, -1, group, -1, -1)
        later = logits[:, :, start:].unflatten(2, (group, length - 1))
        return torch.cat([first, later], dim=3)

    @torch.no_grad()
    def sample(self, prompts: Tensor, uniforms: Tensor, temperature: float = 1.0) -> Tensor:
        """Completions (S, B, G, T) int64 of prompts (S, B, P), one token for each of `uniforms` (S, B, G, T) in [0, 1).

        All have T tokens; a caller whose task has an end masks what follows it. Keys and values are kept, so a token
        costs one position. The draw is an inverse distribution function: same uniforms, same policy, same completions.
        """
        group, length = uniforms.shape[2:]
        start = prompts.size(2)
        logits, cache = self.logits(prompts)
        logits = logits[:, :, -1:].expand(-1, -1, group, -1)
        apart, drawn = torch.eye(group, dtype=torch.bool), []
        for t in range(length):
            drawn.append(draw(logits / temperature, uniforms[..., t]))
            if t + 1 < length:
                visible = torch.cat([torch.ones(group, start, dtype=torch.bool), *[apart] * (t + 1)], dim=1)
                logits, cache = self.logits(drawn[-1], torch.full((group,), start + t), visible, cache)
        return torch.stack(drawn, dim=-1)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return torch.bmm(x, self.parameters[name])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.architecture.norm_eps)
        return x * scale * self.parameters[name].unsqueeze(1)


@torch.no_grad()
def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Indices (...) drawn with the probabilities of logits (..., V) by `uniforms` (...) in [0, 1); int64."""
    return draw_index(logits.double().softmax(dim=-1), uniforms)


def draw_index(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Indices (...) drawn by `uniforms` (...) from probabilities (..., V) of any sum; one of probability 0 never."""
    edges = probabilities.cumsum(dim=-1)
    index = (edges <= uniforms.unsqueeze(-1) * edges[..., -1:]).sum(dim=-1)
    last = (probabilities > 0).long().mul(torch.arange(probabilities.size(-1))).amax(dim=-1)
    return torch.minimum(index, last)


class SeedStreams:
    """A stream of random numbers for each model, a function of its seed (and `stream`) alone.

    What a model draws does not depend on which others run beside it; two runs of a seed see the same numbers.
    """

    def __init__(self, seeds: Sequence[int], stream: int) -> None:
        self.generators = [np.random.default_rng([stream, int(seed)]) for seed in seeds]

    def uniforms(self, *shape: int) -> Tensor:
        """The next numbers of every stream, float64 in [0, 1), (S, *shape)."""
        return torch.from_numpy(np.stack([generator.random(shape) for generator in self.generators]))

    def integers(self, high: int, *shape: int) -> Tensor:
        """The next whole numbers of every stream, 0 <= number < high, int64 (S, *shape)."""
        return torch.from_numpy(np.stack([generator.integers(high, size=shape) for generator in self.generators]))


def _bias(bias: Sequence[float] | None, vocabulary: int, dtype: torch.dtype) -> Tensor:
    values = torch.zeros(vocabulary, dtype=dtype) if bias is None else torch.tensor(list(bias), dtype=dtype)
    if values.shape != (vocabulary,):
        raise ValueError(f"bias must have {vocabulary} values, one per token, got {len(values)}")
    return values


def _rotary(positions: Tensor, a: Architecture, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position times frequency, (M, head width) each; frequencies in float32, as in transformers."""
    size = a.width // a.heads
    exact = torch.promote_types(dtype, torch.float32)
    frequencies = 1.0 / a.rotary_base ** (torch.arange(0, size, 2).float() / size)
    angles = positions.to(exact).unsqueeze(1) * frequencies.to(exact)
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat([-second, first], dim=-1) * turn[1]


def _architecture_of(model: Any) -> Architecture:
    config = model.config
    rotary = getattr(config, "rope_parameters", None) or {}
    plain = (
        config.model_type == "llama"
        and config.num_key_value_heads == config.num_attention_heads
        and config.hidden_act == "silu"
        and not config.attention_bias
        and not config.mlp_bias
        and rotary.get("rope_type", "default") == "default"
    )
    if not plain:
        raise ReplicationError(
            "Only Llama models with as many key heads as heads, no biases and plain rotary positions can be stacked."
        )
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return Architecture(
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.intermediate_size,
        tied,
        float(rotary.get("rope_theta", 10_000.0)),
        config.rms_norm_eps,
    )


def _head_bias(model: Any) -> Tensor:
    head = model.get_output_embeddings()
    return torch.zeros_like(head.weight[:, 0]).detach() if head.bias is None else head.bias.detach().clone()


def _parts(architecture: Architecture) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name of each parameter here, and the names in transformers of what it holds, one below the other."""
    yield "embedding", ("model.embed_tokens",)
    of_layer = {
        "attention_norm": ("input_layernorm",),
        "query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention_output": ("self_attn.o_proj",),
        "feed_forward_norm": ("post_attention_layernorm",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    }
    for i in range(architecture.layers):
        for name, parts in of_layer.items():
            yield f"{i}.{name}", tuple(f"model.layers.{i}.{part}" for part in parts)
    yield "norm", ("model.norm",)
    if not architecture.tied:
        yield "head", ("lm_head",)


def _stack_names(model: Any, architecture: Architecture) -> dict[str, Tensor]:
    state = model.state_dict()
    return {
        name: torch.cat([_flipped(name, state[f"{part}.weight"].detach()) for part in parts], dim=-1).clone()
        for name, parts in _parts(architecture)
    }


def named_as_in_transformers(values: Sequence[Tensor], architecture: Architecture, s: int) -> dict[str, Tensor]:
    """Values shaped as the stacked parameters, in the order of `trainable`: those of model s by transformers' names.

    For parameters and gradients alike. Parameters that are one, as a tied head, appear once.
    """
    state = {}
    for (name, parts), value in zip(_parts(architecture), values, strict=True):
        pieces = value[s].detach().chunk(len(parts), dim=-1)
        state |= {f"{part}.weight": _flipped(name, piece).clone() for part, piece in zip(parts, pieces, strict=True)}
    return state


def _flipped(name: str, value: Tensor) -> Tensor:
    """A parameter between its layout here and that of transformers."""
    return value.t() if value.ndim == 2 and name != "embedding" else value
