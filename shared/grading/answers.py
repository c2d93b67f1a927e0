r"""Are two written mathematical answers the same? math-verify at the leaves, stricter rules above it.

What math-verify alone would accept, and this module does not: an equation chain for its last member, an interval for
the set of its ends, tuples in another order, numbers in another base, other units, and values that differ by less than
its absolute tolerance. Nothing here limits its own running time: call it through `shared.grading.verifier`, in a
process that can be killed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from shared.grading.answer_text import Answer, read_answer, too_large, unbrace

EXACT_DIGITS = 40  # working precision for two exact numbers
EXACT_RELATIVE = 1e-25  # they must agree to this
DECIMAL_RELATIVE = 1e-5  # a rounded decimal must agree to this, and to the sixth decimal place
_BRACKETS = {"(": ")", "[": "]", r"\{": r"\}"}
_BASE = re.compile(r"(?:\(\s*)?([0-9A-Fa-f]+)(?:\s*\))?\s*_\s*(?:\{\s*(\d+)\s*\}|(\d+))")
_SYMBOL = r"(?:[A-Za-z]|\\(?!frac|sqrt|text|cdot|times)[A-Za-z]+)(?:\s*_\s*(?:\{[^{}=]*\}|\w))?'*"
# f(x), f^{-1}(x), P(A), f(3), y(x): names by convention, unlike x(3), which may be a product, and unlike \sin(x).
_ARGUMENTS = r"\s*\(\s*(?:-?\d+|[A-Za-z])(?:\s*,\s*(?:-?\d+|[A-Za-z]))*\s*\)"
_FUNCTION = (
    r"(?:[dfghpqrsuvwA-Z]|\\(?!frac|sqrt|text|cdot|times|a?r?c?(?:sin|cos|tan)|cot|sec|csc|ln|log|exp|max|min|gcd|lcm|det)[A-Za-z]+)"
    rf"(?:\s*\^\s*\{{-1\}}|'+|\s*_\s*(?:\w|\{{[^{{}}=]*\}}))?{_ARGUMENTS}|[a-z]\s*\(\s*[xtnkzs]\s*\)"
)
_NAMES = r"\(\s*[a-z](?:\s*,\s*[a-z])+\s*\)"
_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)")


class UngradableGold(ValueError):
    """The reference answer cannot be read, or does not grade itself as correct."""


def same_answer(answer: str, gold: str) -> bool:
    """Whether the answer (the inside of a box) says what the gold answer says.

    Raises UngradableGold when the gold cannot be read as mathematics or as words, or fails against itself.
    """
    reference = _checked_gold(gold)
    if too_large(answer):
        return False
    return _same(read_answer(answer), reference)


@lru_cache(maxsize=4096)
def _checked_gold(gold: str) -> Answer:
    if not gold.strip():
        raise UngradableGold("the gold answer is empty")
    if too_large(gold):
        raise UngradableGold(f"the gold answer {gold[:80]!r} is too long or too large to compute with")
    reference = read_answer(gold)
    if reference.words is not None:
        if not reference.words:
            raise UngradableGold(f"the gold answer {gold!r} has no content")
    elif not _same_body(reference.body, reference.body, by_text=False):
        raise UngradableGold(f"the gold answer {gold!r} does not grade itself as correct")
    return reference


def _same(answer: Answer, gold: Answer) -> bool:
    for labelled, other in ((gold, answer), (answer, gold)):
        if labelled.label and other.words is not None:
            return labelled.label == other.words
    if gold.label and answer.label and gold.label != answer.label:
        return False
    if gold.words is not None and gold.words == answer.words:
        return True
    if not gold.body or not answer.body:
        return False
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    return _same_body(answer.body, gold.body)


def _same_body(answer: str, gold: str, by_text: bool = True) -> bool:
    """Compare two cleaned LaTeX bodies: equations, then bases, then collections element by element, then values.

    by_text=False withholds the shortcut 'same text, same answer', so that a gold answer must survive being parsed.
    """
    if by_text and answer and _squeeze(answer) == _squeeze(gold):
        return True
    answer, gold, comparable = _strip_names(unbrace(answer), unbrace(gold))
    if not comparable:
        return False
    answer, gold = _named_tuple(answer, gold), _named_tuple(gold, answer)
    bases = _BASE.fullmatch(answer), _BASE.fullmatch(gold)
    if any(bases):
        return all(bases) and _in_base(bases[0]) == _in_base(bases[1])  # type: ignore[arg-type]
    answer_kind, answer_items = _collection(answer)
    gold_kind, gold_items = _collection(gold)
    if "relation" in (_relation_kind(answer), _relation_kind(gold)):
        return _same_value(answer, gold)
    if answer_items is None and gold_items is None:
        return _same_value(answer, gold)
    if answer_items is None or gold_items is None or answer_kind != gold_kind or len(answer_items) != len(gold_items):
        return False
    if gold_kind == "set":
        return _match_unordered(answer_items, gold_items, by_text)
    return all(_same_body(a, g, by_text) for a, g in zip(answer_items, gold_items))


def _squeeze(body: str) -> str:
    """The body without its spaces, except between digits, where a space separates."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", body)


