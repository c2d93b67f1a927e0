"""The record of a profile's results, and where it lies; imports nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORD, PATCH = "record.json", "diff.patch"
PREFLIGHT = "preflight.json"  # what was found out about models and data before the first job


def read_record(directory: Path) -> dict[str, Any]:
    """The record of a profile's results; empty where there is none or it is damaged."""
    try:
        record = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def found_before(directory: Path) -> dict[str, Any]:
    """What was found out about models and data before the first job of a profile; empty where nothing was kept."""
    try:
        return json.loads((directory / PREFLIGHT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
