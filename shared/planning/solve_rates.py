"""Solve rates of a data set's problems, as a histogram: from a name, a file, or a data set on the hub.

A solve rate is the share of a problem's rollouts that are right, between 0 and 1. Sources:

`big-math`      the packaged histogram: 215,608 problems, 64 rollouts of Llama-3.1-8B each
`hub:ID`        a data set on the Hugging Face hub (`hub:ID:CONFIG` with a configuration); split `train`
a path            a .csv, .json, .jsonl or .parquet file with a column of rates, or with a histogram in the two columns
                  `correct_of_N` (k right of N rollouts) and `problems` (how many); a CSV may begin with # lines

Every problem is read as it is or the whole is refused; nothing falls back to other data.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.tables import FILE_TYPES, read_table

logger = logging.getLogger(__name__)

BIG_MATH = "big-math"
BIG_MATH_FILE = Path(__file__).with_name("data") / "bigmath_llama8b_solve_rates.csv"
BIG_MATH_HUB = "open-r1/Big-Math-RL-Verified-Processed"
BIG_MATH_CONFIG = "all"
HUB = "hub:"
COLUMNS = ("solve_rate", "llama8b_solve_rate", "rate", "p")

_CORRECT = re.compile(r"correct_of_([1-9]\d*)")
_PROBLEMS = "problems"


@dataclass(frozen=True)
class SolveRates:
    """How many problems have which solve rate.

    `rates` (n,) increase; `counts` (n,) are whole numbers as float64; `samples` is the number of rollouts behind
    each rate, None where the source does not say; `source` names it in words.
    """

    rates: np.ndarray
    counts: np.ndarray
    samples: int | None
    source: str

    @property
    def problems(self) -> int:
        """Number of problems."""
        return int(self.counts.sum())

    def within(self, low: float = 0.0, high: float = 1.0) -> SolveRates:
        """Only the problems with low < rate < high; without arguments those whose groups can differ at all."""
        kept = (self.rates > low) & (self.rates < high)
        return SolveRates(self.rates[kept], self.counts[kept], self.samples, f"{self.source}, {low:g} < p < {high:g}")


def load_solve_rates(name_or_path: str | Path, column: str | None = None) -> SolveRates:
    """Solve rates from one of the sources at the top of this module; `column` names the rates' column.

    Without `column` it is the one of `COLUMNS` that the source has. Raises ReplicationError, which says what to do,
    for a source that cannot be read, an empty one, and one with a missing, non-numeric or out-of-range rate. The real
    Big-Math data set must agree with the packaged counts. Cost: linear in the problems.
    """
    name = str(name_or_path)
    if name == BIG_MATH:
        return _histogram(read_table(BIG_MATH_FILE), BIG_MATH)
    if name.startswith(HUB):
        return _from_hub(name.removeprefix(HUB), column)
    return _from_file(Path(name).expanduser(), column)


def _from_file(path: Path, column: str | None) -> SolveRates:
    if path.suffix not in FILE_TYPES:
        raise ReplicationError(
            f"{path} is no source of solve rates: give {BIG_MATH}, {HUB}ID of a data set on the hub, or a file ending "
            f"in {', '.join(FILE_TYPES)}."
        )
    frame = read_table(path).rename(columns={"value": COLUMNS[0]})
    if frame.empty:
        raise ReplicationError(f"{path} is empty: it needs a column of solve rates with at least one row.")
    source = str(path)
    if column is None and _is_histogram(frame):
        return _histogram(frame, source)
    return _count(_rates(frame[_column(list(frame.columns), column, source)], source), None, source)


def _from_hub(identifier: str, column: str | None) -> SolveRates:
    """A column of a data set on the hub; for Big-Math checked against the packaged counts."""
    from grpo_replications.shared.tasks import math  # imports the hub's libraries, which nothing else here needs

    name, _, config = identifier.partition(":")
    if not name:
        raise ReplicationError(f"'{HUB}' needs the id of a data set, such as {HUB}{BIG_MATH_HUB}.")
    is_big_math = name == BIG_MATH_HUB
    if is_big_math and not config:
        identifier = f"{name}:{BIG_MATH_CONFIG}"
    with nullcontext() if _hub_answers(name) else _offline():
        rows = math.read_rows(identifier, "train")
    source = f"{HUB}{identifier}"
    chosen = _column(rows.column_names, column, source)
    values = pd.Series(rows[chosen][:])
    if not is_big_math:
        return _count(_rates(values, source), None, source)
    return _checked_big_math(values, source)


def _hub_answers(name: str) -> bool:
    """Whether the hub can be reached at all; asked once, because the libraries' own retries take half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(name, timeout=10)
    except HfHubHTTPError:
        return True  # an answer, if not the wanted one; reading will say what is wrong
    except Exception as error:  # one type per network library and way to fail
        logger.info("the hub does not answer (%s)", error)
        return False
    return True


