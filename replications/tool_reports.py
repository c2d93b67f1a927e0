"""A plan of group sizes, or a diagnosis of a run, on the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from grpo_replications.shared.planning.diagnostics import Diagnosis, Part
from grpo_replications.shared.planning.difficulty_fit import LARGEST_GROUP
from grpo_replications.shared.planning.findings import FEW, REFUTED, p_words
from grpo_replications.shared.planning.group_size_budget import Budget
from grpo_replications.shared.planning.group_size_plan import Plan
from grpo_replications.shared.planning.rate_forecast import BETA, MIXTURE, REACH
from grpo_replications.shared.planning.run_drift import Drift
from grpo_replications.shared.planning.size_choice import SizeChoice
from grpo_replications.shared.statistics.estimates import Estimate
from grpo_replications.shared.words import counted


def print_plan(console: Console, plan: Plan) -> None:
    """What each difficulty needs, what is observed at 0 and 1, silent shares, and the budget."""
    say = _sayer(console)
    behind = f", {counted(plan.samples, 'rollout')} each" if plan.samples else ""
    say(
        f"{counted(plan.problems, 'problem')} ({plan.source}{behind}); group size for fidelity {plan.fidelity:g}",
        style="bold",
    )
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
        were = "was" if end.problems == 1 else "were"
        share = f"{counted(end.problems, 'problem')} ({end.problems / plan.problems:.1%})"
        text = f"{share} {were} observed with {word} right"
        if end.bound is None:
            say(f"{text}: at a rate of exactly {end.rate:g} no group size ever helps.")
        else:
            side = "up to" if end.rate == 0 else "down to"
            say(
                f"{text}. At a rate of exactly {end.rate:g} no group size ever helps; but {plan.samples} rollouts "
                f"leave rates {side} {end.bound:.3f} open (95 %), where {end.helped_from} completions suffice."
            )
    goal = f"mean update reaches {plan.fidelity:g} of its limit"
    plain = f"G = {plan.single}" if plan.single is not None else f"none up to {plan.max_group_size}"
    if plan.fitted is None:
        say(f"One size for all whose {goal}: {plain}.")
    else:
        size = _size(plan.fitted.single, plan.fitted.method, plan.fitted.reach)
        say(
            f"One size for all whose {goal}: G = {size}, from the {_fit(plan.fitted.method)} ({plain} if the rates as "
            "they are were exact)."
        )
        say(_limits(plan.fitted.reach, plan.fitted.why_beta, f"{plan.samples} rollouts"))
        by_beta = plan.fitted.method == BETA or any(line.method == BETA for line in plan.silent)
        if by_beta and plan.fitted.family_p_value < REFUTED:
            say(
                f"! The Beta family does not describe the counts ({p_words(plan.fitted.family_p_value)}): a guide only."
            )
    table = _table("group size", *(str(line.group_size) for line in plan.silent))
    table.add_row("silent share, rates as they are", *(f"{line.closed_form:.1%}" for line in plan.silent))
    if any(line.without_replacement is not None for line in plan.silent):
        unbiased = (line.without_replacement for line in plan.silent)
        table.add_row("unbiased, from the rollouts", *("" if one is None else f"{one:.1%}" for one in unbiased))
    if plan.fitted is not None:
        methods = [line.method for line in plan.silent]
        for method in dict.fromkeys(methods):
            own = (f"{line.fitted.value:.1%}" if line.method == method else "" for line in plan.silent)
            table.add_row(f"from the {method}", *own)
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
        f"{counted(best.problems_per_step, 'problem')}"
        + (f", {counted(best.unused, 'completion')} unused" if best.unused else ""),
        style="bold",
    )
    if best.unused:
        whole = budget.completions - best.unused
        say(
            f"{budget.completions:,} does not divide by {best.group_size}; {whole:,} does, and "
            f"{whole + best.group_size:,}."
        )
    say(
        "Gain: progress of a step at the optimal learning rate, (mean update along the objective)^2 / (mean square of "
        "the step), over the best size's; r: noise ratio. The best size does not depend on the budget."
    )
    ratios = [f"gain, r = {r:g}" for r in budget.noise_ratios]
    table = _table("G", "problems", *ratios, "fidelity", "silent", "completions with nonzero advantage")
    for line in sorted(budget.candidates, key=lambda one: -min(one.gains))[:6]:
        table.add_row(
            str(line.group_size),
            f"{line.problems_per_step:,}",
            *(f"{one:.3f}" for one in line.gains),
            f"{line.fidelity:.3f}",
            f"{line.silent:.1%}",
            f"{line.nonzero:,.0f}",
        )
    console.print(table)
    if len(budget.as_good) > 1:
        say(f"As good within 5 %: G = {', '.join(map(str, budget.as_good))}.")
    by_noise = ", ".join(f"{size} for r = {r:g}" for r, size in budget.by_noise)
    say(f"Best sizes by noise ratio: {by_noise}. Give yours by --noise-ratio.")
    sizes = ", ".join(f"{low:.1f}-{high:.1f}: {_range(a, b)}" for low, high, a, b in other.sizes)
    say(
        f"A size for each difficulty, at the same cost: fidelity {other.fidelity:.3f} instead of "
        f"{other.single_fidelity:.3f}, silent completions {other.silent:.1%} instead of {other.single_silent:.1%}, if "
        f"rates of 0 and 1 are exact and skipped. Sizes by solve rate: {sizes}."
    )


def print_summary(console: Console, d: Diagnosis) -> None:
    """The answer in one screen: silent groups, sizes for the same completions a step, what stands out."""
    say = _sayer(console)
    s, last = d.shares, d.parts[-1]
    other = f", {s.other.value:.1%} other equal rewards" if s.other.value else ""
    say(
        f"{d.source}: {counted(d.groups, 'group')} of {d.group_size}, steps {d.first_step} to {d.last_step}",
        style="bold",
    )
    say(
        f"Silent groups: {_percent(s.silent)}; {s.all_wrong.value:.1%} all wrong, {s.all_right.value:.1%} all "
        f"right{other}"
    )
    say(f"Last part, steps {last.first_step} to {last.last_step}: {last.shares.silent.value:.1%} silent; {_trend(d)}")
    if d.choice is not None:
        _print_choice(console, d, d.choice)
    say(f"Independence of completions: {_independence(d)}.")
    for finding in d.findings:
        say(f"! {finding}", style="yellow")
    for note in d.notes:
        say(f"Note: {note}", style="dim")
    say("Every table and test: --details", style="dim")


def _print_choice(console: Console, d: Diagnosis, c: SizeChoice) -> None:
    say = _sayer(console)
    table = _table(f"The same {d.completions_per_step:,} completions a step", *(f"G = {r.group_size}" for r in c.rows))
    table.add_row("silent groups, %", *(f"{100 * row.silent:.0f}" for row in c.rows))
    for i, ratio in enumerate(c.noise_ratios):
        table.add_row(f"gain at noise ratio r = {ratio:g}", *(f"{row.gains[i]:.2f}" for row in c.rows))
    table.add_row("draws a kept group, if redrawn", *(f"{row.draws_per_kept:.1f}" for row in c.rows))
    console.print(table)
    keep = d.group_size in c.defensible
    advice = (
        f"Keep num_generations={d.group_size}" if keep else f"Change num_generations from {d.group_size} to {c.best}"
    )
    say(f"{advice} ({min(c.defensible)} to {max(c.defensible)} defensible, best {c.best}).", style="bold")
    full = next(one for one in reversed(d.suggestions) if one.target.startswith("fidelity"))
    size = _size(full.group_size, full.method, d.reach)
    say(f"For a {full.target}, whatever it costs: G = {size}, from the {_fit(full.method)}.")
    both = " r is not in the log: both ends of its usual range are shown." if len(c.noise_ratios) > 1 else ""
    used = MIXTURE if d.reach else BETA
    say(f"The table is from the {_fit(used)}, of {d.choice_over}.{both}")
    say(_limits(d.reach, d.why_beta, f"Groups of {d.group_size}"))


def _trend(d: Diagnosis) -> str:
    t = d.silent_trend
    if t is None:
        return "too few steps for a trend"
    if d.shares.silent.value in (0, 1):  # a fit through equal numbers leaves rounding errors, which have a sign
        return "the same in all steps"
    word = "no clear trend" if t.low <= 0 <= t.high else "rising" if t.value > 0 else "falling"
    return f"{word}, {100 * t.value:+.1f} points per 100 steps ({100 * t.low:+.1f} to {100 * t.high:+.1f})"


def _independence(d: Diagnosis) -> str:
    if any(finding.startswith("OFF") for finding in d.findings):
        return "refuted, see below"
    r = d.recurrence
    if r is None:
        return "cannot be tested, because no prompt recurs" if d.redraws is None else "cannot be tested after redraws"
    p = min(1.0, 2 * min(r.silent_p_value, r.still_spread_p_value))
    return f"not refuted (p = {p:.2g}, {counted(r.groups, 'group')} of prompts that recur)"


def print_diagnosis(console: Console, d: Diagnosis) -> None:
    """Silent groups against the prediction, sizes, drifts, and what stands out."""
    say = _sayer(console)
    say(f"{d.source} ({d.kind})", style="bold")
    say(
        f"{counted(d.groups, 'group')} of {d.group_size} completions, steps {d.first_step} to {d.last_step}, "
        f"{counted(d.distinct_prompts, 'different prompt')}"
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
            "subsets" if line.counted else line.method,
            _with_interval(line.fidelity),
            f"{line.nonzero:.1f}",
        )
    console.print(table)
    for one in d.suggestions:
        size = _size(one.group_size, one.method, d.group_size * REACH)
        say(f"Suggested G, {one.target}, {one.over}: {size}, from the {_fit(one.method)}")
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
        + ("" if math.isnan(d.family_p_value) else f" (test of fit: {p_words(d.family_p_value)})")
    )
    r = d.recurrence
    if r is not None:
        say(
            f"Predicted from the same prompts' other groups within {r.window:g} steps: {_percent(r.predicted)}, "
            f"observed {r.silent:.1%} in {counted(r.groups, 'group')} (p = {r.silent_p_value:.2g}); spread between "
            f"groups of a prompt {r.spread:.2f} x that of independent completions (p = {r.spread_p_value:.2g}), "
            f"{r.still_spread:.2f} x after learning is taken out (p = {r.still_spread_p_value:.2g})"
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


def _fit(method: str) -> str:
    """Which fit a number is from, in words."""
    return "mixture of solve rates that fits best" if method == MIXTURE else "Beta distribution that fits best"


def _limits(reach: int, why_beta: str | None, counts: str) -> str:
    """Up to which group size no shape of difficulties is assumed, or why one is."""
    if reach:
        return f"{counts}: up to G = {reach} no shape of difficulties is assumed, beyond it a Beta distribution."
    return f"A Beta distribution of difficulties is assumed: {why_beta}."


def _size(one: Estimate, method: str, reach: int) -> str:
    """A smallest group size with its interval, as far as the fit that it comes from was asked."""
    limit = reach if method == MIXTURE else LARGEST_GROUP
    words = [f"{size:.0f}" if math.isfinite(size) else f"more than {limit:,}" for size in one[:3]]
    return f"{words[0]} ({words[1]} to {words[2]})"
