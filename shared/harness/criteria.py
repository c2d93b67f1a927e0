"""Whether a criterion was written before the run: what a run keeps of every criterion, and what follows from it.

A run that measures an experiment keeps the hash of every criterion that reads it, with the time and the number of jobs
that were already finished (in `jobs/.criteria`, and from there in `record.json`).  A verdict compares the hash of
today's criterion with those:

`no`            kept before the first job of every experiment that it reads: the criterion is older.
`in part`       kept while some jobs were already finished.
`yes`           the run kept its criteria, and this is none of them; or the check itself says `post_hoc`, and the run
                  did not keep it in time.
`not recorded`  the measurements are older than this record of criteria, so nothing can be shown.

The hash covers what decides (kind, metric, filters, thresholds, margins, conditions, rules on seeds), not the words
around it: correcting a statement makes no criterion newer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.checks import Check
from grpo_replications.shared.harness.jobs import write_atomic

NEWER, PARTLY_NEWER, OLDER, NOT_RECORDED = "yes", "in part", "no", "not recorded"
WORDS = {
    NEWER: "criterion written after the measurements",
    PARTLY_NEWER: "criterion written after a part of the measurements",
}
CRITERIA = ".criteria"  # in the directory of jobs
# What no verdict depends on.
NAMES = ("id", "claim", "source", "answers", "profiles")
PROSE = (
    "statement",
    "where",
    "criterion",
    "unit",
    "definition",
    "not_run_reason",
    "post_hoc",
    "headline",
    "alias",
    "read_with",
)
ABOUT = frozenset((*NAMES, *PROSE))

RULES = 2  # raise where judging itself changes (a default, an interval, a test), so that every criterion counts as new

Kept = list[dict[str, Any]]  # hash, recorded (time), jobs_before


def criterion_hash(check: Check) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the fields that decide and of the version of the rules.

    As canonical JSON, without fields that have their default, so that a new key of the format changes no criterion.
    `paper_value` decides in a check of kind `interval` only.
    """
    fields = check.model_dump(mode="json", exclude_defaults=True)
    fields = {key: value for key, value in fields.items() if key not in ABOUT} | {"rules": RULES}
    if check.kind != "interval":
        fields.pop("paper_value", None)
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def keep_criteria(
    checks: Iterable[Check], profile: str, directory: Path, finished: Mapping[str, int], started: str
) -> None:
    """Write the criteria of the experiments that are about to be measured, before they are.

    `finished`: experiment -> number of its jobs that are already done.  An experiment without finished jobs starts
    anew; otherwise hashes that are known keep their time.
    """
    if not finished:
        return
    kept = read_kept(directory)
    for experiment, done in finished.items():
        known = {entry["hash"]: entry for entry in kept.get(experiment, [])} if done else {}
        for check in checks:
            if experiment in check.experiments and profile in check.profiles:
                entry = {"hash": criterion_hash(check), "recorded": started, "jobs_before": done}
                known.setdefault(entry["hash"], entry)
        kept[experiment] = sorted(known.values(), key=lambda entry: (entry["recorded"], entry["hash"]))
    write_atomic(directory / CRITERIA, json.dumps(kept, indent=1) + "\n")


def read_kept(directory: Path) -> dict[str, Kept]:
    """What is kept beside the jobs: experiment -> criteria; empty where there is nothing readable."""
    try:
        kept = json.loads((directory / CRITERIA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def criterion_newer(check: Check, record: Mapping[str, Any]) -> str:
    """Whether the check's criterion is newer than its measurements, from the record of the run that made them."""
    own = criterion_hash(check)
    states = []
    for experiment in check.experiments:
        entry = record.get("experiments", {}).get(experiment)
        if entry is None:  # not measured, so there is nothing to be newer than
            continue
        kept = entry.get("criteria")
        if kept is None:
            states.append(NOT_RECORDED)
            continue
        found = next((one for one in kept if one["hash"] == own), None)
        states.append(NEWER if found is None else PARTLY_NEWER if found["jobs_before"] else OLDER)
    late = check.post_hoc and any(state != OLDER for state in states)
    worst = (NEWER, PARTLY_NEWER, NOT_RECORDED, OLDER)
    return NEWER if late else next((state for state in worst if state in states), NOT_RECORDED)
