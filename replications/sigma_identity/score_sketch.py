"""Scores of single completions, as sketches that keep their inner products.

The score of a completion is s = grad_theta log pi(y | x), the sum over its tokens. For one linear layer it is the
matrix sum_t d_t a_t^T of inputs a_t and output gradients d_t; 135 million numbers for a small language model. Here it
is kept as sum_t (P d_t) (Q a_t)^T with fixed random matrices P (r, d_out) and Q (r, d_in) whose entries are normal
with variance 1 / r, so that for any two linear combinations of scores

    E <sketch(u), sketch(v)> = <u, v>,

with an error that falls as 1 / r (on one layer's gradient of rank one, a relative standard deviation of some 2 /
r^0.5 per side of the layer; independent layers average it). A side no longer than r is kept whole. Sketching is
linear: what is computed from sketches of scores (means over right completions, their differences, group gradients) is
the sketch of what would be computed from the scores themselves. `exact_gram` gives the same inner products without a
sketch.

What is left out: the weights of normalization layers, biases, and the input embedding. Where input and output embedding
are tied, the output side's gradient is in and the input side's is not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_replications.shared.models.sampling import autocast


class ScoreSketch:
    """Sketches of scores under one model's architecture; the projections are drawn once, from `seed` alone.

    `rank` is r, the side of each layer's sketch; None keeps every layer's whole gradient (for small models and tests).
    Layers of equal input (or output) size share their projection. Inner products of sketches made by different objects
    mean nothing unless rank, seed and architecture agree.
    """

    def __init__(
        self, model: PreTrainedModel, rank: int | None = 64, seed: int = 0, precision: str = "float32"
    ) -> None:
        if rank is not None and rank < 1:
            raise ValueError(f"the rank of a sketch must be at least 1, not {rank}")
        self.rank, self.precision = rank, precision
        self._generator = torch.Generator().manual_seed(seed)
        self._inputs: dict[int, Tensor | None] = {}
        self._outputs: dict[int, Tensor | None] = {}
        self.size = 0
        for layer in _linear_layers(model):
            self._projection(self._inputs, layer.in_features, layer.weight.device)
            self._projection(self._outputs, layer.out_features, layer.weight.device)
            self.size += self._kept(layer.in_features) * self._kept(layer.out_features)

    def __call__(
        self,
        model: PreTrainedModel,
        prompt_ids: Sequence[int],
        completions: Sequence[Sequence[int]],
        temperature: float = 1.0,
        batch_size: int = 8,
    ) -> tuple[Tensor, Tensor]:
        """Sketches (B, size) float32 of the scores of B completions of one prompt; log-probabilities (B,) on the CPU.

        `temperature` divides the logits, as in sampling and in training. `batch_size` completions go through the model
        together; completions of like length share a batch. The model's parameters, their gradients and its mode are as
        they were afterwards. Cost: one forward and the input half of one backward pass per batch, and
        2 r (d_in + d_out + r) operations per token and layer. Raises ValueError for an empty completion.
        """
        _refuse_empty(completions)
        sketches = torch.empty(len(completions), self.size, device=model.device)
        logps = torch.empty(len(completions))
        order = sorted(range(len(completions)), key=lambda i: len(completions[i]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            parts: dict[int, Tensor] = {}

            def keep(position: int, inputs: Tensor, gradients: Tensor, parts: dict[int, Tensor] = parts) -> None:
                left = _project(gradients, self._outputs[gradients.size(-1)])
                right = _project(inputs, self._inputs[inputs.size(-1)])
                parts[position] = torch.einsum("bto,bti->boi", left, right).flatten(1)

            chosen = [completions[i] for i in rows]
            logps[rows] = _backward(model, prompt_ids, chosen, temperature, self.precision, keep)
            sketches[rows] = torch.cat([parts[position] for position in sorted(parts)], dim=1)
        return sketches, logps

    def _kept(self, size: int) -> int:
        return size if self.rank is None else min(self.rank, size)

    def _projection(self, known: dict[int, Tensor | None], size: int, device: torch.device) -> None:
        if size in known:
            return
        known[size] = None
        if self.rank is not None and self.rank < size:
            entries = torch.randn(self.rank, size, generator=self._generator) / self.rank**0.5
            known[size] = entries.to(device)


def exact_gram(
    model: PreTrainedModel,
    prompt_ids: Sequence[int],
    completions: Sequence[Sequence[int]],
    temperature: float = 1.0,
    precision: str = "float32",
) -> Tensor:
    """Inner products (B, B) of the scores of a few completions of one prompt, without a sketch; same layers left out.

    By <sum_t d_t a_t^T, sum_u d'_u a'_u^T> = sum_tu (d_t . d'_u) (a_t . a'_u). All B go through the model at once.
    Cost: (B T)^2 (d_in + d_out) operations per layer and (B T)^2 numbers at a time.
    """
    _refuse_empty(completions)
    size = len(completions)
    gram = torch.zeros(size, size, dtype=torch.float64)

    def add(_: int, inputs: Tensor, gradients: Tensor) -> None:
        a, d = inputs.flatten(0, 1), gradients.flatten(0, 1)
        products = (a @ a.T) * (d @ d.T)
        gram.add_(products.view(size, inputs.size(1), size, -1).sum(dim=(1, 3)).double().cpu())

    _backward(model, prompt_ids, completions, temperature, precision, add)
    return gram


# --- one batched backward pass ----------------------------------------------------------------------------------------

Keep = Callable[[int, Tensor, Tensor], None]


def _backward(
    model: PreTrainedModel,
    prompt_ids: Sequence[int],
    completions: Sequence[Sequence[int]],
    temperature: float,
    precision: str,
    keep: Keep,
) -> Tensor:
    """Log-probabilities (B,), with `keep(layer, inputs (B, T, d_in), output gradients (B, T, d_out))` on the way back.

    Rows are padded on the right, where a causal model's real tokens cannot see; padding has no part in the sum of the
    log-probabilities, so its output gradients are exactly zero and it adds nothing to any score.
    """
    first, longest = len(prompt_ids), max(map(len, completions))
    padded = [[*prompt_ids, *ids, *[ids[-1]] * (longest - len(ids))] for ids in completions]
    tokens = torch.tensor(padded, device=model.device)
    lengths = torch.tensor([len(ids) for ids in completions], device=model.device)
    real = torch.arange(longest, device=model.device) < lengths.unsqueeze(1)
    with _prepared(model), _hooked(_linear_layers(model), keep):
        # Parameters are frozen, so the graph has to begin at the embedded tokens.
        embedded = model.get_input_embeddings()(tokens).detach().requires_grad_(True)
        with autocast(model, precision):
            logits = model(inputs_embeds=embedded, use_cache=False, logits_to_keep=longest + 1).logits[:, :-1]
        logps = (logits.float() / temperature).log_softmax(dim=-1).gather(2, tokens[:, first:, None]).squeeze(2)
        summed = logps.masked_fill(~real, 0.0).sum(dim=1)
        summed.sum().backward()
    return summed.detach().cpu()


@contextlib.contextmanager
def _prepared(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode, gradients on, no parameter asking for its own gradient (a third of a backward pass saved)."""
    training = model.training
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)
        model.train(training)


@contextlib.contextmanager
def _hooked(layers: list[nn.Linear], keep: Keep) -> Iterator[None]:
    def watch(position: int, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        given = inputs[0].detach()
        output.register_hook(lambda gradients: keep(position, given.float(), gradients.float()))

    handles = [layer.register_forward_hook(partial(watch, position)) for position, layer in enumerate(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _linear_layers(model: PreTrainedModel) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def _project(vectors: Tensor, projection: Tensor | None) -> Tensor:
    return vectors if projection is None else vectors @ projection.T


def _refuse_empty(completions: Sequence[Sequence[int]]) -> None:
    if not completions or not all(completions):
        raise ValueError("scores need at least one completion, and each completion at least one token")
