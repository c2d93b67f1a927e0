r"""Citing numbers: find one by id or alias, say it in a sentence, pin it in a LaTeX file and see whether it changed.

A pinned file holds the macros, and for every number its definition and a comment with all that was pinned, so that a
later change of the number is found (`changes`).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.number_format import Digits, in_digits
from grpo_replications.shared.harness.number_ids import now_called
from grpo_replications.shared.harness.number_latex import (
    MACROS,
    definition_line,
    latex_parts,
    latex_sentence,
    latex_text,
)
from grpo_replications.shared.harness.numbers import UNKNOWN_INTERVAL, Number
from grpo_replications.shared.harness.outcomes import plain

PREFERENCE = ("full", "quick", "gpu", "paper")
"""Which profile's number is meant where none is named: the first of these in which it was measured."""
NEAR = 8
MACRO_NAME = re.compile(r"[A-Za-z0-9/.:;=@,+_ \[\]-]+")
PIN = "% pin "
PINNED = ("value", "low", "high", "n", "n_of", "unit", "statistic", "interval", "definition", "verdict")
WIDTH_OF_LABEL = 13
UNBROKEN = "\u00a0"
KEPT = r"n = [\d,]+ \w+|\S+ to \S+|95 % CI"


def find(asked: str, numbers: Sequence[Number], withdrawn: Mapping[str, str]) -> Number:
    """The number of this id or alias; without `@profile` the one of the most complete profile.

    Raises ReplicationError, which lists what is near or says what became of a withdrawn id.
    """
    name, _, profile = asked.partition("@")
    same = [one for one in numbers if name in (one.name, one.alias)]
    for number in sorted(same, key=lambda one: _rank(one.profile)):
        if profile in ("", number.profile):
            return number
    if same:
        profiles = ", ".join(one.profile for one in same)
        raise ReplicationError(f"{name} was not measured in the profile '{profile}'; it was in: {profiles}.")
    cells = [one for one in numbers if name in (one.check, one.alias.partition("[")[0].partition(":")[0])]
    cells = [one for one in cells if profile in ("", one.profile) and ":" not in one.name]
    if cells:
        best = min((one.profile for one in cells), key=_rank)
        names = _some([f"{name}{one.name.removeprefix(one.check)}@{best}" for one in cells if one.profile == best])
        raise ReplicationError(
            f"{name} is judged for several settings; cite one of them (quote it for the shell):\n{names}"
        )
    now = now_called(name, dict(withdrawn))
    if now is not None:
        raise ReplicationError(f"{name} was withdrawn; now: {now}")
    if re.search(r"[*?]", name):
        raise ReplicationError(f"'{name}' is a pattern; cite takes whole ids and aliases. They are in numbers.csv.")
    near = near_names(name, numbers)
    where = f"; near it are:\n{_some(near)}" if near else ", and none is near it"
    raise ReplicationError(f"No number is called '{name}'{where}")


def near_names(name: str, numbers: Sequence[Number]) -> list[str]:
    """Ids and aliases that contain the name, or are written nearly like it; the shorter first."""
    known = dict.fromkeys(text for one in numbers for text in (one.alias, one.name) if text)
    holding = sorted((text for text in known if name in text), key=lambda text: (len(text), text))
    return list(dict.fromkeys([*holding[:NEAR], *difflib.get_close_matches(name, known, NEAR, 0.6)]))[:NEAR]


def default_names(asked: Sequence[str], numbers: Sequence[Number]) -> list[str]:
    """How each number is called in LaTeX: as it was asked for by alias, else by its alias, or its id without one.

    The profile is added where two of them would have the same name.
    """
    names = [
        request.partition("@")[0] if request.partition("@")[0] == one.alias else one.alias or one.name
        for request, one in zip(asked, numbers)
    ]
    return [f"{name}@{one.profile}" if names.count(name) > 1 else name for name, one in zip(names, numbers)]


def value_text(number: Number) -> str:
    """`+0.049 (solve rate; 95 % CI 0.019 to 0.077; n = 20 seeds)`."""
    value, details = _parts(number)
    return f"{value} ({'; '.join(details)})"


def sentence(number: Number) -> str:
    """One sentence with model, definition, value, unit, interval and n."""
    return f"{_subject(number)}: {_measured(number)}: {value_text(number)}."


