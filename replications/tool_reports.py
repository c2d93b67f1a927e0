"""A plan of group sizes, or a diagnosis of a run, on the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from grpo_replications.shared.planning.diagnostics import FEW, Diagnosis, Part
from grpo_replications.shared.planning.group_size_budget import Budget
from grpo_replications.shared.planning.group_size_plan import Plan
from grpo_replications.shared.planning.run_drift import Drift
from grpo_replications.shared.statistics.estimates import Estimate


def print_plan(console: Console, plan: Plan) -> None:
    """What each difficulty needs, what is observed at 0 and 1, silent shares, and the budget."""
    say = _sayer(console)
    behind = f", {plan.samples} rollouts each" if plan.samples else ""
    say(f"{plan.problems:,} problems ({plan.source}{behind}); group size for fidelity {plan.fidelity:g}", style="bold")
    names = ("solve rate", "problems", "share", "exact G", "law G*", "G allowing for rate error", "silent at G")
    table = _table(*names, "completions")
    for line in plan.bins:
        table.add_row(
            f"{line.low:.1f} to {line.high:.1f}",
            f"{line.problems:,}",
            f"{line.problems / plan.problems:.1%}",
            _range(line.smallest, line.largest),
            _range(*(round(size) for size in line.law)),
            _range(*line.with_rate_error) if line.with_rate_error else "unknown",
            f"{line.silent:.1%}",
            f"{line.completions:,}",
        )
    console.print(table)
    say(f"Each problem once at its own size: {plan.completions:,} completions.")
    if plan.beyond:
        say(f"{plan.beyond:,} problems need more than {plan.max_group_size} and are counted at {plan.max_group_size}.")
    for end in plan.ends:
        word = "none" if end.rate == 0 else "all"
        text = f"{end.problems:,} problems ({end.problems / plan.problems:.1%}) were observed with {word} right"
        if end.bound is None:
            say(f"{text}: at a rate of exactly {end.rate:g} no group size ever helps.")
        else:
            side = "up to" if end.rate == 0 else "down to"
            say(
                f"{text}. At a rate of exactly {end.rate:g} no group size ever helps; but {plan.samples} rollouts "
                f"leave rates {side} {end.bound:.3f} open (95 %), where {end.helped_from} completions suffice."
            )
    if plan.single is not None:
        say(f"One size for all whose mean update reaches {plan.fidelity:g} of its limit: G = {plan.single}.")
    else:
        say(f"No single size up to {plan.max_group_size} has a mean update of {plan.fidelity:g} of its limit.")
    table = _table("group size", *(str(line.group_size) for line in plan.silent))
    table.add_row("silent share, rates as they are", *(f"{line.closed_form:.1%}" for line in plan.silent))
    if any(line.without_replacement is not None for line in plan.silent):
        unbiased = (line.without_replacement for line in plan.silent)
        table.add_row("unbiased, from the rollouts", *("" if one is None else f"{one:.1%}" for one in unbiased))
    console.print(table)
    if plan.budget is not None:
        _print_budget(console, plan.budget)
    for note in plan.notes:
        say(f"Note: {note}", style="dim")


def _print_budget(console: Console, budget: Budget) -> None:
    say = _sayer(console)
    best, other = budget.best, budget.allocation
    say(
        f"\nBudget of {budget.completions:,} completions a step: G = {best.group_size}, "
        f"{best.problems_per_step:,} problems",
        style="bold",
    )
    say(
        "Gain: progress of a step at the optimal learning rate, "
        "(mean update along the objective)^2 / (mean square of the step)."
    )
    table = _table("G", "problems", "gain", "fidelity", "silent", "completions with nonzero advantage")
    for line in sorted(budget.candidates, key=lambda one: -one.gain)[:6]:
        table.add_row(
            str(line.group_size),
            f"{line.problems_per_step:,}",
            f"{line.gain:.3f}",
            f"{line.fidelity:.3f}",
            f"{line.silent:.1%}",
            f"{line.nonzero:,.0f}",
        )
    console.print(table)
    if len(budget.as_good) > 1:
        say(f"As good within 2 %: G = {', '.join(map(str, budget.as_good))}.")
    assumed = ", ".join(f"{size} for r = {r:g}" for r, size in budget.by_scatter)
    say(f"The scatter of scores is assumed (r = {budget.scatter:g}); the best size is {assumed}.")
    sizes = ", ".join(f"{low:.1f}-{high:.1f}: {_range(a, b)}" for low, high, a, b in other.sizes)
    say(
        f"A size for each difficulty, at the same cost: fidelity {other.fidelity:.3f} instead of "
        f"{other.single_fidelity:.3f}, silent completions {other.silent:.1%} instead of {other.single_silent:.1%}, if "
        f"rates of 0 and 1 are exact and skipped. Sizes by solve rate: {sizes}."
    )


def print_diagnosis(console: Console, d: Diagnosis) -> None:
    """Silent groups against the prediction, sizes, drifts, and what stands out."""
    say = _sayer(console)
    say(f"{d.source} ({d.kind})", style="bold")
    say(
        f"{d.groups:,} groups of {d.group_size} completions, steps {d.first_step} to {d.last_step}, "
        f"{d.distinct_prompts:,} different prompts"
    )
    s = d.shares
    say(
        f"Silent groups: {_percent(s.silent)}; all right {_percent(s.all_right)}, all wrong {_percent(s.all_wrong)}"
        + (f", other constant rewards {_percent(s.other)}" if s.other.value else "")
    )
    if d.distinct_completions is not None:
        say(f"Different texts in a group: {d.distinct_completions:.2f} of {d.group_size}")
    _print_prediction(console, d)
    console.print(_parts_table(d.parts))
    say(
        f"Effective group size (completions of a group that get an advantage): {d.effective_group_size.value:.2f} of "
        f"{d.group_size} ({d.effective_group_size.low:.2f} to {d.effective_group_size.high:.2f})"
    )
    table = _table("group size", "silent", "from", "fidelity", "completions with nonzero advantage")
    for line in d.sizes:
        table.add_row(
            f"{line.group_size}{' (this run)' if line.group_size == d.group_size else ''}",
            _percent(line.silent),
            "subsets" if line.counted else "Beta fit",
            _with_interval(line.fidelity),
            f"{line.nonzero:.1f}",
        )
    console.print(table)
    for one in d.suggestions:
        say(f"Suggested G, {one.target}, {one.over}: {_size(one.group_size)}")
    for name, change in (("Entropy", d.entropy), ("Length", d.length)):
        if change is not None:
            say(_drift(name, change))
    if d.gradient_norms is not None:
        g = d.gradient_norms
        where = (
            f" (steps {', '.join(map(str, g.spike_steps[:8]))}{', ...' if g.spikes > 8 else ''})" if g.spikes else ""
        )
        say(
            f"Gradient norm: median {g.median:.3g}, largest {g.largest:.3g}; {g.spikes} of {g.steps} above 3 robust "
            f"deviations{where}"
        )
    if d.redraws is not None:
        r = d.redraws
        say(
            f"Redraws: {_percent(r.redrawn)} of groups drawn again, {_percent(r.exhausted)} still silent at the bound, "
            f"{r.mean_draws:.2f} draws a group"
        )
    for finding in d.findings:
        say(f"! {finding}", style="yellow")
    for note in d.notes:
        say(f"Note: {note}", style="dim")


def _print_prediction(console: Console, d: Diagnosis) -> None:
    say = _sayer(console)
    say(
        f"Predicted by a Beta distribution of solve rates: {_percent(d.predicted)}, observed {d.observed:.1%}"
        + ("" if math.isnan(d.family_p_value) else f" (test of fit: p = {d.family_p_value:.2g})")
    )
    r = d.recurrence
    if r is not None:
        say(
            f"Predicted from the same prompts' other groups within {r.window:g} steps: {_percent(r.predicted)}, "
            f"observed {r.silent:.1%} in {r.groups:,} groups (p = {r.silent_p_value:.2g}); spread between groups of a "
            f"prompt {r.spread:.2f} x that of independent completions (p = {r.spread_p_value:.2g})"
        )
    elif d.mixture is not None:
        say(
            "No prompt was sampled twice within the window: completions alike beyond their prompt's difficulty would "
            "go unnoticed."
        )


def _parts_table(parts: Sequence[Part]) -> Table:
    table = _table("steps", "groups", "solve rate", "silent", "all right", "all wrong", "other", "predicted")
    for part in parts:
        s = part.shares
        table.add_row(
            _range(part.first_step, part.last_step),
            str(part.groups),
            f"{part.solve_rate:.2f}",
            f"{s.silent.value:.1%}",
            f"{s.all_right.value:.1%}",
            f"{s.all_wrong.value:.1%}",
            f"{s.other.value:.1%}",
            _percent(part.predicted) if part.groups >= FEW else "few groups",
        )
    return table


def _drift(name: str, change: Drift) -> str:
    c = change.change
    sign = "no clear change" if c.low <= 0 <= c.high else "falling" if c.value < 0 else "rising"
    return (
        f"{name}, first to last fifth: {change.first:.3g} to {change.last:.3g} {change.of}, change {c.value:+.3g} "
        f"({c.low:+.3g} to {c.high:+.3g} over {change.unit}): {sign}"
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    return table


def _sayer(console: Console) -> Callable[..., None]:
    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    return say


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _percent(one: Estimate) -> str:
    return f"{one.value:.1%} ({100 * one.low:.1f} to {100 * one.high:.1f})"


def _with_interval(one: Estimate) -> str:
    return f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"


def _size(one: Estimate) -> str:
    words = [f"{size:.0f}" if math.isfinite(size) else "more than 4,096" for size in one[:3]]
    return f"{words[0]} ({words[1]} to {words[2]})"
