"""Checks that compare two sides, paired by seed.

The difference of a seed is `better` minus `worse`, or minus `worse_factor` times it: 0.5 and fewer is better means
"in under half".  `margin` is the smallest effect that matters, in the metric's unit.

`direction`     the interval of the mean difference (`shared.statistics.decisions`) lies beyond the margin; with
                  `beyond = "zero"` it lies beyond zero and the mean reaches the margin.  The exact sign test must not
                  contradict it; a tie is no win.  `equivalent` if the whole interval lies inside ±margin.  Without a
                  margin the direction alone is judged, and nothing can be equivalent.
`equivalent`    holds if the whole interval lies inside ±margin.
`non_inferior`  holds if `better` is not worse than `worse` by more than the margin.
`peak`          each method at its own best rate: the best mean over the rates `over_rates`, best rate picked anew in
                  every resample of the seeds; judged like `direction`.
`time`          restricted mean time to a common threshold, `better` over `worse`: the ratio's interval lies below
                  `ratio_below`.  The metric holds the time of each seed (a time of `horizon` or more, or inf, means not
                  reached), or, with `reach`, a curve over steps that has reached the threshold at `reach` or more.

Six seeds decide at least, eight where four cells are judged at once: fewer could not even if all of them agreed.
`equivalent` and `non_inferior` may leave out both sides where the metric is itself a difference of a seed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from grpo_replications.shared.harness.entries import Filter, Names, Number, Positive, SeedCheck, Text

Margin = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ComparisonCheck(SeedCheck):
    """What comparisons have in common: two sides and which way is better."""

    better: Filter
    worse: Filter
    higher_is_better: bool = True

    @model_validator(mode="after")
    def _sides_differ(self) -> ComparisonCheck:
        if self.better == self.worse and (self.better or not self.may_be_a_difference):
            raise ValueError("better and worse select the same rows")
        overlap = set(self.varying) & (set(self.better) | set(self.worse))
        if overlap:
            raise ValueError(f"{', '.join(sorted(overlap))} cannot be a condition and be fixed by better or worse")
        return self

    @property
    def may_be_a_difference(self) -> bool:
        """Whether both sides may be left out because the metric is itself a difference."""
        return False

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The rows of either side."""
        return ({**self.select, **self.better}, {**self.select, **self.worse})

    @property
    def side(self) -> str:
        """The better side of a difference, for a sentence."""
        return "above" if self.higher_is_better else "below"


class DirectionCheck(ComparisonCheck):
    """The seeds of `better` against those of `worse`."""

    kind: Literal["direction"]
    worse_factor: Positive = 1.0
    margin: Margin = 0.0
    beyond: Literal["margin", "zero"] | None = None

    @model_validator(mode="after")
    def _beyond_a_margin(self) -> DirectionCheck:
        if self.beyond == "margin" and not self.margin:
            raise ValueError('beyond = "margin" needs a margin above 0')
        return self

    @property
    def judged_beyond(self) -> Literal["margin", "zero"]:
        """What the interval must pass: the margin where there is one, unless `beyond` says zero."""
        return self.beyond or ("margin" if self.margin else "zero")

    def words(self) -> str:
        """The criterion as its keys say it."""
        other = "the other side" if self.worse_factor == 1 else f"{self.worse_factor:g} times the other side"
        return f"Over seeds, paired, the mean difference of the side called better from {other} {_passes(self)}"


class SidesOrDifference(ComparisonCheck):
    """Two sides, or a metric that is itself their difference."""

    better: Filter = Field(default_factory=dict)
    worse: Filter = Field(default_factory=dict)
    worse_factor: Positive = 1.0

    @property
    def may_be_a_difference(self) -> bool:
        """Whether both sides may be left out because the metric is itself a difference."""
        return True


class EquivalentCheck(SidesOrDifference):
    """No difference of a size that matters."""

    kind: Literal["equivalent"]
    margin: Positive

    def words(self) -> str:
        """The criterion as its keys say it."""
        return f"Over seeds, paired, the whole 95 % interval of the mean difference lies inside ±{self.margin:g}."


class NonInferiorCheck(SidesOrDifference):
    """Not worse by a size that matters."""

    kind: Literal["non_inferior"]
    margin: Margin

    def words(self) -> str:
        """The criterion as its keys say it."""
        bar = self.margin * (-1 if self.higher_is_better else 1)
        return (
            f"Over seeds, paired, the mean difference of the side called better from the other lies {self.side} "
            f"{bar + 0.0:g} with its whole 95 % interval."
        )


class PeakCheck(ComparisonCheck):
    """Each method at its own best rate, whole curves over the rates.

    `also_from`: experiments with the same metric and settings that measured further rates; a seed counts if every cell
    has it.  `diverged`: what a run without a number counts as; without it such a run leaves the comparison undecided.
    """

    kind: Literal["peak"]
    over_rates: Text = "lr"
    also_from: Names = ()
    margin: Margin = 0.0
    beyond: Literal["margin", "zero"] | None = None
    diverged: Number | None = None

    @property
    def judged_beyond(self) -> Literal["margin", "zero"]:
        """What the interval must pass: the margin where there is one, unless `beyond` says zero."""
        return self.beyond or ("margin" if self.margin else "zero")

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments whose rows the check reads."""
        return (self.experiment, *self.also_from)

    @property
    def varying(self) -> tuple[str, ...]:
        """The settings besides those of the filters that must vary in the experiment."""
        return (*self.conditions, self.over_rates)

    def words(self) -> str:
        """The criterion as its keys say it."""
        return (
            f"Each side at the {self.over_rates} with its best mean, whole curves resampled jointly over the same "
            f"seeds: the difference of the peaks {_passes(self)}"
        )


class TimeCheck(ComparisonCheck):
    """Restricted mean time to a common threshold, `better` over `worse`.

    `margin`: the ratio counts as equivalent if its whole interval lies inside 1 ± margin.
    """

    kind: Literal["time"]
    higher_is_better: Literal[False] = False
    horizon: Positive
    ratio_below: Positive = 1.0
    reach: Number | None = None
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def words(self) -> str:
        """The criterion as its keys say it."""
        start = "Mean time to the threshold"
        if self.reach is not None:
            start = f"Mean steps until the curve reaches {self.reach:g}"
        same = f"; equivalent if it lies inside 1 ± {self.margin:g}" if self.margin else ""
        return (
            f"{start}, a seed that does not get there by {self.horizon:g} counting as {self.horizon:g}: the ratio of "
            f"the side called better to the other lies below {self.ratio_below:g} with its whole 95 % interval, and "
            f"more than half of the seeds agree{same}."
        )


def _passes(check: DirectionCheck | PeakCheck) -> str:
    sign = 1 if check.higher_is_better else -1
    agree = ", and more than half of the seeds agree, a tie being no win"
    same = f"; equivalent if it lies inside ±{check.margin:g}" if check.margin else ""
    if check.judged_beyond == "margin":
        return f"lies {check.side} {sign * check.margin:g} with its whole 95 % interval{agree}{same}."
    mean = f", its mean reaches {sign * check.margin:g}" if check.margin else ""
    return f"lies {check.side} 0 with its whole 95 % interval{mean}{agree}{same}."


Comparison = DirectionCheck | EquivalentCheck | NonInferiorCheck | PeakCheck | TimeCheck
