r"""Reading an answer to a Knights & Knaves puzzle: which role a completion gives to each name.

`parse_answer` pays in no doubtful case. It takes the last `<answer>` block after the thought, which must end the
completion (a block cut off at a stop string counts; text without a block is no answer). All of the block must be made
of these statements, separated by commas, semicolons, full stops, bars, line breaks, "and", "while" or "but":

- one or more names and their role: `(1) Ada is a knight`, `Ada and Ivy are knights`, `Ada must be a knight`;
- a name and its role: `Ada: knight`, `Ada - knight`, `Ada → knight`, `Ada (knight)`, `Ada ✅ knight`;
- a role and its names: `Knights: Ada, Ivy`, `Knaves = {Otto}`, `Knaves: none`, `The only knave is Otto`, also with the
  names in a list below it;
- rows of a table with the columns name and role; a JSON object from names to roles.

Markdown emphasis, list marks and a short opening such as "Therefore," are allowed. Every name of the puzzle must occur
exactly once, with one role, and nobody else; nobody may have the role of "the knights are", "the only knight is" or a
counted list outside of it. A single word outside of this grammar leaves no answer.

`parse_answer_ar_lopti` is the looser rule of the Advantage Reweighting and Lopti code, for comparison with its numbers.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from grpo_replications.shared.grading.completions import after_thought

KNIGHT, KNAVE = "knight", "knave"
Parser = Callable[[str, Sequence[str]], dict[str, str] | None]

_ANSWER_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_COUNTED_BLOCK = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARK = r"(?:(?:[-+•–—]|\(?\d{1,2}[.):]|\(?[ivx]{1,4}\))\s*)?"  # a bullet or a number before an item
_BREAK = re.compile(r"(?:[\s,;.|]|(?<!\w)(?:and|while|whereas|but)(?!\w))+")
_OPENING = re.compile(
    r"(?:(?:so|thus|hence|therefore|finally|in conclusion|in summary"
    r"|(?:the )?(?:final )?(?:answer|solution|conclusion)(?: is)?|we (?:can )?(?:conclude|deduce|have|find)(?: that)?"
    r"|(?:the )?(?:roles|identities)(?: are)?)\s*[,:]?\s+)*",
    re.IGNORECASE,
)  # fmt: skip
_ADVERB = r"(?:(?:indeed|clearly|also|therefore|thus|definitely|certainly)\s+)?"
_GLOSS = {
    KNIGHT: r"(?:\s*\((?:truth[- ]?tellers?|truthful|honest|(?:always )?tells? the truth)\))?",
    KNAVE: r"(?:\s*\((?:liars?|lying|dishonest|(?:always )?lies)\))?",
}
_EMPTY = r"\(?(?:none|nobody|no[- ]?one|n/a|nil|empty|∅|\\emptyset|\{\s*\}|\[\s*\]|[-–—])\)?"
_GRAMMAR_WORDS = frozenset(re.findall(r"\w+", """
    a an the only is are must be indeed clearly also therefore thus definitely certainly both all and while
    whereas but other others knight knights knave knaves none nobody no one n nil empty emptyset so hence
    finally in conclusion summary final answer solution we can conclude deduce have find that roles identities
    truth teller tellers truthful honest always tell tells liar liars lying dishonest lies i v x ii iii iv vi
    vii
