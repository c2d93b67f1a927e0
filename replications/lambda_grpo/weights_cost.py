"""What lambda-GRPO's weights cost by themselves: seconds a completion token, on random groups of the paper's sizes."""

from __future__ import annotations

import statistics
import time

import torch

from grpo_replications.replications.lambda_grpo.settings import WeightsCostSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.theory.process_sets import process_set_sizes


def weights_cost(settings: WeightsCostSettings, seed: int, context: JobContext) -> list[Row]:
    """Time to find every process set of a group and invert its size, over the tokens of the group.

    Completions share their beginnings in pairs, fours and so on, so that the tree is deep. The first group (warm-up) is
    left out. Returns the timing `seconds_per_token`, the median over `groups` groups: a busy machine makes some wait.
    """
    generator = torch.Generator().manual_seed(seed)
    size, tokens = settings.group_size, settings.tokens
    mask = torch.ones(size, tokens, dtype=torch.bool)
    seconds = []
    for group in range(settings.groups + 1):
        ids = torch.randint(1000, (size, tokens), generator=generator)
        for i in range(1, size):
            shared = tokens // (2 + (i & -i).bit_length())  # completion i begins like the one it branches off from
            ids[i, :shared] = ids[i & (i - 1), :shared]
        started = time.perf_counter()
        1.0 / process_set_sizes(ids, mask, size)
        seconds.append(time.perf_counter() - started)
        context.progress((group + 1) / (settings.groups + 1))
    return [{**row("seconds_per_token", statistics.median(seconds[1:]) / (size * tokens)), "timing": True}]
