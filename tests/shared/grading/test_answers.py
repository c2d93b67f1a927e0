"""Which notations of one answer are the same, each kind beside the near misses that are not."""

from __future__ import annotations

import pytest

from shared.grading.answer_text import clean, read_answer, unbrace
from shared.grading.rewards import is_correct
from shared.grading.verifier import UngradableGoldError, Verifier

ENDLESS = r"\binom{10^{9}}{5\cdot 10^8}"  # only the clock ends it

# kind: (pairs of answer and gold that say the same, pairs that do not)
KINDS: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "powers of units": (
        [
            ("15", r"15\mbox{ cm}^2"),
            (r"12\text{ cm}^2", "12"),
            (r"36\pi\text{ cm}^2", r"36\pi"),
            (r"36\pi", r"36\pi\text{ cm}^2"),
            (r"12\text{ cm^2}", "12"),
            ("12", r"12\text{ cm^{2}}"),
            ("12 cm^2", "12"),
            ("12cm²", "12"),
            ("12 cm^2", r"12\text{ cm}^{2}"),
            (r"864\text{ in}^2", r"864 \mbox{ inches}^2"),
            (r"12\text{ square cm}", r"12\text{ cm}^2"),
            ("12 sq. cm", r"12\text{ cm}^2"),
            (r"12\text{ square units}", r"12\text{ units}"),
            (r"9.8\,\mathrm{m/s}^2", r"9.8\text{ m s}^{-2}"),
            (r"60\text{ km}/\text{h}", r"60\text{ km per hour}"),
            (r"60\text{ mph}", r"60\text{ miles per hour}"),
            (r"\text{The area is } 12\text{ cm}^2", "12"),
        ],
        [
            ("225", r"15\mbox{ cm}^2"),
            (r"12\text{ cm}^2", "144"),
            ("12 cm^2", "144"),
            ("144", r"12\text{ cm^{2}}"),
            ("13", r"12\text{ cm^{2}}"),
            (r"12\text{ cm}^2", r"12\text{ cm}^3"),
            (r"12\text{ cm}^2", r"12\text{ m}^2"),
            (r"12\text{ cm}^2", r"12\text{ cm}"),
            ("12cm^2", "12cm^3"),
            (r"5\mathrm{cm}^3", "125"),
            (r"60\text{ mph}", r"60\text{ km/h}"),
            (r"\frac{1}{3} ml^2", r"\frac13"),
            ("9", r"3\text{ apples}^2"),
            ("9", r"3\mathrm{x}^2"),
        ],
    ),
    "side by side": (
        [
            ("1 000", "1000"),
            ("3 1/2", "3.5"),
            (r"3 \frac 1 2", "3.5"),
            (r"\frac 34", "3/4"),
            (r"\frac1{72}", "1/72"),
            ("2^3 3^2", "72"),
            (r"2\sqrt 3", r"2\sqrt{3}"),
        ],
        [
            ("5 2", "7"),
            ("20 5", "25"),
            ("2 30", "32"),
            ("5 2", "10"),
            (r"5\quad 2", "7"),
            (r"5\mbox{ }2", "7"),
            ("5{2}", "7"),
            ("{5}{2}", "7"),
            (r"\textcolor{red}{5}2", "7"),
            ("3 5x", "8x"),
        ],
    ),
    "text between values": (
        [
            (r"2\text{ hours }30\text{ minutes}", r"2\text{ h }30\text{ min}"),
            (r"5\text{ feet } 3\text{ in}", r"5\text{ feet }3\text{ inches}"),
            (r"6\operatorname{cis}75^\circ", r"6\text{ cis }75^\circ"),
            (r"3 \text{ and } 5", "3,5"),
            (r"5\text{ cm}, 3\text{ cm}", "5, 3"),
            (r"3\text{ cm}+2\text{ cm}", "5"),
            (r"30\text{ min}", "30"),
            (r"\min(3,5)", "3"),
        ],
        [
            ("32", r"2\text{ h }30\text{ min}"),
            ("8", r"5\text{ feet }3\text{ inches}"),
            (r"5\text{ feet }4\text{ inches}", r"5\text{ feet }3\text{ inches}"),
            ("5", r"3\text{ R }2"),
            (r"81^\circ", r"6\text{ cis }75^\circ"),
            (r"x\text{ is }5", "5x"),
            (r"3\text{ to }4", "7"),
        ],
    ),
    "repeating decimals": (
        [
            (r"\frac13", r"0.\overline{3}"),
            (r"0.\overline{3}", "1/3"),
            (r"0.\bar 3", r"0.\dot{3}"),
            (r".\overline3", "1/3"),
            (r"0.1\overline{6}", "1/6"),
            (r"-1.\overline{3}", "-4/3"),
            (r"1,234.\overline{5}", r"1234+\frac59"),
            (r"2.\overline{03}", r"\frac{67}{33}"),
            (r"0.\dot{1}4285\dot{7}", "1/7"),
            (r"0.\overline{9}", "1"),
            (r"1-0.\overline{3}", "2/3"),
            (r"0.\overline{3}x", r"\frac x3"),
            (r"0.\overline{3}, 0.\overline{6}", r"\frac13, \frac23"),
        ],
        [
            ("0", r"0.\overline{3}"),
            (r"0.\overline{4}", r"0.\overline{3}"),
            (r"2.\overline{03}", r"2.0\overline{3}"),
            (r"0.\overline{3}", "0.3333"),
            (r"0.\overline{3}5", r"0.\overline{3}"),
            (r"0.1\overline{23}4", "0.1"),
            (r"0.\overline{ab}", "0"),
            (r"5 0.\overline{3}", r"5\frac13"),
            (r"\overline{z}", "z"),
        ],
    ),
    "bare negative powers": (
        [
            ("10^-3", "0.001"),
            ("10^-12", "10^{-12}"),
            ("1.5*10^-7", r"1.5\times 10^{-7}"),
            ("x^-1", r"\frac1x"),
            ("2^-1x", r"\frac x2"),
            ("2^-0.5", r"\frac{1}{\sqrt2}"),
        ],
        [("10^-3", "1000"), ("x^-1", "x-1"), ("10^-12", r"\frac{2}{10}")],
    ),
    "thousands": (
        [
            (r"11,\! 111,\! 111,\! 100", "11111111100"),
            ("11111111100", r"11,\!111,\!111,\!100"),
            (r"11, \! 111, \! 111, \! 100", "11111111100"),
            (r"1\!,234\!,567", "1234567"),
        ],
        [("1, 234", "1234"), (r"1,\! 23", "123"), (r"11,\! 111", "11112")],
    ),
    "the empty set": (
        [(r"\emptyset", r"\varnothing"), (r"\{\}", "∅"), (r"\emptyset", r"\{\}"), (r"\{ \}", r"\{\}")],
        [(r"\{0\}", r"\emptyset"), ("0", r"\{\}"), (r"\{\emptyset\}", r"\emptyset"), (r"\phi", r"\emptyset")],
    ),
    "equations turned round": (
        [
            ("4=x^2+y^2", "x^2+y^2=4"),
            ("x^2+y^2=4", "4=x^2+y^2"),
            ("5=x", "x=5"),
            ("5", "5=x"),
            ("5=x", "5"),
        ],
        [
            ("4=x^2-y^2", "x^2+y^2=4"),
            ("x=5", "6=x"),
            ("y=5", "5=x"),
            ("7=0", "7"),
            ("7=1+6", "7"),
            ("7=x=1", "7"),
            ("7=xy", "7"),
            ("2=x", "x^2=4"),
        ],
    ),
    "named functions": (
        [
            ("f(x)=x^2+1", "x^2+1"),
            ("f(3)=5", "5"),
            (r"P(A)=\frac34", "3/4"),
            ("f^{-1}(x)=2x", "2x"),
            ("x(t)=2t", "2t"),
            (r"\phi(12)=4", "4"),
        ],
        [
            ("f(x)=x^2-1", "x^2+1"),
            ("f(3)=5", "3"),
            ("f(3)=5", "f(4)=5"),
            ("f(x)=2x", "g(x)=2x"),
            ("f(2)=x=3", "3"),
            ("x(5)=10", "10"),
            ("2f(x)=5", "5"),
            (r"\sin(x)=\frac12", r"\frac12"),
            ("(x+1)(x-1)=0", "0"),
        ],
    ),
    "style": (
        [
            (r"\mathbf{\frac34}", "3/4"),
            (r"\boldsymbol{\frac{3}{4}}", "3/4"),
            (r"\boldsymbol{1,234}", "1234"),
            (r"\boldsymbol{1},\bm{2}", "1,2"),
            (r"\boldsymbol{(1,2)}", "(1,2)"),
            (r"\boldsymbol{(1,2]}", "(1,2]"),
            (r"\mathsf{7}", "7"),
            (r"\color{red}7", "7"),
            (r"{\color{red} 7}", "7"),
            (r"\textcolor{blue}{\frac34}", "3/4"),
            (r"\textcolor{red}{7}+1", "8"),
            (r"{\Large 7}", "7"),
            (r"\bf{7}", "7"),
            (r"\underline{7}", "7"),
            (r"1+2\mathrm{i}", "1+2i"),
            (r"\mathrm{e}^2", "e^2"),
            (r"\mathbf{C}", r"\text{(C)}"),
            (r"\mathbf{Tuesday}", r"\text{Tuesday}"),
        ],
        [
            (r"\bm{7}", "8"),
            (r"\boldsymbol{(1,2)}", "(2,1)"),
            (r"1+2\mathrm{i}", "3"),
            (r"\mathrm{e}^2", "2"),
            (r"3\mathbf{v}", "3"),
            (r"\color{red}{5}", "6"),
        ],
    ),
    "named tuples": (
        [
            ("(x,y)=(1,2)", "(1,2)"),
            ("(1,2)", "(x,y)=(1,2)"),
            ("(a,b,c)=(1,2,3)", "(1,2,3)"),
            ("x=1,y=2", "(1,2)"),
            (r"x=1 \text{ and } y=2", "(1,2)"),
        ],
        [
            ("(x,y)=(2,1)", "(1,2)"),
            ("(y,x)=(1,2)", "(1,2)"),
            ("(y,x)=(2,1)", "(x,y)=(1,2)"),
            ("(2,1)=(1,2)", "(1,2)"),
            ("(x,y)=(1,2,3)", "(1,2,3)"),
            ("(x,y)=5", "5"),
            ("x=2,y=1", "(1,2)"),
            ("y=2,x=1", "(1,2)"),
            ("x=1,x=2", "(1,2)"),
            ("x=1,y=2", "[1,2]"),
        ],
    ),
    "braces of sets": (
        [("{1,2,3}", r"\{1,2,3\}"), (r"\lbrace 1,2,3\rbrace", r"\{3,2,1\}"), ("({1,2},{3,4})", r"(\{1,2\},\{3,4\})")],
        [("{1,2,4}", r"\{1,2,3\}"), ("{1,2,3}", "(1,2,3)")],
    ),
    "currencies": (
        [("€12", "12"), ("12€", "12"), ("£12", "12"), ("€1,234.50", "1234.5"), ("12 euros", "€12")],
        [("€12", "13"), ("12€", "£12"), (r"12\text{ dollars}", "£12")],
    ),
    "multiple choice": (
        [
            (r"\textbf{(C)}\ 24", "C"),
            ("C", r"\textbf{(C)}\ 24"),
            ("24", r"\textbf{(C)}\ 24"),
            (r"\textbf{(C)}\ -24", "-24"),
            (r"\textbf{(C) } \frac{1}{2}", "1/2"),
        ],
        [
            (r"\textbf{(C)}\ 24", "D"),
            (r"\textbf{(C)}\ 24", "25"),
            (r"\textbf{(D)}\ 24", r"\textbf{(C)}\ 24"),
            (r"\textbf{(C)}\ 25", r"\textbf{(C)}\ 24"),
            (r"\textbf{(A)}\ 1\qquad\textbf{(B)}\ 2", "A"),
            (r"\textbf{(A)}\ 1\qquad\textbf{(B)}\ 2", "1"),
        ],
    ),
    "times of day": (
        [
            ("5:30 pm", r"5:30\text{ p.m.}"),
            (r"\text{5:30 P.M.}", r"5:30\text{ p.m.}"),
            ("5:30", r"5:30\text{ p.m.}"),
        ],
        [("5:30 am", r"5:30\text{ p.m.}"), (r"5:30\text{ a.m.}", "5:30 pm"), ("5:31 pm", "5:30 pm"), ("5am", "5")],
    ),
    "rows and products": (
        [
            (r"\begin{pmatrix}1\\[4pt]2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
            (r"\[5\]", "5"),
            ("ab", "ba"),
            (r"x\cdot y", "yx"),
            ("zyx", "xyz"),
        ],
        [
            (r"\begin{pmatrix}1\\[4pt]3\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
            ("ab", "ac"),
            ("ab", "a+b"),
            ("no", "on"),
            ("AB", "BA"),
        ],
    ),
}
CASES = [
    pytest.param(answer, gold, right, id=f"{kind}:{answer}:{gold}")
    for kind, both in KINDS.items()
    for right, pairs in zip((True, False), both)
    for answer, gold in pairs
]


@pytest.mark.parametrize("answer, gold, right", CASES)
def test_kinds(answer: str, gold: str, right: bool) -> None:
    assert is_correct(rf"\boxed{{{answer}}}", gold) is right


@pytest.mark.parametrize(
    "text, cleaned",
    [
        (r"0.\overline{142857}", r"\frac{1}{7}"),
        (r"-2.1\bar{6}", r"-\frac{13}{6}"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\textcolor{red}{7}", "7"),
        (r"2^\mathrm{i}", "2^ i"),
    ],
)
def test_clean(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@pytest.mark.parametrize(
    "body, inside",
    [
        ("{7}", "7"),
        ("{{ 7 }}", "7"),
        ("{1,2}", r"\{1,2\}"),
        ("{1,234}", "1,234"),
        ("{1}{2}", "{1}{2}"),
        ("{(1,2)}", "(1,2)"),
    ],
)
def test_unbrace(body: str, inside: str) -> None:
    assert unbrace(body) == inside


def test_units_keep_their_powers() -> None:
    units = [r"1\text{ m}^3", "1 m/s", r"1\text{ m/s^2}", r"1\text{ cubic feet}", r"1\text{ kg m}^2"]
    assert [read_answer(unit).unit for unit in units] == ["m^3", None, "m s^-2", "ft^3", "kg m^2"]


def test_a_gold_that_runs_out_of_time_is_refused_and_a_slow_answer_is_wrong() -> None:
    verifier = Verifier(seconds=1.0)
    verifier.grade("1", "1")
    with pytest.raises(UngradableGoldError, match="too long"):
        verifier.grade("7", ENDLESS)
    assert verifier.grade(ENDLESS, "7") is False
    assert verifier.grade("7", ENDLESS, seconds=0.2) is False  # a shorter limit than its own proves nothing
    verifier.close()
