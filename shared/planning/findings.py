"""What stands out in a diagnosis, in sentences. A sentence that starts with OFF says that a prediction cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grpo_replications.shared.planning.difficulty_fit import Counts, MixtureTest, RecurrenceTest
from grpo_replications.shared.words import counted

if TYPE_CHECKING:
    from grpo_replications.shared.planning.diagnostics import Diagnosis

REFUTED = 0.01  # p-values below this are called off
FEW = 20  # groups below which a fit says little


def findings(d: Diagnosis, counts: Counts) -> list[str]:
    """Sentences on a diagnosis whose groups have these counts of right completions; empty where nothing stands out."""
    found = [*_on_rewards(d)]
    if d.groups < FEW:
        found.append(
            f"Only {counted(d.groups, 'group')}: the Beta fit leans on its prior (all means and correlations alike "
            "likely)."
        )
    copied = copies(counts)
    if copied > 1:
        found.append(
            f"OFF: the number of right completions is a multiple of {copied} in every mixed group: completions come in "
            f"identical copies of {copied}, so a group has the worth of {counts.group_size // copied} completions. "
            "Silent rates at other sizes cannot be predicted. Look for a seed that is set again, or for a cache."
        )
    else:
        found += [*_on_mixture(d.mixture, counts), *_on_recurrence(d.recurrence)]
    if d.family_p_value < REFUTED:
        found.append(
            f"The Beta family does not describe the counts ({p_words(d.family_p_value)}): what comes from the Beta "
            f"fit, for groups larger than {d.reach or d.group_size}, is a rough guide. Difficulties may have changed "
            "in training, or have several clusters."
        )
    if d.gradient_norms and d.gradient_norms.not_finite:
        found.append(f"{d.gradient_norms.not_finite} gradient norms are not finite.")
    return found


def p_words(value: float) -> str:
    """A p-value in words, with a floor below which its digits say nothing."""
    return f"p = {value:.2g}" if value >= 1e-12 else "p < 1e-12"


def copies(counts: Counts) -> int:
    """Largest divisor m of G below G such that k is a multiple of m in every group; 1 where that may be chance.

    A group of G independent completions that is mixed has such a k with a chance of at most about one half.
    """
    k = np.arange(counts.group_size + 1)
    mixed = counts.by_k.copy()
    mixed[[0, -1]] = 0
    if mixed.sum() < FEW:
        return 1
    fitting = [
        m for m in range(2, counts.group_size // 2 + 1) if counts.group_size % m == 0 and not mixed[k % m > 0].any()
    ]
    # One value of k alone is balance, not copies.
    return max(fitting, default=1) if (mixed > 0).sum() > 1 else 1


def _on_rewards(d: Diagnosis) -> list[str]:
    if d.nothing_right:
        return [
            f"No reward reaches {d.success:g} (the largest is {d.largest_reward:g}): every completion counts as wrong. "
            "No group size follows from a log without a success. Give the reward of a right completion with --success, "
            "or train on easier prompts first."
        ]
    if d.nothing_wrong:
        return ["Every completion counts as right. No group size follows from a log without a failure."]
    if d.binary:
        return []
    if d.success_given:
        return [
            "Rewards have more than two values. Silent means all equal; predictions, sizes and fidelity take a reward "
            f"of at least {d.success:g} as right and every other as wrong."
        ]
    return [
        "Rewards have more than two values, so no group size is suggested: larger groups, fidelity and gain can be "
        "predicted for right and wrong only. Give --success R to take a reward of at least R as right (predictions "
        f"here take {d.success:g})."
    ]


def _on_mixture(test: MixtureTest | None, counts: Counts) -> list[str]:
    if test is None or test.p_value >= REFUTED:
        return []
    k = np.arange(counts.group_size + 1)
    share = counts.by_k / counts.by_k.sum()
    rate = float(share @ k) / counts.group_size
    variance = float(share @ k**2) - float(share @ k) ** 2
    if variance < counts.group_size * rate * (1 - rate):
        return [
            f"OFF: right completions vary less between groups than independent ones can ({p_words(test.p_value)}): "
            "completions of a group avoid or balance each other, and silent rates at other sizes cannot be predicted."
        ]
    return [
        f"OFF: no distribution of solve rates gives these counts of right completions ({p_words(test.p_value)}): "
        "completions of a group depend on each other, or groups were chosen by their rewards. Silent rates at other "
        "sizes cannot be predicted."
    ]


def _on_recurrence(r: RecurrenceTest | None) -> list[str]:
    if r is None or min(r.silent_p_value, r.spread_p_value) >= REFUTED / 2:  # two tests
        return []
    moved = r.moved.low > 0 or r.moved.high < 0
    if not moved:
        more = r.spread > 1
        why = (
            "completions of a group are alike beyond their prompt's difficulty, or solve rates of single prompts moved "
            f"within the window of {r.window:g} steps (a smaller --window tells)"
            if more
            else "completions of a group avoid or balance each other"
        )
        p = min(r.silent_p_value, r.spread_p_value)
        return [
            f"OFF: groups of the same prompt differ {'more' if more else 'less'} than independent completions would "
            f"({r.spread:.2f} times the variance, p = {p:.2g}): {why}."
        ]
    learned = f"Solve rates moved by {r.moved.value:+.3f} on average within the window of {r.window:g} steps"
    if r.still_spread_p_value >= REFUTED / 2 or r.still_spread <= 1:
        return [
            f"{learned}; that explains the differences between groups of one prompt. A smaller --window moves less."
        ]
    return [
        f"OFF: groups of the same prompt differ more than independent completions would ({r.still_spread:.2f} times "
        f"the variance after learning is taken out, p = {r.still_spread_p_value:.2g}): completions of a group are "
        f"alike beyond their prompt's difficulty, or prompts learn at very different speeds. {learned}."
    ]
