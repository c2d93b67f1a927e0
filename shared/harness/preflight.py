"""What was found out about models and data before the first job of a profile, in a file beside its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PREFLIGHT = "preflight.json"


def found_before(directory: Path) -> dict[str, Any]:
    """What was found out about models and data before the first job of a profile; empty where nothing was kept."""
    try:
        return json.loads((directory / PREFLIGHT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def in_record(directory: Path) -> dict[str, Any]:
    """The same as a part of the profile's record."""
    found = found_before(directory)
    return {"preflight": found} if found else {}