def latex_citation(number: Number) -> str:
    r"""The sentence for LaTeX with `\cite`, without macros of ours, under a comment that says where it comes from."""
    text = latex_text(f"{_subject(number)}: {_measured(number)}: ")
    cited = rf"~\cite{{grpo-replications,{number.paper}}}"
    return f"% {number.id}: {number.verdict}; {number.regenerate}\n{text}{latex_value(number)}{cited}."


def latex_value(number: Number) -> str:
    r"""`$+0.049$ (solve rate; 95\,\% CI \mbox{[…]}; …)`: what `\repnum` prints, without macros of ours."""
    return latex_sentence(latex_parts(number, _latex_digits, _latex_interval))


def details(number: Number, name: str, beside: Sequence[Number]) -> dict[str, str]:
    """What belongs to the sentence, by label: verdict, caveat, definition, origin and commands."""
    verdict = number.verdict
    if number.state and number.name != number.check:
        verdict += f" over all settings; here: {number.state}"
    if number.margin is not None:
        verdict += f"; smallest effect that matters: {number.margin:g}"
    elif number.threshold is not None:
        verdict += f"; threshold: {number.threshold:g}"
    interval = {"": "none", UNKNOWN_INTERVAL: "unknown"}.get(number.interval, number.interval)
    rows = f"; rows: {number.selection}" if number.selection else ""
    with_ = "; ".join(f"{one.id}: {value_text(one)}, {one.verdict}" for one in beside)
    commits = [commit[:12] + "+" * commit.endswith("+") for commit in number.commit.split()]
    origin = f"commit{'s' * (len(commits) > 1)} {', '.join(commits) or 'unknown'}"
    found = {
        "tests": number.statement,
        "verdict": verdict,
        "caveat": number.caveat,
        "read with": with_,
        "paper": "" if number.paper_value is None else f"the paper prints {in_digits(number.paper_value)[0].text}",
        "definition": f"{number.definition}; {number.statistic}; unit: {number.unit}; interval: {interval}{rows}",
        "setting": number.setting,
        "provenance": f"seeds {number.seeds or 'none'}; {origin}; {number.machine}",
        "regenerate": number.regenerate,
        "LaTeX": rf"\repnum{{{name}}} -> {latex_value(number)}",
    }
    return {label: text for label, text in found.items() if text}


def text_citation(number: Number, name: str, beside: Sequence[Number], width: int) -> str:
    """The sentence and its details for a terminal; no word is broken, so that ids and commands can be copied."""
    called = f"  (alias {number.alias})" if number.alias else ""
    lines = [f"{number.id}{called}", *_wrapped(sentence(number), width)]
    for label, text in details(number, name, beside).items():
        first, *more = [text] if label in ("regenerate", "LaTeX") else _wrapped(text, width - WIDTH_OF_LABEL - 2)
        lines.append(f"  {label:<{WIDTH_OF_LABEL}}{first}")
        lines += [" " * (WIDTH_OF_LABEL + 2) + line for line in more]
    return "\n".join(lines)


def citation_fields(number: Number, name: str) -> dict[str, object]:
    """A number for programs: its fields, the sentence, and the commands."""
    more = {"sentence": sentence(number), "regenerate": number.regenerate, "macro": rf"\repnum{{{name}}}"}
    return {**dataclasses.asdict(number), **more, "latex": latex_citation(number)}


@dataclass(frozen=True)
class Pin:
    """A number as a file has pinned it: the macro's name, the id, what was pinned of it, and its commit."""

    name: str
    id: str
    fields: dict[str, str]
    commit: str


def pinned_file(named: Mapping[str, Number], command: str) -> str:
    r"""A LaTeX file that defines `\repnum{name}` for these numbers; `command` is the one that writes it again."""
    lines = [
        f"% Pinned by: {command}",
        "% Whether the numbers still stand: replicate cite --check THIS-FILE",
        MACROS.rstrip(),
    ]
    for name, number in named.items():
        if not MACRO_NAME.fullmatch(name):
            raise ReplicationError(
                f"'{name}' cannot be the name of a number in LaTeX; use letters, digits and hyphens."
            )
        lines += [
            "",
            f"% {sentence(number)}",
            f"% {number.verdict}" + (f"; {number.caveat}" if number.caveat else ""),
            f"% Regenerate: {number.regenerate}",
            PIN
            + json.dumps(
                {"name": name, "id": number.id, **_pinned(number), "commit": number.commit}, ensure_ascii=False
            ),
            definition_line(name, number),
        ]
    return "\n".join(lines) + "\n"


