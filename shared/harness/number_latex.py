r"""Numbers in LaTeX: macros that print them, the line that defines one, and text that LaTeX prints as it stands.

The macros need no package.  Where siunitx is loaded its `\num` prints the digits, so that they follow the document's
decimal marker; otherwise they stand in math mode, with proper minus signs and powers of ten.  A number and an interval
never break across lines.  Names are read by `\detokenize`, so that characters which babel makes active (`:` and `;` in
French) do no harm, and the macros are robust: they may stand in captions and headings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from grpo_replications.shared.harness.number_format import Digits, in_digits
from grpo_replications.shared.harness.numbers import UNKNOWN_INTERVAL, Number

MACROS = r"""% \repnum{NAME} prints value, unit, interval and n; a part of it:
% \repval, \repint, \repkind, \repunit, \repn, \repcommit.
% \repseparator stands between the ends of an interval.
\makeatletter
\providecommand*\repdefine[9]{%
  \expandafter\def\csname replication:\detokenize{#1}\endcsname##1{%
    \ifcase##1\or#2\or#3\or#4\or#5\or#6\or#7\or#8\or#9\fi}}
\providecommand*\repget[2]{%
  \ifcsname replication:\detokenize{#2}\endcsname\csname replication:\detokenize{#2}\endcsname{#1}%
  \else\errmessage{No replication number is called \detokenize{#2}}\fi}
\DeclareRobustCommand*\repdigits[2]{\@ifundefined{ver@siunitx.sty}%
  {\mbox{\ensuremath{#2}}}{\mbox{\num[retain-explicit-plus,round-mode=none]{#1}}}}
\providecommand*\repseparator{%
  \@ifundefined{ver@siunitx.sty}{,}{\@ifundefined{captionsfrench}{,}{;}}}
\DeclareRobustCommand*\reprange[2]{\mbox{[#1\repseparator\ #2]}}
\DeclareRobustCommand*\repval[1]{\repget1{#1}}
\DeclareRobustCommand*\repint[1]{\repget2{#1}}
\DeclareRobustCommand*\repkind[1]{\repget3{#1}}
\DeclareRobustCommand*\repunit[1]{\repget4{#1}}
\DeclareRobustCommand*\repn[1]{\repget5{#1}}
\DeclareRobustCommand*\repcommit[1]{\repget6{#1}}
\DeclareRobustCommand*\repnum[1]{\repget7{#1}}
\DeclareRobustCommand*\replicationvalue[1]{\repget1{#1}}% value alone, and value with interval
\DeclareRobustCommand*\replicationnumber[1]{\repget8{#1}}
\makeatother
"""
SPECIAL = {
    **{character: f"\\{character}" for character in "%&#_{}$"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\ensuremath{<}", ">": r"\ensuremath{>}", "|": r"\ensuremath{|}", '"': "''", "`": r"\textasciigrave{}"},
}
MATH = {
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "η": "eta", "θ": "theta"},
    **{"λ": "lambda", "μ": "mu", "ν": "nu", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "varphi", "ψ": "psi"},
    **{"ω": "omega", "Δ": "Delta", "Σ": "Sigma", "Π": "Pi", "Ω": "Omega", "Φ": "Phi"},
    **{"∇": "nabla", "∑": "sum", "∏": "prod", "∞": "infty", "∂": "partial", "√": "surd", "∈": "in"},
    **{"≤": "leq", "≥": "geq", "≠": "neq", "≈": "approx", "∼": "sim", "∝": "propto", "≡": "equiv", "≪": "ll"},
    **{"×": "times", "·": "cdot", "⋅": "cdot", "±": "pm", "÷": "div", "→": "rightarrow", "←": "leftarrow"},
    **{"⇒": "Rightarrow", "‖": "Vert", "∥": "Vert", "⟨": "langle", "⟩": "rangle", "⊥": "perp"},
    **{"′": "prime", "≫": "gg", "∘": "circ"},
}
WORDS = {
    **{"–": "--", "—": "---", "…": r"\ldots{}", "“": "``", "”": "''", "‘": "`", "’": "'", "−": r"\ensuremath{-}"},
    **{"\u00a0": "~", "\u202f": r"\,", "\u2009": r"\,", "‰": r"\ensuremath{10^{-3}}"},
    **{
        "½": r"\ensuremath{\frac12}",
        "¼": r"\ensuremath{\frac14}",
        "°": r"\ensuremath{^\circ}",
        "ℓ": r"\ensuremath{\ell}",
    },
}
BAR = "\u0304"  # the combining character over x in the mean of x


def latex_text(text: str) -> str:
    """Plain text for LaTeX with its default encoding: special characters escaped, Greek and mathematics in math mode.

    A letter with an accent is left to LaTeX's own UTF-8; what it cannot print becomes a question mark.
    """
    parts = re.split(f"(.){BAR}", unicodedata.normalize("NFC", text))  # plain text and barred letters in turn
    return "".join(
        rf"\ensuremath{{\bar{{{part}}}}}" if number % 2 else "".join(map(_character, part))
        for number, part in enumerate(parts)
    )


def _character(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if character in WORDS:
        return WORDS[character]
    if character in MATH:
        return rf"\ensuremath{{\{MATH[character]}}}"
    if character.isascii() or "À" <= character <= "ſ":
        return character
    compatible = unicodedata.normalize("NFKD", character).replace("−", "-")
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind in ("<super>", "<sub>") and compatible.isascii():
        return rf"\ensuremath{{{'^' if kind == '<super>' else '_'}{{{compatible}}}}}"
    plain = "".join(part for part in compatible if part.isascii() and part.isprintable())
    return latex_text(plain) if plain else "?"


def latex_digits(digits: Digits) -> str:
    r"""`\repdigits{-3.9e-14}{-3.9\times10^{-14}}`: for siunitx, and for math mode without it."""
    return rf"\repdigits{{{digits.plain}}}{{{digits.latex}}}"


def latex_range(low: str, high: str) -> str:
    r"""`\reprange{low}{high}`, which prints `[low, high]` unbroken."""
    return rf"\reprange{{{low}}}{{{high}}}"


def latex_parts(
    number: Number,
    digits: Callable[[Digits], str] = latex_digits,
    interval_of: Callable[[str, str], str] = latex_range,
) -> dict[str, str]:
    """Value, interval, its kind, unit and n of a number, for LaTeX; an absent one is empty.

    `digits` and `interval_of` write one number and an interval.
    """
    ends = () if number.low is None else (number.low, number.high)
    value, *interval = (digits(one) for one in in_digits(number.value, *ends, signed=number.is_difference))
    kind = "" if number.interval == UNKNOWN_INTERVAL else number.interval.partition(",")[0]
    counted = in_digits(number.n)[0].latex
    return {
        "value": value,
        "interval": interval_of(*interval) if interval else "",
        "kind": latex_text(kind.replace("95 %", "95\u202f%")),
        "unit": latex_text(number.unit.partition(",")[0]),
        "n": rf"\mbox{{\ensuremath{{n={counted}}}}}~{latex_text(number.counted)}" if number.n else "",
    }


def latex_sentence(parts: dict[str, str]) -> str:
    """`value (unit; 95 % CI [low, high]; n = 20 seeds)` from the parts."""
    interval = f"{parts['kind']} {parts['interval']}" if parts["interval"] else ""
    details = "; ".join(part for part in (parts["unit"], interval, parts["n"]) if part)
    return f"{parts['value']} ({details})" if details else parts["value"]


def definition_line(name: str, number: Number) -> str:
    r"""The line that makes `\repnum{name}` print this number."""
    parts = latex_parts(number)
    short = " ".join(part for part in (parts["value"], parts["interval"]) if part)
    fields = [*parts.values(), latex_text(number.checkout[:12]), latex_sentence(parts), short]
    return rf"\repdefine{{{name}}}" + "".join(f"{{{field}}}" for field in fields)


def numbers_tex(numbers: Iterable[Number]) -> str:
    r"""LaTeX that knows every number by its id: `\input{numbers}`, then `\repnum{id}`."""
    lines = [definition_line(number.id, number) for number in numbers]
    return "\n".join(["% Generated by: replicate report", MACROS.rstrip(), *lines]) + "\n"