"""))  # fmt: skip
_TABLE_HEAD = re.compile(
    r"\s*\|?\s*(?:#\s*\|\s*)?(?:name|person|people|character|inhabitant|islander)s?"
    r"\s*\|\s*(?:role|identity|type|status)s?\s*\|?\s*\n[\s|:-]+\n",
    re.IGNORECASE,
)


def parse_answer(text: str, names: Sequence[str]) -> dict[str, str] | None:
    """The role ("knight" or "knave") that a completion gives to each name, by the strict grammar; None for no answer.

    Keys come in the order of `names`. Time grows linearly with the text, a millisecond for an answer (20 ms where a
    name is a word of the grammar). Raises ValueError for names that are empty or equal but for case, TypeError for a
    text that is no string.
    """
    _checked(text, names)
    block = _last_block(after_thought(text))
    return None if block is None else read_roles(block, names)


def _last_block(text: str) -> str | None:
    """What stands in the `<answer>` block that ends the text, be it closed or cut off; None without one."""
    tags = list(_ANSWER_TAG.finditer(text))
    closed = bool(tags) and bool(tags[-1][1])
    start = tags[-2] if closed and len(tags) > 1 else tags[-1] if tags else None
    if start is None or start[1] or (closed and text[tags[-1].end() :].strip()):
        return None
    return text[start.end() : tags[-1].start()] if closed else text[start.end() :]


def read_roles(answer: str, names: Sequence[str]) -> dict[str, str] | None:
    """`parse_answer` for what stands inside of the `<answer>` block, without tags."""
    keys = _checked(answer, names)
    roles = _roles(answer, keys)
    return None if roles is None or len(roles) != len(keys) else {name: roles[key] for key, name in keys.items()}


def parse_answer_ar_lopti(text: str, names: Sequence[str]) -> dict[str, str] | None:
    """The roles by the count-and-pattern rule of the AR-Lopti code, to compare with that paper's numbers only.

    In the last complete `<answer>` block, wherever it stands, "knight" and "knave" must occur as often as there are
    names, and each name has the role of its first "NAME is a knight" or "NAME is a knave". It pays falsely for whatever
    that pattern is part of: denials ("we can rule out that Ada is a knight"), conditions, drafts in an unfinished
    thought, further claims in other words ("or the reverse"), and for "Bo is a knight" inside "Jo-Bo is a knight".
    Raises as `parse_answer` does.
    """
    _checked(text, names)
    blocks = _COUNTED_BLOCK.findall(text)
    if not blocks:
        return None
    answer = blocks[-1].lower()
    if answer.count(KNIGHT) + answer.count(KNAVE) != len(names):
        return None
    found = {name: re.search(rf"\b{re.escape(name.lower())}\b\s+is\s+a\s+\b(knight|knave)\b", answer) for name in names}
    return {name: match[1] for name, match in found.items() if match} if all(found.values()) else None


PARSERS: dict[str, Parser] = {"strict": parse_answer, "ar-lopti": parse_answer_ar_lopti}


def _checked(text: str, names: Sequence[str]) -> dict[str, str]:
    """Names by their comparable spelling."""
    if not isinstance(text, str):
        raise TypeError(f"an answer must be a string, not {type(text).__name__}")
    keys = {_plain(name): name for name in names}
    if len(keys) != len(names) or not all(key.strip() for key in keys):
        raise ValueError(f"names must be different, also without regard to case, and not empty: {list(names)!r}")
    return keys


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _roles(answer: str, keys: dict[str, str]) -> dict[str, str] | None:
    """Role by name, where the whole answer is of the grammar and gives no name twice; else None."""
    answer = _plain(answer).strip()
    if answer.startswith("{") and answer.endswith("}"):
        try:
            pairs = json.loads(answer, object_pairs_hook=list)
        except (ValueError, RecursionError):  # the second where brackets are nested too deep
            return None
        return _distinct([(name, role) for name, role in pairs], keys)
    answer = re.sub(r"^([ \t]*)\*(?=\s)", r"\1-", answer, flags=re.MULTILINE)
    answer = re.sub(r"\*\*|__|[*_`]", "", answer)
    answer = "\n".join(" ".join(line.split()) for line in answer.splitlines() if line.strip())
    if head := _TABLE_HEAD.match(answer):
        rows = [_cells(row) for row in answer[head.end() :].splitlines()]
        columns = len(_cells(head[0].strip().splitlines()[0]))
        if any(len(row) != columns or not all(re.fullmatch(r"\d*\.?", cell) for cell in row[:-2]) for row in rows):
            return None
        return _distinct([(row[-2], row[-1]) for row in rows], keys)
    if not any(_GRAMMAR_WORDS & set(re.findall(r"\w+", key)) for key in keys):  # one pattern for all such names
        marks = {key: chr(0xE000 + number) for number, key in enumerate(keys)}
        answer = _any_of(keys).sub(lambda match: marks[match[0]], answer)
        roles = _said_roles(answer, tuple(marks.values()), f"[{''.join(map(chr, range(0xE000, 0xE020)))}]")
        return roles and {key: roles[mark] for key, mark in marks.items() if mark in roles}
    return _said_roles(answer, tuple(keys), _any_of(keys).pattern)


def _cells(row: str) -> list[str]:
    cells = row.strip().removeprefix("|").removesuffix("|").split("|")
    return [re.sub(r"^(?:an?\s+)", "", cell.strip()) for cell in cells]


def _said_roles(answer: str, keys: tuple[str, ...], name: str) -> dict[str, str] | None:
    """Role by key, where the whole answer consists of statements, with `name` as the pattern of a key."""
    statement, rest = _statement(name), answer[_OPENING.match(answer).end() :]  # type: ignore[union-attr]
    found: list[tuple[str, str]] = []
    complete: list[tuple[str, int]] = []  # (role, how many have it), where a statement gives all of a role
    position = 0
    while position < len(rest):
        match = statement.match(rest, position)
        said = _said(match, name) if match else None
        if match is None or said is None:
            return None
        found += said
        for role in (KNIGHT, KNAVE):
            if any(match[f"{form}_{role}"] is not None for form in ("empty", "only", "those", "count")):
                complete.append((role, len(said)))
        between = _BREAK.match(rest, match.end())
        position = between.end() if between else match.end()
    if any(sum(said_role == role for _, said_role in found) != number for role, number in complete):
        return None
    return _distinct(found, keys)


def _any_of(keys: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(keys, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")


def _distinct(pairs: list[tuple[str, str]], keys: Iterable[str]) -> dict[str, str] | None:
    roles = dict(pairs)
    known = all(isinstance(role, str) and name in keys and role in (KNIGHT, KNAVE) for name, role in pairs)
    return roles if known and len(roles) == len(pairs) else None


@lru_cache(maxsize=64)
def _statement(name: str) -> re.Pattern[str]:
    """One statement and the look ahead to its end; the groups name its form, role and names."""
    several = rf"{name}(?:(?:\s*(?:,|;|&|\n)\s*(?:and\s+)?|\s+and\s+){_MARK}{name}){{1,31}}"
    role = {r: f"{r}{_GLOSS[r]}" for r in (KNIGHT, KNAVE)}
    roles = {r: f"{r}s{_GLOSS[r]}" for r in (KNIGHT, KNAVE)}
    forms = []
    for r, other, ticks in ((KNIGHT, KNAVE, "✅|✔️?|✓"), (KNAVE, KNIGHT, "❌|✘|✗")):
        sign = r"\s*(?::|=|->|=>|→|⇒|[-–—](?=\s))\s*"
        copula = rf"\s+(?:is|must be)\s+{_ADVERB}an?\s+|{sign}(?:an?\s+)?|\s+(?:{ticks})\s*"
        are = rf"(?:are|must be)\s+{_ADVERB}(?:both\s+|all\s+)?"
        next_heading = rf"(?=\s*\Z|\s*[;|]?\s*\n?\s*{_MARK}(?:the\s+)?{other}s?\b)"
        forms += [
            rf"(?P<one_{r}>{name})(?:(?:{copula}){role[r]}|\s*\({r}\))",
            rf"(?:the others?,?\s+|both\s+)?(?P<many_{r}>{several}),?\s+{are}{roles[r]}",
            rf"the\s+(?:only\s+)?(?:{role[r]}\s+is\s+(?P<only_{r}>{name})|{roles[r]}\s+are:?\s+(?P<those_{r}>{several}))",
            rf"(?:the\s+)?{r}s?{_GLOSS[r]}(?:\s*\((?P<count_{r}>\d)\))?{sign}"
            rf"(?:\{{\s*(?P<braced_{r}>{name}|{several})\s*\}}|{_MARK}(?P<listed_{r}>{several}|{name})"
            rf"|(?P<empty_{r}>{_EMPTY}|{next_heading}))",
        ]
    end = r"(?=\s*(?:[,;.|\n]|\Z|\(?\d{1,2}[.)]|(?:and|while|whereas|but)(?!\w)))"
    return re.compile(rf"\s*{_MARK}(?:{'|'.join(forms)}){end}")


def _said(match: re.Match[str], name: str) -> list[tuple[str, str]] | None:
    """(name, role) pairs of one statement; None where its count is not the number of its names."""
    groups = {key: value for key, value in match.groupdict().items() if value is not None}
    count = next((int(value) for key, value in groups.items() if key.startswith("count")), None)
    form, listed = next((key, value) for key, value in groups.items() if not key.startswith("count"))
    role = form.rsplit("_", 1)[1]
    named = [] if form.startswith("empty") else re.findall(name, listed)
    return [(one, role) for one in named] if count in (None, len(named)) else None
