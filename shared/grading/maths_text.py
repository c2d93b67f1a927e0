r"""Typography of written answers: Unicode, spacing, shorthand and text blocks to one plain LaTeX, with words marked.

`plain` turns what an author may type into the little LaTeX that `maths_answers` reads: explicit braces, no style, no
Unicode, every word of prose or of a unit as `@word`.
"""

from __future__ import annotations

import math
import re
import unicodedata

from grpo_replications.shared.grading.maths_words import SHORT_WORDS

MAX_CHARACTERS, MAX_DIGITS, MAX_EXPONENT, MAX_FACTORIAL = 2000, 1000, 10_000, 1000

_SYMBOLS = str.maketrans({
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d", "-"),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""), **dict.fromkeys("\u202f\u2009\u2008\u00a0", r"\,"),
    **dict.fromkeys("°º˚", r"^{\circ}"), "×": r"\cdot ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/",
    "⁄": "/", "∕": "/", "∶": ":", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}", "√": r"\surd ", "⟨": r"\langle ", "⟩": r"\rangle ", "。": ".", "、": ",", "′": "'",
    "∠": r"\angle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "％": "%",
})  # fmt: skip
GREEK = re.findall(
    r"\w+",
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell",
)
FUNCTIONS = re.findall(r"\w+", "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc ln log")
OPERATORS = ["gcd", "lcm", "max", "min"]
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "sterling", "₹": "rupee", "¥": "yen"}
_STYLE = re.compile(r"math(?:bf|it|sf|normal|cal|rm)|boldsymbol|bm|pmb|emph|text(?:it|bf|sf)|underline")
_TEXT = re.compile(
    r"\\(text(?:normal|bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf|normal)|mbox|hbox|operatorname\*?|emph|boldsymbol|bm|pmb|"
    r"underline)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_WORD = r"(?<![\\@A-Za-z])(?<!\\begin\{)(?<!\\end\{)[A-Za-z\u00c0-\u024f]{2,}(?:'s|-[a-z]{3,})?"
_SPACE = r"(?:(?<!\\)\\[,;:!> ]|\\q?quad(?![A-Za-z])|~|\s)"
_GROUPED = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?:\s*,\s*\\!\s*|\s*\\!\s*,?\s*|\{,\}|\s*\\[,;: ]\s*|\\thinspace\s*)\d{3}(?!\d))+"
)
_DROPPED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|nolimits|(?:tiny|small|normalsize|[lL]arge|LARGE|bf|"
    r"rm|it|sf))(?![A-Za-z])\s*\.?|(?<!\\)\\[!()\[\]]|\{\}(?!\s*\^)|\\color\s*\{[^{}]*\}"
)
_UNCLEAR = re.compile(
    r"\A[\s${(]*~|=\s*~|(?<!\\right)(?<!\\left)\.\s*\."  # "about", an ellipsis
    r"|\d\s*(?<!\\)\$[\s$]*\d|\d\s*\\[)\]]\s*(?:\\[(\[])?\s*\d|\\left\s*\.\s*\d"  # digits that a sign parts
    r"|(?:sqrt|\\surd|frac|binom|[\^_}\]])\s*\{\s*\}(?!\s*\^)|(?<![\d.])0[xXbBoO][0-9A-Fa-f]"  # no argument, 0xF
)
_NAMED = [(re.compile(pattern), replacement) for pattern, replacement in [
    (r"\\[dtcs]frac(?![A-Za-z])", r"\\frac"), (r"\\(?:leq(?:slant)?|leqq)(?![A-Za-z])", r"\\le "),
    (r"\\(?:geq(?:slant)?|geqq)(?![A-Za-z])", r"\\ge "), (r"\\neq(?![A-Za-z])", r"\\ne "), (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"), (r"\\(?:times|ast)(?![A-Za-z])|\*(?!\*)", r"\\cdot "), (r"\\div(?![A-Za-z])", "/"),
    (r"\\[dt]?binom(?![A-Za-z])", r"\\binom"), (r"\\lbrace(?![A-Za-z])", r"\\{"), (r"\\rbrace(?![A-Za-z])", r"\\}"),
    (
        r"[(\[]\s*\\begin\{array\}\s*\{[lcr| ]*\}(.*?)\\end\{array\}\s*[)\]]",
        r"\\begin{pmatrix}\1\\end{pmatrix}",
    ),
    (r"\\[lr]?vert(?![A-Za-z])", "|"), (r"\\varnothing(?![A-Za-z])", r"\\emptyset "), (r"\\colon(?![A-Za-z])", ":"),
    (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])", r"^{\\circ}"),
    (r"\{\s*\}\s*\^\{\\circ\}", r"^{\\circ}"),
    (r"\^\s*\{?\s*\\prime\s*\}?", "'"), (r"\\mathbb\s*R(?![A-Za-z])", r"\\mathbb{R}"),
    (r"\\textcolor\s*\{[^{}]*\}\s*\{([^{}]*)\}", r" \1 "),
    (r"(?<![A-Za-z\\])(?:np|math)\.(?=[a-z])", ""), (r"\\cancel(?![A-Za-z])", r"\\unreadable"),
    (rf"(?<![A-Za-z\\])({'|'.join(FUNCTIONS)}|sqrt|pi|exp)(?![A-Za-z])", r"\\\1 "),
    (r"(?<![A-Za-z\\])(sqrt)(?=\d)", r"\\surd "), (rf"(?<![A-Za-z\\])({'|'.join(OPERATORS)})(?=\s*\()", r"\\\1 "),
    (r"(?<![A-Za-z\\])(?:inf|infinity)(?![A-Za-z])", r"\\infty "),
    (r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d+)(?![\w.])", r"\1\\cdot 10^{\2}"),
]]  # fmt: skip


def too_large(text: str) -> bool:
    """Whether a number, a power or a factorial in the text is beyond what a grader should ever expand."""
    if len(text) > MAX_CHARACTERS or re.search(rf"\d{{{MAX_DIGITS}}}", text) or text.count("^") > 60:
        return True
    if any(len(n) > 4 or int(n) > MAX_FACTORIAL for n in re.findall(r"(\d+)\s*[})]*\s*!", text)):
        return True
    if re.search(r"![\s})]*!|[\])}]\s*!.*!", text):
        return True
    if re.search(r"\d\s*(?:\^|\*\*)\s*\d+\s*(?:\^|\*\*)", text) or re.search(r"\\[dt]?binom\s*\{?\s*\d{5}", text):
        return True
    return any(_power_is_large(exponent) for exponent in _exponents(text))


def _exponents(text: str) -> list[str]:
    found = []
    for sign in re.finditer(r"\^|\*\*", text):
        rest = text[sign.end() :].lstrip()
        found.append(_group(rest) if rest[:1] in ("{", "(") else re.match(r"[-+]?(?:\d+|.)?", rest).group())  # type: ignore[union-attr]
    return found


def _group(text: str) -> str:
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if depth == 0:
            return text[1:position]
    return text[1:]


def _power_is_large(exponent: str) -> bool:
    if any(len(n) > 5 or int(n) > MAX_EXPONENT for n in re.findall(r"\d+", exponent)):
        return True
    towers = re.findall(r"(\d+)\s*\}*\)*\s*\^\s*[{(]?\s*(\d+)(.?)", exponent)
    return any(int(base) > 1 and (int(base) ** min(int(power), 64) > MAX_EXPONENT or more == "^")
               for base, power, more in towers) or exponent.count("^") > 2  # fmt: skip


def plain(text: str) -> str | None:
    """The answer in plain LaTeX with words marked `@word`; None for characters that nothing here reads."""
    if _UNCLEAR.search(unicodedata.normalize("NFKC", text)):
        return None
    if any(unicodedata.decomposition(character).startswith("<circle>") for character in text):
        return None
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ]+", lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+", lambda m: "_{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = "".join(map(_character, text.translate(_SYMBOLS)))
    text = "".join(map(_greek, unicodedata.normalize("NFKC", text).translate(_SYMBOLS)))
    text = _currency(_GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text))
    if any(ord(character) > 126 and not character.isalpha() for character in text):
        return None
    text = re.sub(r"\s+", " ", _DROPPED.sub("", text))
    text = re.sub(r"(?<=[\d}])\s*\*\*\s*|(?<=\w)\*\*", "^", text)
    for pattern, replacement in _NAMED:
        text = pattern.sub(replacement, text)
    text = _text_blocks(text)
    text = re.sub(rf"{_SPACE}+", " ", text).strip()
    text = re.sub(_WORD, _plain_word, text)
    text = re.sub(r"(@\w+)\.(?!\d)", r"\1", re.sub(r"(?<!\\)%", r"\\%", text))
    text = re.sub(r"(?<=\d)\.(?=\s|$|[,;)@/])", "", text.rstrip(" .,;:"))
    text = _repeating(text.strip())
    return _arguments(re.sub(r"\^\s*-\s*(\d+(?:\.\d+)?|[A-Za-z])", r"^{-\1}", re.sub(r"\^\s*(\d+)", r"^{\1}", text)))


