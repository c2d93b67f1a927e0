"""Families of checks: one entry with `over` stands for one check per combination of values.

`over = { n = [1, 2], method = ["grpo", "new"] }` means every combination, in the written order.  An item that is a
table sets several values at once: `over = [{ n = 1, paper = 0.4 }, { n = 2, paper = 0.2 }]` are two checks, and
`over = { row = [{ n = 1, paper = 0.4 }], method = ["grpo"] }` combines such rows with another list.

A name that is a key of a check sets that key: `over = [{ id = "p/a", metric = "x" }, { id = "p/b", metric = "y" }]`
are two checks that share the rest of the entry.  Every other name must be used as a placeholder:

In every text of the entry, also inside tables and lists, `{n}` stands for the value of n as it is written in the
measurements (`-1.0`, `true`, `sgd`); a text that is nothing but `{n}` becomes the value itself, with its type.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from grpo_replications.shared.harness.profiles import format_value

PLACEHOLDER = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)\}")


def expand(entry: dict[str, Any], defaults: dict[str, Any], keys: frozenset[str]) -> list[dict[str, Any]]:
    """The checks that an entry stands for: itself where it has no `over`.  `keys` are the keys that a check may have.

    Raises ValueError if `over` has no values or sets what the entry sets too, if a placeholder has no value, or if a
    value is neither a key of a check nor used by a placeholder.
    """
    own = {key: value for key, value in entry.items() if key != "over"}
    members = []
    for values in _combinations(entry["over"]) if "over" in entry else [{}]:
        fields = {key: value for key, value in values.items() if key in keys}
        twice = sorted(set(fields) & set(own))
        if twice:
            raise ValueError(f"over sets {', '.join(twice)}, which the entry sets too")
        used: set[str] = set()
        members.append(_fill({**defaults, **own, **fields}, values, used))
        unused = sorted(set(values) - set(fields) - used)
        if unused:
            raise ValueError(f"over sets {', '.join(unused)}, which is no key of a check and no placeholder uses")
    return members


def _combinations(over: Any) -> list[dict[str, Any]]:
    axes = over if isinstance(over, dict) else {"over": over}
    lists = []
    for name, items in axes.items():
        if not isinstance(items, list) or not items:
            raise ValueError("over has no values: write a list of values for a name, or a list of tables")
        if axes is not over and not all(isinstance(item, dict) for item in items):
            raise ValueError("over must be a table of lists, or a list of tables")
        lists.append([item if isinstance(item, dict) else {name: item} for item in items])
    if not lists:
        raise ValueError("over has no values: write a list of values for a name, or a list of tables")
    combinations = []
    for parts in itertools.product(*lists):
        merged = {key: value for part in parts for key, value in part.items()}
        if len(merged) < sum(map(len, parts)):
            raise ValueError("over sets a name twice")
        combinations.append(merged)
    return combinations


def _fill(value: Any, values: dict[str, Any], used: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, values, used) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, values, used) for item in value]
    if not isinstance(value, str):
        return value
    whole = PLACEHOLDER.fullmatch(value)
    if whole:
        return _value(whole[1], values, used)
    return PLACEHOLDER.sub(lambda match: format_value(_value(match[1], values, used)), value)


def _value(name: str, values: dict[str, Any], used: set[str]) -> Any:
    if name not in values:
        raise ValueError(f"{{{name}}} has no value: over sets {', '.join(values) or 'nothing'}")
    used.add(name)
    return values[name]
