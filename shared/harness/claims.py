"""`claims.toml`: what a paper states, where, and - written before the run - what counts as reproducing it.

A claim has one of five kinds:

`exact`      every selected row lies within `tolerance` of `target` (default 0).  With `expect = "violation"` (a
               negative control) every row must lie further than `minimum` from it.
`interval`   the paper's `value` lies inside the central 95 % of the means that a study with `paper_seeds` seeds
               would report, drawn from our seeds (rounded to `decimals`, where the paper prints so many).
`direction`  the seeds of `better` beat those of `worse`: probability of improvement above one half.  With
               `worse_factor` they must beat that multiple: 0.5 and fewer is better means "in under half".
`at_least`, `at_most`  the mean over seeds lies on that side of `value`; with `strict` never on it.

`select`, `better` and `worse` filter on the settings that vary in the experiment (a list means any of its values)
and on `step` (a number or `"last"`).  The unit of replication is the seed: what is left of one seed after the
filters (several steps, say) is first reduced to one number (`reduce`: mean, max or min).  With `conditions` the
claim is judged for each combination of these settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import ReplicationError
from shared.harness.profiles import Plan, Profile, read_toml

KINDS = ("exact", "interval", "direction", "at_least", "at_most")
SOURCES = ("paper", "ours")
MINIMUM_SEEDS = 5

_TEXT, _NUMBER, _FILTER, _TEXTS = "text", "a number", "a table", "a list of texts"
REQUIRED = {
    "id": _TEXT,
    "statement": _TEXT,
    "where": _TEXT,
    "source": _TEXT,
    "kind": _TEXT,
    "criterion": _TEXT,
    "experiment": _TEXT,
    "profiles": _TEXTS,
    "metric": _TEXT,
}
OPTIONAL = {
    "value": _NUMBER,
    "not_run_reason": _TEXT,
    "select": _FILTER,
    "conditions": _TEXTS,
    "reduce": _TEXT,
    "timing": "true or false",
    "group": _TEXT,
    "headline": "true or false",
}
BY_KIND = {
    "exact": {"tolerance": _NUMBER, "target": _NUMBER, "expect": _TEXT, "minimum": _NUMBER},
    "interval": {"paper_seeds": _NUMBER, "min_seeds": _NUMBER, "max_width": _NUMBER, "decimals": _NUMBER},
    "direction": {
        "better": _FILTER,
        "worse": _FILTER,
        "worse_factor": _NUMBER,
        "higher_is_better": "true or false",
        "paired": "true or false",
        "min_seeds": _NUMBER,
    },
    "at_least": {"min_seeds": _NUMBER, "strict": "true or false"},
    "at_most": {"min_seeds": _NUMBER, "strict": "true or false"},
}
REQUIRED_BY_KIND = {
    "exact": (),
    "interval": ("value", "paper_seeds"),
    "direction": ("better", "worse"),
    "at_least": ("value",),
    "at_most": ("value",),
}
PAPER_KEYS = {"paper", "title", "authors", "arxiv", "venue", "url", "version", "license"}


@dataclass(frozen=True)
class PaperFacts:
    """Which paper this is.  `slug` is its name on the command line."""

    slug: str
    title: str
    authors: str
    arxiv: str


@dataclass(frozen=True)
class Claim:
    """One statement with its criterion; the fields are the keys of its table in `claims.toml`."""

    id: str
    statement: str
    where: str
    source: str
    kind: str
    criterion: str
    experiment: str
    profiles: tuple[str, ...]
    metric: str
    value: float | None = None
    not_run_reason: str | None = None
    select: dict[str, Any] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    reduce: str = "mean"
    timing: bool = False
    group: str | None = None
    headline: bool = False
    tolerance: float = 1e-12
    target: float = 0.0
    expect: str | None = None
    minimum: float | None = None
    paper_seeds: int | None = None
    max_width: float | None = None
    decimals: int | None = None
    better: dict[str, Any] = field(default_factory=dict)
    worse: dict[str, Any] = field(default_factory=dict)
    worse_factor: float = 1.0
    higher_is_better: bool = True
    paired: bool = True
    min_seeds: int = MINIMUM_SEEDS
    strict: bool = False


def load_claims(path: Path, profiles: dict[str, Profile]) -> tuple[PaperFacts, tuple[Claim, ...]]:
    """Read and check `claims.toml` against the paper's profiles.

    A misspelt key, profile, experiment or setting would make a verdict meaningless, so each is a
    `ReplicationError` that names the file and the claim.  Cost: claims x profiles x cells.
    """
    document = read_toml(path)
    entries = document.pop("claim", None)
    unknown = sorted(set(document) - PAPER_KEYS)
    if unknown:
        raise ReplicationError(f"{path}: unknown key {', '.join(unknown)}; known: {', '.join(sorted(PAPER_KEYS))}.")
    for key in ("paper", "title"):
        if not isinstance(document.get(key), str):
            raise ReplicationError(f"{path}: '{key}' is missing.")
    if not isinstance(entries, list) or not entries:
        raise ReplicationError(f"{path}: no [[claim]].")
    claims = tuple(_parse_claim(entry, position, path) for position, entry in enumerate(entries, start=1))
    ids = [claim.id for claim in claims]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ReplicationError(f"{path}: the id {', '.join(twice)} is used twice.")
    for claim in claims:
        _check_against_profiles(claim, profiles, f"{path}, claim {claim.id}")
    authors = document.get("authors", "")
    authors = ", ".join(authors) if isinstance(authors, list) else str(authors)
    return PaperFacts(document["paper"], document["title"], authors, str(document.get("arxiv", ""))), claims


def _parse_claim(entry: dict[str, Any], position: int, path: Path) -> Claim:
    where = f"{path}, claim {entry.get('id', f'number {position}')}"
    kind = entry.get("kind")
    missing = [key for key in (*REQUIRED, *REQUIRED_BY_KIND.get(str(kind), ())) if key not in entry]
    if missing:
        raise ReplicationError(f"{where}: missing {', '.join(missing)}.")
    if kind not in KINDS:
        raise ReplicationError(f"{where}: kind must be one of {', '.join(KINDS)}, not '{kind}'.")
    allowed = {**REQUIRED, **OPTIONAL, **BY_KIND[kind]}
    unknown = sorted(set(entry) - set(allowed))
    if unknown:
        raise ReplicationError(f"{where}: a claim of kind {kind} knows no key {', '.join(unknown)}.")
    for key, value in entry.items():
        if not _has_type(value, allowed[key]):
            raise ReplicationError(f"{where}: '{key}' must be {allowed[key]}, not {value!r}.")
    lists = {key: tuple(value) for key, value in entry.items() if allowed[key] == _TEXTS}
    claim = Claim(**{**entry, **lists})
    problem = _problem(claim, entry)
    if problem:
        raise ReplicationError(f"{where}: {problem}.")
    return claim


def _has_type(value: Any, kind: str) -> bool:
    if kind == _TEXT:
        return isinstance(value, str) and bool(value)
    if kind == _NUMBER:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind == _FILTER:
        return isinstance(value, dict)
    if kind == _TEXTS:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, bool)


def _problem(claim: Claim, entry: dict[str, Any]) -> str | None:
    """What makes the claim's criterion meaningless, if anything does."""
    if claim.source not in SOURCES:
        return f"source must be one of {', '.join(SOURCES)}"
    if not claim.profiles:
        return "profiles is empty, so nothing could ever test it"
    if claim.reduce not in ("mean", "max", "min"):
        return "reduce must be mean, max or min"
    if claim.kind == "exact" and "reduce" in entry:
        return "an exact claim looks at every row; it knows no reduce"
    if claim.tolerance < 0:
        return "tolerance must not be negative"
    if claim.expect not in (None, "violation"):
        return 'expect can only be "violation"'
    if claim.expect == "violation" and (claim.minimum is None or claim.minimum <= 0 or "tolerance" in entry):
        return "a claim that expects a violation needs a minimum above 0, and no tolerance"
    if claim.expect is None and claim.minimum is not None:
        return 'minimum needs expect = "violation"'
    if claim.min_seeds < 2 or not float(claim.min_seeds).is_integer():
        return "min_seeds must be a whole number of at least 2: one seed has no spread"
    if claim.paper_seeds is not None and (claim.paper_seeds < 1 or not float(claim.paper_seeds).is_integer()):
        return "paper_seeds must be a whole number of at least 1"
    if claim.max_width is not None and claim.max_width <= 0:
        return "max_width must be above 0"
    if claim.decimals is not None and (claim.decimals < 0 or not float(claim.decimals).is_integer()):
        return "decimals must be a whole number of at least 0"
    if claim.worse_factor <= 0:
        return "worse_factor must be above 0"
    if claim.kind == "direction" and claim.better == claim.worse:
        return "better and worse select the same rows"
    overlap = set(claim.conditions) & (set(claim.better) | set(claim.worse))
    if overlap:
        return f"{', '.join(sorted(overlap))} cannot be a condition and be fixed by better or worse"
    return None