def read_pins(text: str) -> list[Pin]:
    """The numbers that a pinned file holds; ReplicationError where it holds none or one cannot be read."""
    pins = []
    for line in text.splitlines():
        if line.startswith(PIN):
            try:
                fields = json.loads(line.removeprefix(PIN))
                named = {key: str(fields[key]) for key in PINNED}
                pins.append(Pin(fields["name"], fields["id"], named, fields["commit"]))
            except (ValueError, KeyError, TypeError):
                raise ReplicationError(f"This line pins no number: {line}") from None
    if not pins:
        raise ReplicationError("The file pins no number; write one by: replicate cite ID -o FILE")
    return pins


def changes(text: str, numbers: Sequence[Number], withdrawn: Mapping[str, str]) -> list[str]:
    """What no longer holds of a pinned file, a line each: a number that changed, is gone, or was edited in the file."""
    by_id = {one.id: one for one in numbers}
    found = []
    defined = {line.partition("}")[0]: line for line in text.splitlines() if line.startswith("\\repdefine{")}
    for pin in read_pins(text):
        number = by_id.get(pin.id)
        if number is None:
            now = now_called(pin.id.partition("@")[0], dict(withdrawn))
            found.append(f"{pin.name} ({pin.id}) is gone" + (f"; now: {now}" if now else ""))
            continue
        fresh = _pinned(number)
        moved = [
            f"{key} {_shown(pin.fields[key])} -> {_shown(fresh[key])}"
            for key in PINNED
            if pin.fields[key] != fresh[key]
        ]
        if moved:
            found.append(f"{pin.name} ({pin.id}) changed: {'; '.join(moved)}")
        elif defined.get(f"\\repdefine{{{pin.name}") != definition_line(
            pin.name, dataclasses.replace(number, commit=pin.commit)
        ):
            found.append(f"{pin.name} ({pin.id}) is not defined in the file as it was pinned; pin it again")
    return found


def _parts(number: Number) -> tuple[str, list[str]]:
    ends = () if number.low is None else (number.low, number.high)
    value, *interval = (one.text for one in in_digits(number.value, *ends, signed=number.is_difference))
    found = [number.unit.partition(",")[0]]
    if interval:
        found.append(f"{number.interval.partition(',')[0]} {interval[0]} to {interval[1]}")
    elif number.interval == UNKNOWN_INTERVAL:
        found.append("interval unknown")
    if number.n:
        found.append(f"n = {in_digits(number.n)[0].text} {number.counted}")
    return value, found


def _latex_digits(digits: Digits) -> str:
    return f"${digits.latex}$" if digits.exponent is None else rf"\mbox{{${digits.latex}$}}"


def _latex_interval(low: str, high: str) -> str:
    return rf"\mbox{{[{low}, {high}]}}"


def _subject(number: Number) -> str:
    subject = number.model or number.setting or f"Replication of {number.paper}"
    conditions = re.search(r"\[(.*)\]", number.name)
    where = f" ({conditions[1].replace(';', ', ')})" if conditions else ""
    return subject[0].upper() + subject[1:] + where


def _measured(number: Number) -> str:
    """The definition, and the rows that it is measured on."""
    return f"{number.definition} ({number.selection})" if number.selection else number.definition


def _pinned(number: Number) -> dict[str, str]:
    fields = {key: getattr(number, key) for key in PINNED}
    return {key: value if isinstance(value, str) else plain(value) for key, value in fields.items()}


def _shown(text: str) -> str:
    return text if re.fullmatch(r"[-+.\de]+", text) else f"'{text}'"


def _rank(profile: str) -> int:
    return PREFERENCE.index(profile) if profile in PREFERENCE else len(PREFERENCE)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words; neither `n = 20 seeds` nor an interval is torn apart."""
    kept = re.sub(KEPT, lambda match: match[0].replace(" ", UNBROKEN), text)
    lines = textwrap.wrap(kept, max(width, 40), break_long_words=False, break_on_hyphens=False)
    return [line.replace(UNBROKEN, " ") for line in lines] or [""]


def _some(names: Sequence[str]) -> str:
    shown = "\n".join(f"  {name}" for name in names[:NEAR])
    return shown + (f"\n  and {len(names) - NEAR} more" if len(names) > NEAR else "")