def _strip_names(answer: str, gold: str) -> tuple[str, str, bool]:
    """Drop `name =` where only one side has it; False when an equation stands where a value is expected.

    Only a single symbol may be dropped: a chain (1 = 2 = 7) or a number on the left (0 = 7) is a statement of its own.
    """
    answer, gold = (re.sub(rf"^\s*{_SYMBOL}\s*\\in(?![A-Za-z])\s*", "", text) for text in (answer, gold))
    answer, gold = _name_first(answer), _name_first(gold)
    sides = _EQUALS.split(answer), _EQUALS.split(gold)
    count = tuple(len(s) - 1 for s in sides)
    if count == (0, 0):
        return answer, gold, True
    if len(_collection(answer)[1] or ()) > 1 or len(_collection(gold)[1] or ()) > 1:
        answer_rest, gold_rest = (_after_name(s, functions=True) if len(s) == 2 else None for s in sides)
        if count == (1, 0) and answer_rest:
            return answer_rest, gold, True
        if count == (0, 1) and gold_rest:
            return answer, gold_rest, True
        return answer, gold, True  # x = 1, y = 2: the elements are compared one by one
    if max(count) > 1 and count[0] != count[1]:
        return answer, gold, False
    if count == (1, 0):
        rest = _after_name(sides[0], functions=True)
        return rest or answer, gold, rest is not None
    if count == (0, 1):
        rest = _after_name(sides[1], functions=True)
        return answer, rest or gold, rest is not None
    if count == (1, 1):
        names = _after_name(sides[0], functions=True), _after_name(sides[1], functions=True)
        if all(names) and re.sub(r"\s", "", sides[0][0]) == re.sub(r"\s", "", sides[1][0]):
            return str(names[0]), str(names[1]), True
        if all(re.fullmatch(_FUNCTION, side[0].strip()) and re.search(r"\d", side[0]) for side in sides):
            return answer, gold, False  # values of a function at two places
        return answer, gold, bool(re.search(r"[A-Za-z]", answer)) or sides[0] == sides[1]
    return answer, gold, sides[0] == sides[1]


def _name_first(body: str) -> str:
    """`value = name` turned round; anything else as it is."""
    sides = _EQUALS.split(body)
    turned = len(sides) == 2 and re.fullmatch(_SYMBOL, sides[1].strip()) and not re.fullmatch(_SYMBOL, sides[0].strip())
    return f"{sides[1].strip()}={sides[0].strip()}" if turned else body


def _after_name(sides: list[str], functions: bool = False) -> str | None:
    """Right side of `name = value`; None when the left side is no name.

    A name is one symbol; if functions count also `f(x)`, and `(x, y)` in alphabetical order before a tuple.
    """
    name, value = sides[0].strip(), sides[1].strip()
    if functions and re.fullmatch(_NAMES, name):
        names, (kind, items) = re.findall("[a-z]", name), _collection(value)
        return value if kind == "()" and items and len(items) == len(names) and names == sorted(set(names)) else None
    known = rf"{_SYMBOL}|{_FUNCTION}" if functions else _SYMBOL
    return value if value and re.fullmatch(known, name) else None


