"""Whether gold answers can be used: each has to grade itself as right. Checked in parallel, and remembered on disk.

A check takes 5 to 200 ms, a training set has thousands of answers, and every job of a run reads the same ones. So
golds that have passed are kept, as hashes, in a file of the model cache that belongs to this version of the grader.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from grpo_replications.shared.grading.maths_answers import UngradableGoldError
from grpo_replications.shared.grading.pool import GradingPool, shared_pool
from grpo_replications.shared.sources import cache_directory

FOLDER = "checked-golds"
_GRADER = ("completions.py", "maths_answers.py", "maths_text.py", "maths_values.py", "maths_words.py")
_FEW = 200  # answers that are checked in one process: a second one takes two seconds to start


def unusable_golds(golds: Iterable[str], workers: int | None = None) -> dict[str, str]:
    """The gold answers that do not grade themselves as right, each with the reason; empty where all do.

    `workers`: processes, for more than a few answers that are not known yet; as many as there are cores, at most eight.
    """
    known = _remembered()
    unknown = [gold for gold in dict.fromkeys(golds) if _hash(gold) not in known]
    if not unknown:
        return {}
    workers = min(workers or os.cpu_count() or 1, 8)
    if len(unknown) <= _FEW or workers == 1:
        found = {gold: _reason(gold, shared_pool()) for gold in unknown}
    else:
        pool = GradingPool(workers=workers)
        try:
            with ThreadPoolExecutor(workers) as threads:
                reasons = threads.map(lambda gold: _reason(gold, pool), unknown)
                found = dict(zip(unknown, reasons, strict=True))
        finally:
            pool.close()
    _remember(gold for gold, reason in found.items() if not reason)
    return {gold: reason for gold, reason in found.items() if reason}


def _reason(gold: str, pool: GradingPool) -> str:
    """Why a gold cannot be used; empty where it can."""
    try:
        pool.check_gold(gold)
    except UngradableGoldError as error:
        return str(error)
    return ""


def _hash(gold: str) -> str:
    return hashlib.sha256(gold.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache
def _grader() -> str:
    """A digest of what decides whether two answers are the same."""
    digest = hashlib.sha256()
    for name in _GRADER:
        digest.update((Path(__file__).parent / name).read_bytes())
    for package in ("math-verify", "latex2sympy2_extended", "sympy"):
        digest.update(version(package).encode())
    return digest.hexdigest()[:16]


def _file() -> Path:
    return cache_directory() / FOLDER / f"{_grader()}.txt"


def _remembered() -> set[str]:
    try:
        return set(_file().read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()


def _remember(golds: Iterable[str]) -> None:
    """Add golds to the file; one that cannot be written costs time in the next run and nothing else."""
    text = "".join(f"{_hash(gold)}\n" for gold in golds)
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as file:
            file.write(text)