@contextmanager
def _offline() -> Iterator[None]:
    """Let the hub's libraries use their cache only, as HF_HUB_OFFLINE=1 does."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _checked_big_math(values: pd.Series, source: str) -> SolveRates:
    """The published column as a histogram over k of 64, or an error that says where it differs from the packaged one.

    Problems without a rate were left out of the packaged counts; their number is logged.
    """
    expected = load_solve_rates(BIG_MATH)
    missing = int(values.isna().sum())
    if missing:
        logger.warning("%s: %d problems have no solve rate and are left out", source, missing)
    rates = _rates(values.dropna(), source)
    right = np.rint(rates * expected.samples).astype(np.int64)
    off = int((np.abs(rates * expected.samples - right) > 1e-3).sum())
    counts = np.bincount(right, minlength=expected.samples + 1)
    differing = np.flatnonzero(counts != expected.counts)
    if off or differing.size:
        shown = ", ".join(f"k = {k}: {counts[k]} instead of {expected.counts[k]:.0f}" for k in differing[:3])
        parts = [f"{off} rates are no multiples of 1/{expected.samples}"] if off else []
        parts += [f"{differing.size} of the {len(counts)} counts differ ({shown})"] if differing.size else []
        raise ReplicationError(
            f"{source} is not the data the paper used: {len(rates)} problems for {expected.problems}; "
            f"{'; '.join(parts)}. To use it as it is, save it to a file and give the file's path."
        )
    return SolveRates(expected.rates, expected.counts, expected.samples, source)


def _column(names: list[str], column: str | None, source: str) -> str:
    names = [str(name) for name in names]
    if column is not None:
        if column not in names:
            raise ReplicationError(f"{source} has no column '{column}'; it has: {', '.join(names)}.")
        return column
    found = [name for name in COLUMNS if name in names]
    if not found:
        raise ReplicationError(
            f"{source} has no column of solve rates: none of {', '.join(COLUMNS)} among {', '.join(names)}. "
            "Name the column."
        )
    if len(found) > 1:
        raise ReplicationError(f"{source} has several columns of solve rates: {', '.join(found)}. Name the column.")
    return found[0]


def _rates(values: pd.Series, source: str) -> np.ndarray:
    """A column of rates (n,) as float64, or an error that names the first row that is none (rows count from 1)."""
    if values.empty:
        raise ReplicationError(f"{source} has no solve rate.")
    rates = _numbers(values)
    bad = np.flatnonzero(np.isnan(rates))
    if bad.size:
        value = values.iloc[bad[0]]
        words = (
            "is missing" if pd.api.types.is_scalar(value) and pd.isna(value) else f"is {_shown(value)}, not a number"
        )
        raise ReplicationError(
            f"{source}: the solve rate in row {bad[0] + 1} {words} ({bad.size} such rows). Repair or remove them."
        )
    highest = float(rates.max())
    if rates.min() < 0:
        raise ReplicationError(f"{source}: the solve rate in row {rates.argmin() + 1} is {rates.min():g}, below 0.")
    if highest > 1:
        advice = "These look like percents: divide by 100" if highest <= 100 else "Give shares of right rollouts"
        raise ReplicationError(
            f"{source}: the solve rate in row {rates.argmax() + 1} is {highest!r}, above 1. {advice}."
        )
    return rates


def _numbers(values: pd.Series) -> np.ndarray:
    """A column (n,) as float64, NaN for what is no number: text, true and false, lists. Numbers may come as text."""
    if values.dtype == bool:
        return np.full(len(values), np.nan)
    if values.dtype == object:
        values = values.map(
            lambda value: value if isinstance(value, (Real, Decimal, str)) and not isinstance(value, bool) else None
        )
    return pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _shown(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)


def _count(rates: np.ndarray, samples: int | None, source: str) -> SolveRates:
    values, counts = np.unique(rates, return_counts=True)
    return SolveRates(values, counts.astype(np.float64), samples, source)


def _is_histogram(frame: pd.DataFrame) -> bool:
    return len(_correct_columns(frame)) == 1 and _PROBLEMS in frame.columns


def _correct_columns(frame: pd.DataFrame) -> list[str]:
    return [name for name in map(str, frame.columns) if _CORRECT.fullmatch(name)]


def _histogram(frame: pd.DataFrame, source: str) -> SolveRates:
    """The two columns correct_of_N and problems as rates k / N with their counts; rows with no problem are left out."""
    name = _correct_columns(frame)[0]
    samples = int(_CORRECT.fullmatch(name).group(1))
    right, problems = as_integer(frame[name], name, source), as_integer(frame[_PROBLEMS], _PROBLEMS, source)
    if right.max() > samples:
        raise ReplicationError(f"{source}: {name} holds {right.max():g}, more than {samples} rollouts.")
    if len(np.unique(right)) < len(right):
        raise ReplicationError(f"{source}: {name} holds a value twice; give each once, with all its problems.")
    if not problems.sum():
        raise ReplicationError(f"{source}: the histogram holds no problem.")
    order = np.argsort(right)[problems[np.argsort(right)] > 0]
    return SolveRates(right[order] / samples, problems[order], samples, source)


def as_integer(values: pd.Series, name: str, source: str) -> np.ndarray:
    numbers = _numbers(values)
    bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0) & (numbers == np.floor(numbers))))
    if bad.size:
        raise ReplicationError(
            f"{source}: {name} in row {bad[0] + 1} is {_shown(values.iloc[bad[0]])}; it must be a whole number from 0."
        )
    return numbers
