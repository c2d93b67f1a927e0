"""The record of a profile's results, and where it lies; imports nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORD, PATCH = "record.json", "diff.patch"


def read_record(directory: Path) -> dict[str, Any]:
    """The record of a profile's results; empty where there is none or it is damaged."""
    try:
        record = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
