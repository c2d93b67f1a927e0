r"""Units in written answers: which spellings mean the same, their powers and denominators, and scales such as million.

A unit is set apart as text of its own ("cm^2", "m s^-1"), so that only equal units are equal; beside it the number
before it is compared.
"""

from __future__ import annotations

import re

# Unit spellings that mean the same; the dimensionless number before them is what gets compared.
_UNITS = {
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "km": "km kilometer kilometers kilometre kilometres",
    "m": "m meter meters metre metres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "kg": "kg kilogram kilograms",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "deg": "deg degree degrees",
    "rad": "rad radian radians",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "euro": "euro euros",
    "sterling": "sterling",
    "liter": "l liter liters litre litres",
    "ml": "ml milliliter milliliters",
    "mi h^-1": "mph",
    "unit": "unit units",
    "a.m.": "antemeridiem",  # `clean` writes these out
    "p.m.": "postmeridiem",
}
UNIT_OF = {spelling: unit for unit, spellings in _UNITS.items() for spelling in spellings.split()}
_OTHER_UNITS = frozenset(
    ["mol", "pa", "hz", "n", "j", "w", "kj", "kw", "ev", "erg"]
)  # in text, with a power; never compared
RAISES = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
TEXT_NAME = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|rm|operatorname)\s*"
_BRACED_POWER = re.compile(rf"({TEXT_NAME}\{{[^{{}}]*)\^\s*\{{\s*(-?\d)\s*\}}")
_POWER_OF_TEXT = re.compile(
    rf"({TEXT_NAME}\{{[^{{}}]*?(?<![A-Za-z])([A-Za-z]+)\.?)\s*\}}\s*\^\s*(?:\{{\s*(-?\d)\s*\}}|(\d)(?!\d))"
)
_UNIT_FRACTION = re.compile(rf"({TEXT_NAME}\{{[^{{}}]*)\}}\s*/\s*{TEXT_NAME}\{{")
_UNIT_WORD = re.compile(r"\s*(/|\bper\b)?\s*([a-z]+)(?:\.?\s*\^\s*\{?(-?\d)\}?)?")
_BARE_UNIT_POWER = re.compile(r"([A-Za-z]{2,})\.?\^(?:\{-?\d\}|\d)")


def unit_and_scale(block: str, unit: str | None, factor: str) -> tuple[str | None, str]:
    """Unit and power of ten named by one stretch of prose, or those found before."""
    raised = 1
    for below, word, power in _UNIT_WORD.findall(block.lower()):
        if word in SCALES:
            factor += rf" \times 10^{{{SCALES[word]}}}"
        elif word == "percent":
            factor += r"\%"
        elif word in RAISES:
            raised = RAISES[word]
        elif word in UNIT_OF:
            exponent = int(power or raised) * (-1 if below else 1)
            plain = exponent == 1 or word.startswith("unit")  # '12 units' is also said of an area
            unit = (unit + " " if unit else "") + UNIT_OF[word] + ("" if plain else f"^{exponent}")
            raised = 1
    return unit, factor


def join_units(text: str) -> str:
    r"""Move powers and denominators of units into their text: `\text{ cm}^{2}` becomes `\text{ cm^2}`."""
    while (joined := _BRACED_POWER.sub(r"\1^\2", text)) != text:
        text = joined
    text = _POWER_OF_TEXT.sub(
        lambda match: f"{match[1]}^{match[3] or match[4]}}}" if _is_unit(match[2]) else match[0], text
    )
    return _UNIT_FRACTION.sub(r"\1/", text)


def has_digits(block: str) -> bool:
    """Whether a stretch of prose has digits other than the powers of units."""
    return bool(re.search(r"\d", _UNIT_WORD.sub(lambda m: "" if _is_unit(m[2]) else m[0], block.lower())))


def is_raised(token: str) -> bool:
    """Whether a word is a unit with a power, such as cm^2; ml^2 is more likely a product of symbols."""
    raised = _BARE_UNIT_POWER.fullmatch(token)
    return bool(raised) and raised[1].lower() in UNIT_OF and raised[1] != "ml"  # type: ignore[index]


def _is_unit(word: str) -> bool:
    return word.lower() in UNIT_OF or word.lower() in _OTHER_UNITS
