"""TRL's GRPOTrainer with token weights, dynamic sampling and a log of every group; from settings to one run.

Here: the trainer, what it adds to TRL's loss, the settings of a run, and the comparison of methods from one start.
Not here: which experiments are run and how they are stored (`shared.harness`, `replications`), and the formulas of the
weights themselves (`shared.theory`).
"""

from grpo_replications.shared.training.versions import warn_of_untested_trl

warn_of_untested_trl()  # before TRL is imported, which may fail with another version
