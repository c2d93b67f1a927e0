"""Every setting of every experiment is read somewhere in the code that the experiment can reach: no knob is loose."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from grpo_replications.shared.harness.jobs import Experiment
from grpo_replications.shared.harness.papers import Paper

ROOT = Path(__file__).parents[2]
PAPERS = sorted(path.parent.name for path in (ROOT / "replications").glob("*/claims.toml"))
Symbol = tuple[str, str]  # module, name at its top level


@lru_cache
def syntax(module: str) -> ast.Module | None:
    """The syntax tree of a module of the project, or None."""
    path = ROOT.joinpath(*module.removeprefix("grpo_replications.").split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


@lru_cache
def top_level(module: str) -> dict[str, ast.AST]:
    """What a module defines at its top level, by name."""
    found: dict[str, ast.AST] = {}
    for node in syntax(module).body if syntax(module) else ():
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id] = node.value
    return found


def imported(tree: ast.AST) -> dict[str, Symbol]:
    """Names that imports in a piece of code bind: to a symbol, or to a module (with the empty name)."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                found[alias.asname or alias.name] = (inside, "") if syntax(inside) else (node.module, alias.name)
    return found


@lru_cache
def imported_at_top(module: str) -> dict[str, Symbol]:
    """`imported` of a whole module, read once."""
    return imported(syntax(module))


@lru_cache
def used(symbol: Symbol) -> set[Symbol]:
    """Symbols of the project that the code of one refers to."""
    module, name = symbol
    node = top_level(module).get(name)
    if node is None:
        return set()
    names = imported_at_top(module) | imported(node)
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(names.get(each.id, (module, each.id)))
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            inside, whole = names.get(each.value.id, ("", "x"))
            if not whole:
                found.add((inside, each.attr))
    return {(inside, name) for inside, name in found if syntax(inside) and name in top_level(inside)}


def reachable(start: Symbol) -> set[Symbol]:
    """`start` and all that it uses, however indirectly."""
    seen, new = set(), {start}
    while new:
        seen |= new
        new = set().union(*map(used, new)) - seen
    return seen


@lru_cache
def settings_read(start: Symbol) -> frozenset[str]:
    """Names read as `settings.<name>`, in what `start` reaches."""
    names = set()
    for module, name in reachable(start):
        for node in ast.walk(top_level(module)[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "settings":
                names.add(node.attr)
    return frozenset(names)


def place(experiment: Experiment) -> Symbol:
    """Where an experiment's function is defined; that of `deferred` says what it stands for in its closure."""
    function: Any = experiment.function
    assert isinstance(function, FunctionType)
    held = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
    if {"package", "module", "name"} <= set(held):
        return f"{held['package']}.{held['module']}", held["name"]
    return function.__module__, function.__name__


@pytest.mark.parametrize("name", PAPERS)
def test_every_setting_is_read_by_its_experiment(name: str) -> None:
    paper = Paper(ROOT / "replications" / name)
    loose = {}
    for key, experiment in paper.experiments.items():
        fields = experiment.settings.model_fields.items()
        free = {field for field, info in fields if info.annotation is not type(None)}  # None alone is no choice
        never = free - settings_read(place(experiment))
        if never:
            loose[key] = sorted(never)
    assert not loose


@pytest.mark.parametrize("name", PAPERS)
def test_every_setting_says_what_it_is(name: str) -> None:
    for key, experiment in Paper(ROOT / "replications" / name).experiments.items():
        assert not [field for field, info in experiment.settings.model_fields.items() if not info.description], key


@pytest.mark.parametrize("name", PAPERS)
def test_every_profile_holds_settings_that_its_experiments_know(name: str) -> None:
    Paper(ROOT / "replications" / name).check_settings()
