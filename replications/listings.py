"""What `replicate list` and `replicate verdicts` print, as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.answers import Answer
from grpo_replications.shared.harness.outcomes import CheckLine, claim_outcomes, plain, read_verdicts
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.partial import Unfinished


def papers_json(papers: Iterable[Paper]) -> str:
    """Every paper with its claims, profiles and experiments."""
    return json.dumps([_paper(paper) for paper in papers], indent=1, ensure_ascii=False)


def verdicts_json(judged: Iterable[tuple[Paper, str, Path, Unfinished | None]]) -> str:
    """Claims with answers and checks, for each (paper, profile, results it is judged in, what is missing)."""
    return json.dumps([_verdicts(*one) for one in judged], indent=1, ensure_ascii=False)


def _paper(paper: Paper) -> dict[str, Any]:
    facts = paper.facts
    return {
        **{"paper": facts.slug, "title": facts.title, "authors": facts.authors, "arxiv": facts.arxiv},
        "claims": [{"id": claim.id, "source": claim.source, "statement": claim.statement} for claim in paper.claims],
        "checks": len(paper.checks),
        "profiles": [
            {
                **{"profile": profile.name, "description": profile.description, "requires": profile.requires},
                **{"budget_minutes": profile.budget_minutes, "experiments": list(profile.plans)},
            }
            for profile in paper.profiles.values()
        ],
    }


def _verdicts(paper: Paper, profile: str, results: Path, unfinished: Unfinished | None) -> dict[str, Any]:
    outcomes = claim_outcomes(paper, read_verdicts(paper, profile, results / paper.name / profile))
    claims = [
        {
            **{"id": one.claim.id, "source": one.claim.source, "statement": one.claim.statement},
            **{"published": _answer(one.published), "here": _answer(one.here)},
            "checks": [_check(line) for line in one.lines],
        }
        for one in outcomes
    ]
    missing = None if unfinished is None else dataclasses.asdict(unfinished)
    return {"paper": paper.slug, "profile": profile, "unfinished": missing, "claims": claims}


def _answer(answer: Answer | None) -> dict[str, Any] | None:
    return None if answer is None else dataclasses.asdict(answer)


def _check(line: CheckLine) -> dict[str, Any]:
    value, low, high = (
        float(plain(end)) if plain(end) not in ("", "inf", "-inf") else None for end in line.estimate[:3]
    )
    numbers = {"value": value, "low": low, "high": high, "n": line.estimate.n, "unit": line.check.unit}
    words = {"conditions": line.conditions, "reason": line.reason, "command": line.command}
    return {"id": line.check.id, "answers": line.check.answers, "verdict": line.verdict, **numbers, **words}
