"""Experiment `training-kk`: the methods compared on Knights & Knaves.

A small language model cannot answer such a puzzle in the asked form, so that every group would be silent. It is first
taught the form, on training puzzles with their answers and an empty reasoning part, and all methods start from there.
The paper's models need no such start (`warm_steps = 0`).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy

from grpo_replications.replications.grpo_sg.settings import PuzzleTrainingSettings
from grpo_replications.replications.grpo_sg.training import comparison_rows
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.models import catalog
from grpo_replications.shared.models.sampling import autocast, prompt_ids, prompt_text
from grpo_replications.shared.tasks import Task, load_task

_FORMAT = 1  # raise when the same settings should give another start
_IGNORED = -100


def training_kk(settings: PuzzleTrainingSettings, seed: int, context: JobContext) -> list[Row]:
    """One method on puzzles with `people` (a list of numbers, mixed), after `warm_steps` supervised steps.

    Settings beyond those of `training`: `people`, `reward` ("strict" or "shaped"), `warm_steps`, `warm_batch`,
    `warm_lr`, and `validation_size` puzzles for each number of people; `parser`, `layout` and `public` as the task has
    them; `prompt_ending`, with which the prompt is text that ends so. Rows: those of `comparison_rows` for the sets
    "people_<n>"; `kk_accuracy`, the mean over numbers of people at the end, all by strict accuracy; `shared_puzzles`,
    how many puzzles training and validation share up to renaming (0); `left_out_of_train`, how many public training
    puzzles were left out for that reason.
    """
    people = settings.people
    tasks = {n: _task(settings, [n], seed) for n in people}
    task = _task(settings, people, seed)
    name = settings.pinned(settings.model)
    if settings.warm_steps:
        name = str(warm_start(settings, seed))
    model, tokenizer = catalog.load(name)
    sets = {f"people_{n}": begun(each.validation, tokenizer, settings.prompt_ending) for n, each in tasks.items()}
    train = begun(task.train, tokenizer, settings.prompt_ending)
    rows = comparison_rows(settings, seed, context, model, tokenizer, train, sets, task.rewards)
    last = [entry["value"] for entry in rows if entry["metric"] in {f"final_people_{n}_accuracy" for n in people}]
    rows.append(row("kk_accuracy", float(np.mean(last))))
    rows.append(row("shared_puzzles", max(each.settings["shared_puzzles"] for each in (task, *tasks.values()))))
    rows.append(row("left_out_of_train", task.settings["left_out_of_train"]))
    return rows


def _task(settings: PuzzleTrainingSettings, people: list[int], seed: int) -> Task:
    return load_task(
        "knights-and-knaves",
        people=people,
        train_size=settings.train_size,
        validation_size=settings.validation_size,
        reward=settings.reward,
        parser=settings.parser,
        layout=settings.layout,
        public=settings.public and settings.pinned(settings.public),
        system_message=settings.system_message,
        seed=seed,
    )


def begun(puzzles: Dataset, tokenizer: Any, ending: str) -> Dataset:
    """The puzzles with their prompts as text that ends in `ending`, the beginning of an answer; as they are for "".

    Raises ReplicationError for a tokenizer that adds tokens to text: the chat template has written them already.
    """
    if not ending:
        return puzzles
    if tokenizer("a")["input_ids"] != tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise ReplicationError(
            'prompt_ending needs a tokenizer that adds no tokens of its own to text; set prompt_ending = "".'
        )
    return puzzles.map(lambda puzzle: {"prompt": prompt_text(tokenizer, puzzle["prompt"]) + ending})


def warm_start(settings: PuzzleTrainingSettings, seed: int) -> Path:
    """Directory of the model after its supervised steps, made once for all methods of a seed and kept in the cache.

    As large as the model itself. Raises ReplicationError when the cache cannot be written, and as `catalog.load` does.
    """
    keys = ("model", "people", "train_size", "validation_size", "reward", "system_message", "warm_steps", "warm_batch")
    identity = {key: getattr(settings, key) for key in (*keys, "warm_lr", "precision")}
    identity |= {"seed": seed, "format": _FORMAT, "torch": torch.__version__}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return catalog.made_once(
        f"kk-warm-start/{digest}",
        lambda work: catalog.save(*taught_form(settings, seed), work),
        "a start is as large as the model",
    )


def taught_form(settings: PuzzleTrainingSettings, seed: int) -> tuple[Any, Any]:
    """The model after `warm_steps` steps of AdamW on `warm_batch` training puzzles each, and its tokenizer."""
    model, tokenizer = catalog.load(settings.pinned(settings.model))
    model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    rows = encoded(_task(settings, settings.people, seed).train, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.warm_lr, weight_decay=0.0)
    draw = np.random.default_rng([4, seed])
    for _ in range(settings.warm_steps):
        batch = [rows[i] for i in draw.integers(len(rows), size=settings.warm_batch)]
        with autocast(model, settings.precision):
            loss = _answer_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.cpu().eval(), tokenizer


def encoded(puzzles: Dataset, tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """Token ids of each puzzle's prompt, and of its gold answer in the asked form with its end of sequence."""
    result = []
    for prompt, answer in zip(puzzles["prompt"], puzzles["answer"], strict=True):
        completion = tokenizer(f"<think></think><answer>{answer}</answer>", add_special_tokens=False)["input_ids"]
        result.append((list(prompt_ids(tokenizer, prompt)), [*completion, tokenizer.eos_token_id]))
    return result


def _answer_loss(model: Any, batch: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Mean cross-entropy of the answers' tokens; padding on the right is seen by no token that counts."""
    length = max(len(prompt) + len(answer) for prompt, answer in batch)
    ids = torch.zeros((len(batch), length), dtype=torch.long)
    labels = torch.full_like(ids, _IGNORED)
    for i, (prompt, answer) in enumerate(batch):
        end = len(prompt) + len(answer)
        ids[i, :end] = torch.tensor([*prompt, *answer])
        labels[i, len(prompt) : end] = torch.tensor(answer)
    ids, labels = ids.to(model.device), labels.to(model.device)
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED)
