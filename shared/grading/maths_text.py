r"""Typography of written answers: Unicode, spacing, shorthand and text blocks to one plain LaTeX, with words marked.

`plain` turns what an author may type into the little LaTeX that `maths_answers` reads: explicit braces, no style, no
Unicode, every word of prose or of a unit as `@word`. Lists of words are closed: a word outside of them is never
dropped, so that "7 thirds", "about 7" or "7 is wrong" cannot become 7.
"""

from __future__ import annotations

import math
import re
import unicodedata

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
GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell"
).split()
FUNCTIONS = "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc ln log".split()
OPERATORS = "gcd lcm max min".split()
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "sterling", "₹": "rupee", "¥": "yen"}

# spelling -> unit; short ones as written (m is not M), longer ones in any case. Nothing is converted into anything.
_UNITS = """cm centimeter centimetre;mm millimeter millimetre;km kilometer kilometre;m meter metre;in inch inches;ft foot
 feet;yd yard;mi mile;kg kilogram;mg milligram;g gram;lb lbs pound;oz ounce;s sec second;min minute;h hr hrs hour;d day;
 week;month;year yr yrs;deg degree;rad radian;dollar usd;cent;euro eur;sterling gbp;rupee rupees inr;yen jpy;L l liter
 litre;mL ml milliliter millilitre;unit;mph;kph;kmh;N newton;kN;J joule;kJ;W watt;kW;MW;V volt;A amp ampere;Pa pascal;
 kPa;MPa;Hz hertz;kHz;MHz;GHz;nm nanometer nanometre;eV electronvolt;keV;MeV;GeV;mol mole;K kelvin;C celsius;F fahrenheit;
 erg ergs;ohm;kcal;cal calorie;atm;bar;arcsec arcsecs;pc parsec;mag magnitude magnitudes;angstrom;ms;ns;hectare;acre
"""
_COUNTED = """apple orange banana pear egg cookie candy candies marble ball coin stamp ticket student child children boy
 girl man men woman women person people player member friend book page card chair table seat room house car bus buses
 train dog cat bird fish cow horse chicken tree flower point side edge vertex vertices face angle triangle
 integer way solution arrangement combination permutation pair digit step move turn game team vote
 piece box boxes bag bottle cup slice item element term subset handshake path route word letter question problem
"""
_UNIT_OF = {spelling: unit.split()[0] for unit in _UNITS.split(";") for spelling in unit.split()}
_UNIT_OF |= {word: word for word in _COUNTED.split()}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PARTS = {"tenth": 10, "hundredth": 100, "thousandth": 1000}
# Two letters that are words or units also outside of a text block; others are products of symbols.
_SHORT_WORDS = frozenset("no is of to if so as by at it in on we cm mm km kg ft".split())
# Prose that may stand before a value, if it ends in one of the last line's marks.
_FILLERS = frozenset("so thus hence therefore".split())
_LEAD = _FILLERS | frozenset(
    """the a an final correct answer value result solution total sum product difference area volume perimeter length
 width height radius diameter distance probability number quantity expression function equation measure angle side
 circle triangle rectangle polygon figure of our we get have obtain is are equals equal to in for it
 this that expected mean median mode slope ratio cost price amount time speed age sphere region domain range
 minimum maximum least greatest smallest largest possible value values solutions answers roots
""".split()
)
_MEASURES = frozenset("area volume perimeter length width height radius diameter distance probability total".split())

