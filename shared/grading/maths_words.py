r"""Words beside a value: which are units, scales or a harmless lead. Every list is closed.

A word outside of these lists is never dropped, so that "7 thirds", "about 7" or "7 is wrong" cannot become 7. Texts
come from `maths_text.plain`, with words marked `@word`.
"""

from __future__ import annotations

import re

# One unit a line of spellings, the first of which stands for it. Short ones count as written (m is not M), longer ones
# in any case and in the plural. Nothing is converted into anything.
_UNITS = """
    cm centimeter centimetre; mm millimeter millimetre; km kilometer kilometre; m meter metre; in inch inches;
    ft foot feet; yd yard; mi mile; kg kilogram; mg milligram; g gram; lb lbs pound; oz ounce; s sec second; min
    minute; h hr hrs hour; d day; week; month; year yr yrs; deg degree; rad radian; dollar usd; cent; euro eur;
    sterling gbp; rupee inr; yen jpy; L l liter litre; mL ml milliliter millilitre; unit; mph; kph; kmh; N
    newton; kN; J joule; kJ; W watt; kW; MW; V volt; A amp ampere; Pa pascal; kPa; MPa; Hz hertz; kHz; MHz; GHz;
    nm nanometer nanometre; eV electronvolt; keV; MeV; GeV; mol mole; K kelvin; C celsius; F fahrenheit; erg
    ergs; ohm; kcal; cal calorie; atm; bar; arcsec arcsecs; pc parsec; mag magnitude; angstrom; ms; ns; hectare;
    acre
"""
_COUNTED = """
    apple orange banana pear egg cookie candy candies marble ball coin stamp ticket student child children boy
    girl man men woman women person people player member friend book page card chair table seat room house car
    bus buses train dog cat bird fish cow horse chicken tree flower point side edge vertex vertices face angle
    triangle integer way solution arrangement combination permutation pair digit step move turn game team vote
    piece box boxes bag bottle cup slice item element term subset handshake path route word letter question
    problem
"""
_UNIT_OF = {spelling: unit.split()[0] for unit in _UNITS.split(";") for spelling in unit.split()}
_UNIT_OF |= {word: word for word in _COUNTED.split()}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PARTS = {"tenth": 10, "hundredth": 100, "thousandth": 1000}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Two letters that are words or units also outside of a text block; others are products of symbols.
SHORT_WORDS = _words("no is of to if so as by at it in on we cm mm km kg ft")
_FILLERS = _words("so thus hence therefore")
# Prose that may stand before a value, if it ends in "is", "are", "equals", ":" or "=".
_LEAD = _FILLERS | _words("""
    the a an final correct answer answers value values result solution solutions roots total sum product
    difference area volume perimeter length width height radius diameter distance probability number quantity
    expression function equation measure angle side circle triangle rectangle polygon figure of our we get have
    obtain is are equals equal to in for it this that expected mean median mode slope ratio cost price amount
    time speed age sphere region domain range minimum maximum least greatest smallest largest possible
""")
_NAMING = _FILLERS | _words("the final answer value result solution of is for we get have obtain")
_MEASURES = _words("area volume perimeter length width height radius diameter distance probability total")


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
    """The text without prose before its value ("the answer is", "Area of the circle =", "an area of"), if any."""
    while (first := re.match(r"@(\w+)\s*,?\s*(?=\S)", text)) and first[1].lower() in _FILLERS:
        text = text[first.end() :]
    ending = r"@(?:is|are|equals|equal\s+@to)(?!\w)|=|(?<=\w\w):|(?<=\w\w\s):"
    lead = re.match(rf"(@[^:=]*(?:{ending}))\s*(?!\s*=)(.+)\Z", text, re.DOTALL)
    lead = lead or re.match(r"((?:@an?\s+|@the\s+)?@(?:" + "|".join(_MEASURES) + r")\s+@of)\s+(?=[-\d\\(])(.+)\Z", text)
    if lead is None or "@" in re.sub(
        r"@(\w+)", lambda m: "" if m[1].lower() in _LEAD or len(m[1]) == 1 else "@", lead[1]
    ):
        return text
    named = re.match(rf"(.*?)(?<!\w)@?([A-Za-z])\s*(?:{ending})\Z", lead[1], re.DOTALL)
    if named and not lead[1].endswith(":"):  # "the value of x is": the letter is the name of what follows
        words = re.findall(r"@(\w+)", named[1])
        plain_name = all(word.lower() in _NAMING for word in words) and not re.sub(r"@\w+|[,\s]", "", named[1])
        return f"{named[2]}={lead[2]}" if plain_name else text
    lone = any(len(word) == 1 and word.lower() != "a" for word in re.findall(r"@(\w+)", lead[1]))
    return text if lone or re.sub(r"@\w+|[:=,\s]", "", lead[1]) else lead[2]
