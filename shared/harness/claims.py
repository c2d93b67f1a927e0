"""`claims.toml`: what a paper states, where, and the checks that test it, with criteria written before the run.

A **claim** (`[[claim]]`) is a sentence that a reader would repeat.  Its `source` is `paper`, `ours` (a question of
our own) or `control` (a block of checks of our own machinery, which is no claim and is never counted as one).
`reports` says in words what the paper reports.  A claim of the paper has two answers, *as published* (in the paper's
setting, `published_setting`) and *here* (in our scaled one, `here_setting`); a claim of ours has the second only.  An
answer that no check decides is not given, except that a `published_setting` without checks is not run.
They follow from the checks (`[[claim.check]]`, see `shared.harness.checks`) that decide them, by `rule`:

`all`   the checks are one claim in several settings: all that ran are reproduced -> reproduced; some -> reproduced
          under conditions; none, and one is not reproduced -> not reproduced; else inconclusive.
`both`  the checks are parts of one statement, such as two bounds of a number: one that is not reproduced refutes it.
`any`   the checks are readings of one statement: one that is reproduced is enough.

A check that is `equivalent` (its whole interval lies inside the margin) counts as not reproduced: the claim says that
there is an effect, and there is none of a size that matters; the answer says so in these words.  A claim that two
things are equal has checks of kind `equivalent`, which are reproduced.

What the front page shows of a paper is written here too, in plain words: `[front]`, and for a claim `short`,
`reported_short`, `published_found` and `here_found`.  Where some claims have `short`, the others are shown on the
paper's own page alone.  The numbers in these texts are marks that the report fills in (`shared.harness.number_marks`).

`[figures]`, at the end of the file, names for each figure of the paper's `figures.py` the claims that it is about; the
report shows it with them.

Keys in `[claim.common]` hold for every check of the claim that does not set them.  A check's `where` is the claim's
unless it has its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from grpo_replications.shared.errors import Problems, ReplicationError
from grpo_replications.shared.harness.checks import CHECK, CHECK_KEYS, Check, as_list, problem_of
from grpo_replications.shared.harness.entries import CONTROL, HERE, PUBLISHED, Alias, Entry, Id, Names, Text
from grpo_replications.shared.harness.families import expand
from grpo_replications.shared.harness.number_marks import problem_in
from grpo_replications.shared.harness.profiles import Plan, Profile, format_value, read_toml, setting

PAPER, OURS = "paper", "ours"
UNLIKE_NAME = re.compile(r"[^\w/.:;=@,+ \[\]-]", re.ASCII)
"""What may not stand in the name of a number: LaTeX's `\\csname` cannot look it up."""


class Front(Entry):
    """`[front]`: what the front page says of a paper besides its claims.

    `picture` is a figure of `figures.py`, shown with the caption that was drawn with it or, where it has none, with
    `caption`: which model, how many seeds, which kind of interval.  `seen` says what to look at.
    """

    name: Text
    picture: Text
    caption: Text
    seen: Text
    holds: Text
    depends_on: Text
    not_shown: Text


class PaperHeader(Entry):
    """The keys above the first `[[claim]]`.

    `short`: how the aliases of the paper's numbers begin.  `measured_on`: experiment -> what was run, in words for a
    citation.
    """

    paper: Id
    title: Text
    authors: str | Annotated[tuple[str, ...], Field(strict=False)] = ""
    arxiv: str = ""
    version: str = ""
    venue: str = ""
    url: str = ""
    license: str = ""
    short: Alias | None = None
    measured_on: dict[str, Text] = Field(default_factory=dict)
    front: Front | None = None
    figures: dict[str, Names] = Field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PaperFacts:
    """Which paper this is.  `slug` is its name on the command line, `short` the start of its numbers' aliases."""

    slug: str
    title: str
    authors: str
    arxiv: str
    url: str = ""
    short: str = ""
    measured_on: dict[str, str] = dataclasses.field(default_factory=dict)
    front: Front | None = None
    figures: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


