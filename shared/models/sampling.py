"""Many completions of few prompts, drawn from a policy by the tree of their prefixes.

A solve rate needs dozens of independent completions of the same prompt. Completions that have begun alike have the same
next-token distribution, so the model is evaluated once for each *distinct* prefix, and every completion that has it
draws its next token from that distribution with a random number of its own. What comes out has exactly the distribution
of independent completions; a short answer that a policy gives in five ways costs five rows and not sixty-four.

Prompts share a batch if they have the same number of tokens, and rows that ended leave it, so there is no padding and
no mask. Draws come from the generator that is passed; torch's global generator, the model's mode and its weights are
left alone, so that a training run can be looked at from inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase

from grpo_replications.shared.models.decoding import laid_out, roomy_cache, select_rows
from grpo_replications.shared.models.kept_products import KeptProducts

BLOCK = 256
"""Tokens of the vocabulary that are summed together before one is drawn."""

Prompt = str | list[dict[str, str]]


@dataclass(frozen=True)
class Sample:
    """`n` independent completions of one prompt, the different ones listed once.

    `completions`: distinct token ids, end of sequence included where it was drawn; `logps` (distinct,) their
    log-probabilities under the policy that was sampled from (of the tokens drawn, for a completion cut off at the
    limit); `draws` (n,) which of them each of the n completions is, in the order of drawing.
    """

    prompt_ids: tuple[int, ...]
    completions: list[tuple[int, ...]]
    logps: np.ndarray
    draws: np.ndarray

    def texts(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """The distinct completions as text, without special tokens."""
        return tokenizer.batch_decode([list(ids) for ids in self.completions], skip_special_tokens=True)


def sample_completions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    count: int,
    *,
    max_new_tokens: int,
    generator: torch.Generator,
    temperature: float = 1.0,
    precision: str = "float32",
    max_rows: int = 256,
) -> list[Sample]:
    """`count` independent completions of each prompt (chat messages or text), one Sample per prompt in their order.

    Ends as training with TRL does: at the tokenizer's end of sequence or one of the model's, or after
    `max_new_tokens`. `generator` is a CPU generator. `precision="bfloat16"` evaluates under autocast, in one context,
    so that weights are cast once. `max_rows` bounds the prefixes evaluated at once; more are split, which changes no
    distribution. Cost: distinct prefixes (at most prompts x count x tokens) forward rows, and as much cache as
    `max_rows` needs for each of at most `max_new_tokens` postponed splits. Raises ValueError for a count, limit or
    temperature below or at 0.
    """
    if count < 1 or max_new_tokens < 1 or max_rows < 1:
        raise ValueError(
            f"count, max_new_tokens and max_rows must be at least 1: {count}, {max_new_tokens}, {max_rows}"
        )
    if temperature <= 0:
        raise ValueError(f"sampling needs a temperature above 0, not {temperature}")
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    ends = end_tokens(model, tokenizer)
    collected: list[_Collected] = [_Collected(count) for _ in ids]
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast(model, precision):
            for batch in _equal_lengths(ids, max_rows):
                counts = [count] * len(batch)
                _descend(model, ids, batch, counts, max_new_tokens, ends, temperature, max_rows, generator, collected)
    finally:
        model.train(training)
    return [found.sample(prompt) for found, prompt in zip(collected, ids, strict=True)]


def sample_rows(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    *,
    max_new_tokens: int,
    generator: torch.Generator | None = None,
    temperature: float = 1.0,
    kept: KeptProducts | None = None,
) -> list[tuple[int, ...]]:
    """One completion of each prompt of token ids, in their order; equal prompts are computed once, and all together.

    Prompts of different lengths are padded on the left. `ends`: tokens that end a completion. `generator`: a CPU
    generator, or torch's own where none is given. The model is evaluated as it is, in evaluation mode. `kept`: keeps
    what was multiplied, for scoring the same tokens with the same weights.
    """
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        rows_of.setdefault(tuple(prompt), []).append(i)
    ids = list(rows_of)
    collected = [_Collected(len(rows)) for rows in rows_of.values()]
    everything = list(range(len(ids)))
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), laid_out(model), contextlib.nullcontext() if kept is None else kept.watching():
            _descend(
                *(model, ids, everything, [len(rows) for rows in rows_of.values()], max_new_tokens, list(ends)),
                *(temperature, len(prompts), generator or torch.default_generator, collected, kept),
            )
    finally:
        model.train(training)
    drawn: list[tuple[int, ...]] = [()] * len(prompts)
    for found, rows in zip(collected, rows_of.values(), strict=True):
        completions = list(found.index)
        for row, which in zip(rows, found.draws, strict=True):
            drawn[row] = completions[which]
    return drawn


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a completion: the tokenizer's end of sequence and those of the generation config."""
    own = model.generation_config.eos_token_id if model.generation_config is not None else None
    listed = [] if own is None else [own] if isinstance(own, int) else list(own)
    return sorted({tokenizer.eos_token_id, *listed} - {None})


