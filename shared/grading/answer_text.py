"""Cleaning of a written answer: typography, spacing commands, units and surrounding prose.

What is left (`Answer.body`) is LaTeX that a parser can read. Nothing here evaluates anything, so no input can make it
run long; `too_large` recognises the powers and factorials that must not reach a parser at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from shared.grading.answer_units import (
    RAISES,
    SCALES,
    TEXT_NAME,
    UNIT_OF,
    has_digits,
    is_raised,
    join_units,
    unit_and_scale,
)

MAX_CHARACTERS = 2000
MAX_DIGITS = 1000
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 2_000

_CHARACTERS = {
    # hyphens, figure and en dash, em dash, horizontal bar, minus signs (mathematical, small, full width)
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", r"\,"),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),  # zero width
    **{chr(0x2080 + digit): f"_{{{digit}}}" for digit in range(10)},  # subscripts
    **{sup: f"^{{{digit}}}" for digit, sup in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{chr(0xFF10 + digit): str(digit) for digit in range(10)},  # full width
    "\uff1d": "=",
    "\uff05": "%",
    "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "°": r"^{\circ}",
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": r"\div ",
    "⁄": "/",
    "∕": "/",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "√": r"\sqrt ",
}
_TRANSLATION = str.maketrans(_CHARACTERS)


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Prose that changes what a number says; an answer with such a word is never cut down to its number.
_CHANGES_MEANING = _words_of(
    "not no never less more fewer greater than least most between over under above below except without negative minus "
    "plus times squared cubed half double twice dozen to mod modulo base factorial root choose if unless neither nor "
    "one two three four five six seven eight nine ten"
)
# Prose before a number is dropped only if it ends in one of these: 'the answer is 42', but not 'June 20'.
_LEADS_TO_VALUE = _words_of(
    "is are be equals equal has have answer answers value result total gives get gets so thus hence therefore about "
    "approximately roughly exactly of"
)
_FUNCTIONS = re.findall(
    r"\w+", "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc ln log exp max min gcd lcm det"
)
_BOX = re.compile(r"\\boxed\s*\{")
_TEXT_COMMAND = re.compile(TEXT_NAME + r"\{([^{}]*)\}")
_CHOICE = re.compile(TEXT_NAME + r"\{\s*\(([A-F])\)[\s:.]*\}[:.]?(?:\s+(?![+*/=^_])|(?=[\d\\]))(\S.*)")
_OPERATOR = r"\\(?:times|cdot|div|pm|mp|le|ge|ne|lt|gt|in|cup|cap|to|approx|equiv|end|quad|%|\\)"
_SPACING = re.compile(r"(?<!\\)\\[,!;:> ]|\\(?:quad|qquad|thinspace|enspace)(?![A-Za-z])|~")
_GROUP_SEPARATOR = r"(?:\\[,!;: ]|\{,\}|,\s?\\!\s?|\\!,|~| )"
_THOUSANDS = re.compile(rf"(?<![\d.])(\d{{1,3}})((?:{_GROUP_SEPARATOR}\d{{3}})+)(?![\d/])")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?:\\%)?")
# A number before it would make a mixed number of the fraction, and a power would take only a part of the decimal.
_REPEATING = re.compile(
    r"(?<![\d.^_])(?<!\d )(\d{1,3}(?:,\d{3})+|\d*)\.(\d*)\s*"
    r"(?:\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))|\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?)"
    r"(?!\s*(?:\d|\\(?:overline|bar|dot)))"
)


@dataclass(frozen=True)
class Answer:
    """One cleaned answer: LaTeX `body`, its `unit` if one was written, `words` if it is text; a letter is both.

    `label` is the letter of a multiple choice that was written before its value.
    """

    body: str
    unit: str | None = None
    words: str | None = None
    label: str | None = None


def last_boxed(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{...}`, of the innermost one when boxes are nested; None without one.

    `\{`, `\}` and `\\` do not count as braces, and a box that never closes is ignored. Linear in the text.
    """
    content, content_start = None, -1
    open_braces: list[tuple[int, bool]] = []  # (position after the brace, was it opened by a box?)
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            box = _BOX.match(text, position)
            if box:
                open_braces.append((box.end(), True))
            position = box.end() if box else position + 2
            continue
        if character == "{":
            open_braces.append((position + 1, False))
        elif character == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box and start > content_start:  # otherwise the last content lies inside this box: keep the inner one
                content, content_start = text[start:position], start
        position += 1
    return content


