"""Every distinct prefix scored once: the prompt of a group is computed once and not G times, and so is what its
completions share.

TRL scores a completion in a row of its own. Here the model is evaluated on `prefix_packing`'s texts instead, inside
TRL's own call: the backbone is handed those texts, the head scores each distinct token once (TRL's fused head, or in
float32 on a CPU `token_scores`, which passes over the logits less often), and each completion gets the
log-probabilities and entropies of its tokens. Values and gradients are TRL's up to the order of floating-point
additions, so weights after a step differ in the last digits, and it is not the default. TRL's loss is neither copied
nor changed. What it is tested for is listed in MODEL_TYPES and ATTENTION; all else is refused.

Completions whose advantage is exactly 0, those of silent groups, pass no gradient where the loss has neither a KL term
nor an entropy bonus: every term is a multiple of the advantage. They are scored without one, which saves two thirds of
their cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast
from trl.trainer import utils

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.models.decoding import instead_of_forward, plain_linears
from grpo_replications.shared.models.kept_products import KeptProducts
from grpo_replications.shared.models.prefix_packing import PackedCompletions, pack, packed_shapes
from grpo_replications.shared.models.token_scores import token_scores
from grpo_replications.shared.training.raw_logits import head_scaling

MODEL_TYPES = ("llama", "qwen2", "qwen3")
"""Architectures whose gradients a test compares with TRL's own rows."""

ATTENTION = ("sdpa", "eager")
"""Ways of computing attention that take a mask of any form."""

SHARE = "scoring/share"
"""Logged with every step: tokens that went through the model, as a share of those that TRL's rows have."""


class SharedPrefixes:
    """Mixin before a class derived from `trl.GRPOTrainer`: each distinct prefix once where `share_prefixes` is set."""

    share_prefixes = False

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        if self.share_prefixes:
            bare = self.accelerator.unwrap_model(model)
            scorer = _Scorer(_causal(bare), self.temperature, self._kept_products())
            model = _Packed(model, scorer, logits_to_keep, self._idle_rows(), self._note_scoring)
        found = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        if self.share_prefixes and self._loss_inputs is not None:
            self._note_kept(model.scorer.answered)
        return found

    def _idle_rows(self) -> Tensor | None:
        """Which completions of the loss that is being computed pass no gradient, (B,) bool; None outside of a loss."""
        inputs = self._loss_inputs
        if inputs is None or self.beta != 0 or getattr(self, "_entropy_bonus_enabled", False):
            return None
        return inputs["advantages"].reshape(len(inputs["advantages"]), -1).eq(0).all(dim=1)

    def _note_scoring(self, share: float) -> None:
        self._metrics["train" if self.model.training else "eval"][SHARE].append(share)

    def _check_shared_prefixes(self) -> None:
        """Raise ReplicationError where prefixes cannot be shared, with the reason and what to do."""
        reason = unsupported(self.accelerator.unwrap_model(self.model), self.args, self.accelerator)
        if self.share_prefixes and reason is not None:
            raise ReplicationError(f"share_prefixes does not work with {reason}. Set share_prefixes to false.")


def unsupported(model: nn.Module, config: Any, accelerator: Any) -> str | None:
    """Why the prefixes of this model cannot be shared under these settings; None where they can."""
    causal = _causal(model)
    own = causal.config
    windows = set(getattr(own, "layer_types", None) or ()) - {"full_attention"}
    dropout = getattr(own, "attention_dropout", 0) or any(
        module.p > 0 for module in model.modules() if isinstance(module, nn.Dropout)
    )
    distributed = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    for wrong, what in (
        (not hasattr(utils, "add_fused_lm_head"), "this version of TRL; it needs 1.16"),
        (own.model_type not in MODEL_TYPES, f"models of type {own.model_type!r}, only with {', '.join(MODEL_TYPES)}"),
        (windows, f"layers of type {', '.join(sorted(windows))}"),
        (own._attn_implementation not in ATTENTION, f"attn_implementation={own._attn_implementation!r}"),
        (dropout, "dropout, which draws for every completion anew"),
        (getattr(config, "neftune_noise_alpha", None), "neftune_noise_alpha, which draws for every completion anew"),
        (config.torch_compile, "torch_compile"),
        (distributed in ("FSDP", "DEEPSPEED", "MEGATRON_LM"), f"{distributed}, for which it is not tested"),
    ):
        if wrong:
            return what
    return None