def _character(character: str) -> str:
    if unicodedata.decomposition(character).startswith("<fraction>"):
        top, bottom = unicodedata.normalize("NFKC", character).split("\u2044")
        return rf"\frac{{{top}}}{{{bottom}}}"
    return character


def _greek(character: str) -> str:
    if character.isascii():
        return character
    name = unicodedata.name(character, "").split()
    if name[:1] != ["GREEK"] or len(name) != 4:
        return character
    word = name[3].lower().replace("lamda", "lambda")
    return f"\\{word.capitalize() if name[1] == 'CAPITAL' else word} "


def _currency(text: str) -> str:
    """Currency signs beside a number as its unit; dollar signs in pairs are mathematics and go."""
    text = text.replace(r"\$", "\x01")
    text = text.replace("$", "\x01" if text.count("$") == 1 else "").replace("\x01", "$")
    signs = "".join(map(re.escape, _CURRENCIES))
    after = rf"^([^{signs}]*\d)\s*([{signs}])\s*$"
    before = rf"^(\s*-?)\s*([{signs}])\s*([^{signs}@\\]*\d)\s*\.?\s*$"
    text = re.sub(after, lambda m: f"{m[1]} \\text{{ {_CURRENCIES[m[2]]}}}", text)
    return re.sub(before, lambda m: f"{m[1]}{m[3]} \\text{{ {_CURRENCIES[m[2]]}}}", text)