def _check_against_profiles(claim: Claim, profiles: dict[str, Profile], where: str) -> None:
    known = {experiment for profile in profiles.values() for experiment in profile.plans}
    if claim.experiment not in known:
        raise ReplicationError(f"{where}: no profile has an experiment '{claim.experiment}'.")
    for name in claim.profiles:
        if name not in profiles:
            raise ReplicationError(f"{where}: there is no profile '{name}'; there are: {', '.join(profiles)}.")
        if claim.experiment not in profiles[name].plans:
            raise ReplicationError(f"{where}: profile '{name}' has no experiment '{claim.experiment}'.")
        plan = profiles[name].plans[claim.experiment]
        for key in claim.conditions:
            _check_varies(key, plan, f"{where}, profile '{name}'")
        filters = (claim.select,) if claim.kind != "direction" else (claim.better, claim.worse)
        for chosen in filters:
            _check_filter({**claim.select, **chosen}, plan, f"{where}, profile '{name}'")


def _check_varies(key: str, plan: Plan, where: str) -> None:
    if key not in plan.varying:
        raise ReplicationError(
            f"{where}: '{key}' is in no grid and no cells of {plan.experiment} "
            f"(a grid of one value is enough); varying: {', '.join(plan.varying) or 'nothing'}."
        )


def _check_filter(chosen: dict[str, Any], plan: Plan, where: str) -> None:
    """Every setting of a filter must vary in the plan, and at least one cell must pass the whole of it."""
    for key, value in chosen.items():
        if key == "step":
            if value != "last" and (not isinstance(value, int) or isinstance(value, bool)):
                raise ReplicationError(f'{where}: step must be a number or "last", not {value!r}.')
        else:
            _check_varies(key, plan, where)
    settings = {key: value for key, value in chosen.items() if key != "step"}
    if not any(all(cell.get(key) in as_list(value) for key, value in settings.items()) for cell in plan.cells):
        raise ReplicationError(f"{where}: no combination of settings of {plan.experiment} has {settings}.")


def as_list(value: Any) -> list[Any]:
    """A filter's value as a list of the values that pass."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
