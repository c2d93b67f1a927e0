"""Verdicts and records on disk -> what the report shows.  Pure functions; see `shared.harness.page_model`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.citations import sentence
from grpo_replications.shared.harness.claims import OURS, PAPER
from grpo_replications.shared.harness.entries import CONTROL, HERE, PUBLISHED, SUPPORT
from grpo_replications.shared.harness.formatting import interval_texts, pretty, tidy
from grpo_replications.shared.harness.number_marks import filled
from grpo_replications.shared.harness.numbers import Number
from grpo_replications.shared.harness.outcomes import CellLine, CheckLine, ClaimOutcome, claim_outcomes
from grpo_replications.shared.harness.page_model import (
    SOURCES,
    CellView,
    CheckView,
    ClaimView,
    Line,
    Origin,
    PaperView,
    ProfileView,
    Reading,
    Run,
    Tally,
)
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.profile_results import FigureFile, ProfileResults, best_outcomes, figure_files
from grpo_replications.shared.harness.progress import duration
from grpo_replications.shared.harness.verdicts import (
    CONDITIONAL,
    EQUIVALENT,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    VERDICTS,
)
from grpo_replications.shared.harness.verification import measured_again
from grpo_replications.shared.statistics.states import FAILS, HOLDS, UNDECIDED
from grpo_replications.shared.words import without_marks

GROUPS = {
    PUBLISHED: "Checks in the paper's setting",
    HERE: "Checks in our setting",
    SUPPORT: "Support: shown, decides nothing",
    CONTROL: "Controls: they test our own machinery",
}
RULES = {
    "all": "The claim holds where all of its checks do.",
    "both": "The checks are parts of one statement: one that is not reproduced refutes it.",
    "any": "The checks are readings of one statement: one that is reproduced is enough.",
}
COUNTED = {  # of several checks: singular, plural
    REPRODUCED: ("holds", "hold"),
    CONDITIONAL: ("holds in part", "hold in part"),
    NOT_REPRODUCED: ("fails", "fail"),
    EQUIVALENT: ("shows no effect", "show no effect"),
    INCONCLUSIVE: ("undecided", "undecided"),
    NOT_RUN: ("not run", "not run"),
}
STATE_VERDICTS = {HOLDS: REPRODUCED, FAILS: NOT_REPRODUCED, EQUIVALENT: EQUIVALENT, UNDECIDED: INCONCLUSIVE}


def paper_view(
    paper: Paper, found: Sequence[ProfileResults], numbers: Mapping[str, Number], results: Path
) -> PaperView:
    """Everything that the report says about one paper: from its profiles on disk and their numbers by id."""
    best = best_outcomes(paper, found) or (claim_outcomes(paper, found[0].lines) if found else [])
    outcomes = {one.profile: claim_outcomes(paper, one.lines) for one in found}
    dates = {one.profile: one.record.get("finished", "")[:10] for one in found}
    figures = figure_files(found, results)
    about = paper.facts.figures
    measured = [line for one in best for line in one.lines]
    claims = [
        claim_view(
            one,
            {name: own[position] for name, own in outcomes.items()},
            numbers,
            dates,
            [figure for figure in figures if one.claim.id in about.get(figure.name, ())],
            measured,
        )
        for position, one in enumerate(best)
    ]
    titles = {PAPER: "The paper's claims", OURS: "Our own claims", CONTROL: "Controls of our machinery"}
    sections = [(titles[source], tuple(one for one in claims if one.source == source)) for source in titles]
    facts = paper.facts
    return PaperView(
        slug=paper.slug,
        title=facts.title,
        authors=facts.authors,
        arxiv=facts.arxiv,
        url=facts.url or (f"https://arxiv.org/abs/{facts.arxiv}" if facts.arxiv else ""),
        columns=tuple(outcomes),
        tallies=tallies(best),
        sections=tuple((title, own) for title, own in sections if own),
        profiles=tuple(profile_view(paper.slug, one) for one in found),
        other_figures=tuple(figure for figure in figures if figure.name not in about),
    )


def tallies(outcomes: Sequence[ClaimOutcome]) -> tuple[Tally, ...]:
    """Counts apart: the paper's claims in both settings, our own, and controls, which are checks and no claims."""
    verdicts: dict[str, list[str]] = {source: [] for source in SOURCES}
    for one in outcomes:
        for question, answer in ((PUBLISHED, one.published), (HERE, one.here)):
            if answer is not None:
                verdicts[question if one.claim.source == PAPER else OURS].append(answer.verdict)
        verdicts[CONTROL] += [line.verdict for line in one.lines if line.check.answers == CONTROL]
    return tuple(Tally(source, SOURCES[source], _counts(own)) for source, own in verdicts.items() if own)