def _text_blocks(text: str) -> str:
    """Text and style commands, innermost first: mathematics in them as it is, every word of prose marked."""
    for _ in range(6):
        changed = _TEXT.sub(_block, text)
        if changed == text:
            break
        text = changed
    return text


def _block(match: re.Match[str]) -> str:
    alone = _TEXT.fullmatch(match.string.strip(" .()"))
    command, content = match.groups()
    inside, called = content.strip(" ~"), match.string[match.end() :].lstrip().startswith("(")
    if inside in FUNCTIONS or (inside in OPERATORS and called):
        return rf"\{inside} "
    is_style = bool(_STYLE.fullmatch(command)) and (command != "mathrm" or inside in ("e", "i", "d", "R"))
    if not re.search(r"[A-Za-z\u00c0-\u024f]", inside) or "\\" in inside or (is_style and len(inside) == 1):
        return f" {content} "
    if re.fullmatch(r"\(?[A-Z]\)?[.:]?|[a-z]", inside) and (alone or "(" in inside):
        return f" {inside.rstrip('.:')} "
    inside = re.sub(r"(?<=[A-Za-z])\.(?=\s|$|[A-Za-z]\.)", "", inside.replace("~", " "))
    return " " + re.sub(r"(?<![A-Za-z@])[A-Za-z\u00c0-\u024f][A-Za-z\u00c0-\u024f'-]*", _text_word, inside) + " "


