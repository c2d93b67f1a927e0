"""A paper's directory: claims, profiles, experiments, figures and tables, each read only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_replications.shared.errors import Problems, ReplicationError
from grpo_replications.shared.harness.checks import Check
from grpo_replications.shared.harness.claims import Claim, PaperFacts, load_claims
from grpo_replications.shared.harness.jobs import Experiment
from grpo_replications.shared.harness.paper_modules import import_from
from grpo_replications.shared.harness.profiles import Profile, load_profiles

CLAIMS_FILE = "claims.toml"
PROFILES_FILE = "profiles.toml"


@dataclass(frozen=True)
class Paper:
    """One replicated paper.  `facts` and `profiles` need no import of the paper's code; the rest does."""

    directory: Path

    @classmethod
    def load(cls, directory: Path | str) -> Paper:
        """The paper in `directory` with claims and profiles checked; `ReplicationError` says what is wrong."""
        paper = cls(Path(directory).resolve())
        if not (paper.directory / CLAIMS_FILE).is_file():
            raise ReplicationError(f"{paper.directory} holds no {CLAIMS_FILE}, so it is no paper's directory.")
        if paper.slug != paper.name.replace("_", "-"):
            raise ReplicationError(
                f'{paper.directory / CLAIMS_FILE} says paper = "{paper.slug}"; the directory {paper.name} holds the '
                f'paper "{paper.name.replace("_", "-")}". Rename one of them.'
            )
        return paper

    @property
    def name(self) -> str:
        """The directory's name, which is also the name under `results/`."""
        return self.directory.name

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """Every profile by name."""
        return load_profiles(self.directory / PROFILES_FILE)

    @cached_property
    def _claims_document(self) -> tuple[PaperFacts, tuple[Claim, ...]]:
        return load_claims(self.directory / CLAIMS_FILE, self.profiles)

    @property
    def facts(self) -> PaperFacts:
        """Title, authors and identifiers."""
        return self._claims_document[0]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Every claim, in the written order."""
        return self._claims_document[1]

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """Every check of every claim, in the written order."""
        return tuple(check for claim in self.claims for check in claim.checks)

    @property
    def slug(self) -> str:
        """The name used on the command line."""
        return self.facts.slug

    def profile(self, name: str) -> Profile:
        """One profile by name."""
        if name not in self.profiles:
            raise ReplicationError(
                f"{self.slug} has no profile '{name}'; its profiles are: {', '.join(self.profiles)}."
            )
        return self.profiles[name]

    @cached_property
    def experiments(self) -> dict[str, Experiment]:
        """`EXPERIMENTS` of the paper's `experiments.py`; imports it."""
        return self._registry("experiments", "EXPERIMENTS")

    @cached_property
    def figures(self) -> dict[str, Callable[..., Any]]:
        """`FIGURES` of the paper's `figures.py`, or nothing where there is none; imports it."""
        return self._registry("figures", "FIGURES") if self._has("figures") else {}

    @cached_property
    def tables(self) -> dict[str, Callable[..., Any]]:
        """`TABLES` of the paper's `result_tables.py`, or nothing where there is none; imports it."""
        return self._registry("result_tables", "TABLES") if self._has("result_tables") else {}

    @property
    def printed(self) -> dict[str, float]:
        """Every number that the paper prints, by the id of its check."""
        return {check.id: check.paper_value for check in self.checks if check.paper_value is not None}

    def experiment(self, name: str) -> Experiment:
        """One experiment by name."""
        if name not in self.experiments:
            raise ReplicationError(
                f"{self.directory / PROFILES_FILE} has an experiment '{name}' that {self.name}/experiments.py does "
                f"not register; EXPERIMENTS has: {', '.join(self.experiments)}."
            )
        return self.experiments[name]

    def where(self, profile: str, experiment: str) -> str:
        """Where an experiment of a profile is written, for messages."""
        return f"{self.directory / PROFILES_FILE}, [{profile}.{experiment}]"

    def check_settings(self) -> None:
        """Hold every cell of every profile against its experiment's settings; ReplicationError lists what is wrong.

        One message names the file and, for each mistake, profile, experiment and key, with the names that are known.
        """
        problems = Problems()
        for profile in self.profiles.values():
            for plan in profile.plans.values():
                where = self.where(profile.name, plan.experiment)
                for cell in plan.cells:
                    with problems.noted():
                        self.experiment(plan.experiment).parse(cell, where)
        problems.raise_any()

    def _has(self, stem: str) -> bool:
        return (self.directory / f"{stem}.py").is_file() or (self.directory / stem / "__init__.py").is_file()

    def _registry(self, stem: str, variable: str) -> dict[str, Any]:
        if not self._has(stem):
            raise ReplicationError(f"{self.directory} holds no {stem}.py.")
        registry = getattr(import_from(self.directory, stem), variable, None)
        if not isinstance(registry, dict):
            raise ReplicationError(f"{self.directory / stem}.py must define {variable}, a dictionary.")
        return registry


def discover(directory: Path) -> list[Paper]:
    """Every paper under `directory`, by name; `ReplicationError` where two share a name or an id."""
    papers = [Paper.load(path.parent) for path in sorted(directory.glob(f"*/{CLAIMS_FILE}"))]
    check_apart(papers)
    return papers


def check_apart(papers: Sequence[Paper]) -> None:
    """Refuse papers that share their name, an alias, or the id of a claim or a check.

    One would replace the other in a report.
    """
    owners: dict[str, Paper] = {}
    problems = Problems()
    for paper in papers:
        names = {entry.id for entry in (*paper.claims, *paper.checks)} | {paper.slug}
        names |= {check.alias for check in paper.checks if check.alias}
        shared = sorted(name for name in names if name in owners)
        if shared:
            more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
            other = owners[shared[0]].directory
            problems.add(f"{other} and {paper.directory} both use the name {shared[0]}{more}; rename them in one.")
        owners.update(dict.fromkeys(names, paper))
    problems.raise_any()
