"""Sampling from the policy itself, whatever generation settings its model ships with.

`generate` of transformers fills what a call leaves open from the model's own generation settings: a nucleus, a
repetition penalty, tokens that are never or always produced. Samples drawn with them do not come from the policy whose
log-probabilities a trainer or an evaluation reasons about.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("temperature", "top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty"), 1.0),
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "guidance_scale"), 1),
    **dict.fromkeys(("top_k", "min_p", "epsilon_cutoff", "eta_cutoff", "diversity_penalty", "penalty_alpha"), 0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("remove_invalid_values", "token_healing"), False),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"), None),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "constraints", "force_words_ids"), None),
    **dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config", "dola_layers", "top_h"), None),
    **dict.fromkeys(("max_time", "stop_strings"), None),
}
"""Generation settings that change which completions are drawn, each with the value at which it does not."""

_KEPT = (
    *("eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "low_memory"),
    *("compile_config", "disable_compile", "continuous_batching_config"),
)
"""Settings of special tokens and of how a completion is computed, which leave its distribution alone."""


def distorting_settings(model: PreTrainedModel, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own generation settings that would change which completions are drawn, by name.

    `stated`: what the call to `generate` says itself; only what it leaves open (absent or None) is filled in.
    """
    config = _owner(model).generation_config
    own = {} if config is None else {name: getattr(config, name, None) for name in _NEUTRAL}
    return {
        name: value
        for name, value in own.items()
        if value is not None and value != _NEUTRAL[name] and value != [] and stated.get(name) is None
    }


@contextmanager
def plain_sampling(model: PreTrainedModel) -> Iterator[None]:
    """A context in which `generate` takes nothing from the model's own settings that changes what is sampled.

    `model`: a causal language model, or one with an adapter. Its settings are back afterwards, also on an error.
    """
    owner = _owner(model)  # generate() of an adapter reads the settings there
    own = owner.generation_config
    if own is None:
        yield
        return
    plain = GenerationConfig()
    for name in _KEPT:
        if hasattr(own, name):
            setattr(plain, name, copy.deepcopy(getattr(own, name)))
    owner.generation_config = plain
    try:
        yield
    finally:
        owner.generation_config = own


def _owner(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
