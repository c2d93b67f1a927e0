"""Stand-ins for the models of a paper: two layers of the right architecture with a tokenizer of the right kind.

They are for rehearsals. A stand-in is made on the spot: its byte-level tokenizer is trained on a few texts, its chat
template is of the same form as the model's, and its weights are random, then taught until it answers some of the
problems, so that rewards differ within a group and training moves. Nothing about it tells anything about the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_replications.shared.errors import ReplicationError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VOCABULARY = 800
WIDTH, LAYERS, HEADS = 64, 2, 4
POSITIONS = 1024
LESSONS, LESSON_SIZE, LESSON_RATE = 50, 16, 5e-3
LESSON_TOKENS = 750  # of a step, at most: of long prompts fewer are taught at once


@dataclass(frozen=True)
class Kind:
    """A family of models: its class in transformers, its special tokens, and the form of its chat template."""

    architecture: str
    end: str
    begin: str = ""
    template: str = ""
    begins_text: bool = False  # whether the tokenizer puts `begin` before a text
    others: tuple[str, ...] = ()


_IM = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_R1 = (
    "<｜begin▁of▁sentence｜>{% for message in messages %}{% if message['role'] == 'user' %}<｜User｜>"
    "{% elif message['role'] == 'assistant' %}<｜Assistant｜>{% endif %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
_LLAMA3 = (
    "<|begin_of_text|>{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MISTRAL = (
    "<s>{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] }}</s>"
    "{% else %}[INST] {{ message['content'] }}[/INST]{% endif %}{% endfor %}"
)
KINDS = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen": Kind(
        "Qwen2", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", _R1, True, ("<｜User｜>", "<｜Assistant｜>")
    ),
    "Qwen/Qwen2": Kind("Qwen2", "<|im_end|>", "", _IM, False, ("<|im_start|>", "<|endoftext|>")),
    "Qwen/Qwen3": Kind("Qwen3", "<|im_end|>", "", _IM, False, ("<|im_start|>", "<|endoftext|>")),
    "meta-llama/Llama-3": Kind(
        "Llama", "<|eot_id|>", "<|begin_of_text|>", _LLAMA3, True, ("<|start_header_id|>", "<|end_header_id|>")
    ),
    "mistralai/Mistral": Kind("Mistral", "</s>", "<s>", _MISTRAL, True, ("[INST]", "[/INST]")),
    "openai-community/gpt2": Kind("GPT2", "<|endoftext|>"),
}
"""By the beginning of a model's name on the hub."""


@dataclass(frozen=True)
class Lesson:
    """What is taught: a prompt (chat messages or text), a completion, and how the prompt's text goes on before it."""

    prompt: Any
    completion: str
    beginning: str = ""


def kind_of(name: str) -> Kind:
    """The family of a model by its name; ReplicationError where none is known."""
    for beginning, kind in KINDS.items():
        if name.startswith(beginning):
            return kind
    raise ReplicationError(f"There is no stand-in for {name}; there are some for: {', '.join(KINDS)}…")


def make_stand_in(name: str, directory: Path, texts: Sequence[str], lessons: Sequence[Lesson], seed: int = 0) -> Path:
    """Write the stand-in of a model into `directory` and return it, unless it is there already.

    `texts`: what the tokenizer is trained on. `lessons`: none for a model that is only random.
    """
    import torch

    if not (directory / "model.safetensors").exists():
        kind = kind_of(name)
        tokenizer = _tokenizer(kind, texts)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = _model(kind, tokenizer)
            if lessons:
                _teach(model, tokenizer, lessons)
        tokenizer.save_pretrained(directory)
        model.save_pretrained(directory, safe_serialization=True)
    return directory


def _tokenizer(kind: Kind, texts: Sequence[str]) -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = list(dict.fromkeys(filter(None, (kind.end, kind.begin, *kind.others))))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    if kind.begins_text:
        begin = (kind.begin, core.token_to_id(kind.begin))
        core.post_processor = processors.TemplateProcessing(single=f"{kind.begin} $A", special_tokens=[begin])
    named = {"eos_token": kind.end, "pad_token": kind.end} | ({"bos_token": kind.begin} if kind.begin else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **named)
    if kind.template:
        tokenizer.chat_template = kind.template
    return tokenizer


def _model(kind: Kind, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    import transformers

    config_class = getattr(transformers, f"{kind.architecture}Config")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    ends["bos_token_id"] = tokenizer.bos_token_id if kind.begin else tokenizer.eos_token_id
    if kind.architecture == "GPT2":
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS}
    else:
        sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS}
        sizes |= {"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
        sizes |= {"max_position_embeddings": POSITIONS, "tie_word_embeddings": True}
    config = config_class(vocab_size=len(tokenizer), **sizes, **ends)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def _teach(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lessons: Sequence[Lesson]) -> None:
    """Some steps of AdamW on prompts with their completions; not until all are known."""
    import torch
    from torch.nn.functional import cross_entropy

    from grpo_replications.shared.models.sampling import prompt_ids, prompt_text

    rows = []
    for one in lessons:
        prompt = prompt_text(tokenizer, one.prompt) + one.beginning if one.beginning else one.prompt
        completion = tokenizer(one.completion, add_special_tokens=False)["input_ids"]
        rows.append((list(prompt_ids(tokenizer, prompt)), [*completion]))
    size = min(LESSON_SIZE, max(1, LESSON_TOKENS // max(len(prompt) + len(answer) for prompt, answer in rows)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LESSON_RATE, weight_decay=0.0)
    model.train()
    for _ in range(LESSONS):
        chosen = [rows[int(i)] for i in torch.randint(len(rows), (size,))]
        length = max(len(prompt) + len(answer) + 1 for prompt, answer in chosen)
        ids = torch.full((size, length), tokenizer.pad_token_id)
        labels = torch.full_like(ids, -100)
        for place, (prompt, answer) in enumerate(chosen):
            whole = torch.tensor([*prompt, *answer, tokenizer.eos_token_id])
            ids[place, : len(whole)] = whole
            labels[place, len(prompt) : len(whole)] = whole[len(prompt) :]
        logits = model(input_ids=ids).logits[:, :-1].float()
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
