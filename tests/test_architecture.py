"""The arrows between packages run one way, and no two modules import each other in a circle."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAME = "grpo_replications"
TOP = ("shared", "synthetic", "replications")
ALLOWED = {
    "shared.errors": set(),
    "shared.settings": set(),
    "shared.sources": set(),
    "shared.tables": {"sources"},
    "shared.tracking": set(),
    "shared.live": set(),
    "shared.saved_runs": set(),
    "shared.words": set(),
    "shared.statistics": set(),
    "shared.theory": set(),
    "shared.grading": {"theory", "sources"},
    "shared.tasks": {"theory", "grading", "tables", "sources"},
    "shared.models": {"settings", "theory", "grading", "tasks", "statistics", "sources"},
    "shared.training": {
        "settings",
        "tracking",
        "live",
        "saved_runs",
        "theory",
        "grading",
        "models",
        "tasks",
        "statistics",
        "sources",
    },
    "shared.harness": {
        "settings",
        "tracking",
        "live",
        "saved_runs",
        "words",
        "theory",
        "models",
        "tasks",
        "statistics",
    },
    # The log of every group is written by the trainer; a tool that reads it needs to know its format.
    "shared.planning": {"tables", "words", "theory", "models", "tasks", "statistics", "training"},
}
PAPERS = sorted(path.parent.name for path in (ROOT / "replications").glob("*/claims.toml"))


@lru_cache
def modules() -> dict[str, Path]:
    """Every module of the project's packages by its dotted name."""
    found = {}
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@lru_cache
def imports(name: str) -> frozenset[str]:
    """Modules of the project that a module imports anywhere, functions included; types alone do not count."""
    known = modules()
    found = set()
    for node in statements(ast.parse(known[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full.removeprefix(f"{NAME}.") in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    assert not {other for other in found if other.split(".")[0] in TOP}, f"{name} imports without '{NAME}.'"
    return frozenset({other.removeprefix(f"{NAME}.") for other in found} & set(known))


def statements(tree: ast.AST) -> list[ast.AST]:
    """Every node of a syntax tree but those under `if TYPE_CHECKING`."""
    nodes = []
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            nodes += [node, *statements(node)]
    return nodes


def package(name: str) -> str:
    """`shared.theory` for `shared.theory.groups`, `synthetic` for `synthetic.binary_tree`."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "shared" and len(parts) > 1 else parts[0]


@pytest.mark.parametrize("name", [name for name in sorted(modules()) if not name.startswith("replications")])
def test_a_module_imports_only_from_packages_below_its_own(name: str) -> None:
    own = package(name)
    for used in imports(name):
        other = package(used)
        if other in (own, "shared", "shared.errors"):
            continue
        allowed = other.startswith("shared") if own == "synthetic" else other.removeprefix("shared.") in ALLOWED[own]
        assert allowed, f"{name} imports {used}"


@pytest.mark.parametrize("paper", PAPERS)
def test_no_paper_imports_another(paper: str) -> None:
    for name in modules():
        if name.startswith(f"replications.{paper}"):
            used = {other.split(".")[1] for other in imports(name) if other.startswith("replications.")}
            assert not (used & set(PAPERS)) - {paper}, name


def test_no_circle_of_modules() -> None:
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"circle: {' -> '.join((*path, name))}"
        if name not in finished:
            for used in sorted(imports(name)):
                visit(used, (*path, name))
            finished.add(name)

    for name in modules():
        visit(name, ())


def test_product_code_imports_nothing_from_the_tests() -> None:
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        assert "from tests" not in text and "import tests" not in text and '/ "tests"' not in text, name


def test_every_package_says_what_belongs_in_it() -> None:
    for name, path in modules().items():
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), name
