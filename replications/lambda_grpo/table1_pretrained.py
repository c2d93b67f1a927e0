"""Table 1 with a pretrained language model at the paper's own learning rates, in the simulator of the tree.

The paper trains GPT-2-small at learning rate 1e-5 and says that at 5e-5 neither method converges. Here the model is one
that needs no network, masked to the tokens L and R. Departures from a run through TRL (`table1-lm`): every prefix of
the tree is computed once a step, so probabilities are exact and a group costs the same whatever its size; and a run may
end early once one path has nearly all probability (`Settled`), since groups of one path change nothing.
"""

from __future__ import annotations

from grpo_replications.replications.lambda_grpo.many_table1 import arm, rows_of
from grpo_replications.replications.lambda_grpo.settings import Table1PretrainedSettings
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row, row
from grpo_replications.shared.training.many_runs import Objective
from grpo_replications.synthetic.binary_tree import BinaryTree
from grpo_replications.synthetic.tree_task import path_model
from grpo_replications.synthetic.tree_transformers import Settled, run_language_model


def table1_pretrained(settings: Table1PretrainedSettings, seed: int, context: JobContext) -> list[Row]:
    """One run: the target and the draws are those of the seed, the model starts alike in all.

    Returns what `many_table1.many_table1` returns of a seed, and `steps_computed`: those before the run was settled.
    Raises ReplicationError for a model that cannot be had and for settings that cannot be run.
    Cost: `synthetic.tree_transformers.run_language_model`; about 1 CPU-second a step with SmolLM2-135M.
    """
    if settings.last > settings.steps:
        raise ReplicationError(f"last = {settings.last} is more than the {settings.steps} steps of the run.")
    model, _ = path_model(settings.model, seed)
    objective = Objective(
        method=arm(settings.method, settings.depth),
        optimizer=settings.optimizer,
        max_grad_norm=settings.max_grad_norm,
    )
    settled = Settled(settings.settled_probability, settings.settled_steps)
    result = run_language_model(
        BinaryTree(settings.depth, settings.n, prefix_reward=settings.r_neg),
        model,
        objective,
        settings.lr,
        seed=seed,
        group_size=settings.group_size,
        steps=settings.steps,
        settled=settled if settled.probability < 1 else None,
        progress=context.progress,
    )
    return [*rows_of(result, settings.last, settings.curve_every), row("steps_computed", result.steps_computed)]
