"""A small transformer that adds, pre-trained here in seconds: the same start for every method of a seed.

The model is a two-layer Llama over 13 tokens (end, ten digits, "+", "="); a problem is "12+34=" and its answer "46". It
is trained with the answers of a part of the problems until it solves a given share of them, so that reinforcement
learning has something to improve. Operands longer than those of the reinforcement learning make up a small part of that
first training only: later they show what a method does to problems that it is not rewarded for.

Everything here is decided by the settings and the seed. A finished start is kept in the model cache under a digest of
both, as a plain directory of safetensors, from which a reference policy can be rebuilt.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.settings import SmallStart
from grpo_replications.shared.tasks.addition import load as load_addition

END = 0
_CHARACTERS = "0123456789+="
_VOCABULARY = {"<end>": END, **{character: i + 1 for i, character in enumerate(_CHARACTERS)}}
PROBE = 256  # training problems on which accuracy is measured
_FORMAT = 1  # raise when the same settings should give another start


@dataclass(frozen=True)
class AdditionProblems:
    """`train` for the first training and the reinforcement learning; `held_out` and `longer` to measure with.

    No pair of operands of `held_out` or `longer`, in either order, is met in any training. Columns `prompt` (text),
    `answer`, `a`, `b`.
    """

    train: Dataset
    held_out: Dataset
    longer: Dataset
    longer_train: Dataset


def problems(settings: SmallStart, seed: int) -> AdditionProblems:
    """The problems of a seed: operands from `low` to `high`, and from `longer_low` to `longer_high`."""
    sizes = {"validation_size": settings.validation_size, "seed": seed}
    short = load_addition(low=settings.low, high=settings.high, train_size=settings.train_size, **sizes)
    longer = load_addition(
        low=settings.longer_low, high=settings.longer_high, train_size=settings.pretrain_longer, **sizes
    )
    parts = (short.train, short.validation, longer.validation, longer.train)
    return AdditionProblems(*(_as_text(part) for part in parts))


def _as_text(part: Dataset) -> Dataset:
    rows = zip(part["a"], part["b"], part["answer"], strict=True)
    return Dataset.from_list([{"prompt": f"{a}+{b}=", "answer": answer, "a": a, "b": b} for a, b, answer in rows])


def small_tokenizer() -> Any:
    """One token per character; end of sequence and padding are the same token."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(WordLevel(_VOCABULARY, unk_token="<end>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<end>", padding_side="left")


def random_model(width: int, layers: int, seed: int) -> Any:
    """An untrained model; its weights depend on the arguments alone. The caller's random state is left as it was."""
    return catalog.random_llama(
        len(_VOCABULARY), width, layers, seed, END, max_position_embeddings=64, tie_word_embeddings=False
    )


def small_start(settings: SmallStart, seed: int) -> Path:
    """Directory of the pre-trained model of a seed, made once and then kept in the model cache.

    Raises ReplicationError when `pretrain_accuracy` is not reached within `pretrain_max_steps`, and when the cache
    cannot be written.
    """
    identity = SmallStart.of(settings).model_dump() | {"seed": seed, "format": _FORMAT, "torch": torch.__version__}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return catalog.made_once(
        f"small-addition/{digest}", lambda work: catalog.save(pretrained(settings, seed), small_tokenizer(), work)
    )


def pretrained(settings: SmallStart, seed: int) -> Any:
    """The model of a seed after its first training, in evaluation mode.

    Adam on the answers' tokens; a batch holds `pretrain_batch` problems, of which the share `pretrain_longer_share` is
    of longer operands. Every 20 steps, greedy answers to `PROBE` training problems are looked at; training ends when
    `pretrain_accuracy` of them are right. Draws nothing from the global generators. Costs some ten milliseconds a step.
    """
    data = problems(settings, seed)
    taught = data.train.select(range(settings.pretrain_size))
    short, longer = encode(taught), encode(data.longer_train)
    probe = encode(data.train.select(range(min(PROBE, len(data.train)))))
    model = random_model(settings.width, settings.layers, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.pretrain_lr, weight_decay=0.01)
    draw = np.random.default_rng([3, seed])
    of_longer = round(settings.pretrain_batch * settings.pretrain_longer_share)
    reached = 0.0
    for step in range(settings.pretrain_max_steps + 1):
        if step % 20 == 0:
            reached = float(answers(model, *probe)[0].mean())
            if reached >= settings.pretrain_accuracy:
                return model.eval()
        loss = 0.0
        for (ids, answer), size in ((short, settings.pretrain_batch - of_longer), (longer, of_longer)):
            if size:
                rows = torch.from_numpy(draw.integers(len(ids), size=size))
                loss = loss + _answer_loss(model, ids[rows], answer[rows]) * (size / settings.pretrain_batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise ReplicationError(
        f"The small model of seed {seed} solves {reached:.2f} of its problems after {settings.pretrain_max_steps} "
        f"steps, not {settings.pretrain_accuracy}. Raise pretrain_max_steps or width, or lower pretrain_accuracy."
    )


def encode(rows: Dataset) -> tuple[Tensor, Tensor]:
    """Token ids (N, T) of problem, answer and end, padded on the right, and which of them are answer or end, (N, T)."""
    texts = [[_VOCABULARY[c] for c in prompt + answer] for prompt, answer in zip(rows["prompt"], rows["answer"])]
    ids = torch.full((len(texts), max(map(len, texts)) + 1), END)
    is_answer = torch.zeros(ids.shape, dtype=torch.bool)
    for i, (text, prompt) in enumerate(zip(texts, rows["prompt"], strict=True)):
        ids[i, : len(text)] = torch.tensor(text)
        is_answer[i, len(prompt) : len(text) + 1] = True
    return ids, is_answer


def _answer_loss(model: Any, ids: Tensor, is_answer: Tensor) -> Tensor:
    """Mean cross-entropy over answer tokens; padding stands behind all that counts, so it needs no attention mask."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return cross_entropy(logits[is_answer[:, 1:]], ids[:, 1:][is_answer[:, 1:]])


@torch.no_grad()
def answers(model: Any, ids: Tensor, is_answer: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """What a model answers to encoded problems: whether the greedy answer is right (N,), and the chance of a right one.

    The first is true where each token of the answer is the most likely one after those before it; the second is the
    exact probability that a completion sampled at temperature 1 is the answer. One forward pass over N x T tokens, and
    nothing is drawn. The reward is a little more generous: it reads "046" as 46.
    """
    logits = model(input_ids=ids[:, :-1].to(model.device), use_cache=False).logits.cpu()
    right, counts = ids[:, 1:], is_answer[:, 1:]
    solved = ((logits.argmax(dim=2) == right) | ~counts).all(dim=1)
    logps = logits.log_softmax(dim=2).gather(2, right.unsqueeze(2)).squeeze(2).double()
    return solved.numpy(), torch.where(counts, logps, 0.0).sum(dim=1).exp().numpy()
