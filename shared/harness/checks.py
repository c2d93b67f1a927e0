"""A check: one test under a claim, with the criterion that was written before the run.

A check has one of five kinds:

`exact`      every selected row lies within `tolerance` of `target` (default 0).  With `expect = "violation"` (a
               negative control) every row must lie further than `minimum` from it.
`interval`   `paper_value` lies inside the central 95 % of the means that a study with `paper_seeds` seeds would
               report, drawn from our seeds (rounded to `decimals`, where the paper prints so many).
`direction`  the seeds of `better` beat those of `worse`: probability of improvement above one half.  With
               `worse_factor` they must beat that multiple: 0.5 and fewer is better means "in under half".
`at_least`, `at_most`  the mean over seeds lies on that side of `threshold`; with `strict` never on it.

`paper_value` is a number that the paper prints, `threshold` one that we set; the second never stands for the first.
`select`, `better` and `worse` filter on the settings that vary in the experiment (a list means any of its values)
and on `step` (a number or `"last"`).  The unit of replication is the seed: what is left of one seed after the
filters (several steps, say) is first reduced to one number (`reduce`: mean, max or min).  With `conditions` the
check is judged for each combination of these settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

MINIMUM_SEEDS = 5
KINDS = ("exact", "interval", "direction", "at_least", "at_most")
PUBLISHED, HERE, SUPPORT, CONTROL = "published", "here", "support", "control"
ID = r"^[a-z0-9/.+_-]+$"  # what LaTeX's \csname lookup and a CSV cell carry

Text = Annotated[str, Field(min_length=1)]
Id = Annotated[str, Field(pattern=ID)]
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


class ExactCheck(CheckEntry):
    """Every selected row against `target`."""

    kind: Literal["exact"]
    target: Number = 0.0
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-12
    expect: Literal["violation"] | None = None
    minimum: Positive | None = None

    @model_validator(mode="after")
    def _violation_has_a_minimum(self) -> ExactCheck:
        if self.expect and (self.minimum is None or "tolerance" in self.model_fields_set):
            raise ValueError("a check that expects a violation needs a minimum above 0, and no tolerance")
        if self.minimum is not None and not self.expect:
            raise ValueError('minimum needs expect = "violation"')
        return self

    def words(self) -> str:
        """The criterion as its keys say it."""
        if self.expect:
            return f"Every selected value lies further than {self.minimum:g} from {self.target:g}."
        return f"Every selected value lies within {self.tolerance:g} of {self.target:g}."


class SeedCheck(CheckEntry):
    """What checks over seeds have in common."""

    reduce: Literal["mean", "max", "min"] = "mean"
    min_seeds: Seeds = MINIMUM_SEEDS


class ThresholdCheck(SeedCheck):
    """The mean over seeds against `threshold`."""

    kind: Literal["at_least", "at_most"]
    threshold: Number
    strict: bool = False

    def words(self) -> str:
        """The criterion as its keys say it."""
        side = {"at_least": "above", "at_most": "below"}[self.kind]
        side = side if self.strict else f"at or {side}"
        return f"The mean over seeds lies {side} {self.threshold:g} with its whole 95 % interval."


class IntervalCheck(SeedCheck):
    """`paper_value` against the means that a study of the paper's size would report."""

    kind: Literal["interval"]
    paper_value: Number
    paper_seeds: Annotated[int, Field(ge=1)]
    max_width: Positive | None = None
    decimals: Annotated[int, Field(ge=0)] | None = None

    def words(self) -> str:
        """The criterion as its keys say it."""
        seeds = "single seeds of ours" if self.paper_seeds == 1 else f"means of {self.paper_seeds} of our seeds"
        text = f"The paper's {self.paper_value:g} lies in the central 95 % of the {seeds}"
        text += "" if self.decimals is None else f", rounded to {self.decimals} decimals"
        return text + ("." if self.max_width is None else f"; a range wider than {self.max_width:g} decides nothing.")


class DirectionCheck(SeedCheck):
    """The seeds of `better` against those of `worse`."""

    kind: Literal["direction"]
    better: Filter
    worse: Filter
    worse_factor: Positive = 1.0
    higher_is_better: bool = True
    paired: bool = True

    @model_validator(mode="after")
    def _sides_differ(self) -> DirectionCheck:
        if self.better == self.worse:
            raise ValueError("better and worse select the same rows")
        overlap = set(self.conditions) & (set(self.better) | set(self.worse))
        if overlap:
            raise ValueError(f"{', '.join(sorted(overlap))} cannot be a condition and be fixed by better or worse")
        return self

    def words(self) -> str:
        """The criterion as its keys say it."""
        values = "higher" if self.higher_is_better else "lower"
        other = "the other side" if self.worse_factor == 1 else f"{self.worse_factor:g} times the other side"
        return (
            f"Over seeds{', paired' if self.paired else ''}, the probability that the side called better has a "
            f"{values} value than {other} exceeds one half with its 95 % interval, and the mean difference does not "
            "contradict it."
        )

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The rows of either side."""
        return ({**self.select, **self.better}, {**self.select, **self.worse})


Check = ExactCheck | ThresholdCheck | IntervalCheck | DirectionCheck
CHECK: TypeAdapter[Check] = TypeAdapter(Annotated[Check, Field(discriminator="kind")])
CHECK_KEYS = frozenset(
    key for kind in (ExactCheck, ThresholdCheck, IntervalCheck, DirectionCheck) for key in kind.model_fields
) - {"claim", "source"}


def problem_of(error: ValidationError) -> str:
    """The first mistake that pydantic found, in words that name the key."""
    first = error.errors()[0]
    if first["type"].startswith("union_tag"):
        return f"kind must be one of {', '.join(KINDS)}"
    key = ".".join(str(part) for part in first["loc"] if part not in KINDS)
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}"
    if first["type"] == "missing":
        return f"missing {key}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "string_pattern_mismatch":
        message = f"{first['input']!r} may only hold the characters a-z 0-9 / . + - _"
    return f"'{key}': {message}" if key else message


def as_list(value: Any) -> list[Any]:
    """A filter's value as a list of the values that pass."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
