r"""Samples that end where their first `\boxed{}` closes.

The rest of a completion is cut off after it has been sampled. A sample up to a stopping place has the same distribution
whether or not sampling goes on, so this is what stopping there gives, at the cost of the tokens that are thrown away;
and it holds for any engine, vLLM too. No end of sequence is appended: it would be a token that the policy did not draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_replications.shared.grading.completions import first_box


class StopAtBox:
    """Mixin before a class derived from `trl.GRPOTrainer`: cuts completions off where `stop_at_box` is set."""

    stop_at_box = False

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        if not self.stop_at_box:
            return completion_ids, logprobs
        kept = [tokens_up_to_box(self._tokenizer, ids) for ids in completion_ids]
        completion_ids = [ids[:n] for ids, n in zip(completion_ids, kept, strict=True)]
        if logprobs is not None:
            logprobs = [row[:n] for row, n in zip(logprobs, kept, strict=True)]
        return completion_ids, logprobs


def tokens_up_to_box(tokenizer: Any, ids: Sequence[int]) -> int:
    """How many of a completion's tokens its first box takes to close; all of them where it does not."""

    def closed(number: int) -> bool:
        return first_box(tokenizer.decode(ids[:number], skip_special_tokens=True)) is not None

    if not closed(len(ids)):
        return len(ids)
    low, high = 0, len(ids)  # open after `low` tokens, closed after `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if closed(middle) else (middle, high)
    return high