class Claim(Entry):
    """One sentence with its checks; the fields are the keys of `[[claim]]`.

    `short`, `reported_short`: statement and `reports` for a row of the front page. `published_found`, `here_found`:
    what was found, beside the verdict; without it the checks say it in their own words.
    """

    id: Id
    statement: Text
    short: Annotated[str, Field(min_length=1, max_length=70)] | None = None
    reported_short: Annotated[str, Field(min_length=1, max_length=30)] | None = None
    published_found: Text | None = None
    here_found: Text | None = None
    where: Text
    source: Literal["paper", "ours", "control"]
    reports: Text | None = None
    published_setting: Text | None = None
    here_setting: Text | None = None
    rule: Literal["all", "both", "any"] = "all"
    checks: Annotated[tuple[Check, ...], Field(min_length=1, strict=False)]

    def deciding(self, answer: str) -> tuple[Check, ...]:
        """The checks that decide one of the two answers, `published` or `here`."""
        return tuple(check for check in self.checks if check.answers == answer)

    @model_validator(mode="after")
    def _answers_fit_the_source(self) -> Claim:
        answers = {check.answers for check in self.checks}
        if self.source == CONTROL and answers != {CONTROL}:
            raise ValueError('a block of controls has only checks with answers = "control"')
        if self.source == OURS and PUBLISHED in answers:
            raise ValueError('a claim of ours has no check with answers = "published"')
        if self.source != PAPER and (self.reports or self.published_setting):
            raise ValueError("only a claim of the paper has reports and published_setting")
        if self.source != CONTROL and not answers & {PUBLISHED, HERE}:
            raise ValueError("no check decides an answer of the claim")
        if self.source == PAPER and self.reports is None:
            raise ValueError("missing reports: what the paper reports, in words")
        if self.source == PAPER and self.short and not self.reported_short:
            raise ValueError("a claim with short has reported_short: what the paper reports, in a few words")
        for answer, named, found in (
            (PUBLISHED, "published_setting", "published_found"),
            (HERE, "here_setting", "here_found"),
        ):
            if answer in answers and getattr(self, named) is None:
                raise ValueError(f"missing {named}")
            if answer not in answers and getattr(self, found) is not None:
                raise ValueError(f"{found} needs a check that decides this answer")
        return self

    @property
    def texts(self) -> dict[str, str]:
        """The texts that may hold marks of numbers, by their key."""
        texts = {"published_found": self.published_found, "here_found": self.here_found}
        return {key: text for key, text in texts.items() if text}


def load_claims(path: Path, profiles: dict[str, Profile] | None) -> tuple[PaperFacts, tuple[Claim, ...]]:
    """Read and check `claims.toml` against the paper's profiles (None: where these cannot be read, by itself).

    A misspelt key, profile, experiment or setting would make a verdict meaningless. The `ReplicationError` has a line
    for each, with the file and the entry. Cost: checks x profiles x cells.
    """
    document = read_toml(path)
    entries = document.pop("claim", None)
    problems = Problems()
    header = None
    try:
        header = PaperHeader.model_validate(document)
    except ValidationError as error:
        problems.add(f"{path}: {problem_of(error)}.")
    if not isinstance(entries, list) or not entries:
        problems.add(f"{path}: no [[claim]].")
        entries = []
    claims = []
    for number, entry in enumerate(entries, start=1):
        with problems.noted():
            claims.append(_parse_claim(entry, number, path))
    checks = [check for claim in claims for check in claim.checks]
    for alias, times in Counter(check.alias for check in checks if check.alias).items():
        if times > 1:
            problems.add(f"{path}: the alias {alias} is used twice.")
    for figure, named in (header.figures if header else {}).items():
        for name in sorted(set(named) - {claim.id for claim in claims}):
            problems.add(f"{path}, [figures]: {figure} is said to be about {name}, and there is no such claim.")
    for name, times in Counter(entry.id for entry in (*claims, *checks)).items():
        if times > 1:
            problems.add(f"{path}: the id {name} is used twice; claims and checks share their names.")
        if header is not None and not name.startswith(f"{header.paper}/"):
            problems.add(f"{path}: the id {name} must start with {header.paper}/.")
    known = {check.id for check in checks}
    for check in checks:
        for other in sorted(set(check.read_with) - known):
            problems.add(f"{path}, check {check.id}: read_with names {other}, which is no check.")
        if profiles is not None:
            _check_against_profiles(check, profiles, f"{path}, check {check.id}", problems)
    unknown = sorted(set(header.measured_on) - set(_experiments(profiles))) if header and profiles is not None else []
    if unknown:
        problems.add(f"{path}: measured_on names {', '.join(unknown)}, and no profile has such an experiment.")
    _check_marks(path, header, claims, problems)
    problems.raise_any()
    return _facts(header), tuple(claims)


def _facts(header: PaperHeader) -> PaperFacts:
    authors = header.authors if isinstance(header.authors, str) else ", ".join(header.authors)
    return PaperFacts(
        slug=header.paper,
        title=header.title,
        authors=authors,
        arxiv=header.arxiv,
        url=header.url,
        short=header.short or header.paper,
        measured_on=header.measured_on,
        front=header.front,
        figures=header.figures,
    )


