"""Raw logits of selected tokens, from a forward pass that never makes the logits of the whole vocabulary.

TRL scores a batch with a fused head: the last hidden states go into a kernel that returns log-probabilities. The raw
logit of token v at a position is h . W[v] + b[v], times the model's logit scale, soft-capped where the model does so,
before any temperature: a product with one row of the head per token, B T H multiplications against the B T H V of the
head itself, and no second (B, T, V) tensor.

Legend of shapes: B completions, T completion tokens, H width of the model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from trl.trainer.utils import maybe_gather_lm_head_ctx

from grpo_replications.shared.errors import ReplicationError


def selected_logits(
    hidden: Tensor,
    ids: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
) -> Tensor:
    """Logits of the tokens `ids` (B, T) at the positions whose hidden states predict them, `hidden` (B, T, H).

    `weight`: (V, H) and `bias`: (V,) of the head. Computed in at least float32, one completion at a time, so that the
    largest temporary is (T, H). No gradient. Returns (B, T).
    """
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    logits = torch.empty(ids.shape, dtype=dtype, device=hidden.device)
    for row, (states, tokens) in enumerate(zip(hidden.detach(), ids, strict=True)):
        # Elementwise and not a matrix product, which mixed precision would round to 16 bits.
        logits[row] = (states.to(dtype) * weight.detach()[tokens].to(dtype)).sum(dim=-1)
    if bias is not None:
        logits = logits + bias.detach()[ids].to(dtype)
    logits = logits * scale
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def head_scaling(config: Any) -> tuple[float, float | None]:
    """By what a model multiplies its logits after the head, and the soft cap they pass through then, or None.

    Families name the multiplier differently; two of them state the divisor.
    """
    text = config.get_text_config()
    softcap = getattr(text, "final_logit_softcapping", None)
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(text, name, None) is not None:
            return float(getattr(text, name)), softcap
    divisor = getattr(text, "logits_scaling", None)
    if divisor is None:
        return 1.0, softcap
    return (float(divisor) if text.model_type == "hyperclovax" else 1.0 / divisor), softcap


def let_compiled_models_see_hooks() -> None:
    """Make forward passes compiled from now on look whether hooks have come or gone; forget those compiled before.

    Without this a model compiled with no hook goes on without one, and no raw logit is found.
    """
    torch._dynamo.reset()
    torch._dynamo.config.skip_nnmodule_hook_guards = False


@contextmanager
def watching_selected_logits(model: nn.Module, ids: Tensor) -> Iterator[list[Tensor]]:
    """Collect the raw logits of `ids` (B, T), the last T tokens of each sequence, while `model` scores them.

    `model`: a causal language model, or one with a PEFT adapter, taken out of any wrapper of a distributed run. Forward
    passes inside the context may go through the batch in several chunks, in order; one tensor (rows, T) per pass is
    appended to the list that the context gives. They are computed inside the forward pass, where sharded parameters of
    a distributed run are at hand. Raises ReplicationError for a model without a readable head.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = causal.get_output_embeddings()
    if not isinstance(getattr(head, "weight", None), Tensor):
        raise ReplicationError(
            f"Weights of raw logits need a model with a linear head; {type(causal).__name__} has none. Use a weight of "
            "the log-probability or probability instead."
        )
    scale, softcap = head_scaling(causal.config)
    length = ids.size(1)
    found: list[Tensor] = []

    @torch.no_grad()
    def record(module: nn.Module, arguments: Any, output: Any) -> None:
        hidden = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
        packed = getattr(output, "packed", None)
        if packed is None:
            first = sum(map(len, found))
            hidden, chunk = hidden[:, -length - 1 : -1], ids[first : first + len(hidden)].to(head.weight.device)
        else:
            chunk = packed.labels.unsqueeze(0)  # every distinct token once
        with maybe_gather_lm_head_ctx(head.weight, head.bias):
            weight, bias = (x.full_tensor() if isinstance(x, DTensor) else x for x in (head.weight, head.bias))
            logits = selected_logits(hidden.to(weight.device), chunk, weight, bias, scale, softcap)
        if packed is None:
            found.append(logits.to(ids.device))
            return
        if not found:
            found.append(torch.zeros(ids.shape, dtype=logits.dtype, device=ids.device))
        found[0][output.rows] = packed.of_tokens(logits[0]).to(ids.device)

    handle = causal.base_model.register_forward_hook(record)
    try:
        yield found
    finally:
        handle.remove()
