"""Every experiment of this replication by name. A function takes settings and a seed and returns measured rows.

Modules that need torch are imported when they run, so that listing and reading claims stays fast.
"""

from __future__ import annotations

from functools import partial

from grpo_replications.replications.grpo_sg import settings
from grpo_replications.shared.harness.jobs import Experiment, deferred

_later = partial(deferred, "grpo_replications.replications.grpo_sg")
_SMALL = _later("training_small", "training_small")
_MANY = _later("many_training", "many_training")
_PUZZLES = _later("many_puzzles", "many_puzzles")

EXPERIMENTS: dict[str, Experiment] = {
    "token-gradients": Experiment(
        _later("token_gradients", "token_gradients"),
        "gradient norms of single tokens against their probability, exact and as measured",
        settings.TokenGradientsSettings,
        seeds_at_once=True,
    ),
    "sharpness-bound": Experiment(
        _later("bound", "sharpness_bound"),
        "the terms of Theorem 3.3 on small policies",
        settings.BoundSettings,
        seeds_at_once=True,
    ),
    "identifiability": Experiment(
        _later("identifiability", "identifiability"),
        "weights and gradients when the head's logits are shifted",
        settings.IdentifiabilitySettings,
    ),
    "training-small": Experiment(
        _SMALL, "every method from the same start, on a small transformer that can half add", settings.SmallSettings
    ),
    "training-small-lr": Experiment(_SMALL, "the same at other learning rates", settings.SmallSettings),
    "training-small-sgd": Experiment(_SMALL, "the same under SGD without clipping", settings.SmallSettings),
    "identifiability-training": Experiment(
        _later("training_small", "identifiability_training"),
        "training with shifted logits",
        settings.ShiftedTrainingSettings,
    ),
    "sensitivity": Experiment(
        _later("training_small", "sensitivity"),
        "the constants of the weight, one at a time",
        settings.SensitivitySettings,
    ),
    "placement": Experiment(_SMALL, "inside or outside the clip, KL weighted or not", settings.SmallSettings),
    "many-same-batch": Experiment(
        _later("many_same_batch", "many_same_batch"),
        "one batch's gradient under every weighting, along a run of plain GRPO",
        settings.SameBatchSettings,
        seeds_at_once=True,
    ),
    "many-generalization": Experiment(
        _MANY,
        "every method on 64 training problems, solve rates on these and on others",
        settings.ManyTrainingSettings,
        seeds_at_once=True,
    ),
    "many-rates": Experiment(
        _MANY,
        "every method at six learning rates, two updates a rollout",
        settings.ManyTrainingSettings,
        seeds_at_once=True,
    ),
    "many-puzzles": Experiment(
        _PUZZLES,
        "every method at several learning rates on Knights & Knaves in symbols",
        settings.ManyPuzzlesSettings,
        seeds_at_once=True,
    ),
    "many-puzzles-longer": Experiment(
        _PUZZLES,
        "GRPO and the weights on the same puzzles, for more rollouts",
        settings.ManyPuzzlesSettings,
        seeds_at_once=True,
    ),
    "same-batch-embedded": Experiment(
        _later("embedded_batches", "same_batch_embedded"),
        "gradients of the embedded model's groups under every weighting",
        settings.SampledGroups,
    ),
    "training": Experiment(
        _later("training", "training"),
        "every method from the same start, language model on addition",
        settings.AdditionTrainingSettings,
    ),
    "training-kk": Experiment(
        _later("training_kk", "training_kk"),
        "Knights & Knaves after a supervised start",
        settings.PuzzleTrainingSettings,
    ),
    "training-maths": Experiment(
        _later("training_maths", "training_maths"), "the paper's models on mathematics", settings.MathsTrainingSettings
    ),
    "agentic-qa": Experiment(
        _later("training_maths", "agentic_qa"), "not implemented: says what is missing", settings.AgenticSettings
    ),
}
