"""Many verifiers for the same completions of a sum: each calls some of them right, so that p moves and nothing else.

A family of verifiers is nested: what one calls right, every later one does too, and p sweeps from near 0 to near 1.

- `tolerance`: the last number of the completion lies within c of the sum; c = 0 is the usual reward;
- `at-least`: that number is t or more, whatever the sum;
- `digits`: the last digit, the parity, the first digit is right. Not nested: three verifiers of their own;
- `arbitrary`: a random number attached to each distinct completion is at most q. It has nothing to do with the text.

A completion without a number is wrong for all but the arbitrary family.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from grpo_replications.shared.tasks.addition import last_number

FAMILIES = ("tolerance", "at-least", "digits", "arbitrary")
TOLERANCES = (0, 1, 2, 3, 5, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100)
LEAST = (5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90)
SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


class Verifier(NamedTuple):
    """What one verifier says: its family, its name within it, and which of n completions it calls right, (n,) bool."""

    family: str
    name: str
    right: np.ndarray


def numbers_in(texts: list[str]) -> np.ndarray:
    """The last number of each text, (n,); NaN where there is none."""
    found = [last_number(text) for text in texts]
    return np.array([np.nan if number is None else float(number) for number in found])


def verify(numbers: np.ndarray, answer: int, attached: np.ndarray) -> list[Verifier]:
    """Every verifier's word on completions with these last numbers (n,), NaN for none.

    `attached` (n,) in [0, 1): the number attached to each completion, the same for equal completions.
    """
    error = np.abs(numbers - answer)
    whole = np.where(np.isfinite(numbers) & (numbers == np.floor(numbers)), np.abs(numbers), np.nan)
    first = np.array([-1 if np.isnan(number) else int(str(int(number))[0]) for number in whole])
    with np.errstate(invalid="ignore"):
        found = [Verifier("tolerance", str(c), error <= c) for c in TOLERANCES]
        found += [Verifier("at-least", str(t), numbers >= t) for t in LEAST]
        found += [
            Verifier("digits", "last-digit", whole % 10 == answer % 10),
            Verifier("digits", "parity", whole % 2 == answer % 2),
            Verifier("digits", "first-digit", first == int(str(answer)[0])),
        ]
    return found + [Verifier("arbitrary", str(q), attached < q) for q in SHARES]