def _parse_claim(entry: dict[str, Any], number: int, path: Path) -> Claim:
    where = f"{path}, claim {entry.get('id', f'number {number}')}"
    fields = {key: value for key, value in entry.items() if key not in ("check", "common")}
    families, common = entry.get("check"), entry.get("common", {})
    if not isinstance(families, list) or not families or not isinstance(common, dict):
        raise ReplicationError(f"{where}: no [[claim.check]].")
    problems = Problems()
    unused = sorted(key for key in common if all(key in family for family in families))
    if unused:
        problems.add(f"{where}: every check sets {', '.join(unused)}, so [claim.common] must not.")
    owner = {"claim": entry.get("id"), "source": entry.get("source")}
    own = {"where": entry["where"]} if "where" in entry else {}
    checks: list[Check] = []
    for position, family in enumerate(families, start=1):
        name = f"{where}, check {family.get('id', f'number {position}')}"
        if set(owner) & (set(family) | set(common)):
            problems.add(f"{name}: claim and source are those of the claim; a check does not set them.")
            continue
        try:
            members = expand(family, {**own, **common}, CHECK_KEYS)
            checks += [CHECK.validate_python({**member, **owner}) for member in members]
        except ValidationError as error:
            problems.add(f"{name}: {problem_of(error)}.")
        except ValueError as error:
            problems.add(f"{name}: {error}.")
    problems.raise_any()
    try:
        return Claim.model_validate({**fields, "checks": checks})
    except ValidationError as error:
        raise ReplicationError(f"{where}: {problem_of(error)}.") from None


def _experiments(profiles: dict[str, Profile]) -> dict[str, None]:
    """Names of all experiments, in order."""
    return {experiment: None for profile in profiles.values() for experiment in profile.plans}


def _check_marks(path: Path, header: PaperHeader | None, claims: list[Claim], problems: Problems) -> None:
    """Every mark of a number names a check of the paper."""
    ids = [check.id for claim in claims for check in claim.checks]
    texts = {f"claim {claim.id}, {key}": text for claim in claims for key, text in claim.texts.items()}
    if header is not None and header.front is not None:
        texts |= {f"[front], {key}": text for key, text in header.front.model_dump().items()}
    for where, text in texts.items():
        problem = problem_in(text, ids)
        if problem:
            problems.add(f"{path}, {where}: {problem}.")


def _check_against_profiles(check: Check, profiles: dict[str, Profile], where: str, problems: Problems) -> None:
    known = _experiments(profiles)
    for experiment in check.experiments:
        if experiment not in known:
            names = ", ".join(known)
            problems.add(f"{where}: no profile has an experiment '{experiment}'; there are: {names}.")
            return
    for name in check.profiles:
        if name not in profiles:
            problems.add(f"{where}: there is no profile '{name}'; there are: {', '.join(profiles)}.")
            continue
        for experiment in check.experiments:
            if experiment not in profiles[name].plans:
                problems.add(f"{where}: profile '{name}' has no experiment '{experiment}'.")
                continue
            plan, here = profiles[name].plans[experiment], f"{where}, profile '{name}'"
            for key in check.varying:
                with problems.noted():
                    _check_varies(key, plan, here)
                    if key in check.conditions:
                        _check_condition(key, plan, here)
            for chosen in check.filters:
                with problems.noted():
                    _check_filter(chosen, plan, here)


def _check_condition(key: str, plan: Plan, where: str) -> None:
    """The values of a condition become part of the names of numbers."""
    for text in sorted({format_value(setting(cell, key)) for cell in plan.cells}):
        unlike = UNLIKE_NAME.search(f"{key}={text}")
        if unlike:
            raise ReplicationError(
                f"{where}: the condition {key} = {text} becomes part of the names of numbers, and LaTeX cannot look "
                f"up {unlike[0]!r} in a name; judge such values by checks of their own (over and select)."
            )


def _check_varies(key: str, plan: Plan, where: str) -> None:
    if key not in plan.varying:
        raise ReplicationError(
            f"{where}: '{key}' is in no grid and no cells of {plan.experiment} "
            f"(a grid of one value is enough); varying: {', '.join(plan.varying) or 'nothing'}."
        )


def _check_filter(chosen: dict[str, Any], plan: Plan, where: str) -> None:
    """Every setting of a filter must vary in the plan, and at least one cell must pass the whole of it."""
    for key, value in chosen.items():
        if key == "step":
            if value != "last" and (not isinstance(value, int) or isinstance(value, bool)):
                raise ReplicationError(f'{where}: step must be a number or "last", not {value!r}.')
        else:
            _check_varies(key, plan, where)
    settings = {key: value for key, value in chosen.items() if key != "step"}
    if not any(all(cell.get(key) in as_list(value) for key, value in settings.items()) for cell in plan.cells):
        raise ReplicationError(f"{where}: no combination of settings of {plan.experiment} has {settings}.")
