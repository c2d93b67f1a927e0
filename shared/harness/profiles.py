"""`profiles.toml` -> the cells (combinations of settings) of every experiment of a profile.

One table per profile; in it, one table per experiment: `seeds` (16 for the seeds 0 to 15, or "64-319"), `workers`
(processes side by side), `threads` (torch threads inside each), fixed settings, and the settings that vary: `grid`
(every combination, in the written order) and `cells` (combinations written out, each crossed with the grid; a cell may
have a number of `seeds` of its own). A setting may be a table, such as `trl`; grid and cells set one of its entries by
`trl.epsilon`.

A profile with `like = "other"` has the other's experiments, and writes only what differs: a key, `grid` and `cells`
each replace the other's as a whole, `without = ["key"]` leaves keys out, and `experiment = false` leaves out an
experiment. Experiments run in the written order; one that is not written keeps its place after the one before it. An
experiment with `like = "sibling"` (or `"profile.experiment"`) starts from that one's table, and from that alone.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_replications.shared.errors import Problems, ReplicationError
from grpo_replications.shared.harness.inheritance import LIKE, Inheritance
from grpo_replications.shared.harness.seed_ranges import seed_range

PROFILE_KEYS = {"description": str, "budget_minutes": (int, float), "requires": str}
REQUIREMENTS = ("gpu", "hub")
RESERVED = {"experiment", "settings", "seed", "step", "metric", "value"}  # columns of the measurements
Settings = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """One experiment of one profile: its seeds, its processes, and one full set of settings per cell."""

    experiment: str
    seeds: int
    workers: int
    cells: tuple[Settings, ...]
    varying: tuple[str, ...]  # names of the settings that grid and cells set
    cell_seeds: tuple[int, ...] = ()  # seeds of each cell, where a cell has a number of its own
    first_seed: int = 0

    def seeds_of(self, cell: int) -> range:
        """The seeds of the cell at this position."""
        count = self.cell_seeds[cell] if self.cell_seeds else self.seeds
        return range(self.first_seed, self.first_seed + count)

    def label(self, settings: Settings) -> str:
        """`key=value;key=value` of the varying settings, keys sorted: how a cell is named in the measurements."""
        values = {key: setting(settings, key) for key in sorted(self.varying)}
        return ";".join(f"{key}={format_value(value)}" for key, value in values.items() if value is not None)


@dataclass(frozen=True)
class Profile:
    """One profile of one paper, with its experiments in the written order."""

    name: str
    description: str
    budget_minutes: float | None
    requires: str | None
    plans: dict[str, Plan]

    def with_overrides(
        self, only: str | None = None, seeds: int | str | None = None, workers: int | None = None
    ) -> Profile:
        """The same profile, narrowed to the experiments that `only` names, with other seeds or numbers of processes.

        `only` selects experiments equal to it or starting with it; `seeds` is read by `seed_range`.  Nothing else about
        the profile changes.
        """
        plans = {name: plan for name, plan in self.plans.items() if only is None or name.startswith(only)}
        if only in plans:
            plans = {only: plans[only]}
        if not plans:
            raise ReplicationError(
                f"No experiment of profile '{self.name}' is called '{only}' or starts with it; "
                f"it has: {', '.join(self.plans)}."
            )
        if workers is not None and workers < 1:
            raise ReplicationError(f"workers must be at least 1, not {workers}.")
        changes: dict[str, Any] = {} if workers is None else {"workers": workers}
        if seeds is not None:
            asked = seed_range(seeds)
            changes |= {"seeds": len(asked), "first_seed": asked.start, "cell_seeds": ()}
        return replace(self, plans={name: replace(plan, **changes) for name, plan in plans.items()})


def load_profiles(path: Path) -> dict[str, Profile]:
    """Read and check one `profiles.toml`; the `ReplicationError` has a line for each mistake, with its place."""
    document = read_toml(path)
    problems = Problems()
    for name, table in document.items():
        if not isinstance(table, dict):
            problems.add(f"{path}: '{name}' stands outside any profile; write [profile] above it.")
    problems.raise_any()
    inherited = Inheritance(document, path)
    profiles = {}
    for name, table in document.items():
        with problems.noted():
            profiles[name] = _parse_profile(name, table, path, inherited)
    problems.raise_any()
    return profiles


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file, with the file's name in every error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReplicationError(f"{path} does not exist.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ReplicationError(f"{path} is not valid TOML: {error}.") from None


def format_value(value: Any) -> str:
    """A setting's value as it stands in the measurements: `true`, `0.5`, `sgd`, `[1,2]`."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def parse_value(text: str) -> Any:
    """The inverse of `format_value`: numbers and truth values are parsed, everything else stays text."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parse_profile(name: str, table: Settings, path: Path, inherited: Inheritance) -> Profile:
    own = {}
    _check_name(name, f"{path}, [{name}]")
    for key, value in table.items():
        if key == LIKE or isinstance(value, dict) or value is False:
            continue
        if key not in PROFILE_KEYS:
            raise ReplicationError(f"{path}, [{name}]: unknown key '{key}'; known: {', '.join((*PROFILE_KEYS, LIKE))}.")
        if not isinstance(value, PROFILE_KEYS[key]) or isinstance(value, bool):
            raise ReplicationError(f"{path}, [{name}]: '{key}' has the wrong type.")
        own[key] = value
    plans = {}
    problems = Problems()
    for experiment in inherited.experiments(name):
        with problems.noted():
            where = f"{path}, [{name}.{experiment}]"
            _check_name(experiment, where)
            plans[experiment] = _parse_plan(experiment, inherited.table(name, experiment), where)
    problems.raise_any()
    if not plans:
        raise ReplicationError(f"{path}, [{name}]: the profile has no experiment.")
    if own.get("requires") not in (None, *REQUIREMENTS):
        raise ReplicationError(f"{path}, [{name}]: requires must be one of {', '.join(REQUIREMENTS)}.")
    return Profile(name, own.get("description", ""), own.get("budget_minutes"), own.get("requires"), plans)


def _check_name(name: str, where: str) -> None:
    """A profile's or an experiment's name is one of a file, and part of the names of numbers."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ReplicationError(f"{where}: a name is made of letters, digits and . _ - only, not {name!r}.")


