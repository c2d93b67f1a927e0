"""Whether this machine can sample by vLLM what a profile asks it to, said before the first job."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profiles import Profile


def without_vllm(paper: Paper, profile: Profile) -> Iterator[str]:
    """A line for each use of vLLM that this machine cannot make, with the experiments that ask for it."""
    from grpo_replications.shared.models.vllm_engine import vllm_problem  # which imports torch

    uses = {"use_vllm": (True, "use_vllm = true", "set use_vllm = false to sample with transformers")}
    uses["eval_engine"] = ("vllm", 'eval_engine = "vllm"', 'set eval_engine = "transformers"')
    for name, (value, asked, otherwise) in uses.items():
        asking = [
            plan.experiment
            for plan in profile.plans.values()
            for cell in plan.cells
            if getattr(paper.experiment(plan.experiment).parse(cell, plan.experiment), name, None) == value
        ]
        problem = vllm_problem(f"{', '.join(dict.fromkeys(asking))}: {asked}", otherwise) if asking else None
        if problem:
            yield problem
