"""Every experiment of this replication by name. A function takes settings and a seed and returns measured rows.

Modules that need torch are imported when they run, so that listing and reading claims stays fast.
"""

from __future__ import annotations

from functools import partial

from grpo_replications.replications.sigma_identity import (
    corollaries,
    dapo_log,
    dapo_log_authors,
    rate_mixture,
    settings,
    tables,
)
from grpo_replications.shared.harness.jobs import Experiment, deferred

_later = partial(deferred, "grpo_replications.replications.sigma_identity")


EXPERIMENTS: dict[str, Experiment] = {
    "closed-forms": Experiment(
        tables.closed_forms,
        "closed forms against 60-digit sums and drawn groups",
        settings.ClosedFormsSettings,
        seeds_at_once=True,
    ),
    "big-math": Experiment(
        tables.big_math, "silent groups and gradient mass over Big-Math's solve rates", settings.BigMathSettings
    ),
    "corollaries": Experiment(
        corollaries.corollaries,
        "what the paper concludes from its closed forms: penalties, bias of the rates, equal variance, redraws",
        settings.CorollariesSettings,
    ),
    "rate-mixture": Experiment(
        rate_mixture.rate_mixture,
        "how many of Big-Math's problems can be silent at every group size: a mixture fitted to the counts",
        settings.RateMixtureSettings,
    ),
    "identity": Experiment(
        _later("identity", "identity"),
        "the identity on random groups, in float64, with controls that must fail",
        settings.IdentitySettings,
    ),
    "controlled-run": Experiment(
        _later("controlled_run", "controlled_run"),
        "the paper's run of 6,000 Bernoulli-logit prompts, over many seeds",
        settings.ControlledRunSettings,
        seeds_at_once=True,
    ),
    "controlled-group-size": Experiment(
        _later("controlled_run", "controlled_group_size"),
        "the same run at other group sizes",
        settings.ControlledSettings,
        seeds_at_once=True,
    ),
    "dapo-log": Experiment(
        dapo_log.dapo_log, "one-timescale fits to DAPO's log, every reading", settings.DapoLogSettings
    ),
    "dapo-log-authors": Experiment(
        dapo_log_authors.dapo_log_authors,
        "the one-timescale fit to DAPO's log as the authors' script makes it",
        settings.DapoLogAuthorsSettings,
    ),
    "dapo-log-generic": Experiment(
        dapo_log.dapo_log_generic, "generic saturating curves on the same points", settings.DapoLogGenericSettings
    ),
    "dynamic-sampling": Experiment(
        _later("dynamic_sampling", "dynamic_sampling"),
        "silent groups redrawn in TRL training, counts against closed forms",
        settings.DynamicSamplingSettings,
    ),
    "real-gradients": Experiment(
        _later("real_gradients", "real_gradients"),
        "the update TRL makes against the identity, language model",
        settings.RealGradientsSettings,
    ),
    "real-gradients-small": Experiment(
        _later("real_gradients", "real_gradients"),
        "the update TRL makes against the identity, small transformer",
        settings.RealGradientsSettings,
    ),
    "beyond-theorem": Experiment(
        _later("beyond_theorem", "beyond_theorem"),
        "where the identity ends, language model",
        settings.BeyondTheoremSettings,
    ),
    "beyond-theorem-small": Experiment(
        _later("beyond_theorem", "beyond_theorem"),
        "where the identity ends, small transformer",
        settings.BeyondTheoremSettings,
    ),
    "open-test": Experiment(
        _later("open_test", "open_test"),
        "silent groups of a language model in training against the closed form, by group size",
        settings.OpenTestSettings,
    ),
    "open-test-gradients": Experiment(
        _later("open_test_gradients", "open_test_gradients"),
        "gradient mass by difficulty of a language model in training against the closed form",
        settings.OpenTestGradientsSettings,
    ),
    "relabelling": Experiment(
        _later("relabelling", "relabelling"),
        "one set of scored completions a prompt under many verifiers: gradient of logit p against p, norms of groups",
        settings.RelabellingSettings,
    ),
    "silent-forecast": Experiment(
        _later("silent_forecast", "silent_forecast"),
        "silent shares at other group sizes and later, forecast from a log of groups of 8, against exact solve rates",
        settings.SilentForecastSettings,
        seeds_at_once=True,
    ),
}
