"""A value and the ends of its interval in digits, for people: all to the same decimals, as text and as LaTeX."""

from __future__ import annotations

import math
from dataclasses import dataclass

SIGNIFICANT = 4  # of a value without an interval
SIGNIFICANT_OF_WIDTH = 2  # of half an interval's width
SMALLEST, LARGEST = 1e-3, 1e7  # outside, a power of ten
MORE_DECIMALS = 3  # at most, so that what is not zero does not read as zero
GROUPED = 10_000  # whole numbers from here on have their thousands apart


@dataclass(frozen=True)
class Digits:
    """One number: its digits with sign, times ten to `exponent` (None: as it stands)."""

    mantissa: str
    exponent: int | None = None

    @property
    def text(self) -> str:
        """`0.167`, `-3.9e-14` or `215,608`."""
        if self.exponent is not None:
            return f"{self.mantissa}e{self.exponent}"
        return self._grouped(",")

    @property
    def latex(self) -> str:
        r"""For math mode: `-3.9\times10^{-14}`, `215\,608`."""
        if self.exponent is not None:
            return rf"{self.mantissa}\times10^{{{self.exponent}}}"
        return self._grouped(r"\,")

    @property
    def plain(self) -> str:
        """What programs and siunitx read: `-3.9e-14`, `215608`."""
        return self.mantissa if self.exponent is None else f"{self.mantissa}e{self.exponent}"

    def _grouped(self, mark: str) -> str:
        whole = self.mantissa.lstrip("+-")
        if not whole.isdigit() or int(whole) < GROUPED:
            return self.mantissa
        return self.mantissa.replace(whole, f"{int(whole):,}".replace(",", mark))


def in_digits(value: float, *ends: float, signed: bool = False) -> list[Digits]:
    """The value and, where given, the two ends of its interval, all finite and to the same decimals.

    With an interval, to two significant digits of half its width, and to more where an end that is not zero would read
    as zero; rounding keeps order, so a value inside its interval stays inside.  Without one, to four significant
    digits.  `signed`: the value has a plus sign if it is positive, as differences have.
    """
    numbers = [value, *ends]
    largest = max(abs(number) for number in numbers)
    whole = not ends and value == round(value) and largest < 1e15
    exponent = (
        None if whole or not largest or SMALLEST <= largest < LARGEST else int(f"{largest:.3e}".partition("e")[2])
    )
    scaled = [number if exponent is None else number / 10.0**exponent for number in numbers]
    decimals = 0 if whole else _decimals(scaled)
    written = [_rounded(number, decimals) for number in scaled]
    if not ends and "." in written[0]:
        written[0] = written[0].rstrip("0").rstrip(".")
    if signed and float(written[0]) > 0:
        written[0] = f"+{written[0]}"
    return [Digits(digits, exponent) for digits in written]


def _decimals(numbers: list[float]) -> int:
    half_width = (numbers[-1] - numbers[1]) / 2 if len(numbers) > 1 else 0.0
    if half_width > 0:
        decimals = _places(half_width, SIGNIFICANT_OF_WIDTH)
    else:
        decimals = _places(max(abs(number) for number in numbers), SIGNIFICANT)
    for _ in range(MORE_DECIMALS):
        if all(float(_rounded(end, decimals)) or not end for end in numbers[1:]):
            break
        decimals += 1
    return decimals


def _places(number: float, significant: int) -> int:
    return max(0, significant - 1 - math.floor(math.log10(number))) if number else 0


def _rounded(number: float, decimals: int) -> str:
    text = f"{number:.{decimals}f}"
    return text.removeprefix("-") if not float(text) else text