class _Packed:
    """Called in place of the model by TRL's scoring: the same call, on packed texts where that saves work.

    `model`: what TRL would have called, maybe wrapped for a distributed run; `scorer` of the same without wrapper.
    `length`: completion columns. `idle` (B,): rows that need no gradient. `note` takes the share of tokens scored.
    """

    def __init__(self, model: Any, scorer: _Scorer, length: int, idle: Tensor | None, note: Any) -> None:
        self.model, self.scorer, self.length, self.idle, self.note = model, scorer, length, idle, note

    def __call__(
        self, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, fused_lm_head: bool, **rest: Any
    ) -> Any:
        prompts = input_ids.size(1) - self.length
        prompt_of, ids = input_ids.split([prompts, self.length], dim=1)
        prompt_mask, mask = attention_mask.split([prompts, self.length], dim=1)
        parts = [
            ((prompt_of[rows], prompt_mask[rows], ids[rows], mask[rows]), rows, idle)
            for rows, idle in self._parts(mask)
        ]
        shapes = [shape for texts, *_ in parts for shape in packed_shapes(*texts)]
        config = self.scorer.causal.config
        if not parts or work(config, shapes) >= work(config, [tuple(input_ids.shape)]):
            self.note(1.0)  # nothing is saved: very long completions, which would all attend to each other
            return self.model(
                input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=fused_lm_head, **rest
            )
        self.note(sum(rows * places for rows, places in shapes) / input_ids.numel())
        found: dict[str, Tensor | None] = {"log_probs": None, "entropy": None}
        for texts, rows, idle in parts:
            packed = pack(*texts)
            first = packed.batches[0].ids  # a wrapper of the model may look at it; the model gets all of them
            gradient = torch.set_grad_enabled(torch.is_grad_enabled() and not idle)
            with gradient, self.scorer.scoring(packed, texts, rows):
                output = self.model(
                    input_ids=first, shift_labels=packed.labels.unsqueeze(0), fused_lm_head=fused_lm_head, **rest
                )
            for name in found:
                value = getattr(output, name)
                if value is not None:
                    whole = value.new_zeros(ids.shape) if found[name] is None else found[name]
                    found[name] = whole.index_copy(0, rows, packed.of_tokens(value[0]))
        return SimpleNamespace(**found)

    def _parts(self, mask: Tensor) -> list[tuple[Tensor, bool]]:
        """Rows that have tokens, those that pass a gradient and those that do not; some always do, for a backward."""
        filled = mask.any(dim=1)
        idle = filled & (torch.zeros_like(filled) if self.idle is None else self.idle)
        if idle.equal(filled):
            idle = idle & (idle.cumsum(dim=0) > 1)
        # With a gradient first: mixed precision keeps the casts of weights, and those made without one would have none.
        parts = [(filled & ~idle, False), (idle, True)]
        return [(rows.nonzero().flatten(), without) for rows, without in parts if rows.any()]


