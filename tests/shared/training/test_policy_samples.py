"""Training samples come from the policy whose log-probabilities it uses, whatever settings the model ships with."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from grpo_replications.shared.training.group_log import read_group_log
from tests.shared.training.test_trainer import make_trainer, policy

FREQUENT = 48  # a token that the sharp tiny policy often draws

SETTINGS = [
    {"min_p": 0.5},
    {"typical_p": 0.2},
    {"epsilon_cutoff": 0.2},
    {"eta_cutoff": 0.2},
    {"top_h": 0.2},
    {"no_repeat_ngram_size": 1},
    {"suppress_tokens": [FREQUENT]},
    {"begin_suppress_tokens": [FREQUENT]},
    {"bad_words_ids": [[FREQUENT]]},
    {"forced_eos_token_id": 0},
    {"exponential_decay_length_penalty": (1, 9.0)},
    {"sequence_bias": [[[FREQUENT], -9.0]]},
    {"repetition_penalty": 5.0},
    {"num_return_sequences": 2},
    {"min_new_tokens": 4},
    {"return_dict_in_generate": True},
    {"top_k": 1, "top_p": 0.1, "temperature": 0.1},
]


def sampled(tmp_path: Path, shipped: dict[str, Any], **options: Any) -> list[Any]:
    model, tokenizer = policy()
    for name, value in shipped.items():
        setattr(model.generation_config, name, value)
    trainer, _ = make_trainer(tmp_path, model=(model, tokenizer), **options)
    trainer.train()
    kept = trainer.model.generation_config
    assert all(getattr(kept, name) == value for name, value in shipped.items()), "the model's own must stay its own"
    return [group["completion_ids"] for group in read_group_log(tmp_path / "groups.jsonl")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    found = sampled(tmp_path_factory.mktemp("plain"), {})
    assert any(FREQUENT in ids for group in found for ids in group)
    return found


@pytest.mark.parametrize("shipped", SETTINGS, ids=lambda shipped: next(iter(shipped)))
def test_settings_that_ship_with_a_model_do_not_change_the_samples(
    tmp_path: Path, plain: list[Any], shipped: dict[str, Any]
) -> None:
    assert sampled(tmp_path, shipped) == plain


def test_what_is_left_out_is_said_and_what_is_stated_counts(tmp_path: Path, plain: list[Any]) -> None:
    shipped = {"suppress_tokens": [FREQUENT], "min_p": 0.5, "top_k": 3}
    with pytest.warns(UserWarning, match=r"\(min_p=0.5, suppress_tokens=\[48\]\)"):
        sampled(tmp_path / "shipped", shipped)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*generation settings")
        assert sampled(tmp_path / "neutral", {"min_p": 0.0, "repetition_penalty": 1.0, "suppress_tokens": []}) == plain
        stated = sampled(tmp_path / "stated", {}, generation_kwargs={"suppress_tokens": [FREQUENT]})
    assert not any(FREQUENT in ids for group in stated for ids in group)


def test_the_mixed_precision_context_is_for_generation_in_this_process(tmp_path: Path) -> None:
    from contextlib import contextmanager

    trainer, _ = make_trainer(tmp_path)
    entered = []

    @contextmanager
    def autocast() -> Any:
        entered.append(True)
        yield

    class Server:
        def sync_weights(self) -> None:
            assert not entered

        def generate(self, prompts: list[Any], **_: Any) -> Any:
            assert not entered
            return None, [[1, 0]] * len(prompts), [[[-1.0], [-1.0]]] * len(prompts), None

    trainer.accelerator.autocast = autocast
    trainer._generate_single_turn([[1]], None, {}, 1)
    assert entered
    entered.clear()
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, Server(), -1
    assert trainer._generate_single_turn([[1]], None, {}, 1) == ([[1, 0]], [[-1.0, -1.0]])
