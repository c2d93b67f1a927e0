r"""Are two written mathematical answers the same? math-verify reads the values; everything around them is strict.

`same_answer` says yes only where both texts allow one reading and the two readings are equal. An answer is read as one
of: words, a value, a list or set (in any order), a tuple or interval (brackets and order kept), a union, a matrix, a
ratio, a number in a base, an equation or an inequality; units, and a name on the left of one `=`, are set apart.

- Kinds are never exchanged: `\{1,2\}` is not `(1,2)`, `52_8` is not `52`, `3:4` is not `3/4`. Only an inequality in one
  symbol is the interval that it describes.
- A unit or a name may be missing on one side; where both have one they must be the same. Letters, upper and lower case
  and units are never exchanged or converted. Percent is a factor: 50 % is 1/2, and not 50.
- Numbers are exact: a decimal is the rational number that it writes, so 0.75 is 3/4, but 0.6667 is not 2/3, and no
  rounding is forgiven. Irrational numbers and expressions must be proved equal by sympy, and expressions must agree,
  where they are real, at points of either sign, so that `\sqrt{x^2}` is not `x`.
- Chains such as `1=2=7` are no answer. One evaluated step (`5^2=25`) is, if it is true.

Nothing here limits its own time or memory, apart from caps on digits and exponents before anything is computed: call
it through `shared.grading.pool`. A pair of numbers costs a few milliseconds, one of expressions 20 to 100.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.grading.maths_text import GREEK, closing, plain, too_large
from grpo_replications.shared.grading.maths_values import NAME, determinant, equal_values, parse_value, ratio_sign
from grpo_replications.shared.grading.maths_words import unit_of, without_lead


class UngradableGoldError(ReplicationError, ValueError):
    """A gold answer that cannot be read or does not grade itself as correct; it must not become a reward."""


@dataclass(frozen=True)
class Answer:
    """What was read: `parts` are answers (of a collection) or what the kind needs; `value` is a sympy expression."""

    kind: str
    parts: tuple[Any, ...] = ()
    value: Any = None
    unit: str = ""
    known_unit: bool = True
    label: str = ""
    connectives: tuple[str, ...] = ()  # the "and" and "or" of the text, in order, and whether a bracket is around them


def same_answer(answer: str, gold: str) -> bool:
    """Whether the answer (the inside of a box) says what the gold answer says.

    Raises UngradableGoldError when the gold cannot be read as mathematics or as words, or fails against itself.
    """
    reference = _checked_gold(gold)
    read = None if too_large(answer) else _read_text(answer)
    return read is not None and _same(read, reference)


def answer_parts(text: str) -> tuple[str, list[str]]:
    """Kind and elements of a written answer that is a list, set, tuple or interval; else the answer as its one part."""
    body = None if too_large(text) else plain(text)
    kind, items = _collection(body) if body and _thousands(body) is None else ("value", None)
    return (kind, items) if items and len(items) > 1 else ("value", [text])


@lru_cache(maxsize=4096)
def _checked_gold(gold: str) -> Answer:
    if not gold.strip():
        raise UngradableGoldError("the gold answer is empty")
    if too_large(gold):
        raise UngradableGoldError(f"the gold answer {gold[:80]!r} is too long or too large to compute with")
    read = _read_text(gold)
    if read is None or not _same(read, read):
        raise UngradableGoldError(f"the gold answer {gold!r} cannot be read, or does not grade itself as correct")
    return read


@lru_cache(maxsize=4096)
def _read_text(text: str) -> Answer | None:
    body = plain(text)
    if not body or len(re.findall(r"(?<!\\)\{", body)) != len(re.findall(r"(?<!\\)\}", body)):
        return None
    read = _read(without_lead(body))
    return replace(read, connectives=_connectives(text)) if read else None


def _connectives(text: str) -> tuple[str, ...]:
    found = []
    for word in re.finditer(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", text, re.IGNORECASE):
        before = text[: word.start()]
        depth = sum(map(before.count, "([")) - sum(map(before.count, ")]"))
        found.append(("inner " if depth > 0 else "") + word[0].lower())
    return tuple(found)


# --- reading --------------------------------------------------------------------------------------------------------


def _read(body: str) -> Answer | None:
    """The one reading of a plain text; words where prose is left in it, None where there is no reading."""
    body = body.strip().rstrip(".,;: ")
    while body.startswith("{") and closing(body, 0) == len(body) - 1:
        inside = body[1:-1].strip()
        body = rf"\{{{inside}\}}" if len(_split(inside, ",;")) > 1 and _thousands(inside) is None else inside
    if not body:
        return None
    read = _read_mathematics(body)
    if read is None and "@" in body:
        prose = body.replace("@", " ")
        layout = re.search(r"[\^_(){}\[\]]|\d[.,]\d", prose)  # then the text must be the same, sign by sign
        tokens = prose.split() if layout else re.findall(r"[\w'-]+|\\[A-Za-z]+|[^\s\w,.]", prose)
        words = " ".join(map(_word, tokens))
        return Answer("words", (words,)) if re.search(r"\w", words) else None
    return read


def _word(token: str) -> str:
    """The word without the case of a first letter or of long capitals; symbols and names such as CO stay as is."""
    if token.casefold() in ("yes", "no", "true", "false"):
        return token.casefold()
    is_prose = len(token) >= 3 and (token[1:].islower() or (token.isupper() and len(token) >= 5))
    return token.casefold() if token.isalpha() and is_prose else token


def _read_mathematics(body: str) -> Answer | None:
    if re.fullmatch(r"\([A-H]\)\s+[A-Ha-h]", body):  # one choice or the other
        return None
    choice = re.fullmatch(r"\(([A-H])\)\s+(?![-+]|[A-H]\Z)((?:(?!\([A-H]\)).)+)", body)
    if choice and (read := _read(choice[2])) and read.kind == "value" and not read.label:
        return replace(read, label=choice[0][:3])
    if _thousands(body.split("@")[0].strip()) is None:
        for reader in (_read_equation, _read_relation, _read_collection, _read_matrix):
            handled, read = reader(body)
            if handled:
                return read
    return _read_quantity(body)


def _read_equation(body: str) -> tuple[bool, Answer | None]:
    inside = re.match(r"([A-Za-z])\s*\\in(?![A-Za-z])(.+)", body)
    if inside:
        read = _read(inside[2])
        return True, replace(read, label=inside[1]) if read else None
    sides = [side.strip() for side in _split(body, "=")]
    if len(sides) == 1 or len(_split(body, ",;")) > 1:
        return False, None
    if len(sides) > 2 or not all(sides):
        return True, None
    if not _is_label(*sides) and _is_label(*sides[::-1]):
        sides.reverse()
    if all(re.fullmatch("[A-Z]{2,4}", side) for side in sides):
        return True, Answer("words", ("=".join(sides),))
    if _is_label(*sides):
        read = _read(sides[1])
        label = re.sub(r"[\s{}\\]|mathbb", "", sides[0])
        return True, replace(read, label=label) if read and read.kind != "words" and not read.label else None
    values = [parse_value(side) for side in sides]
    if any(value is None for value in values):
        return True, None
    if not any(value.free_symbols for value in values):
        return True, _read(sides[1]) if equal_values(*values) else None
    return True, Answer("equation", value=values[0] - values[1])


_LABELS = [
    rf"(?!(?:e|i)\Z)(?:{NAME})",  # a symbol
    r"\|?[A-Z]{2,4}'?\|?|m?\s*\\angle\s*\{?(?:[A-Z](?:_\{?\d\}?)?\s*){1,3}\}?",  # lengths, angles
    r"\\overline\s*\{?[A-Z]{2}\}?|\[[A-Z]{3,6}\]",
    rf"(?:[dfghpqruvwA-Z]|\\(?:{'|'.join(GREEK)})|\\Pr|\\mathbb\{{?[A-Z]\}}?|@\w+)(?:_\{{?\w\}}?)?(?:'+|\^\{{-1\}})?"
    r"\s*(?:\((?:[\w\s,|'@=-]|\\c[au]p(?![a-z])|\\mid)+\)|\[[A-Z]\])|[a-z]\s*\(\s*[xtnkzs]\s*\)",  # f(x), P(A \cap B)
    r"\\frac\{(?:d|\\partial)\s*(?:\^\{?\d\}?\s*)?[A-Za-z]\}\{(?:d|\\partial)\s*[A-Za-z](?:\^\{?\d\}?)?\}",  # dy/dx
    r"\\lim\s*_\s*\{[^{}=]*\}\s*[A-Za-z]\s*\([^()=]*\)",
]


def _is_label(left: str, right: str) -> bool:
    """Whether the left side only names what the right side says."""
    if any(re.fullmatch(pattern, left) for pattern in _LABELS):
        return True
    names = re.fullmatch(r"\(\s*([a-z])((?:\s*,\s*[a-z])+)\s*\)", left)
    if names:
        listed = re.findall("[a-z]", left)
        return listed == sorted(set(listed)) and len(_collection(right)[1] or ()) == len(listed)
    return bool(re.fullmatch(r"[A-Z]{1,2}(?:\s*:\s*[A-Z]{1,2})+", left)) and left.count(":") == right.count(":")


_RELATIONS = {"<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!="}
_INTERVAL_SIGNS = {"<": ("(", ")"), "<=": ("[", "]")}


def _read_relation(body: str) -> tuple[bool, Answer | None]:
    """An inequality in one symbol as the interval that it describes; another as sign and difference of its sides."""
    pieces = re.split(r"(<|>|\\(?:le|ge|ne)(?![A-Za-z]))", body)
    if len(pieces) == 1 or len(_split(body, ",;")) > 1:
        return False, None
    signs, sides = [_RELATIONS[sign] for sign in pieces[1::2]], [side.strip() for side in pieces[::2]]
    if signs[0].startswith(">"):
        signs, sides = [sign.replace(">", "<") if ">" in sign else "?" for sign in signs[::-1]], sides[::-1]
    if len(signs) > 2 or not all(sides) or (not all(sign in ("<", "<=") for sign in signs) and signs != ["!="]):
        return True, None
    symbol = re.compile(NAME)
    low, high = Answer("value", value=parse_value(r"-\infty")), Answer("value", value=parse_value(r"\infty"))
    if len(signs) == 2 and symbol.fullmatch(sides[1]):
        ends, brackets, label = (_read(sides[0]), _read(sides[2])), (signs[0], signs[1]), sides[1]
    elif signs[0] != "!=" and len(signs) == 1 and symbol.fullmatch(sides[0]):
        ends, brackets, label = (low, _read(sides[1])), ("<", signs[0]), sides[0]
    elif signs[0] != "!=" and len(signs) == 1 and symbol.fullmatch(sides[1]):
        ends, brackets, label = (_read(sides[0]), high), (signs[0], "<"), sides[1]
    else:
        values = [parse_value(side) for side in sides] if len(signs) == 1 else [None]
        if any(value is None for value in values):
            return True, None
        return True, Answer("relation", (signs[0],), value=values[0] - values[1])
    if any(end is None or end.kind != "value" or end.value.free_symbols for end in ends):
        return True, None
    kind = _INTERVAL_SIGNS[brackets[0]][0] + _INTERVAL_SIGNS[brackets[1]][1]
    return True, Answer(kind, ends, label=re.sub(r"[\s{}\\]", "", label))


def _read_collection(body: str) -> tuple[bool, Answer | None]:
    if re.fullmatch(r"\\mathbb\{R\}", body):
        body = r"(-\infty,\infty)"
    if body == r"\emptyset" or re.fullmatch(r"\\\{\s*\\\}", body):
        return True, Answer("set")
    union = re.split(r"\\cup(?![A-Za-z])", body)
    kind, items = ("union", union) if len(union) > 1 else _collection(body)
    if items is None:
        ratio = _split(body, ":")
        kind, items = ("ratio", ratio) if len(ratio) > 1 and "@" not in ratio[0] else (kind, None)
    if items is None:
        return False, None
    unit = re.search(r"\d\s*@?([ap]m)$", items[-1], re.IGNORECASE) if kind == "ratio" else None
    if unit:
        items = [*items[:-1], items[-1][: unit.start(1)].rstrip(" @")]
    parts = [_read(item) for item in items]
    if any(part is None for part in parts):
        return True, None
    return True, Answer(kind, tuple(parts), unit=unit[1].lower() if unit else "")


def _read_matrix(body: str) -> tuple[bool, Answer | None]:
    matrix = re.fullmatch(r"\\begin\{([pbv]matrix)\}(.*)\\end\{\1\}", body)
    if not matrix:
        return False, None
    inside = re.sub(r"(\\\\)\s*\[\s*-?[\d.]+\s*@?[a-z]{2}\s*\]", r"\1", matrix[2]).strip().removesuffix(r"\\")
    rows = [[_read(cell) for cell in row.split("&")] for row in inside.split(r"\\")]
    if "\\begin" in inside or any(cell is None for row in rows for cell in row) or len({len(row) for row in rows}) > 1:
        return True, None
    if matrix[1] == "vmatrix":
        square = len(rows) == len(rows[0]) and all(cell.kind == "value" for row in rows for cell in row)  # type: ignore[union-attr]
        return True, Answer("value", value=determinant(rows)) if square else None
    return True, Answer("matrix", tuple(Answer("row", tuple(row)) for row in rows))


def _read_quantity(body: str) -> Answer | None:
    """A number in a base, a value with its unit, or one word of text."""
    base = re.fullmatch(r"(?:\(\s*)?([0-9A-F]+)(?:\s*\))?\s*_\s*(?:\{\s*(\d+)\s*\}|(\d))", body)
    if base:
        return Answer("base", (base[1].lstrip("0") or "0", int(base[2] or base[3])))
    trigonometry = re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])", body)
    start = re.search(r"@|\\%" if trigonometry else r"@|\\%|\^\{\\circ\}(?!\s*[-+/)\\])", body)
    end = start.start() if start else len(body)
    end = len(body[:end].rstrip(" /")) if start else end
    number, behind = body[:end].strip(), body[end:]
    if re.fullmatch("[A-Z]{2,4}", body):  # a name rather than a product
        return Answer("words", (_word(body),))
    unit = unit_of(behind)
    thousands = _thousands(number)
    value = parse_value(number if thousands is None else thousands) if number and unit else None
    if value is None or unit is None:
        return None
    return Answer("value", value=value * parse_value("1" + unit[1]), unit=unit[0], known_unit=unit[2])


def _thousands(body: str) -> str | None:
    number = re.fullmatch(r"([-+]?\d{1,3})((?:,\d{3})+|(?: \d{3})+)(\.\d+)?", body)
    return re.sub("[, ]", "", body) if number else None


def _split(body: str, separators: str) -> list[str]:
    """Parts between separators that stand outside of every bracket and environment; a bare `|` is no bracket."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(body):
        if body[position] == "\\":
            name = re.match(r"\\(?:begin|end|langle|rangle|[{}]|[A-Za-z]+|.)?", body[position:])[0]  # type: ignore[index]
            depth += (name in (r"\begin", r"\langle", r"\{")) - (name in (r"\end", r"\rangle", r"\}"))
            position += len(name)
            continue
        depth += (body[position] in "([{") - (body[position] in ")]}")
        if body[position] in separators and depth == 0:
            parts.append(body[start:position].strip())
            start = position + 1
        position += 1
    parts.append(body[start:].strip())
    return [part for part in parts if part] if "," in separators else parts