def _parse_plan(experiment: str, table: Settings, where: str) -> Plan:
    table = dict(table)
    grid, cells = table.pop("grid", {}), table.pop("cells", [{}])
    if "seeds" not in table:
        raise ReplicationError(f"{where}: 'seeds' is missing.")
    all_seeds = seed_range(table.pop("seeds"), f"{where}, seeds")
    seeds = len(all_seeds)
    workers = _positive_integer(table.pop("workers", 1), "workers", where)
    threads = _positive_integer(table.pop("threads", 1), "threads", where)
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells) or not cells:
        raise ReplicationError(f"{where}: cells must be written as [[...cells]] tables.")
    grid = _flat(grid) if isinstance(grid, dict) else grid
    if not isinstance(grid, dict) or not all(isinstance(values, list) and values for values in grid.values()):
        raise ReplicationError(f"{where}.grid: every key must hold a list of at least one value.")
    cells = [_flat(cell) for cell in cells]
    own_seeds = [_positive_integer(cell.pop("seeds", seeds), "seeds", where) for cell in cells]
    twice = sorted(set(grid) & {key for cell in cells for key in cell})
    if twice:
        raise ReplicationError(f"{where}: {', '.join(twice)} is set by both grid and cells.")
    combinations = [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
    fixed = {"threads": threads, **table}
    settings = tuple(_with(fixed, {**cell, **combination}) for cell in cells for combination in combinations)
    varying = tuple(dict.fromkeys([key for cell in cells for key in cell] + list(grid)))
    for combination in settings:
        _check_settings(combination, varying, where)
    per_cell = tuple(own for own in own_seeds for _ in combinations) if set(own_seeds) != {seeds} else ()
    plan = Plan(experiment, seeds, workers, settings, varying, per_cell, all_seeds.start)
    labels = [plan.label(combination) for combination in settings]
    if len(set(labels)) < len(labels):
        raise ReplicationError(f"{where}: the same combination of settings is written twice.")
    return plan


def _flat(table: Settings, prefix: str = "") -> Settings:
    """Entries of tables within a table by dotted names: `trl.epsilon`."""
    flat = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _with(settings: Settings, changes: Settings) -> Settings:
    """The settings with changes under dotted names; tables are copied, so that cells share none."""
    changed = dict(settings)
    for key, value in changes.items():
        head, dot, rest = key.partition(".")
        table = changed.get(head, {})
        changed[head] = _with(table if isinstance(table, dict) else {}, {rest: value}) if dot else value
    return changed


def setting(settings: Settings, key: str) -> Any:
    """The value under a dotted name, or None where there is none."""
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, dict) else None
    return settings


def _positive_integer(value: Any, key: str, where: str) -> int:
    if value is None:
        raise ReplicationError(f"{where}: '{key}' is missing.")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ReplicationError(f"{where}: '{key}' must be a whole number of at least 1, not {value!r}.")
    return value


def _check_settings(settings: Settings, varying: tuple[str, ...], where: str) -> None:
    for key, value in _flat(settings).items():
        if key in RESERVED or key in ("seeds", "workers"):
            raise ReplicationError(f"{where}: '{key}' is a reserved name, not a setting.")
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, (str, int, float)) for item in items):
            raise ReplicationError(f"{where}: '{key}' must be text, a number, true/false, a list or a table of these.")
        if any(isinstance(item, float) and not math.isfinite(item) for item in items):
            raise ReplicationError(f"{where}: '{key}' is not a finite number.")
        if key in varying and isinstance(value, str):
            if any(character in value for character in ";=\n"):
                raise ReplicationError(f"{where}: '{key}' varies, so its text may not contain ; or = or a line break.")
            if not isinstance(parse_value(value), str):
                raise ReplicationError(f'{where}: write {key} = {value}, without quotes, or use a word for "{value}".')
