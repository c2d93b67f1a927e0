"""Numbers of the results inside sentences of `claims.toml`: `{NAME}` or `{NAME|words}` stands for a measured number.

NAME is the id of a check of the same paper, with its conditions as in `results/numbers.csv` (`some/check[lr=0.1]`);
`*` stands for any text, and several numbers are shown as the range of their values (`0.08 to 0.27`).  The words, in any
order:

`points`, `percent`  100 times the number, without and with the sign %
`exp`                the exponential of a number that is a logarithm
`signed`             with the sign + where it is positive
`interval`           with its interval, `0.3 [−0.1, 0.7]`
`n`                  the number of seeds (groups, for a share) instead; the smallest where there are several
`low`, `high`        one end of the interval instead
`largest`            of several numbers the largest alone
`holds`, `of`        in how many settings the criterion is met, and of how many, instead

So a sentence that a page shows cannot go out of date: the words are written, the numbers are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.statistics.states import HOLDS

if TYPE_CHECKING:
    from grpo_replications.shared.harness.outcomes import CellLine, CheckLine

MARK = re.compile(r"\{([^{}|]+)(?:\|([^{}]*))?\}")
SCALES = {"points": 100.0, "percent": 100.0}
INSTEAD = ("n", "low", "high", "holds", "of")
WORDS = {*SCALES, "exp", "signed", "interval", "largest", *INSTEAD}
DIGITS = 2  # of an interval's width, or of the largest of several values
ALONE = 3  # of a number without an interval
SCALED = 1  # decimals of points and percentages without an interval
SMALL = 1e-3  # below it a number is written with an exponent


@dataclass(frozen=True)
class Mark:
    """One `{NAME|words}` of a text."""

    name: str
    words: frozenset[str]

    @property
    def check(self) -> str:
        """The check's id, perhaps with `*`."""
        return self.name.partition("[")[0]


def marks(text: str) -> list[Mark]:
    """Every mark of a text."""
    return [_mark(found) for found in MARK.finditer(text)]


def problem_in(text: str, ids: Iterable[str]) -> str:
    """What is wrong with the marks of a text, given the ids of the paper's checks; empty if nothing is."""
    ids = list(ids)
    for mark in marks(text):
        unknown = mark.words - WORDS
        if unknown:
            return f"{{{mark.name}}} has the word '{min(unknown)}'; there are: {', '.join(sorted(WORDS))}"
        if not any(_pattern(mark.check).fullmatch(name) for name in ids):
            return f"{{{mark.name}}} is no check of the paper"
    return ""


def filled(text: str, lines: Sequence[CheckLine]) -> str | None:
    """The text with its numbers; None where one of them has not been measured."""
    missing = False

    def replace(found: re.Match[str]) -> str:
        nonlocal missing
        mark = _mark(found)
        cells = _cells(mark, lines)
        if not cells:
            missing = True
            return ""
        return _shown(mark, cells)

    result = MARK.sub(replace, text)
    return None if missing else result


def shown(value: float, decimals: int | None = None, signed: bool = False) -> str:
    """A number for people, with a true minus sign: so many decimals, or three digits."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if decimals is None and value and not SMALL <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
        return text if value > 0 else f"−{text[1:]}"
    elif decimals is None:
        text = f"{value:,.{max(0, ALONE - 1 - _magnitude(value))}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:,.{decimals}f}"
    if not float(text.replace(",", "")):
        return text.removeprefix("-")
    sign = "+" if signed and value > 0 else ""
    return sign + text.replace("-", "−")


def _mark(found: re.Match[str]) -> Mark:
    return Mark(found[1].strip(), frozenset((found[2] or "").split()))


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\*", ".*"))


def _cells(mark: Mark, lines: Sequence[CheckLine]) -> list[CellLine]:
    pattern = _pattern(mark.name)
    found = []
    for line in lines:
        for cell in line.cells:
            where = f"[{cell.conditions}]" if cell.conditions else ""
            if pattern.fullmatch(line.check.id + where) and not math.isnan(cell.estimate.value):
                found.append(cell)
    return found


def _shown(mark: Mark, cells: list[CellLine]) -> str:
    words = mark.words
    if "n" in words:
        return f"{min(cell.estimate.n for cell in cells):,}"
    if "holds" in words:
        return str(sum(cell.state == HOLDS for cell in cells))
    if "of" in words:
        return str(len(cells))
    percent, signed = " %" if "percent" in words else "", "signed" in words
    if "interval" in words and len(cells) > 1:
        raise ReplicationError(f"{{{mark.name}}} is {len(cells)} numbers, and only one has an interval; name one.")
    which = next((end for end in ("low", "high") if end in words), "value")
    values = sorted(_scaled(getattr(cell.estimate, which), words) for cell in cells)
    values = values[-1:] if "largest" in words else values
    plain = [round(value, SCALED) for value in values] if words & set(SCALES) else values
    low, high = (_scaled(getattr(cells[0].estimate, end), words) for end in ("low", "high"))
    if "interval" in words and math.isfinite(low) and math.isfinite(high):
        decimals = _decimals(high - low)
        ends = f"{shown(low, decimals)}, {shown(high, decimals)}"
        return f"{shown(values[0], decimals, signed)}{percent} [{ends}]"
    if "interval" in words:
        return f"{shown(plain[0], None, signed)}{percent} (interval unknown)"
    if len({shown(value) for value in plain}) == 1:
        return shown(plain[0], None, signed) + percent
    largest = max(abs(value) for value in values)
    decimals = None
    if largest >= SMALL:
        decimals = max(_decimals(largest), _decimals(values[-1] - values[0], 1))
    ends = dict.fromkeys(shown(value, decimals, signed) for value in (values[0], values[-1]))
    return " to ".join(ends) + percent


def _scaled(value: float, words: frozenset[str]) -> float:
    for word, factor in SCALES.items():
        value = value * factor if word in words else value
    return math.exp(value) if "exp" in words else value


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _decimals(width: float, digits: int = DIGITS) -> int:
    return min(6, max(0, digits - 1 - _magnitude(width)))