def claim_view(
    best: ClaimOutcome,
    by_profile: Mapping[str, ClaimOutcome],
    numbers: Mapping[str, Number],
    dates: Mapping[str, str],
    figures: Sequence[FigureFile],
    measured: Sequence[CheckLine],
) -> ClaimView:
    """One claim: `best` has each check from its most complete profile, `by_profile` what every profile says.

    `numbers`: every number of the paper by its id; `dates`: when a profile's results were finished; `measured`: the
    checks whose numbers the claim's own words may name.
    """
    claim = best.claim
    lines = {name: {line.check.id: line for line in one.lines} for name, one in by_profile.items()}
    groups = []
    for answers, title in GROUPS.items():
        own = [line for line in best.lines if line.check.answers == answers]
        views = [
            check_view(
                line,
                [run_view(by_id[line.check.id], numbers, dates.get(name, "")) for name, by_id in lines.items()],
            )
            for line in own
        ]
        if views:
            groups.append((title, tuple(views)))
    return ClaimView(
        id=claim.id,
        statement=claim.statement,
        where=claim.where,
        source=claim.source,
        reports=claim.reports or "",
        rule=RULES[claim.rule] if sum(check.answers != CONTROL for check in claim.checks) > 1 else "",
        lines=tuple(claim_lines(best, by_profile, numbers, measured)),
        groups=tuple(groups),
        figures=tuple(figures),
    )


def claim_lines(
    best: ClaimOutcome,
    by_profile: Mapping[str, ClaimOutcome],
    numbers: Mapping[str, Number],
    measured: Sequence[CheckLine],
) -> list[Line]:
    """The answers to a claim, and its controls if it has any, each with what every profile says."""
    claim, lines = best.claim, []
    for question, answer, setting, words in (
        (PUBLISHED, best.published, claim.published_setting, claim.published_found),
        (HERE, best.here, claim.here_setting, claim.here_found),
    ):
        if answer is None:
            continue
        readings = []
        for profile, one in by_profile.items():
            own = one.published if question == PUBLISHED else one.here
            asked = [line for line in one.lines if line.check.answers == question]
            readings.append(Reading(profile, own.verdict if own else NOT_RUN, reading_text(asked, numbers)))
        source = question if claim.source == PAPER else OURS
        verdicts = (answer.verdict,)
        found = filled(words, measured) if words and answer.verdict != NOT_RUN else None
        text = tidy("; ".join(part for part in (found, answer.text) if part))
        lines.append(Line(source, setting or "", answer.verdict, text, verdicts, tuple(readings), answer.command))
    controls = [line for line in best.lines if line.check.answers == CONTROL]
    if controls:
        by_name = {
            name: [line for line in one.lines if line.check.answers == CONTROL] for name, one in by_profile.items()
        }
        readings = [Reading(name, _of_controls(own), counted_text(own)) for name, own in by_name.items()]
        verdicts = tuple(dict.fromkeys(line.verdict for line in controls))
        command = next((line.command for line in controls if line.verdict == NOT_RUN), "")
        text = counted_text(controls)
        lines.append(Line(CONTROL, "", _of_controls(controls), text, verdicts, tuple(readings), command))
    return lines