_STYLE = "mathbf mathit mathsf mathnormal mathcal boldsymbol bm pmb emph textit textbf textsf underline mathrm".split()
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
_NAMED = [(re.compile(pattern), replacement) for pattern, replacement in [
    (r"\\[dtcs]frac(?![A-Za-z])", r"\\frac"), (r"\\(?:leq(?:slant)?|leqq)(?![A-Za-z])", r"\\le "),
    (r"\\(?:geq(?:slant)?|geqq)(?![A-Za-z])", r"\\ge "), (r"\\neq(?![A-Za-z])", r"\\ne "), (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"), (r"\\(?:times|ast)(?![A-Za-z])|\*(?!\*)", r"\\cdot "), (r"\\div(?![A-Za-z])", "/"),
    (r"\\[dt]?binom(?![A-Za-z])", r"\\binom"), (r"\\lbrace(?![A-Za-z])", r"\\{"), (r"\\rbrace(?![A-Za-z])", r"\\}"),
    (r"[(\[]\s*\\begin\{array\}\s*\{[lcr| ]*\}(.*?)\\end\{array\}\s*[)\]]", r"\\begin{pmatrix}\1\\end{pmatrix}"),
    (r"\\[lr]?vert(?![A-Za-z])", "|"), (r"\\varnothing(?![A-Za-z])", r"\\emptyset "), (r"\\colon(?![A-Za-z])", ":"),
    (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])", r"^{\\circ}"),
    (r"\{\s*\}\s*\^\{\\circ\}", r"^{\\circ}"), (r"\^\s*\{?\s*\\prime\s*\}?", "'"), (r"\\mathbb\s*R(?![A-Za-z])", r"\\mathbb{R}"),
    (r"\\textcolor\s*\{[^{}]*\}\s*\{([^{}]*)\}", r" \1 "), (r"(?<![A-Za-z\\])(?:np|math)\.(?=[a-z])", ""), (r"\\cancel(?![A-Za-z])", r"\\unreadable"),
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
    if text.lstrip().startswith("~"):  # a space to LaTeX, "about" to everyone else
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
    return re.sub(rf"^(\s*-?)\s*([{signs}])\s*([^{signs}@\\]*\d)\s*\.?\s*$", lambda m: f"{m[1]}{m[3]} \\text{{ {_CURRENCIES[m[2]]}}}",
                  re.sub(rf"^([^{signs}]*\d)\s*([{signs}])\s*$", lambda m: f"{m[1]} \\text{{ {_CURRENCIES[m[2]]}}}", text))  # fmt: skip


def _text_blocks(text: str) -> str:
    """Text and style commands, innermost first: mathematics in them as it is, every word of prose marked."""
    for _ in range(6):
        alone = _TEXT.fullmatch(text.strip(" .()"))
        changed = _TEXT.sub(lambda match: _block(match, bool(alone)), text)
        if changed == text:
            break
        text = changed
    return text


def _block(match: re.Match[str], alone: bool) -> str:
    command, content = match.groups()
    inside, called = content.strip(" ~"), match.string[match.end() :].lstrip().startswith("(")
    if inside in FUNCTIONS or (inside in OPERATORS and called):
        return rf"\{inside} "
    is_style = command in _STYLE and (command != "mathrm" or inside in ("e", "i", "d", "R"))
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
    short = len(word) == 2 and word.lower() not in _SHORT_WORDS
    if short or re.fullmatch(r"[abcdkmnpqrstuvwxyz]{3}|[A-Z]{3,4}", word):
        return word
    return f"@{word}"


def _repeating(text: str) -> str:
    def fraction(match: re.Match[str]) -> str:
        whole, start, period = match[1].replace(",", "") or "0", match[2], match[3] or match[4]
        top, bottom = int(whole + start + period) - int(whole + start), int("9" * len(period) + "0" * len(start))
        common = math.gcd(top, bottom)
        return rf"\frac{{{top // common}}}{{{bottom // common}}}"

    pattern = r"(?<![\d.^_}])(?<!\d )(\d{1,3}(?:,\d{3})+|\d*)\.(\d*)\s*\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))(?!\s*[\d\\])"
    return re.sub(pattern, fraction, text)


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


def _unit_word(word: str) -> str | None:
    for spelling in (word, word.lower() if len(word) > 3 else word):
        for form in (spelling, re.sub(r"s$", "", spelling) if len(spelling) > 3 else spelling):
            if form in _UNIT_OF:
                return _UNIT_OF[form]
    return None


def unit_of(text: str) -> tuple[str, str, bool] | None:
    """(unit, factor in LaTeX, known) of what stands behind a value; None where it is more than a unit.

    The unit is one spelling for each unit, with its powers. Scale words (million, dozen, tenths, percent) are factors.
    """
    parts: list[tuple[str, bool]] = []  # (unit^power, whether it stands behind a stroke)
    factor, known, power, below = "", True, "", False
    tokens = re.findall(r"@[^\s@^/{}\\]+|\^\s*\{[^{}]*\}|/|\\cdot|\\%|\S", text.replace(r"@per @cent", r"\%"))
    for token in tokens:
        word = token[1:] if token.startswith("@") else ""
        low = word.lower()
        singular = low[:-1] if low.endswith("s") else low
        if token == r"\%" or low in ("percent", "percentage"):
            factor += r"\cdot\frac{1}{100}"
        elif singular in _SCALES and not parts:
            factor += rf"\cdot 10^{{{_SCALES[singular]}}}"
        elif singular in _PARTS and not parts:
            factor += rf"\cdot\frac{{1}}{{{_PARTS[singular]}}}"
        elif low == "dozen" and not parts:
            factor += r"\cdot 12"
        elif low in ("square", "sq", "cubic", "cu"):
            power = "^2" if low.startswith("sq") else "^3"
        elif token == "/" or low == "per":
            below = True
        elif token == r"^{\circ}":
            parts.append(("deg^1", below))
        elif word:
            unit = _unit_word(word)
            known = known and unit is not None
            parts.append(((unit or word) + (power or "^1"), below))
            power, below = "", False
        elif re.fullmatch(r"\^\s*\{\s*-?\d\s*\}", token) and parts:
            parts[-1] = (parts[-1][0].split("^")[0] + "^" + re.sub(r"[\^{}\s]", "", token), parts[-1][1])
        elif token != r"\cdot":
            return None
    if power or below:
        return None
    return (
        " ".join(unit.replace("^", "^-").replace("--", "") if under else unit for unit, under in parts),
        factor,
        known,
    )


def without_lead(text: str) -> str:
    """The text without prose before its value ("the answer is", "Area of the circle =", "an area of"); else as it is."""
    while (first := re.match(r"@(\w+)\s*,?\s*(?=\S)", text)) and first[1].lower() in _FILLERS:
        text = text[first.end() :]
    lead = re.match(r"(@(?:[^:=]|@)*(?:@(?:is|are|equals|equal\s+@to)(?!\w)|[:=]))\s*(?!\s*=)(.+)\Z", text, re.DOTALL)
    lead = lead or re.match(r"((?:@an?\s+|@the\s+)?@(?:" + "|".join(_MEASURES) + r")\s+@of)\s+(?=[-\d\\(])(.+)\Z", text)
    if lead is None or "@" in re.sub(
        r"@(\w+)", lambda m: "" if m[1].lower() in _LEAD or len(m[1]) == 1 else "@", lead[1]
    ):
        return text
    rest = re.sub(r"@\w+|[:=,\s]", "", lead[1])
    return lead[2] if not rest or re.fullmatch(r"[a-zA-Z]", rest) else text