def _collection(body: str) -> tuple[str, list[str] | None]:
    r"""Kind and elements of a list or bracketed collection; (kind, None) for a single value.

    Bare lists, braces and `\pm` are sets; round and square brackets with a comma are tuples or intervals, told apart by
    their two brackets, and angle brackets are round ones.
    """
    body = body.strip()
    items = _split(body, ",;")
    if len(items) > 1:
        return "set", items
    brackets = re.fullmatch(r"(\\\{|\\langle|\(|\[)(.*)(\\\}|\\rangle|\)|\])", body, re.DOTALL)
    if brackets:
        opening, inside, end = brackets.groups()
        items = _split(inside, ",;")
        if opening == r"\{" and end == r"\}":
            return "set", items
        if len(items) > 1 and "{" not in opening + end[1:] and end != r"\}":
            return opening.replace(r"\langle", "(") + end.replace(r"\rangle", ")"), items
        return "value", None
    signs = re.findall(r"\\[pm][mp](?![A-Za-z])", body)
    if len(signs) == 1:
        return "set", [body.replace(signs[0], sign, 1).strip().removeprefix("+") for sign in ("+", "-")]
    return "value", None


# --- comparing ------------------------------------------------------------------------------------------------------


def _same(a: Answer, b: Answer) -> bool:
    """Whether an answer `a` says what the gold `b` says."""
    if a.unit != b.unit and ((a.unit and b.unit) or not a.known_unit):
        return False
    if a.label and b.label and a.label != b.label:
        return _same_equation(a, b) if a.kind == b.kind == "value" else False
    for one, other in ((a, b), (b, a)):
        if one.label.startswith("(") and other.kind == "value" and str(other.value) == str(parse_value(one.label)):
            return True  # the letter of a choice that was written before its value
    if a.kind != b.kind:
        return _same_equation(a, b) if {a.kind, b.kind} == {"value", "equation"} else False
    if not _same_connectives(a, b):
        return False
    if a.kind in ("words", "base"):
        return a.parts == b.parts
    if a.kind == "value":
        return equal_values(a.value, b.value)
    if a.kind == "equation":
        return _same_equation(a, b)
    if a.kind == "relation":
        return a.parts == b.parts and ratio_sign(a.value, b.value) in (("+", "-") if a.parts == ("!=",) else ("+",))
    if len(a.parts) != len(b.parts):
        return False
    labels = [{part.label for part in one.parts} for one in (a, b)]
    named_differently = labels[0] != labels[1] and max(map(len, labels)) > 1  # x=3, y=4 beside 3, 4
    if a.kind in ("set", "union") and not named_differently:
        return _match_unordered(list(a.parts), b.parts)
    return all(_same(one, other) for one, other in zip(a.parts, b.parts))