def _named_tuple(body: str, other: str) -> str:
    """`x = 1, y = 2` as (1, 2) where the other side is a tuple: different letters, in alphabetical order."""
    if _collection(other)[0] != "()":
        return body
    items = [re.fullmatch(r"([a-z])\s*=([^=]+)", item) for item in _split(body)]
    names = [item[1] for item in items if item]
    if len(names) < 2 or len(names) < len(items) or names != sorted(set(names)):
        return body
    return f"({','.join(item[2].strip() for item in items if item)})"


def _in_base(match: re.Match[str]) -> tuple[str, int]:
    return match[1].lower().lstrip("0") or "0", int(match[2] or match[3])


def _relation_kind(body: str) -> str:
    return "relation" if re.search(r"\\(?:le|ge|ne|lt|gt)(?![A-Za-z])|[<>]", body) else ""


def _split(body: str) -> list[str]:
    """Split at the commas and semicolons that stand outside every bracket."""
    parts, depth, start, position = [], 0, 0, 0
    environments = 0
    while position < len(body):
        if body.startswith(r"\begin", position) or body.startswith(r"\end", position):
            environments += 1 if body.startswith(r"\begin", position) else -1
        character = body[position]
        if character == "\\" and position + 1 < len(body) and body[position + 1] not in "{}":
            position += 2
            continue
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0 and environments == 0:
            parts.append(body[start:position].strip())
            start = position + 1
        position += 1
    return [*parts, body[start:].strip()]


def _collection(body: str) -> tuple[str, list[str] | None]:
    r"""Kind and elements of a list or bracketed collection; (kind, None) for a single value.

    Bare lists, braces and `\pm` are sets; round and square brackets with a comma are tuples or intervals, told apart
    by their two brackets (half-open intervals included).
    """
    body = body.strip()
    if re.fullmatch(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?:\\%)?", body):  # thousands, not a list
        return "value", None
    for opening in (r"\{", "(", "["):
        if not body.startswith(opening):
            continue
        for closing in (r"\}",) if opening == r"\{" else (")", "]"):
            inside = body[len(opening) : -len(closing)]
            if body.endswith(closing) and _balanced(inside):
                items = _split(inside)
                if opening == r"\{":
                    return "set", items
                return (opening + closing, items) if len(items) > 1 else ("value", None)
    items = _split(body)
    if len(items) > 1:
        return "set", items
    if body.count(r"\pm") == 1 and r"\mp" not in body:
        return "set", [body.replace(r"\pm", sign).strip() for sign in ("+", "-")]
    return "value", None


def answer_parts(text: str) -> tuple[str, list[str]]:
    """Kind and elements of a written answer that is a list, set, tuple or interval; else the answer as its one part."""
    kind, items = _collection(read_answer(text).body) if not too_large(text) else ("value", None)
    return (kind, items) if items and len(items) > 1 else ("value", [text])


