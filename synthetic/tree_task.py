"""The binary tree as a task for a language model that can say two tokens only, trained by TRL.

A completion is a path: `depth` tokens, each L or R. Every other token is masked *in the model*: its head has four
outputs (end, path, L, R) and the first two carry a bias so low that their probability is exactly zero. Sampling,
training log-probabilities and entropies thus range over the same two tokens. (Suppressing tokens in sampling alone
would leave the training log-probabilities spread over the whole vocabulary.)

Tree, rewards and target are those of `synthetic.binary_tree`; the paper's setting is a pretrained GPT-2-small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from grpo_replications.shared.models import catalog
from grpo_replications.synthetic.binary_tree import BinaryTree

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

END, PATH, LEFT, RIGHT = range(4)
_VOCABULARY = {"<end>": END, "<path>": PATH, "L": LEFT, "R": RIGHT}
_MASKED = -1e4  # exp(-1e4) is exactly 0 in every float format, and 0 * -1e4 is 0 in the entropy where -inf gives NaN


def path_model(name: str = catalog.EMBEDDED, seed: int = 0) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A language model whose next token is L or R, and its tokenizer.

    `name`: `"random-small"` (two layers, random from `seed`), or any model that `catalog.load` takes; of the latter the
    body is kept and the embedding is cut to four rows: end of sequence, the start of a prompt, "L" and "R".
    """
    tokenizer = _tokenizer()
    if name == "random-small":
        model = _random_small(seed)
    else:
        model, words = catalog.load(name)
        start = words.bos_token_id if words.bos_token_id is not None else words.eos_token_id
        kept = [words.eos_token_id, start, *(_single_token(words, word) for word in ("L", "R"))]
        _restrict(model, model.get_input_embeddings().weight[kept].detach().clone())
    return model.eval(), tokenizer


def tree_dataset(rows: int) -> Dataset:
    """A training set of `rows` equal prompts: the tree has one prompt only."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": ["<path>"] * rows})


def tree_reward(tree: BinaryTree, target: int) -> Any:
    """TRL reward function: the reward of the leaf that each completion's token ids lead to."""
    rewards = tree.leaf_rewards(target)

    def leaf_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(rewards[leaf_of(ids, tree.depth)]) for ids in completion_ids]

    return leaf_reward


def leaf_of(ids: list[int], depth: int) -> int:
    """Leaf index of a completion: L is 0 and R is 1, first token most significant. Raises ValueError otherwise."""
    if len(ids) != depth or any(token not in (LEFT, RIGHT) for token in ids):
        raise ValueError(f"not a path of {depth} tokens L or R: {ids}")
    return sum((token == RIGHT) << (depth - 1 - t) for t, token in enumerate(ids))


def path_ids(leaf: int, depth: int) -> list[int]:
    """Token ids of the path to a leaf: the inverse of `leaf_of`."""
    return [RIGHT if leaf >> (depth - 1 - t) & 1 else LEFT for t in range(depth)]


def accepts(k: int, leaf: int, depth: int) -> bool:
    """Whether prompt k of 1 ... 2**depth - 1 pays for the path to `leaf`: k odd, the first k; even, the last k.

    A policy that takes every path equally often thus has a solve rate of k / 2**depth.
    """
    return leaf < k if k % 2 else leaf >= 2**depth - k


@torch.no_grad()
def leaf_probability(model: PreTrainedModel, leaf: int, depth: int) -> float:
    """Exact probability that `model` samples the path to `leaf`: one forward pass over depth + 1 tokens, no draw."""
    path = path_ids(leaf, depth)
    ids = torch.tensor([[PATH, *path]], device=model.device)
    logps = model(input_ids=ids).logits[0, :-1].double().log_softmax(dim=-1)
    return float(logps.gather(1, ids[0, 1:].unsqueeze(1)).sum().exp())


def _tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as token_models
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(token_models.WordLevel(_VOCABULARY, unk_token="<end>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<end>", pad_token="<end>", unk_token="<end>", padding_side="left"
    )


def _random_small(seed: int) -> PreTrainedModel:
    model = catalog.random_llama(
        len(_VOCABULARY), 64, 2, seed, END, max_position_embeddings=64, tie_word_embeddings=True
    )
    _restrict(model, model.get_input_embeddings().weight.detach().clone())
    return model


def _restrict(model: PreTrainedModel, rows: Tensor) -> None:
    """Cut the vocabulary to the four given embedding rows (4, hidden) and mask the two that are not steps."""
    embedding = nn.Embedding.from_pretrained(rows, freeze=False)
    head = nn.utils.skip_init(nn.Linear, rows.size(1), rows.size(0), bias=True)  # draws no random number
    head.weight = embedding.weight
    head.bias = nn.Parameter(torch.tensor([_MASKED, _MASKED, 0.0, 0.0]), requires_grad=False)
    model.set_input_embeddings(embedding)
    model.set_output_embeddings(head)
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = END
        config.bos_token_id = None
    model.config.vocab_size = rows.size(0)
    model.config.name_or_path = ""  # a reference policy rebuilt from the path would be another model: let that fail


def _single_token(tokenizer: Any, word: str) -> int:
    ids = tokenizer(word, add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise ValueError(f"the tokenizer splits {word!r} into {len(ids)} tokens; the tree needs one")
    return ids[0]
