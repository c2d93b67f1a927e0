"""Every experiment of this replication by name. A function takes settings and a seed and returns measured rows.

Language-model experiments are imported when they run, so that listing and reading claims stays fast.
"""

from __future__ import annotations

from functools import partial

from grpo_replications.replications.lambda_grpo import settings, table1, table2_intervals
from grpo_replications.shared.harness.jobs import Experiment, deferred

_later = partial(deferred, "grpo_replications.replications.lambda_grpo")

EXPERIMENTS: dict[str, Experiment] = {
    "theorem": Experiment(
        _later("theorem", "theorem"),
        "L_PRM = L_GRPO in value and gradient, float64, with controls that must fail",
        settings.TheoremSettings,
        version=2,
    ),
    "flaw": Experiment(
        _later("theorem", "flaw"),
        "the flaw in both directions, on the paper's worked example and on two equally good prefixes",
        settings.NoSettings,
    ),
    "table1-tabular": Experiment(
        table1.table1_tabular,
        "Table 1 on a tabular policy, over optimizers and learning rates",
        settings.Table1TabularSettings,
        version=2,
        seeds_at_once=True,
    ),
    "table1-best": Experiment(
        table1.table1_best,
        "Table 1 on a tabular policy, each method at its own best learning rate",
        settings.Table1BestSettings,
        seeds_at_once=True,
    ),
    "tabular-speed": Experiment(
        _later("tabular_speed", "tabular_speed"),
        "steps to the target on a tabular policy, each method at its own fastest learning rate",
        settings.TabularSpeedSettings,
        seeds_at_once=True,
    ),
    "update-bias": Experiment(
        _later("update_bias", "update_bias"),
        "the mean update at a node whose completions are all worth the same, against its closed form",
        settings.UpdateBiasSettings,
    ),
    "many-table1": Experiment(
        _later("many_table1", "many_table1"),
        "Table 1 with a small transformer, all seeds at once",
        settings.ManyTable1Settings,
        seeds_at_once=True,
    ),
    "many-table1-fresh": Experiment(
        _later("many_table1", "many_table1"),
        "the same on further seeds, at the three rates among which every method's best one lay",
        settings.ManyTable1Settings,
        seeds_at_once=True,
    ),
    "many-table1-leaning": Experiment(
        _later("many_table1", "many_table1"),
        "the same from a policy that leans to one side, where process sets do not follow depth",
        settings.ManyTable1Settings,
        seeds_at_once=True,
    ),
    "many-table1-trl": Experiment(
        _later("many_table1", "many_table1_trl"),
        "some seeds of many-table1 through TRL, from the same weights",
        settings.ManyTable1TrlSettings,
    ),
    "table1-pretrained": Experiment(
        _later("table1_pretrained", "table1_pretrained"),
        "Table 1 with a pretrained language model at the paper's own learning rates, by the simulator",
        settings.Table1PretrainedSettings,
    ),
    "many-sums": Experiment(
        _later("many_sums", "many_sums"),
        "steps to a common solve rate on running sums modulo 10, all seeds at once",
        settings.ManySumsSettings,
        seeds_at_once=True,
    ),
    "table1-lm": Experiment(
        _later("language_model", "table1_lm"),
        "Table 1 with a transformer, through TRL",
        settings.Table1LanguageModelSettings,
    ),
    "overlap": Experiment(
        _later("language_model", "overlap"), "prefix trees during a real GRPO run on addition", settings.OverlapSettings
    ),
    "training": Experiment(
        _later("language_model", "training"),
        "GRPO against lambda-GRPO from the same start, on addition",
        settings.LearningSettings,
    ),
    "overhead": Experiment(
        _later("language_model", "overhead"),
        "what the weights cost, and step time against TRL's own trainer",
        settings.OverheadSettings,
        version=2,
    ),
    "weights-cost": Experiment(
        _later("weights_cost", "weights_cost"),
        "seconds a token to compute the weights, without a model",
        settings.WeightsCostSettings,
    ),
    "table2": Experiment(
        _later("table2", "table2"),
        "the paper's downstream accuracies: its models, data and benchmarks",
        settings.Table2Settings,
        version=3,
    ),
    "table2-intervals": Experiment(
        table2_intervals.table2_intervals,
        "how many differences of Table 2 exceed their stated intervals",
        settings.NoSettings,
        version=2,
    ),
}