def _balanced(text: str) -> bool:
    """Whether no bracket in the text closes one that was opened outside of it (half-open intervals count as one)."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _match_unordered(answers: list[str], golds: list[str], by_text: bool) -> bool:
    left = list(answers)
    for gold in golds:
        found = next((a for a in left if _same_body(a, gold, by_text)), None)
        if found is None:
            return False
        left.remove(found)
    return True


# --- values: everything below needs sympy and math-verify -----------------------------------------------------------


def _same_value(answer: str, gold: str) -> bool:
    """Compare two bodies as parsed expressions; False when either cannot be parsed."""
    from sympy import Basic, MatrixBase

    expression, reference = parse_latex(answer), parse_latex(gold)
    if not isinstance(expression, (Basic, MatrixBase)) or not isinstance(reference, (Basic, MatrixBase)):
        return False
    if isinstance(expression, MatrixBase) or isinstance(reference, MatrixBase):
        both = isinstance(expression, MatrixBase) and isinstance(reference, MatrixBase)
        return both and expression.shape == reference.shape and all(
            _same_expression(a, g) for a, g in zip(expression, reference)
        )  # fmt: skip
    return _same_expression(expression, reference)


# The parser adds two numbers that stand side by side, and drops the period of a repeating decimal.
_UNREADABLE = re.compile(
    r"(?<![\^_\d.])\d[\d.]*\s+\d|(?:^|[-+*/(=,]\s*)\d+\s*\{\s*\d|(?<![\w}\]^])\{\s*\d+\s*\}\s*\{?\s*\d"
    r"|\.\d*\s*\\(?:overline|bar|dot)(?![A-Za-z])"
)


@lru_cache(maxsize=4096)
def parse_latex(body: str) -> Any:
    """sympy expression of a LaTeX body by math-verify's parser, None if there is none. Runs as long as it runs."""
    from math_verify import LatexExtractionConfig, parse
    from math_verify.parser import NormalizationConfig

    body = unbrace(body).replace(r"^{\circ}", r"\cdot\frac{\pi}{180}")
    if mixed := re.fullmatch(r"(-?)\s*(\d+)\s+(\d+)\s*/\s*(\d+)|(-?)\s*(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", body):
        sign, whole, top, bottom = (group or "" for group in (mixed.groups()[:4] if mixed[2] else mixed.groups()[4:]))
        body = rf"{sign}\frac{{{int(whole) * int(bottom) + int(top)}}}{{{bottom}}}"
    if _UNREADABLE.search(body):
        return None
    normalization = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    config = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)
    found = parse(f"${body}$", [config], fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    return found[0] if len(found) == 1 else None


def _same_expression(expression: Any, reference: Any) -> bool:
    from math_verify import verify
    from sympy import I, Symbol
    from sympy.core.relational import Relational
    from sympy.sets import Set

    # The imaginary unit is parsed as a plain symbol unless it stands alone.
    expression, reference = (
        e.subs({s: I for s in e.free_symbols if isinstance(s, Symbol) and s.name == "i"})
        for e in (expression, reference)
    )
    if expression.is_number and reference.is_number and not isinstance(expression, (Set, Relational)):
        return _same_number(expression, reference)
    if not verify(reference, expression, allow_set_relation_comp=True, timeout_seconds=None):
        return False
    if isinstance(expression, (Set, Relational)) or isinstance(reference, (Set, Relational)):
        return True
    return _agree_at_a_point(expression, reference)


def _same_number(a: Any, b: Any) -> bool:
    """Two numbers: exactly if both are rational, to 25 digits if both are exact, to about five if one is a decimal."""
    from sympy import Float, Rational, S, simplify

    if _is_percentage(a) != _is_percentage(b):  # 7 % for 7 as well as for 0.07, as is usual in benchmarks
        plain, percentage = (a, b.doit()) if _is_percentage(b) else (b, a.doit())
        return _same_number(plain, percentage * 100) or _same_number(plain, percentage)
    a, b = a.doit(), b.doit()
    if any(value in (S.NaN, S.ComplexInfinity) for value in (a, b)):
        return False
    if (isinstance(a, Rational) and isinstance(b, Rational)) or not (a.is_finite and b.is_finite):
        return bool(a == b)
    decimal = a.has(Float) or b.has(Float)
    return _close(a, b, decimal) or (not decimal and (a - b).is_zero is not False and simplify(a - b) == 0)


def _is_percentage(value: Any) -> bool:
    from sympy import Rational, UnevaluatedExpr

    return value.is_Mul and UnevaluatedExpr(Rational(1, 100)) in value.args


def _close(a: Any, b: Any, decimal: bool) -> bool:
    """|a - b| small beside |a| and |b|; for decimals also in absolute terms. Complex numbers too."""
    a, b = a.evalf(EXACT_DIGITS), b.evalf(EXACT_DIGITS)
    difference, size = abs(a - b), max(abs(a), abs(b))
    if not (difference.is_real and size.is_real):
        return False
    if difference == 0:
        return True
    if decimal:
        return bool(difference <= DECIMAL_RELATIVE * size and difference <= max(1e-6, 1e-12 * size))
    return bool(difference <= EXACT_RELATIVE * size)


def _agree_at_a_point(a: Any, b: Any) -> bool:
    """Two symbolic expressions that were found equal must also agree, relatively, at one generic point.

    math-verify drops terms with tiny coefficients. Expressions without a value there (text, undefined) are let through.
    """
    from sympy import Float, Rational

    names = sorted({symbol.name for e in (a, b) for symbol in e.free_symbols})
    point = {name: Rational(7 + 6 * k, 5 + 4 * k) for k, name in enumerate(names)}
    a_value, b_value = (e.subs({s: point[s.name] for s in e.free_symbols}) for e in (a, b))
    if not (a_value.is_number and b_value.is_number):
        return True
    return _close(a_value, b_value, a.has(Float) or b.has(Float))