def reading_text(lines: Sequence[CheckLine], numbers: Mapping[str, Number]) -> str:
    """What a profile's checks of one question found: the number of a single check, else how many hold."""
    run = [line for line in lines if line.verdict != NOT_RUN]
    if not run:
        return ""
    if len(lines) > 1:
        return counted_text(lines)
    (line,) = lines
    if len(line.cells) != 1:
        return _holds(line)
    (cell,) = line.cells
    number = numbers.get(_name(line, cell))
    texts = " ".join(text for text in (*interval_texts(cell.estimate), line.check.unit) if text)
    return f"{texts}, {_n_text([number])}" if number else texts


def counted_text(lines: Sequence[CheckLine]) -> str:
    """`3 of 4 hold, 1 not run`; empty without any."""
    counts = dict(_counts([line.verdict for line in lines]))
    total = len(lines)
    if len(counts) == 1 and total:
        ((verdict, number),) = counts.items()
        return COUNTED[verdict][0] if total == 1 else f"all {number} {COUNTED[verdict][1]}"
    parts = [f"{number} {COUNTED[verdict][number > 1]}" for verdict, number in counts.items()]
    return f"{', '.join(parts)} (of {total})" if parts else ""


def check_view(best: CheckLine, runs: Sequence[Run]) -> CheckView:
    """One check with a run for every profile."""
    check = best.check
    return CheckView(
        id=check.id,
        alias=check.alias or "",
        statement=check.statement,
        where=check.where,
        kind=check.kind.replace("_", " "),
        criterion=tidy(check.judged_by),
        metric=check.metric,
        unit=check.unit,
        definition=check.definition,
        paper="" if check.paper_value is None else pretty(check.paper_value),
        experiment=check.experiment,
        verdict=best.verdict,
        profile=best.profile if best.verdict != NOT_RUN else "",
        runs=tuple(runs),
    )


def run_view(line: CheckLine, numbers: Mapping[str, Number], date: str) -> Run:
    """What one profile measured for a check, from the records of its numbers."""
    measured = [number for cell in line.cells if (number := numbers.get(_name(line, cell))) is not None]
    single = line.cells[0] if len(line.cells) == 1 else None
    first = measured[0] if measured else None
    value, interval = interval_texts(single.estimate) if single else ("", "")
    return Run(
        profile=line.profile,
        verdict=line.verdict,
        value=value,
        interval=interval,
        statistic=first.statistic if first else "",
        interval_kind="; ".join(dict.fromkeys(number.interval for number in measured if number.interval)),
        n=_n_text(measured),
        seeds=first.seeds.replace("-", "–").replace(",", ", ") if first else "",
        won=_won(single) if single else "",
        holds="" if single or line.verdict == NOT_RUN else _holds(line),
        model=first.model if first else "",
        conditions=tidy(line.conditions),
        reason=tidy(line.reason),
        caveat=first.caveat if first else line.newer,
        commit=", ".join(short_commit(commit) for commit in first.commit.split()) if first else "",
        machine=without_marks(first.machine) if first else "",
        date=date,
        command=first.command if first else line.command,
        citation=citation(first) if single and first else "",
        cells=tuple(_cell(cell, numbers.get(_name(line, cell))) for cell in line.cells) if not single else (),
    )


def citation(number: Number) -> str:
    """A number in the sentence of `replicate cite`, with verdict, caveat, id and the commands that measure it again."""
    verdict = "; ".join(part for part in (number.verdict, number.caveat) if part)
    return (
        f"{sentence(number)} Tests: {number.statement.rstrip('.')}. Verdict: {verdict}. GRPO replications, "
        f"{number.id}; measured again by: {number.regenerate}"
    )