def too_large(text: str) -> bool:
    """Whether a number, a power or a factorial in the text is beyond what a verifier should ever expand."""
    if len(text) > MAX_CHARACTERS or re.search(rf"\d{{{MAX_DIGITS}}}", text):
        return True
    if any(len(n) > 4 or int(n) > MAX_FACTORIAL for n in re.findall(r"(\d+)\s*\)*\s*!", text)) or "!)!" in text:
        return True
    bare_tower = re.search(r"\d\s*\^\s*\d+\s*\^|\*\*\s*\d+\s*\*\*", text)
    return bool(bare_tower) or any(_power_is_large(exponent) for exponent in _exponents(text))


def _exponents(text: str) -> list[str]:
    """Every exponent in the text, as written: the group, or the run of characters, after each `^` or `**`."""
    found = []
    for sign in re.finditer(r"\^|\*\*", text):
        rest = text[sign.end() :].lstrip()
        if rest.startswith(("{", "(")):
            found.append(_group(rest))
        else:
            found.append(re.match(r"[-+]?(?:\d+|.)?", rest).group())  # type: ignore[union-attr]
    return found


def _group(text: str) -> str:
    """Inside of the bracketed group that the text starts with; all the rest when it never closes."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if depth == 0:
            return text[1:position]
    return text[1:]


def _power_is_large(exponent: str) -> bool:
    """Whether an exponent names a literal beyond the limit or a tower whose value is (an upper bound is enough)."""
    if any(len(n) > 5 or int(n) > MAX_EXPONENT for n in re.findall(r"\d+", exponent)):
        return True
    towers = re.findall(r"(\d+)\s*\}*\)*\s*\^\s*[{(]?\s*(\d+)(.?)", exponent)
    return any(int(base) > 1 and (int(base) ** min(int(power), 64) > MAX_EXPONENT or more == "^")
               for base, power, more in towers) or exponent.count("^") > 2  # fmt: skip


def _join_thousands(match: re.Match[str]) -> str:
    return match.group(1) + re.sub(r"\D", "", match.group(2))


def _repeating_decimal(match: re.Match[str]) -> str:
    """The exact fraction of a decimal with a bar over its period, or with dots over the ends of it."""
    whole, start = match[1].replace(",", ""), match[2]
    period = match[3] or match[4] or match[5] + match[6] + match[7]
    numerator = int(whole + start + period) - int(whole + start or "0")
    common = math.gcd(numerator, denominator := int("9" * len(period) + "0" * len(start)))
    return rf"\frac{{{numerator // common}}}{{{denominator // common}}}"


def _in_braces(body: str) -> bool:
    """Whether the brace that opens the body is closed by its last character."""
    depth = 0
    for brace in re.finditer(r"(?<!\\)[{}]", body):
        depth += 1 if brace[0] == "{" else -1
        if depth <= 0:
            return body.startswith("{") and brace.end() == len(body) and depth == 0
    return False


def unbrace(body: str) -> str:
    r"""The inside of plain braces around a whole body; with a list inside they were meant to be a set's `\{ \}`."""
    body = body.strip()
    while _in_braces(body):
        inside = body[1:-1].strip()
        depths = (inside[: comma.start()] for comma in re.finditer(",", inside))
        if any(sum(before.count(c) for c in "({[") == sum(before.count(c) for c in ")}]") for before in depths):
            return inside if _GROUPED.fullmatch(inside) else rf"\{{{inside}\}}"
        body = inside
    return body