class _Scorer:
    """Lets a causal language model score packed texts, whatever it is called with.

    `kept`: products of the sampling of the same tokens, if there are any; `answered` tells whether they were used.
    """

    def __init__(self, causal: Any, temperature: float, kept: KeptProducts | None) -> None:
        self.causal, self.temperature, self.kept = causal, temperature, kept
        self.answered = False

    @contextmanager
    def scoring(self, packed: PackedCompletions, texts: tuple[Tensor, ...], rows: Tensor) -> Iterator[None]:
        """A context in which the model, called with anything, scores the nodes of `packed`.

        `texts`: what is packed, as `pack` takes it; `rows`: which rows of the micro-batch it is.
        """
        backbone = self.causal.base_model
        places = self._kept_places(packed, *texts)
        with ExitStack() as stack:
            stack.enter_context(instead_of_forward(backbone, self._states(backbone.forward, packed, rows, places)))
            if _plain_head(self.causal):
                stack.enter_context(instead_of_forward(self.causal, self._scores(packed, places)))
            yield

    def _kept_places(
        self, packed: PackedCompletions, prompts: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor
    ) -> list[Tensor] | None:
        if self.kept is None or not _plain_head(self.causal):
            return None
        real = [
            [row[chosen.bool()].tolist() for row, chosen in zip(*pair, strict=True)]
            for pair in ((prompts, prompt_mask), (ids, mask))
        ]
        places = self.kept.places_in(packed, *real)
        self.answered = self.answered or places is not None
        return places

    def _states(self, plain: Any, packed: PackedCompletions, rows: Tensor, places: list[Tensor] | None) -> Any:
        """In place of the backbone's forward: the hidden states that predict the nodes."""
        config = self.causal.config

        def forward(input_ids: Tensor, use_cache: bool = False, **rest: Any) -> BaseModelOutputWithPast:
            states = []
            for i, batch in enumerate(packed.batches):
                visible = batch.visible
                mask = _additive(visible, self.causal) if config._attn_implementation == "eager" else visible
                with nullcontext() if places is None else self.kept.answering(places[i]):
                    found = plain(
                        input_ids=batch.ids, attention_mask=mask, position_ids=batch.positions, use_cache=False, **rest
                    )
                states.append(found.last_hidden_state.flatten(0, 1))
            chosen = torch.cat(states).index_select(0, packed.sources)
            output = BaseModelOutputWithPast(last_hidden_state=chosen.unsqueeze(0))
            output.packed, output.rows = packed, rows  # for who watches the states, such as `raw_logits`
            return output

        return forward

    def _scores(self, packed: PackedCompletions, places: list[Tensor] | None) -> Any:
        """In place of the model's forward: log-probabilities and entropies of the nodes, (1, M) each."""

        def forward(input_ids: Tensor, **_: Any) -> utils.FusedCausalLMOutput:
            hidden = self.causal.base_model(input_ids=input_ids).last_hidden_state[0]
            logits = None
            if places is not None:
                logits = self.kept.logits_of(torch.cat([part.flatten() for part in places])[packed.sources])
            weight = self.causal.get_output_embeddings().weight
            logps, entropies = token_scores(hidden, weight, packed.labels, self.temperature, logits)
            return utils.FusedCausalLMOutput(log_probs=logps.unsqueeze(0), entropy=entropies.unsqueeze(0))

        return forward


def _plain_head(causal: Any) -> bool:
    """Whether the head is one product with float32 weights on a CPU, which `token_scores` computes faster than TRL."""
    head = causal.get_output_embeddings()
    return (
        head in plain_linears(head)
        and head.bias is None
        and head_scaling(causal.config) == (1.0, None)
        and not torch.is_autocast_enabled("cpu")
    )


def _additive(visible: Tensor, backbone: nn.Module) -> Tensor:
    """A mask that eager attention adds to its scores: 0 where a token is seen, else the least number of their type."""
    kind = visible.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else backbone.dtype
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def work(config: Any, shapes: list[tuple[int, int]]) -> int:
    """Multiplications of one layer, roughly: its matrices for every token, its attention for every pair of a row.

    `shapes`: rows and columns of each batch that goes through the model.
    """
    width = config.hidden_size
    matrices = 4 * width * width + 3 * width * config.intermediate_size
    return sum(rows * columns * (matrices + 2 * columns * width) for rows, columns in shapes)


def _causal(model: nn.Module) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
