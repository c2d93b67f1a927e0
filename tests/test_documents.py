"""What the read-me files point to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(path for top in ("replications", "shared") for path in (ROOT / top).rglob("README.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w./])((?:shared|synthetic|replications|tests)/[\w/]+\.(?:py|toml|csv))", text)
    modules = [
        f"{name.replace('.', '/')}.py" for name in re.findall(r"^from ((?:shared|synthetic)[\w.]+) import", text, re.M)
    ]
    packages = {name for name in modules if (ROOT / name.removesuffix(".py") / "__init__.py").exists()}
    missing = [name for name in [*paths, *modules] if name not in packages and not (ROOT / name).exists()]
    assert not missing