def clean(text: str) -> str:
    r"""Typography to plain LaTeX: dashes, spaces, digits, fractions and roots in Unicode; sizing and style commands."""
    text = text.translate(_TRANSLATION)
    text = re.sub(r"\\?\$|(?<!\\)\\[()\[\]]", "", text)
    text = re.sub(r"(?<!\\)%", r"\\%", text)
    text = _REPEATING.sub(_repeating_decimal, text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _THOUSANDS.sub(_join_thousands, text)
    text = _SPACING.sub(" ", text)
    return unbrace(re.sub(r"\s+", " ", text).strip().rstrip(".,;:"))


def _half_of_day(match: re.Match[str]) -> str:
    return f"{match[1]} {'ante' if match[2] in 'aA' else 'post'}meridiem"


_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![A-Za-z])\s*\.?", ""),
        (r"(\\\\)\s*\[\s*-?[\d.]+\s*(?:pt|ex|em|mm|cm|in)\s*\]", r"\1"),  # extra space between rows
        (r"\\(?:text)?color\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}", ""),
        (r"\\(?:tiny|small|normalsize|[lL]arge|LARGE|[hH]uge|bf|bfseries|boldmath|it|sf)(?![A-Za-z])", " "),
        (r"\\(?:boldsymbol|bm|pmb|mathsf|mathit|underline)\s*(?=\{)", ""),
        (r"\\mathbf\s*(?=\{)(?!\{[A-Za-z .()]{2,}\})", ""),  # words in bold stay text
        (rf"{TEXT_NAME}\{{([eixyz])\}}", r" \1"),
        (rf"\\operatorname\*?\s*\{{\s*({'|'.join(_FUNCTIONS)})\s*\}}", r"\\\1 "),
        (r"\\([lr])brace(?![A-Za-z])", lambda match: r"\{" if match[1] == "l" else r"\}"),
        (r"\\varnothing(?![A-Za-z])|\\\{(?:\s|\\[,;:! ])*\\\}", r"\\emptyset "),
        (rf"(\d:\d\d(?:\s|~|\\[,; ])*(?:{TEXT_NAME}\{{[\s~]*)?)([AaPp])\.?\s?[Mm](?![A-Za-z])\.?", _half_of_day),
        (r"€\s*(\d(?:[\d.,]*\d)?)|(\d)\s*€", r"\1\2 euros"),
        (r"£\s*(\d(?:[\d.,]*\d)?)|(\d)\s*£", r"\1\2 sterling"),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\leq(?:slant)?(?![A-Za-z])", r"\\le"),
        (r"\\geq(?:slant)?(?![A-Za-z])", r"\\ge"),
        (r"\\neq(?![A-Za-z])", r"\\ne"),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])", r"^{\\circ}"),
        (r"(?<![A-Za-z\\])(?:np|math)\.", ""),
        (r"_\s*\{\s*\\(?:text|mathrm|rm)\s*\{([^{}]*)\}\s*\}", r"_{\1}"),  # a name's index is no prose
        (r"(\d)\.(?!\d|\s*\\(?:overline|bar|dot)(?![A-Za-z]))", r"\1"),
        (r"\*\*", "^"),
        (r"\^\s*-\s*(\d+(?:\.\d+)?|[A-Za-z]|\\pi(?![A-Za-z]))", r"^{-\1}"),
        (r"\*", r"\\cdot "),
        (rf"(?<![A-Za-z\\])(?!min(?!\s*[(_\\]))({'|'.join(_FUNCTIONS)})(?![A-Za-z])", r"\\\1"),  # 30 min is a time
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s+(\d+|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\sqrt\s+\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi"),
        (r"(?<![\w.])(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![\w.])", r"\1 \\times 10^{\2}"),
    ]
]


def read_answer(text: str) -> Answer:
    r"""Clean a written answer and set its unit and its prose apart.

    `\text{The answer is } 42` has body 42, `5 \text{ cm}` body 5 and unit cm, `\text{Tuesday}` only words.
    """
    text = clean(text)
    if choice := _CHOICE.fullmatch(text):
        value = read_answer(choice[2])
        if value.body and value.words is None:
            return replace(value, label=choice[1].lower())
    if _is_product(text):
        return Answer(text, words=text)
    if _is_words(text):
        words = _words(text)
        return Answer(_TEXT_COMMAND.sub(r"\1", text).strip("() ") if len(words) == 1 else "", words=words)
    text = re.sub(r"\\text\s*\{\s*(?:and|or|,)\s*\}|(?<![A-Za-z])(?:and|or)(?![A-Za-z])", " , ", text)
    text = join_units(re.sub(r",\s*,", ",", text))
    prose = _TEXT_COMMAND.findall(text)
    outside = _TEXT_COMMAND.sub(" ", text).strip()
    if prose and not outside:  # everything in one text block: prose around a number, or the number itself
        return _from_prose(" ".join(prose))
    if any(has_digits(block) or set(_letters(block)) & _CHANGES_MEANING for block in prose):
        return Answer("", words=_words(text))
    if _text_joins_values(text):
        return Answer("", words=_words(text))
    leading = _TEXT_COMMAND.match(text)
    if leading and _letters(leading[1]) and _letters(leading[1])[-1] not in _LEADS_TO_VALUE:
        return Answer("", words=_words(text))
    unit, factor = None, ""
    for block in prose:
        unit, factor = unit_and_scale(block, unit, factor)
    if len(prose) and not re.search(r"[0-9A-Za-z\\]", outside):
        return Answer("", words=_words(text))
    body = outside
    answer = _from_prose(body) if re.search(r"(?<![A-Za-z\\{])[A-Za-z]{2,}(?![A-Za-z}])", body) else Answer(body)
    unit = unit or answer.unit
    degrees = re.fullmatch(r"((?:[-+\d./{}() ]|\\frac|\\sqrt)+)\^\{\\circ\}", answer.body)
    if answer.words is None and degrees:
        answer, unit = Answer(degrees[1]), "deg"
    return Answer(answer.body + factor, unit, answer.words)