def profile_view(slug: str, one: ProfileResults) -> ProfileView:
    """Machine, time and experiments behind one profile's results."""
    record, experiments = one.record, one.record.get("experiments", {})
    base = f"make replicate-{slug} PROFILE={one.profile}"
    origins = [
        Origin(
            experiment=name,
            seeds=str(entry.get("seeds") or "").replace("-", "–"),
            commits=tuple(short_commit(commit) for commit in entry.get("commits", {})),
            work=duration(entry.get("job_seconds", 0) / entry.get("workers", 1)),
            command=f"{base} ONLY={name}",
        )
        for name, entry in experiments.items()
    ]
    seconds = sum(entry.get("job_seconds", 0) / entry.get("workers", 1) for entry in experiments.values())
    memory = max((entry.get("peak_memory_gib", 0) for entry in experiments.values()), default=0)
    missing = ""
    if record and not record.get("complete", True):
        done, jobs = (sum(entry[key] for entry in experiments.values()) for key in ("jobs_finished", "jobs"))
        missing = f"incomplete: {done} of {jobs} jobs finished"
    return ProfileView(
        name=one.profile,
        command=base,
        machine=machine_text(record.get("machine", {})) if record else "origin unknown: there is no record",
        finished=record.get("finished", "")[:16].replace("T", " "),
        work=duration(seconds) if experiments else "",
        memory=f"{memory:g} GiB" if memory else "",
        missing=missing,
        again=measured_again(one.directory),
        origins=tuple(origins),
    )


def machine_text(machine: dict[str, Any]) -> str:
    """`A CPU, 2 cores, no GPU`; empty where nothing is known."""
    if not machine:
        return ""
    name = without_marks(machine.get("cpu", "unknown processor"))
    return f"{name}, {machine.get('cores', '?')} cores, {', '.join(machine.get('gpus', [])) or 'no GPU'}"


def short_commit(commit: str) -> str:
    """Twelve digits, and whether there were changes besides."""
    return commit.rstrip("+")[:12] + (" with uncommitted changes" if commit.endswith("+") else "")


def _counts(verdicts: Iterable[str]) -> tuple[tuple[str, int], ...]:
    counts = Counter(verdicts)
    return tuple((verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict])


def _of_controls(lines: Sequence[CheckLine]) -> str:
    """The worst verdict among controls: one that fails is what a reader must see."""
    worst = (NOT_REPRODUCED, EQUIVALENT, INCONCLUSIVE, CONDITIONAL, REPRODUCED)
    found = {line.verdict for line in lines}
    return next((verdict for verdict in worst if verdict in found), NOT_RUN)


def _holds(line: CheckLine) -> str:
    holds = sum(cell.state == HOLDS for cell in line.cells)
    return f"holds in {holds} of {len(line.cells)} settings"


def _name(line: CheckLine, cell: CellLine) -> str:
    """The id of the cell's number."""
    return f"{line.check.id}{f'[{cell.conditions}]' if cell.conditions else ''}@{line.profile}"


def _n_text(numbers: Sequence[Number]) -> str:
    """`n = 16 seeds`, `n = 8 to 20 seeds` over several cells; what was computed once has no n."""
    sizes = sorted({number.n for number in numbers})
    if not sizes:
        return ""
    if sizes[-1] == 0 or (sizes[-1] == 1 and not numbers[0].seeds):
        return "computed, without seeds"
    size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    return f"n = {size} {numbers[0].counted if len(sizes) == 1 else numbers[0].n_of}"


def _won(cell: CellLine) -> str:
    if cell.won is None:
        return ""
    tied = f", {cell.won[2]} tied" if cell.won[2] else ""
    return f"better in {cell.won[0]} of {sum(cell.won)} seeds{tied}"


def _cell(cell: CellLine, number: Number | None) -> CellView:
    value, interval = interval_texts(cell.estimate)
    conditions = tidy(cell.conditions.replace(";", ", ").replace("=", " "))
    verdict = STATE_VERDICTS.get(cell.state, INCONCLUSIVE)
    n = _n_text([number]) if number else ""
    name = number.id if number else ""
    return CellView(name, conditions, verdict, value, interval, n, _won(cell), tidy(cell.reason))
