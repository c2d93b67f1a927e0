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
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r"^\[[^\]]+\]: (\S+)", text, re.M)
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


def test_the_front_page_can_be_read_in_two_minutes() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 200
    assert not [line for line in lines if len(line) > 260]
    rows = [re.sub(r" {2,}|\*\*", "", line) for line in lines if line.startswith("|")]
    assert not [row for row in rows if len(row) > 200], "a row of a table is no wider than a screen"