def _text_word(match: re.Match[str]) -> str:
    return "," if match[0].lower() in ("and", "or") else f"@{match[0]}"


def _plain_word(match: re.Match[str]) -> str:
    """A run of letters in mathematics: a word, unless it is more likely a product of symbols such as xy or GM."""
    word = match[0]
    if word.lower() in ("and", "or"):
        return ","
    short = len(word) == 2 and word.lower() not in SHORT_WORDS
    if short or re.fullmatch(r"[abcdkmnpqrstuvwxyz]{3}|[A-Z]{3,4}", word):
        return word
    return f"@{word}"


def _repeating(text: str) -> str:
    def fraction(match: re.Match[str]) -> str:
        whole, start, period = match[1].replace(",", "") or "0", match[2], match[3] or match[4]
        top, bottom = int(whole + start + period) - int(whole + start), int("9" * len(period) + "0" * len(start))
        common = math.gcd(top, bottom)
        return rf"\frac{{{top // common}}}{{{bottom // common}}}"

    number = r"(?<![\d.^_}])(?<!\d )(\d{1,3}(?:,\d{3})+|\d*)\.(\d*)\s*"
    period = r"\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))(?!\s*[\d\\])"
    return re.sub(number + period, fraction, text)


def _arguments(text: str) -> str | None:
    r"""Braces around every argument of `\frac`, `\sqrt`, `\binom` and of powers; None where one is missing."""
    out, position = [], 0
    while position < len(text):
        command = re.compile(r"\\(frac|binom|sqrt|surd|exp)(?![A-Za-z])|\^(?=\s*\()").match(text, position)
        if command is None:
            out.append(text[position])
            position += 1
            continue
        position, name = command.end(), command[1] or "^"
        index = re.compile(r"\s*\[([^\[\]]*)\]").match(text, position) if name == "sqrt" else None
        position = index.end() if index else position
        groups = []
        for _ in range(2 if name in ("frac", "binom") else 1):
            group, position = _argument(
                text, position, plain_run=name == "surd", brackets=name in ("sqrt", "surd", "exp", "^")
            )
            inside = _arguments(group) if group else None
            if inside is None:
                return None
            groups.append("{" + inside + "}")
        prefix = {"surd": r"\sqrt", "exp": "e^", "^": "^"}.get(name, "\\" + name)
        out.append(prefix + (f"[{index[1]}]" if index else "") + "".join(groups))
    over = re.fullmatch(
        r"\{?([^\\{}]+|\\sqrt\{[^{}]*\})\s*\\over(?![A-Za-z])\s*([^\\{}]+|\\sqrt\{[^{}]*\})\}?", "".join(out)
    )
    return rf"\frac{{{over[1].strip()}}}{{{over[2].strip()}}}" if over else "".join(out)


def _argument(text: str, position: int, plain_run: bool, brackets: bool) -> tuple[str, int]:
    """The argument that starts here and where it ends: a braced group, a bracketed one, or one token."""
    position += len(text[position:]) - len(text[position:].lstrip())
    opening = text[position : position + 1]
    if opening == "{" or (opening == "(" and brackets):
        end = closing(text, position)
        return (text[position + 1 : end], end + 1) if end else ("", position)
    token = re.compile(r"\d+(?:\.\d+)?|\\[A-Za-z]+|[A-Za-z]").match(text, position)
    if token is None:
        return "", position
    if token[0].isdigit() and not plain_run:
        alone = brackets and len(token[0]) > 1  # \sqrt12 may be either; \frac12 is clear
        return ("", position) if alone else (token[0][0], position + 1)
    return token[0], token.end()


def closing(text: str, position: int) -> int | None:
    """Where the bracket that opens at `position` closes, by its own kind; None where it does not."""
    pair = {"{": "}", "(": ")", "[": "]"}[text[position]]
    depth = 0
    for place in range(position, len(text)):
        if text[place - 1 : place] == "\\" and text[place] in "{}":
            continue
        depth += (text[place] == text[position]) - (text[place] == pair)
        if depth == 0:
            return place
    return None
