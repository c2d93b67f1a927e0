"""Importing a module of a paper's directory, which may lie inside a package or stand alone."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from grpo_replications.shared.errors import ReplicationError

# The suite's import name: a checkout's top-level directories are packages in it.
SUITE = "grpo_replications"


def import_from(directory: Path, stem: str) -> ModuleType:
    """Import `stem` of a paper's directory: by its package name where it is in a package, else from its file.

    The directory above the outermost package is put at the end of the search path where Python does not find the
    package by itself. Raises ReplicationError where it finds another of that name. A file outside any package is read
    afresh when it has changed since this process last read it.
    """
    packages = packages_of(directory)
    if packages:
        package = package_name(packages)
        if package.split(".")[0] != SUITE:
            _make_importable(packages[-1])
        return importlib.import_module(f"{package}.{stem}")
    path = directory / f"{stem}.py"
    name = f"_paper_{abs(hash((str(path), path.stat().st_mtime_ns)))}_{stem}"
    if name in sys.modules:
        return sys.modules[name]
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _make_importable(package: Path) -> None:
    """Let Python find the package in this directory by its name."""
    found = importlib.util.find_spec(package.name)
    if found is None:
        sys.path.append(str(package.parent))
        importlib.invalidate_caches()
        return
    where = [Path(place).resolve() for place in found.submodule_search_locations or ()]
    if package.resolve() not in where:
        other = found.origin or "Python itself"
        raise ReplicationError(
            f"{package} cannot be imported: its name {package.name} is that of {other}. Rename the directory, and the "
            "paper in its claims.toml."
        )


def packages_of(directory: Path) -> list[Path]:
    """`directory` and its parents as long as they are packages, innermost first."""
    packages = []
    while (directory / "__init__.py").is_file():
        packages.append(directory)
        directory = directory.parent
    return packages


def package_name(packages: list[Path]) -> str:
    """Dotted name of the first of nested directories, innermost first; the suite's own begin with its import name.

    Installed, they lie inside a directory of that name; in a checkout beside it.
    """
    names = [part.name for part in packages]
    if names[-1] != SUITE and (packages[-1].parent / SUITE / "__init__.py").is_file():
        names.append(SUITE)
    return ".".join(reversed(names))