def _is_words(text: str) -> bool:
    """Whether the answer is text through and through: a name, a day, 'no solution', a choice such as (C)."""
    bare = _TEXT_COMMAND.sub(r"\1", text)
    return bool(re.fullmatch(r"\(?\s*[A-Za-z]\s*\)?", bare)) or bool(
        re.fullmatch(r"[A-Za-z][A-Za-z' .,-]*", bare) and re.search(r"[A-Za-z]{3}", bare)
    )


def _is_product(text: str) -> bool:
    """Whether bare letters are at least as likely a product of symbols as a word: ab, xyz; not cm, no."""
    return bool(re.fullmatch(r"[a-z]{2}|[xyz]{3}", text)) and text not in {*UNIT_OF, *_CHANGES_MEANING}


def _words(text: str) -> str:
    """Text for comparison: commands, brackets, punctuation and case do not matter, digits and letters do."""
    bare = _TEXT_COMMAND.sub(r" \1 ", text)
    words = re.findall(r"[0-9a-z]+|[^\s0-9a-z(),.{}'\"]", bare.lower())
    measured = any(word.isdigit() for word in words)
    return " ".join(UNIT_OF.get(word, word) if measured else word for word in words)


def _letters(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def _text_joins_values(text: str) -> bool:
    """Whether text stands between two expressions or carries a power: without it another value would be left.

    '2 h 30 min' is not 32, nor is a base that was set as text its exponent alone.
    """
    for block in _TEXT_COMMAND.finditer(text):
        before = _TEXT_COMMAND.sub(" ", text[: block.start()]).rstrip()
        after = _TEXT_COMMAND.sub(" ", text[block.end() :]).lstrip()
        if re.match(r"\s*[\^_!]", text[block.end() :]):
            return True
        joins = re.search(r"[\w)\]}!%]$", before) and not re.search(_OPERATOR + "$", before)
        if joins and re.match(rf"(?!{_OPERATOR}(?![A-Za-z]))[\w({{\[.\\]", after):
            return True
    return False


def _from_prose(text: str) -> Answer:
    """The one expression in a sentence, such as 42 in 'The answer is 42 apples'; else the sentence as words."""
    tokens = re.sub(r":(?!\d)", " ", text).split(" ")
    is_word = [bool(re.fullmatch(r"[A-Za-z][A-Za-z']+[,.]?|[aAI]", token)) or is_raised(token) for token in tokens]
    inside = [i for i, word in enumerate(is_word) if not word and tokens[i]]
    if not inside:
        return Answer("", words=_words(text))
    first, last = inside[0], inside[-1]
    around = " ".join(tokens[:first] + tokens[last + 1 :])
    lead = _letters(" ".join(tokens[:first]))
    if (
        any(is_word[first : last + 1])
        or (lead and lead[-1] not in _LEADS_TO_VALUE)
        or set(_letters(around)) & _CHANGES_MEANING
    ):
        return Answer("", words=_words(text))
    body = " ".join(tokens[first : last + 1])
    unknown = [w for w in _letters(" ".join(tokens[last + 1 :])) if w not in {**UNIT_OF, **SCALES, **RAISES}]
    if any(len(word) < 4 for word in unknown):  # short strings after an expression are more likely variables: 2 xy
        return Answer(text)
    unit, factor = unit_and_scale(around, None, "")
    attached = re.fullmatch(r"(.*\d)\s*([A-Za-z]{2,})(\^.*)?", body)
    if attached and attached[2].lower() in UNIT_OF and (not attached[3] or is_raised(attached[2] + attached[3])):
        body, (unit, factor) = attached[1], unit_and_scale(attached[2] + (attached[3] or ""), None, factor)  # 5cm
    return Answer(body + factor, unit)
