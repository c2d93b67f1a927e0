"""Cleaning of a written answer: typography, spacing commands, units and surrounding prose.

What is left (`Answer.body`) is LaTeX that a parser can read. Nothing here evaluates anything, so no input can make it
run long; `too_large` recognises the powers and factorials that must not reach a parser at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    "√": r"\sqrt ",
}
_TRANSLATION = str.maketrans(_CHARACTERS)

# Unit spellings that mean the same; the dimensionless number before them is what gets compared.
_UNITS = {
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "km": "km kilometer kilometers kilometre kilometres",
    "m": "m meter meters metre metres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "kg": "kg kilogram kilograms",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "deg": "deg degree degrees",
    "rad": "rad radian radians",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "liter": "l liter liters litre litres",
    "ml": "ml milliliter milliliters",
    "mph": "mph",
    "unit": "unit units",
}
_UNIT_OF = {spelling: unit for unit, spellings in _UNITS.items() for spelling in spellings.split()}


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
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
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|rm|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"(?<!\\)\\[,!;:> ]|\\(?:quad|qquad|thinspace|enspace)(?![A-Za-z])|~")
_GROUP_SEPARATOR = r"(?:\\[,!;: ]|\{,\}|,\\!|~| )"
_THOUSANDS = re.compile(rf"(?<![\d.])(\d{{1,3}})((?:{_GROUP_SEPARATOR}\d{{3}})+)(?![\d/])")


@dataclass(frozen=True)
class Answer:
    """One cleaned answer: LaTeX `body`, its `unit` if one was written, `words` if it is text; a letter is both."""

    body: str
    unit: str | None = None
    words: str | None = None


def last_boxed(text: str) -> str | None:
    r"""Content of the last balanced ``\boxed{...}``, of the innermost one when boxes are nested; None without one.

    ``\{``, ``\}`` and ``\\`` do not count as braces, and a box that never closes is ignored. Linear in the text.
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
    """Every exponent in the text, as written: the group, or the run of characters, after each ``^`` or ``**``."""
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


def clean(text: str) -> str:
    r"""Typography to plain LaTeX: dashes, spaces, digits, fractions and roots in Unicode; sizing and style commands."""
    text = text.translate(_TRANSLATION)
    text = re.sub(r"\\?\$|\\\(|\\\)|\\\[|\\\]", "", text)
    text = re.sub(r"(?<!\\)%", r"\\%", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _THOUSANDS.sub(_join_thousands, text)
    text = _SPACING.sub(" ", text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;:").strip()


_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![A-Za-z])\s*\.?", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\leq(?:slant)?(?![A-Za-z])", r"\\le"),
        (r"\\geq(?:slant)?(?![A-Za-z])", r"\\ge"),
        (r"\\neq(?![A-Za-z])", r"\\ne"),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])", r"^{\\circ}"),
        (r"(?<![A-Za-z\\])(?:np|math)\.", ""),
        (r"_\s*\{\s*\\(?:text|mathrm|rm)\s*\{([^{}]*)\}\s*\}", r"_{\1}"),  # a name's index is no prose
        (r"(\d)\.(?!\d)", r"\1"),
        (r"\*\*", "^"),
        (r"\*", r"\\cdot "),
        (rf"(?<![A-Za-z\\])({'|'.join(_FUNCTIONS)})(?![A-Za-z])", r"\\\1"),
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s+(\d+|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\sqrt\s+\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi"),
        (r"(?<![\w.])(-?\d+(?:\.\d+)?)[eE]([+-]?\d+)(?![\w.])", r"\1 \\times 10^{\2}"),
    ]
]


def read_answer(text: str) -> Answer:
    r"""Clean a written answer and set its unit and its prose apart.

    ``\text{The answer is } 42`` has body 42, ``5 \text{ cm}`` body 5 and unit cm, ``\text{Tuesday}`` only words.
    """
    text = clean(text)
    if _is_words(text):
        words = _words(text)
        return Answer(_TEXT_COMMAND.sub(r"\1", text).strip("() ") if len(words) == 1 else "", words=words)
    text = re.sub(r"\\text\s*\{\s*(?:and|or|,)\s*\}|(?<![A-Za-z])(?:and|or)(?![A-Za-z])", " , ", text)
    text = re.sub(r",\s*,", ",", text)
    prose = _TEXT_COMMAND.findall(text)
    outside = _TEXT_COMMAND.sub(" ", text).strip()
    if prose and not outside:  # everything in one text block: prose around a number, or the number itself
        return _from_prose(" ".join(prose))
    if any(re.search(r"\d", block) or set(_letters(block)) & _CHANGES_MEANING for block in prose):
        return Answer("", words=_words(text))
    leading = _TEXT_COMMAND.match(text)
    if leading and _letters(leading[1]) and _letters(leading[1])[-1] not in _LEADS_TO_VALUE:
        return Answer("", words=_words(text))
    unit, factor = None, ""
    for block in prose:
        unit, factor = _unit_and_scale(block, unit, factor)
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


def _words(text: str) -> str:
    """Text for comparison: commands, brackets, punctuation and case do not matter, digits and letters do."""
    bare = _TEXT_COMMAND.sub(r" \1 ", text)
    return " ".join(re.findall(r"[0-9a-z]+|[^\s0-9a-z(),.{}'\"]", bare.lower()))


def _letters(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def _unit_and_scale(block: str, unit: str | None, factor: str) -> tuple[str | None, str]:
    """Unit and power of ten named by one stretch of prose, or those found before."""
    power = re.match(r"\s*\^\s*\{?(\d)", block)
    for word in _letters(block):
        if word in _SCALES:
            factor += rf" \times 10^{{{_SCALES[word]}}}"
        elif word == "percent":
            factor += r"\%"
        elif word in _UNIT_OF:
            unit = (unit + " " if unit else "") + _UNIT_OF[word] + (power[1] if power else "")
    return unit, factor


def _from_prose(text: str) -> Answer:
    """The one expression in a sentence, such as 42 in 'The answer is 42 apples'; else the sentence as words."""
    tokens = text.replace(":", " ").split(" ")
    is_word = [bool(re.fullmatch(r"[A-Za-z][A-Za-z']+[,.]?|[aAI]", token)) for token in tokens]
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
    unknown = [w for w in _letters(" ".join(tokens[last + 1 :])) if w not in _UNIT_OF and w not in _SCALES]
    if any(len(word) < 4 for word in unknown):  # short strings after an expression are more likely variables: 2 xy
        return Answer(text)
    unit, factor = _unit_and_scale(around, None, "")
    attached = re.fullmatch(r"(.*\d)\s*([A-Za-z]{2,})", body)
    if attached and attached[2].lower() in _UNIT_OF:  # 5cm
        body, unit = attached[1], _UNIT_OF[attached[2].lower()]
    return Answer(body + factor, unit)
