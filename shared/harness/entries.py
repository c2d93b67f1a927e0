"""What checks of every kind have: the fields of `[[claim.check]]` and their types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from grpo_replications.shared.statistics.states import MINIMUM_SEEDS

PUBLISHED, HERE, SUPPORT, CONTROL = "published", "here", "support", "control"
ID = r"^[a-z0-9/.+_-]+$"  # what LaTeX's \csname lookup and a CSV cell carry

Text = Annotated[str, Field(min_length=1)]
Id = Annotated[str, Field(pattern=ID)]
Alias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
Seeds = Annotated[int, Field(ge=2)]
Filter = dict[str, Any]


class Entry(BaseModel):
    """A table of `claims.toml`: unknown keys and wrong types are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CheckEntry(Entry):
    """What checks of every kind have; the fields are the keys of `[[claim.check]]`.

    `answers`: which answer of its claim the check decides, `published` (the paper's own setting) or `here` (our
    scaled one); `support` is shown and decides nothing; `control` tests our own machinery.  `unit` and `definition`
    say what its number is.  `criterion` is only written where it says more than the keys do (a reason for a threshold,
    say); `judged_by` puts it into words where it is not.  `claim` and `source` are those of the claim it stands under.
    `alias`: a short name for its number in citations; one is made of the id where it is not written.  `read_with`: ids
    of checks that a citation of the number must name, because they say something else of the same question.
    `headline`: the question that the check answers in the first lines of its paper's page.
    `post_hoc`: the criterion was written or changed after measurements that it judges had been looked at; every report
    says so, until the experiment is measured anew under the criterion (`shared.harness.criteria`).
    """

    claim: Id
    source: Literal["paper", "ours", "control"]
    id: Id
    statement: Text
    where: Text
    answers: Literal["published", "here", "support", "control"]
    criterion: Text | None = None
    experiment: Text
    profiles: Annotated[Names, Field(min_length=1)]
    metric: Text
    unit: Text
    definition: Text
    paper_value: Number | None = None
    not_run_reason: Text | None = None
    select: Filter = {}
    conditions: Names = ()
    timing: bool = False
    headline: Text | None = None
    alias: Alias | None = None
    read_with: Names = ()
    post_hoc: bool = False

    @property
    def judged_by(self) -> str:
        """The criterion: as written, or in words from the keys."""
        if self.criterion:
            return self.criterion
        each = f" Judged for each {', '.join(self.conditions)}." if self.conditions else ""
        return self.words() + each

    def words(self) -> str:
        """The criterion as its keys say it."""
        raise NotImplementedError

    @property
    def filters(self) -> tuple[Filter, ...]:
        """Every set of rows that the check reads, as settings and their values."""
        return (self.select,)

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments whose rows the check reads."""
        return (self.experiment,)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the check reads."""
        return (self.metric,)

    @property
    def varying(self) -> tuple[str, ...]:
        """The settings besides those of the filters that must vary in the experiment."""
        return self.conditions


class SeedCheck(CheckEntry):
    """What checks over seeds have in common."""

    reduce: Literal["mean", "max", "min"] = "mean"
    min_seeds: Seeds = MINIMUM_SEEDS