def prompt_text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    """A prompt as the text that a completion goes on from: chat messages through the tokenizer's template."""
    if isinstance(prompt, str):
        return prompt
    return tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[int, ...]:
    """A prompt's token ids as in training with TRL.

    Raw text gets the special tokens that the tokenizer adds, such as a beginning of sequence; a chat template has
    written its special tokens already, so none is added.
    """
    own = isinstance(prompt, str)
    return tuple(tokenizer(prompt_text(tokenizer, prompt), add_special_tokens=own)["input_ids"])


def autocast(model: PreTrainedModel, precision: str) -> Any:
    """Context that evaluates `model` in `precision`: "float32" as it is, "bfloat16" under autocast."""
    if precision == "float32":
        return contextlib.nullcontext()
    if precision == "bfloat16":
        return torch.autocast(model.device.type, dtype=torch.bfloat16)
    raise ValueError(f'precision must be "float32" or "bfloat16", not {precision!r}')


# --- the descent along the tree of prefixes ---------------------------------------------------------------------------


class _Collected:
    """Completions of one prompt as they end."""

    def __init__(self, count: int) -> None:
        self.index: dict[tuple[int, ...], int] = {}
        self.logps: list[float] = []
        self.draws = np.full(count, -1, dtype=np.int64)

    def add(self, completion: tuple[int, ...], logp: float, draws: np.ndarray) -> None:
        self.draws[draws] = self.index.setdefault(completion, len(self.index))
        self.logps.append(logp)

    def sample(self, prompt_ids: tuple[int, ...]) -> Sample:
        return Sample(prompt_ids, list(self.index), np.array(self.logps), self.draws)


@dataclass
class _Frontier:
    """Distinct prefixes of equal length, one row each: what they are and which draws have them.

    `cache` holds all tokens but the last, `last` (rows, tokens) what is still to be fed. Lists have one entry per row;
    `padding` is on the left of a row's prompt.
    """

    cache: Cache
    last: Tensor
    prompts: list[int]
    prefixes: list[tuple[int, ...]]
    logps: list[float]
    draws: list[np.ndarray]
    padding: list[int]

    def inputs(self) -> dict[str, Any]:
        """What the model is called with; a mask and positions only where there is padding."""
        inputs: dict[str, Any] = {"input_ids": self.last, "cache": self.cache}
        if any(self.padding):
            known = self.cache.get_seq_length()
            place = torch.arange(known + self.last.size(1), device=self.last.device)
            position = place - torch.tensor(self.padding, device=self.last.device).unsqueeze(1)
            inputs["attention_mask"] = (position >= 0).long()
            inputs["position_ids"] = position[:, known:].clamp(min=0)
        return inputs

    def rows(self, chosen: slice) -> _Frontier:
        parts = (self.prompts, self.prefixes, self.logps, self.draws, self.padding)
        return _Frontier(select_rows(self.cache, chosen), self.last[chosen], *(part[chosen] for part in parts))


