"""Importing a module of a paper's directory, which may lie inside a package or stand alone."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_from(directory: Path, stem: str) -> ModuleType:
    """Import `stem` of a paper's directory: by its package name where it is in a package, else from its file.

    A file outside any package is read afresh when it has changed since this process last read it.
    """
    package = ".".join(part.name for part in reversed(_packages(directory)))
    if package:
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


def _packages(directory: Path) -> list[Path]:
    """`directory` and its parents as long as they are packages, innermost first."""
    packages = []
    while (directory / "__init__.py").is_file():
        packages.append(directory)
        directory = directory.parent
    return packages
