"""lambda-GRPO's update is biased where GRPO's is not: a node's expected push when its completions are worth the same.

Let G completions pass a node, each with the same advantage A, and choose L with probability p, R with q = 1 - p. By the
score identity GRPO's expected push on the node's logit is 0: nothing is to be learned. lambda-GRPO averages over the
completions of each child in place of summing them, and the expectation of that is not 0 (`expected_push`). It points to
one half where A > 0 and away from it where A < 0: in part, lambda-GRPO's weights act as an entropy term.
"""

from __future__ import annotations

import numpy as np

from grpo_replications.replications.lambda_grpo.settings import UpdateBiasSettings
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.synthetic.tree_policy import draw_leaf_counts, policy_gradient


def update_bias(settings: UpdateBiasSettings, seed: int, context: JobContext) -> list[Row]:
    """The mean push on the logit of L over `groups` random groups of a tree of one node, and what it should be.

    Returns `push` (measured with the simulator's own gradient), `expected_push` (closed form), `push_error` (their
    difference), `standard_error` of the measured mean, and `push_from_half` (the measured push in the direction away
    from one half: negative where the update draws the node to one half; absent at p = 1/2).
    Cost: O(G groups).
    """
    p, size = settings.p_left, settings.group_size
    generator = np.random.default_rng([7, seed])
    leaves = np.repeat(np.array([[p], [1.0 - p]]), settings.groups, axis=1)
    counts = draw_leaf_counts(leaves, generator.random((size, settings.groups)))
    advantages = np.full_like(counts, settings.advantage)
    pushes = policy_gradient(leaves[:1], counts, advantages, settings.method)[0]
    measured = float(pushes.mean())
    expected = expected_push(p, size, settings.advantage) if settings.method == "lambda-grpo" else 0.0
    context.progress(1.0)
    rows = [
        row("push", measured),
        row("expected_push", expected),
        row("push_error", measured - expected),
        row("standard_error", pushes.std(ddof=1) / np.sqrt(settings.groups)),
    ]
    if p != 0.5:
        rows.append(row("push_from_half", measured * np.sign(p - 0.5)))
    return rows


def expected_push(p: float, group_size: int, advantage: float, depth: int = 1) -> float:
    """A [q (1 - q^G) - p (1 - p^G)] / (G depth): lambda-GRPO's expected push on the logit of L, q = 1 - p.

    L is among the G completions with probability 1 - q^G and then pushes by A q / (G depth), R by -A p / (G depth) with
    probability 1 - p^G; `depth` is the tokens of a completion, over which the loss averages.
    """
    q = 1.0 - p
    return advantage * (q * (1.0 - q**group_size) - p * (1.0 - p**group_size)) / (group_size * depth)
