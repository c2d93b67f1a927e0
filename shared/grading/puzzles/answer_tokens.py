"""From the text of an answer to tokens: markup and typography taken off, names found whole, sentences split.

A name is found in any case, with any apostrophe, dash or form of accent, and only as a whole: not "Ann" in "Annabel",
in "Ann-Marie" or, where that is a name of the puzzle too, in "Ann Marie". Every step is linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from shared.grading.puzzles.answer_words import ARROW

_MOST_ACCENTS = 4  # on one letter; sorting more of them takes quadratic time in unicodedata.normalize

_TYPOGRAPHY = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
        **dict.fromkeys("\u2014\u2015", " - "),
        **dict.fromkeys("\u21d2\u27f6\u27f9\u2794\u279c\u27a1\u21a6", ARROW),
        **dict.fromkeys("\u2190\u21d0\u27f5\u27f8", " if "),
        **dict.fromkeys("\u2194\u21d4\u27f7\u27fa\u2261\u2228\u22c1\u2295\u22bb", " iff "),
        **dict.fromkeys("\u00ac\u2260", " not "),
        "\u2227": "&",
        **dict.fromkeys("\u2022\u25aa\u25cf\u25e6\u2023\u2219\u00b7\r\u2028\u2029\x0b\x0c", "\n"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\ufe0f*`#_", None),
        **dict.fromkeys("{}$~", " "),
    }
)
_LINE_TAG = re.compile(r"</?(?:br|p|li|tr|div|ul|ol)\s?/?>|\\\\", re.IGNORECASE)
# Symbols of logic, before they would pass for markup or for marks that bind a role to a name.
_LOGIC = (
    (re.compile(r"<[-=]{1,3}>|\\(?:iff|equiv|lor|vee|oplus|(?:Long|long)?[Ll]eftrightarrow)\b"), " iff "),
    (re.compile(r"<[-=]{1,2}(?![->=])|\\(?:[Ll]eftarrow|impliedby|gets)\b"), " if "),
    (re.compile(r"[-=]{1,3}>|\\(?:to|implies|mapsto|(?:Long|long)?[Rr]ightarrow)\b"), ARROW),
    (re.compile(r"!=|(?<![\w!])!(?=[^\W\d])|(?<![~\w])~(?=[\w(])|\\(?:neg|lnot|neq?)\b"), " not "),
    (re.compile(r"\\(?:land|wedge)\b"), " & "),
)
_PHRASES = (
    (re.compile(r"\b(?:provided that|as long as|so long as|on condition that)\b", re.IGNORECASE), "if"),
    (re.compile(r"\bputs? it\b", re.IGNORECASE), "says"),
    (re.compile(r"\b(he|she|it|that)'s\b", re.IGNORECASE), r"\1 is"),
    (re.compile(r"\bthey're\b", re.IGNORECASE), "they are"),
    (re.compile(r"[.!]{1,3}\?"), "?"),
)
_CIRCLED_NUMBER = re.compile("[\u2460-\u2473\u24ea-\u24ff\u2776-\u2793]")
_OTHER_MARKUP = re.compile(r"<[^<>\n]{1,40}>|\\[a-zA-Z]{1,20}|\\[^\w\n]")
_CANNOT = re.compile(r"\bcan(?:not|'t| not)\b", re.IGNORECASE)
_CONTRACTED_NOT = re.compile(r"n't\b", re.IGNORECASE)
_SPACE = re.compile(r"[^\S\n]+")


class Token(NamedTuple):
    """`kind`: name, role, word, number, mark or line; `value`: the name as the puzzle has it, "knight" or "knave", or
    the text in lower case; `quoted`: inside double quotes."""

    kind: str
    value: str
    text: str
    quoted: bool = False


class Clause(NamedTuple):
    """Tokens up to a full stop, semicolon, number or line end."""

    tokens: list[Token]
    starts_line: bool
    is_item: bool  # of a list
    is_counted: bool  # begins right behind a number
    is_question: bool


def clauses_of(text: str, names: Sequence[str]) -> Iterator[Clause]:
    """The clauses of a text, without quotation marks and the marks they begin with.

    Raises ValueError for names that are empty or equal but for case and typography.
    """
    tokens: list[Token] = []
    starts_line, is_item, is_counted = True, False, False
    for token in tokenize(text, names):
        ends = token.kind in ("line", "number") or (token.value in (".", ";", "!", "?") and not token.quoted)
        if not ends:
            if not tokens and token.kind == "mark":
                is_item = is_item or token.value in "-+"
                is_counted = is_counted and token.value != ","
            else:
                tokens.append(token)
            continue
        if tokens:
            yield Clause(tokens, starts_line, is_item, is_counted, token.value == "?")
        starts_line = token.kind == "line" or (starts_line and not tokens)
        tokens, is_item = [], token.kind == "number"
        is_counted = is_item
    if tokens:
        yield Clause(tokens, starts_line, is_item, is_counted, False)


def tokenize(text: str, names: Sequence[str]) -> Iterator[Token]:
    """Tokens of the text, those in double quotes marked, the quotes left out; a line end closes a quote."""
    pattern, originals = _lexicon(tuple(names))
    plain = plain_text(text)
    matches = list(pattern.finditer(plain))
    # "Will" is a name; where it is written so, "will" is a word.
    spelled = {_key(m.group()) for m in matches if m.lastgroup == "name" and not m.group().islower()}
    quoted = False
    for match in matches:
        kind, found = str(match.lastgroup), match.group()
        if found in ('"', "'"):
            quoted = quoted != (found == '"')
            continue
        if kind == "line":
            quoted = False
        value = found.lower()
        if kind == "name":
            original = originals.get(_key(found))
            if original is None or (found.islower() and _key(found) in spelled and not original.islower()):
                kind = "word"
            else:
                value = original
        elif kind == "share":
            kind = "word"
        elif kind == "role":
            value = "knight" if value.startswith("knig") else "knave"
        yield Token(kind, value, found, quoted)


def plain_text(text: str) -> str:
    """The text without Markdown, HTML and LaTeX, with one kind of quotes, dashes and spaces; "n't" becomes "not"."""
    if not text.isascii():
        text = _few_accents(_CIRCLED_NUMBER.sub(" 1 ", text))
        compatible = unicodedata.normalize("NFKC", text)  # bold and wide letters become plain ones
        # A single character may become eighteen.
        text = compatible if len(compatible) <= 2 * len(text) else unicodedata.normalize("NFC", text)
    text = _LINE_TAG.sub("\n", text)
    for pattern, meaning in _LOGIC:
        text = pattern.sub(meaning, text)
    text = _OTHER_MARKUP.sub(" ", text).translate(_TYPOGRAPHY).replace(">", " ")
    for pattern, meaning in _PHRASES:
        text = pattern.sub(meaning, text)
    return _SPACE.sub(" ", _CONTRACTED_NOT.sub(" not", _CANNOT.sub("not", text)))


def _few_accents(text: str) -> str:
    """The text with at most so many combining marks in a row."""
    kept, row = [], 0
    for character in text:
        row = row + 1 if unicodedata.combining(character) else 0
        if row <= _MOST_ACCENTS:
            kept.append(character)
    return "".join(kept)


def _key(name: str) -> str:
    return " ".join(name.casefold().split())


@lru_cache(maxsize=4096)
def _lexicon(names: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    """The pattern of all tokens for these names, and the name of each key."""
    plain = {name: plain_text(name).strip() for name in names}
    originals = {_key(spelling): name for name, spelling in plain.items()}
    if not names or len(originals) != len(names) or "" in originals:
        raise ValueError(f"names must be different from each other and not empty: {names!r}")
    longest_first = sorted(plain.values(), key=len, reverse=True)
    spellings = "|".join(r"[ ]".join(map(re.escape, spelling.split())) for spelling in longest_first)
    pattern = (
        rf"(?P<name>(?<!\w)(?<!\w['-])(?:{spellings})(?!\w)(?!-(?!kn(?:ight|ave))\w)(?!'(?!s\b)\w))"
        r"|(?P<role>(?<!\w)kn(?:ight|ave)s?(?!\w)(?!['-]\w))"
        r"|(?P<line>\n)"
        r"|(?P<share>(?<!\w)\d+(?:\.\d+)?\s?%)"
        r"|(?P<number>(?<!\w)\d+)"
        r"|(?P<word>'s\b|[^\W\d]+(?:['-][^\W\d]+)*)"
        r"|(?P<mark>\S)"
    )
    return re.compile(pattern, re.IGNORECASE), originals
