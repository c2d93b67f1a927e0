"""Numbers as people read them: true minus signs, powers of ten written out, decimals as in `number_format`."""

from __future__ import annotations

import math
import re

from grpo_replications.shared.harness.number_format import in_digits
from grpo_replications.shared.statistics.estimates import Estimate

_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?\d+)(?!\w)")
_MINUS = re.compile(r"(?<![\w.)\]])-(?=[\d∞])")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def pretty(value: float) -> str:
    """A number alone: `0.344`, `−12`, `215,608`, `1.67 × 10⁻¹⁶`, `∞`; `unknown` where it is not a number."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return tidy(in_digits(value)[0].text)


def interval_texts(estimate: Estimate) -> tuple[str, str]:
    """The value and its interval to the same decimals, `("0.167", "[0.151, 0.183]")`; the second empty without one."""
    value, low, high = (float(number) for number in estimate[:3])
    if not (math.isfinite(value) and math.isfinite(low) and math.isfinite(high)):
        return pretty(value), ""
    texts = [tidy(digits.text) for digits in in_digits(value, low, high)]
    return texts[0], f"[{texts[1]}, {texts[2]}]"


def tidy(text: str) -> str:
    """A sentence with its numbers as people write them: `-1.9e-06` becomes `−1.9 × 10⁻⁶`, `1e-12` becomes `10⁻¹²`."""
    return _MINUS.sub("−", _POWER.sub(lambda found: _times(found[1], int(found[2])), text))


def _times(digits: str, exponent: int) -> str:
    power = "10" + str(exponent).translate(_SUPERSCRIPT)
    return power if digits == "1" else f"{digits} × {power}"