def _descend(
    model: PreTrainedModel,
    ids: list[tuple[int, ...]],
    batch: list[int],
    counts: list[int],
    limit: int,
    ends: list[int],
    temperature: float,
    max_rows: int,
    generator: torch.Generator,
    collected: list[_Collected],
    kept: KeptProducts | None = None,
) -> None:
    """Extend the prompts of `batch`, `counts` times each, until all completions have ended; depth first over splits."""
    longest = max(len(ids[i]) for i in batch)
    padding = [longest - len(ids[i]) for i in batch]
    start = torch.tensor([[0] * pad + list(ids[i]) for pad, i in zip(padding, batch)], device=model.device)
    draws = [np.arange(count) for count in counts]
    stack = [_Frontier(roomy_cache(), start, batch, [()] * len(batch), [0.0] * len(batch), draws, padding)]
    while stack:
        frontier = stack.pop()
        if len(frontier.prefixes) > max_rows:
            half = len(frontier.prefixes) // 2
            stack += [frontier.rows(slice(half, None)), frontier.rows(slice(0, half))]
            continue
        output = model(**frontier.inputs(), use_cache=True, logits_to_keep=1)
        logits = output.logits[:, -1].float()
        if kept is not None:
            kept.note([ids[i] for i in frontier.prompts], frontier.prefixes, frontier.last.size(1), logits)
        probabilities = (logits if temperature == 1 else logits / temperature).softmax(dim=-1)
        rows, tokens, row_draws = _draw(probabilities, frontier.draws, generator)
        token_logps = probabilities[rows, tokens].log().tolist()
        going = []
        for j, (row, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
            prefix, logp = (*frontier.prefixes[row], token), frontier.logps[row] + token_logps[j]
            if token in ends or len(prefix) == limit:
                collected[frontier.prompts[row]].add(prefix, logp, row_draws[j])
            else:
                going.append((j, row, prefix, logp))
        if going:
            chosen, parents, prefixes, sums = (list(part) for part in zip(*going, strict=True))
            same = parents == list(range(len(frontier.prompts)))  # then the cache need not be copied
            cache = output.cache if same else select_rows(output.cache, torch.tensor(parents, device=model.device))
            prompts, padding = ([part[row] for row in parents] for part in (frontier.prompts, frontier.padding))
            last = tokens[torch.tensor(chosen, device=tokens.device)].unsqueeze(1)
            stack.append(_Frontier(cache, last, prompts, prefixes, sums, [row_draws[j] for j in chosen], padding))


def _draw(
    probabilities: Tensor, draws: list[np.ndarray], generator: torch.Generator
) -> tuple[Tensor, Tensor, list[np.ndarray]]:
    """Next tokens, each draw with its own uniform number through its row's distribution function.

    probabilities (rows, V), `draws` per row -> for every distinct (row, token) that occurs: its row, its token (both
    (new,)) and its draws.
    """
    most = max(len(own) for own in draws)
    uniform = torch.rand(len(draws), most, generator=generator, dtype=torch.float64).to(probabilities.device)
    table = _inverse(probabilities, uniform).cpu().numpy()
    rows, new_tokens, new_draws = [], [], []
    for row, own in enumerate(draws):
        drawn = table[row, : len(own)]
        for token in np.unique(drawn):
            rows.append(row)
            new_tokens.append(int(token))
            new_draws.append(own[drawn == token])
    return (
        torch.tensor(rows, device=probabilities.device),
        torch.tensor(new_tokens, device=probabilities.device),
        new_draws,
    )


def _inverse(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Tokens at which the distribution functions of `probabilities` (rows, V) cross `uniform` (rows, n), (rows, n).

    The vocabulary is summed in blocks and only the block that is hit token by token. Never a token of probability 0.
    """
    size = min(BLOCK, probabilities.size(-1))
    blocks = nn.functional.pad(probabilities, (0, -probabilities.size(-1) % size)).unflatten(-1, (-1, size))
    ends = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    wanted = uniform * ends[:, -1:]  # the last end is 1 up to rounding
    block = torch.searchsorted(ends, wanted, right=True).clamp(max=ends.size(-1) - 1)
    inside = blocks[torch.arange(len(blocks), device=blocks.device).unsqueeze(1), block]
    begin = nn.functional.pad(ends, (1, 0)).gather(1, block)
    steps = inside.cumsum(dim=-1, dtype=torch.float64)
    # By rounding, the sum of a block may differ from the last of its steps: then the last token that has a step.
    least = (wanted - begin).unsqueeze(-1).minimum(steps[..., -1:] * (1 - 1e-15))
    return block * size + torch.searchsorted(steps, least, right=True).squeeze(-1)


def _equal_lengths(ids: list[tuple[int, ...]], most: int) -> Iterator[list[int]]:
    """Positions of prompts with equally many tokens, at most `most` at a time."""
    by_length: dict[int, list[int]] = {}
    for i, prompt in enumerate(ids):
        by_length.setdefault(len(prompt), []).append(i)
    for _, positions in sorted(by_length.items()):
        for start in range(0, len(positions), most):
            yield positions[start : start + most]