def _same_connectives(a: Answer, b: Answer) -> bool:
    """Whether "and" and "or" agree, which only values may exchange; a comma is an "and", but not of relations."""
    if a.connectives == b.connectives:
        return True
    if a.kind == "words" or any(word.startswith("inner") for one in (a, b) for word in one.connectives):
        return False
    if a.kind != "set":
        return True
    parts = [part for one in (a, b) for part in one.parts]
    if (
        all(part.kind != "words" for part in parts)
        and max(len({part.label for part in one.parts}) for one in (a, b)) == 1
    ):
        relations = [
            part for part in parts if part.kind in ("relation", "equation") or (part.label and part.kind != "value")
        ]
        return not relations
    said = [set(one.connectives) or {"and"} for one in (a, b)]
    return said[0] == said[1] and all(part.kind in ("words", "value") for part in parts)


def _match_unordered(answers: list[Answer], golds: tuple[Answer, ...]) -> bool:
    for gold in golds:
        found = next((answer for answer in answers if _same(answer, gold)), None)
        if found is None:
            return False
        answers.remove(found)
    return True


def _same_equation(a: Answer, b: Answer) -> bool:
    """Whether two equations, or a named value and an equation, are the same up to a constant factor."""
    if any(one.kind == "value" and not re.fullmatch(r"[A-Za-z]", one.label) for one in (a, b)):
        return False
    return ratio_sign(*(one.value - parse_value(one.label) if one.label else one.value for one in (a, b))) != ""
