r"""Values of mathematical answers: one LaTeX expression to an exact sympy expression, and the proof that two are equal.

math-verify's parser reads what `plain` has made of a text, but only where one reading is possible: see `parse_value`.
Numbers stay exact. Nothing here limits its own time: it runs in `shared.grading.pool`.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import Any

from grpo_replications.shared.grading.maths_text import FUNCTIONS, GREEK, closing

_ACCENTS = "hat|bar|vec|tilde|dot|ddot"
_LETTER = (
    rf"(?:[A-Za-z]|\\(?:{'|'.join(GREEK)})(?![A-Za-z])"
    rf"|\\(?:{_ACCENTS})\s*(?:[A-Za-z]|\{{(?:[A-Za-z]|\\[a-z]+)\}})|\\mathbb\{{?[A-Z]\}}?)"
)
NAME = _LETTER + r"(?:\s*_\s*(?:\{[^{}=]*\}|\w))?'*"  # a symbol with its index and its primes
_GIVEN = r"\s*\(\s*(?:-?\d+|[A-Za-z])(?:\s*,\s*(?:-?\d+|[A-Za-z]))*\s*\)"  # x(0), I(t): a symbol of its own
_SYMBOL = re.compile(rf"(\\(?!(?:{'|'.join(GREEK)}|{_ACCENTS})(?![A-Za-z]))[A-Za-z]+)|{NAME}(?:{_GIVEN})?")
_CALL = re.compile(
    rf"\\(?:{'|'.join(FUNCTIONS)})(?![A-Za-z])\s*(?:\^\s*\{{?-?\d\}}?|_\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})?"
)
_BARE_ARGUMENT = re.compile(
    r"\s*((?:\\frac\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\\sqrt)\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\|[^|]*\|"
    r"|(?:\d+(?:\.\d+)?\s*)?(?:(?:x_\{\d+\}|\\pi(?![A-Za-z])|e|i)(?:\s*\^\s*\{[^{}]*\})?\s*)*)"
    r"(?=\s*(?:[-+)},|]|\Z|\\(?!cdot)))"
)
_KNOWN = re.compile(
    r"\s+|x_\{\d+\}|\d+(?:\.\d+)?|\.\d+|[ei](?![A-Za-z])|[-+/^(){}!|,\[\]]|\\(?:frac|sqrt|binom|cdot|pi|infty|"
    r"lfloor|rfloor|lceil|rceil|gcd|lcm|max|min|log_|" + "|".join(FUNCTIONS) + r")(?![A-Za-z])|_(?=\{)"
)  # fmt: skip
_NOT_ONE_READING = re.compile(
    r"(?<![\d.])\d+\s+\.?\d|[)}!|x]\s*\.?\d(?<!x_\{\d)|[-+/^(]\s*[/^)}]|[-+]\s*[-+]|(?:[-+/^]|\\cdot)\s*\Z|\A\s*[/^!]|\(\s*\)|"
    r"\{\s*\}|!\s*!|(?<![}\]^_a-z])\s*\{|\^\s*\{\s*[-+]?\s*\}|\d\.\d+\.|\\cdot\s*(?:\\cdot|/|\Z)|/\s*\\cdot"
)


@lru_cache(maxsize=8192)
def parse_value(body: str) -> Any:
    """sympy expression of one value by math-verify's parser, with exact numbers; None unless there is one reading.

    The parser lowers the case of symbols, drops primes, reads `2(3)` as 5 and `\\gamma` as a constant; so every symbol
    is renamed and every product, argument and decimal made explicit before it sees them.
    """
    explicit = _explicit(body)
    if explicit is None:
        return None
    from math_verify import LatexExtractionConfig, parse
    from math_verify.parser import NormalizationConfig
    from sympy import Expr, I

    normalization = NormalizationConfig(basic_latex=False, boxed="none")
    config = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)
    try:
        found = parse(f"${explicit}$", [config], fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
        if len(found) != 1 or not isinstance(found[0], Expr):
            return None
        written = found[0].subs({symbol: I for symbol in found[0].free_symbols if symbol.name == "i"})
        return written.doit() if _is_defined(found[0]) else None
    except MemoryError:
        raise
    except Exception:  # the libraries raise many types on what they cannot compute: unreadable, never a crash
        return None


def _explicit(body: str) -> str | None:
    if "@" in body or "=" in body or body.count("|") not in (0, 2) or not body.strip():
        return None
    if r"\infty" in body and not re.fullmatch(r"[-+]?\s*\\infty\s*", body):
        return None
    body = re.sub(r"(\^\{\d+\})\s+(?=\d)", r"\1\\cdot ", re.sub(r"_\s*([A-Za-z0-9])", r"_{\1}", body))
    if re.search(r"(?<![\d.])\d+\s+\.?\d(?!\s*\d*\s*/)", body) or re.search(
        r"(?<![A-Za-z\\])[fghFGH]\s*\((?!\s*(?:-?\d+|[A-Za-z])\s*[,)])", body
    ):
        return None
    body = (
        re.sub(r"(\d+(?:\.\d+)?)\s*\^\{\\circ\}", r"(\1\\cdot\\frac{\\pi}{180})", body)
        if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", body)
        else body
    )
    mixed = re.compile(r"(?<![\d.^_}x])(\d+)\s*(?:\\frac\{(\d+)\}\{(\d+)\}|\s(\d+)\s*/\s*(\d+)(?![\d.]))")
    for match in mixed.finditer(body):
        if not 0 < int(match[2] or match[4]) < int(match[3] or match[5]):
            return None
    body = mixed.sub(lambda m: rf"({m[1]}+\frac{{{m[2] or m[4]}}}{{{m[3] or m[5]}}})", body)
    body = re.sub(r"\\log(?![A-Za-z_])(?!\s*_)", r"\\log_{x_{0}}", body)  # of no stated base: not 10, not e
    body = _SYMBOL.sub(_renamed, body)
    body = re.sub(r"(\([^()]*x_\{\d+\}[^()]*\))\s*(?=\d)", r"\1\\cdot ", body)
    position, out = 0, ""
    for call in _CALL.finditer(body):
        if call.start() < position:
            return None
        out += body[position : call.end()]
        position = call.end()
        rest = body[position:].lstrip()
        if not rest.startswith(("(", "{")):
            argument = _BARE_ARGUMENT.match(body, position)
            if argument is None or not argument[1].strip():
                return None
            out += f"({argument[1].strip()})"
            position = argument.end(1)
    body = out + body[position:]
    if (
        "".join(_KNOWN.findall(body)) != body
        or re.search(r"[\d)}!|]\s*_", body)  # 101_2, which is no number here
        or _NOT_ONE_READING.search(re.sub(r"\|([^|]*)\|", r"(\1)", body))
        or _ambiguous_quotient(body)
    ):
        return None
    body = re.sub(r"(?<![\d.])(\d*)\.(\d+)", lambda m: rf"(\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}})", body)
    keep = rf"(?:{_CALL.pattern}|\\(?:gcd|lcm|max|min|sqrt|frac|binom)(?![A-Za-z]))\s*\("
    body = re.sub(rf"({keep})|(?<=[\d)}}!|ei])(\s*)(?=\()", lambda m: m[0] if m[1] else r"\cdot ", body)
    return re.sub(r"(?<=[)}!])\s*(?=x_|[ei](?![A-Za-z])|\d)", r"\\cdot ", body)


def _is_defined(written: Any) -> bool:
    """Whether no part of an expression as it is written (not evaluated) is undefined: 1/0, 0^0, the logarithm of 0."""
    from sympy import Pow, S, preorder_traversal

    for part in preorder_traversal(written):
        if part.is_Atom or part.free_symbols:
            if part.has(S.NaN, S.ComplexInfinity):
                return False
            continue
        value = part.doit()
        if value.has(S.NaN, S.ComplexInfinity) or (value.is_infinite and not written.has(S.Infinity)):
            return False
        if isinstance(part, Pow) and not part.exp.doit().is_positive and part.base.doit().equals(0):
            return False
    return True


def _renamed(match: re.Match[str]) -> str:
    if match[1]:
        return match[0]
    name = re.sub(r"\s+", "", match[0])
    if name in ("e", "i"):
        return name
    return f"x_{{{int.from_bytes(re.sub(r'[{}]', '', name).encode(), 'big') % (10**15 + 37)}}}"


def _ambiguous_quotient(body: str) -> bool:
    """Whether something is divided by a product that no sign or bracket shows: 1/2x, a/(b)c."""
    for slash in re.finditer(r"/\s*", body):
        rest = body[slash.end() :]
        end = closing(rest, 0) if rest.startswith("(") else None
        operand = re.match(r"x_\{\d+\}|\\(?:pi|infty)|[\d.]+|[ei]", rest)
        after = rest[end + 1 :] if end else rest[operand.end() :] if operand else ""
        if re.match(r"\s*(?:x_|[ei(\d]|\\(?!cdot|rfloor|rceil))", after):
            return True
    return False


def ratio_sign(a: Any, b: Any) -> str:
    """The sign of a constant, nonzero ratio of two expressions that are not constant; "" where there is none."""
    from sympy import cancel, expand, simplify

    if not a.free_symbols or a.free_symbols != b.free_symbols or expand(a) == 0 or expand(b) == 0:
        return ""
    ratio = simplify(cancel(a / b))
    return ("+" if ratio.is_positive else "-" if ratio.is_negative else "") if ratio.is_number else ""


def equal_values(a: Any, b: Any) -> bool:
    """Whether two sympy expressions are proved to be the same number, or the same function on the same domain."""
    from sympy import I, S, expand, expand_func, simplify, symbols

    if any(value.has(S.NaN, S.ComplexInfinity) for value in (a, b)):
        return False
    if a == b or a.is_infinite or b.is_infinite:
        return a == b
    if a.is_Rational and b.is_Rational:
        return False
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    if not _agree_at_points(a, b, names):
        return False
    positive = dict(zip(names, symbols(f"y:{len(names)}", positive=True))) if names else {}
    difference = (a - b).subs(positive)
    for step in (expand, simplify, lambda d: simplify(expand_func(d)), lambda d: simplify(d.expand(complex=d.has(I)))):
        if (difference := step(difference)) == 0:
            return True
    return not names and not difference.has(I) and difference.equals(0) is True


def _agree_at_points(a: Any, b: Any, names: list[Any]) -> bool:
    """Whether two expressions agree to 25 digits at rational points of either sign, real or not at the same ones.

    The points are small, near 10^2, near 10^5 and beyond every large integer in the expressions.
    """
    from sympy import I, Integer, Pow, Rational

    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    signs = ((1, 1), (-1, -1), (1, -1), (-1, 1)) if names else ((1, 1),)
    compared = 0
    largest = max((abs(number) for one in (a, b) for number in one.atoms(Integer)), default=0)
    sizes = (0, 100, 100_000, *((10 * largest,) if 10_000 < largest < 10**30 else ())) if names else (0,)
    powers = [power for one in (a, b) for power in one.atoms(Pow)]
    if any(power.base.free_symbols and power.exp.free_symbols for power in powers):
        sizes = sizes[:2]  # a^n at 10^5 would take seconds
    for turn, (size, pair) in enumerate(itertools.product(sizes, signs)):
        point = {
            name: pair[k % 2] * (size + Rational(primes[(k + 3 * turn + 4) % 12] + k // 12, primes[(k + turn) % 12]))
            for k, name in enumerate(names)
        }
        values = [one.subs(point).evalf(30) for one in (a, b)]
        if not all(value.is_number and value.is_finite for value in values):
            if sum(bool(value.is_finite) for value in values) == 1:  # undefined on one side only
                return False
            continue
        scale = max(abs(value) for value in values)
        real = [abs(value.as_real_imag()[1]) <= scale * Rational(1, 10**20) for value in values]
        if real[0] != real[1]:
            return False
        if not real[0] and names and not (a.has(I) or b.has(I)):
            continue
        compared += 1
        if abs(values[0] - values[1]) > scale * Rational(1, 10**25):
            return False
    return compared > 0


def determinant(rows: list[list[Any]]) -> Any:
    from sympy import Matrix

    return Matrix([[cell.value for cell in row] for row in rows]).det()
