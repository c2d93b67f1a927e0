"""A check: one test under a claim, with the criterion that was written before the run.

Every check names one `metric`.  Its kind says what of it is tested; the first five look at one sample:

`exact`      every selected row lies within `tolerance` of `target` (default 0).  With `expect = "violation"` (a
               negative control) every row must lie further than `minimum` from it.
`interval`   `paper_value` lies inside the central 95 % of the means that a study with `paper_seeds` seeds would
               report, drawn from our seeds (rounded to `decimals`, where the paper prints so many).
`at_least`, `at_most`  the mean over seeds lies on that side of `threshold`; with `strict` never on it.
`share`      a share of groups (problems, puzzles) nested in seeds lies on the `wanted` side of `threshold`.

The others compare two sides, `better` and `worse`, paired by seed (see `shared.harness.comparisons`): `direction`,
`equivalent`, `non_inferior`, `peak` (whole curves over learning rates) and `time` (steps to a common threshold).  They
name a `margin`, the smallest effect that matters, in the metric's unit.

`paper_value` is a number that the paper prints, `threshold` one that we set; the second never stands for the first.
`select`, `better` and `worse` filter on the settings that vary in the experiment (a list means any of its values)
and on `step` (a number or `"last"`).  The unit of replication is the seed: what is left of one seed after the
filters (several steps, say) is first reduced to one number (`reduce`: mean, max or min).  With `conditions` the
check is judged for each combination of these settings, at levels corrected for their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from grpo_replications.shared.harness.comparisons import (
    DirectionCheck,
    EquivalentCheck,
    NonInferiorCheck,
    PeakCheck,
    TimeCheck,
)
from grpo_replications.shared.harness.entries import CheckEntry, Number, Positive, SeedCheck

KINDS = ("exact", "interval", "at_least", "at_most", "share", "direction", "equivalent", "non_inferior", "peak", "time")


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


class ShareCheck(CheckEntry):
    """A share of groups, nested in seeds, against `threshold`.

    `metric` holds the number of groups that have the property, `totals` the number of groups, one row or several a
    seed each.  With `metric_is = "share"` the metric holds the share among the groups of its row instead.  `totals`
    may also be a number, the groups of every row.  `correlation` is the smallest intraclass correlation to assume.
    """

    kind: Literal["share"]
    threshold: Annotated[float, Field(ge=0, le=1)]
    wanted: Literal["above", "below"] = "above"
    strict: bool = False
    totals: Annotated[str, Field(min_length=1)] | Annotated[int, Field(ge=1)]
    metric_is: Literal["count", "share"] = "count"
    correlation: Annotated[float, Field(ge=0, le=1)] = 0.0
    min_seeds: Annotated[int, Field(ge=2)] = 2

    def words(self) -> str:
        """The criterion as its keys say it."""
        side = self.wanted if self.strict else f"at or {self.wanted}"
        return (
            f"The share of all groups, nested in seeds, lies {side} {self.threshold:g} with its whole 95 % interval "
            "(Clopper-Pearson at the effective number of groups)."
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the check reads."""
        return (self.metric, self.totals) if isinstance(self.totals, str) else (self.metric,)


Check = (
    ExactCheck
    | ThresholdCheck
    | IntervalCheck
    | ShareCheck
    | DirectionCheck
    | EquivalentCheck
    | NonInferiorCheck
    | PeakCheck
    | TimeCheck
)
CHECK: TypeAdapter[Check] = TypeAdapter(Annotated[Check, Field(discriminator="kind")])
CHECK_KEYS = frozenset(key for kind in Check.__args__ for key in kind.model_fields) - {"claim", "source"}


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
