"""Raw logits of selected tokens against the logits that the model itself gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from trl.trainer import utils

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training.raw_logits import (
    head_scaling,
    let_compiled_models_see_hooks,
    selected_logits,
    watching_selected_logits,
)

add_fused_lm_head = getattr(utils, "add_fused_lm_head", None)  # TRL 1.14 patches the model in another way
patches = pytest.mark.skipif(add_fused_lm_head is None, reason="this TRL has no function that fuses a head")
VOCABULARY, TOKENS, PROMPT = 40, 6, 5
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": (transformers.LlamaConfig, {}),
    "tied": (transformers.LlamaConfig, {"tie_word_embeddings": True}),
    "soft-capped": (transformers.Gemma2Config, {"final_logit_softcapping": 2.0}),
    "scaled": (transformers.CohereConfig, {"logit_scale": 0.3}),
    "divided": (transformers.GraniteConfig, {"logits_scaling": 4.0}),
    "biased": (transformers.PhiConfig, {}),
}


def tiny(family: str) -> nn.Module:
    kind, changes = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(kind(**{**SMALL, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (5, PROMPT + TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :3], mask[1, -2:] = 0, 0  # padding on the left of the prompt and on the right of the completion
    return ids, mask


def full(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -TOKENS - 1 : -1]
    return logits.gather(2, ids[:, -TOKENS:, None]).squeeze(2).detach()


def fused(model: nn.Module, ids: Tensor, mask: Tensor) -> Any:
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-TOKENS] = -100
    return model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)


@patches
@pytest.mark.parametrize("family", FAMILIES)
def test_raw_logits_are_those_of_the_model_whatever_its_head_does(family: str) -> None:
    model, (ids, mask) = tiny(family), batch()
    expected = full(model, ids, mask)
    add_fused_lm_head(model, temperature=0.5)
    with watching_selected_logits(model, ids[:, -TOKENS:]) as found:
        output = fused(model, ids, mask)
    (logits,) = found
    assert logits.shape == (5, TOKENS) and not logits.requires_grad and output.log_probs.requires_grad
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    plain = model.lm_head(model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state)
    if family in ("soft-capped", "scaled", "divided"):
        naive = plain[:, -TOKENS - 1 : -1].gather(2, ids[:, -TOKENS:, None]).squeeze(2)
        assert (naive - expected).abs().max() > 0.1, "the scaling must matter, or it is not tested"
    # The raw logit is taken before the temperature: it tells the log-probability apart from it.
    spread = model(input_ids=ids, attention_mask=mask).logits[:, -TOKENS - 1 : -1].div(0.5).logsumexp(-1)
    real = mask[:, -TOKENS:].bool()
    torch.testing.assert_close((logits / 0.5 - spread)[real], output.log_probs[:, -TOKENS:][real], rtol=1e-4, atol=1e-4)


@patches
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_adapters_checkpointing_and_chunks_change_nothing(lora: bool, checkpointing: bool) -> None:
    from peft import LoraConfig, get_peft_model

    model, (ids, mask) = tiny("llama"), batch()
    add_fused_lm_head(model)
    plain = full(model, ids, mask)
    if lora:
        adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
        model = get_peft_model(model, adapter).eval()
    expected = full(model, ids, mask)
    assert torch.equal(expected, plain) != lora, "the adapter must matter"
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    with watching_selected_logits(model, ids[:, -TOKENS:]) as found:
        losses = [fused(model, ids[rows], mask[rows]).loss for rows in (slice(0, 2), slice(2, 4), slice(4, 5))]
        sum(losses).backward()
    assert [len(part) for part in found] == [2, 2, 1], "once per chunk, and not again when activations are recomputed"
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-5)


def test_nothing_watches_after_the_context_even_when_it_fails() -> None:
    model, (ids, mask) = tiny("llama"), batch()
    with pytest.raises(RuntimeError, match="stop"), watching_selected_logits(model, ids[:, -TOKENS:]) as found:
        raise RuntimeError("stop")
    model(input_ids=ids, attention_mask=mask)
    assert not found and not model.base_model._forward_hooks


def test_mixed_precision_does_not_round_the_product() -> None:
    """Weights of the head are used as they are stored; only the hidden states come in 16 bits."""
    model, (ids, mask) = tiny("llama"), batch()
    with torch.autocast("cpu", torch.bfloat16), watching_selected_logits(model, ids[:, -TOKENS:]) as found:
        hidden = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    assert found[0].dtype == torch.float32
    exact = hidden[:, -TOKENS - 1 : -1].double() @ model.lm_head.weight.double().T
    exact = exact.gather(2, ids[:, -TOKENS:, None]).squeeze(2)
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=1e-5)


def test_selected_logits_are_rows_of_the_product_in_float64_too() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*size, generator=generator).double() for size in ((2, 3, 4), (7, 4)))
    bias, ids = torch.randn(7, generator=generator).double(), torch.randint(7, (2, 3), generator=generator)
    every = 5 * torch.tanh(0.5 * (hidden @ weight.T + bias) / 5)
    expected = every.gather(2, ids.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(selected_logits(hidden, ids, weight, bias, 0.5, 5.0), expected, rtol=1e-13, atol=1e-13)


def test_scaling_is_read_from_the_configuration() -> None:
    assert head_scaling(transformers.LlamaConfig()) == (1.0, None)
    assert head_scaling(transformers.Gemma2Config(final_logit_softcapping=30.0)) == (1.0, 30.0)
    assert head_scaling(transformers.GraniteConfig(logits_scaling=8.0)) == (0.125, None)
    assert head_scaling(transformers.CohereConfig(logit_scale=0.0625)) == (0.0625, None)


def test_a_model_without_a_head_is_refused() -> None:
    model = tiny("llama")
    model.lm_head = nn.Identity()
    with pytest.raises(ReplicationError, match="linear head"), watching_selected_logits(model, torch.zeros(1, 2)):
        pass


def test_raw_logits_are_found_in_a_model_that_was_compiled_before() -> None:
    ids, mask = batch()
    compiled = torch.compile(tiny("llama"), backend="eager")
    expected = full(compiled, ids, mask)  # compiled without a hook
    let_compiled_models_see_hooks()
    full(compiled, ids, mask)
    with watching_selected_logits(compiled._orig_mod, ids[:, -TOKENS:]) as found:
        compiled(input_ids=ids, attention_mask=mask)
    assert torch.allclose(torch.cat(found), expected, atol=1e-5)
