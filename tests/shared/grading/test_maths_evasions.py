"""Answers that come near a gold answer without saying it: other letters or notation, hedges, several values."""

from __future__ import annotations

import pytest

from grpo_replications.shared.grading.maths_answers import same_answer

# gold answer: what must not be paid for it; " ;; " stands between answers
EVASIONS = {
    r"7": (
        r"7\,\text{m}\text{ish} ;; 7 apples and 3 pears ;; \text{7 apples and }3 ;; 7' ;; 7'' ;; 7^\prime ;; "
        r"7_{1} ;; 7^{*} ;; 7* ;; \bar{7} ;; \hat{7} ;; \vec{7} ;; \underline{7}8 ;; \sqrt7 ;; |7 ;; (7 ;; 7) ;; "
        r"[7]x ;; \lfloor7.9\rceil ;; 7\pm0.1 ;; 7\pm 0.5 ;; 7-8 ;; 6-8 ;; ~7 ;; ≈7 ;; ≥7 ;; >7 ;; \geq 7 ;; "
        r"7^+ ;; 7^- ;; 7+ ;; 7- ;; 7..8 ;; 7...8 ;; 7; 8 ;; 7|8 ;; 7/8/1 ;; 7\\8 ;; 7\text{ or maybe }8 ;; "
        r"\text{7 or 8} ;; 7\text{e}1 ;; 7e1 ;; 7E ;; 7i ;; 7e ;; 7x ;; x7 ;; 7\pi ;; 7\% ;; 7‰ ;; VII ;; seven ;; "
        r"\text{seven} ;; 0x7 ;; 07:00 ;; 7:00 ;; 7\text{ pm} ;; 7\text{ squared meters}^2\text{ over }2 ;; "
        r"7\text{ times} ;; 7\text{ more} ;; 7\text{ pairs of two} ;; 7\text{ degrees of }8 ;; "
        r"7\text{ million dollars} ;; 7\text{ thousandths} ;; 7\text{ percent} ;; 7\text{ per }100 ;; "
        r"7\text{ per cent} ;; 7\text{ in}^{-1}\text{ no} ;; \text{the sum is not }7 ;; "
        r"\text{the answer can't be }7 ;; \text{the product of 2 and }7 ;; \text{the number of sides is not }7 ;; "
        r"\text{the difference of }7 ;; \text{the sum of }7 ;; \text{the value of }7! ;; \text{total of }-7 ;; "
        r"\text{the largest of }7, 8 ;; \text{half is }7 ;; \text{its double is }7 ;; \text{The cube root is }7 ;; "
        r"-\text{The answer is }7 ;; 1-\text{answer: }7 ;; \text{answer: }-7 ;; \text{answer} - 7 ;; "
        r"2\text{ answer: }7 ;; \text{If } x=7 ;; x=7\text{ or }x=8 ;; x=7, 8 ;; x=7, y=8 ;; x\to7 ;; x\equiv7 ;; "
        r"7\pmod{8} ;; 7\bmod 8 ;; x\equiv7\pmod 8 ;; \{x: x=7\} ;; \{7\} ;; {7,} ;; (7,) ;; <7> ;; "
        r"\langle7\rangle ;; ⌈7 ;; \neg7 ;; \lnot 7 ;; !7 ;; ¬7 ;; \xcancel{7} ;; \not=7 ;; \not 7 ;; \ne 7 ;; "
        r"\sout{7} ;; \phantom{7} ;; \text{\sout{7}} ;; \phantom{1}7 ;; \textcolor{red}{7}5 ;; 7\tag{8} ;; "
        r"7\footnote{no} ;; 7 \% 8 ;; 7\ \text{(not }8) ;; \frac{7}{1}\frac{1}{2} ;; 7\frac{0}{1} ;; "
        r"7\frac{3}{3} ;; 7 0/1 ;; 2^3-1.0000000000000000000001 ;; 7.00000000000000000000000001 ;; 7,0 ;; 7,000 ;; "
        r"7.000,0"
    ),
    r"7.5": r"7,5",
    r"1000": r"1,00,0 ;; 1.000",
    r"1.5": r"1,5",
    r"12345": r"12,34,5",
    r"12": r"1 2 ;; 1,2 ;; 1\,2 ;; 1\!2x ;; \gcd(4,6)=12",
    r"123": r"1 2 3",
    r"0": r"10^{-30} ;; \frac{1}{10^{300}} ;; \sin(\pi)+10^{-25} ;; x-y ;; \frac{0}{0} ;; \infty-\infty",
    r"1": r"0.\overline{9}8 ;; \tanh(50) ;; \sin^2 x+\cos^2 y ;; \frac{x}{y} ;; \frac{\infty}{\infty}",
    r"262537412640768744": r"e^{\pi\sqrt{163}}",
    r"x": r"X ;; \chi ;; × ;; x' ;; x_1 ;; -x ;; x+10^{-150}\sqrt{2}",
    r"v": r"\nu",
    r"w": r"\omega",
    r"p": r"\rho",
    r"o": r"0",
    r"l": r"1",
    r"I": r"1 ;; i",
    r"e": r"E ;; \epsilon",
    r"E": r"e",
    r"i": r"I",
    r"\epsilon": r"\varepsilon",
    r"\phi": r"\varphi",
    r"\theta": r"\Theta",
    r"B": r"\beta ;; (A)\ B",
    r"d": r"D",
    r"k": r"K",
    r"m": r"M",
    r"\sigma": r"\Sigma",
    r"\mu": r"u",
    r"ab": r"aB ;; a_b ;; a^b ;; \frac{a}{b}",
    r"abc": r"acb2",
    r"xy": r"x,y ;; x(y)",
    r"a(b)": r"ab",
    r"x(t)": r"xt",
    r"f(x)": r"fx",
    r"f(2)": r"2f",
    r"P(A)": r"PA ;; p(A) ;; P(a)",
    r"y'": r"y",
    r"y''": r"y'",
    r"\dot{x}": r"x",
    r"\ddot{x}": r"\dot{x}",
    r"\vec{v}": r"v",
    r"\bar{x}": r"x",
    r"\hat{p}": r"p",
    r"x_{12}": r"x_1 ;; x_{1}2",
    r"a_n": r"a_{n+1}",
    r"a_{n+1}": r"a_n+1",
    r"x^2": r"2x ;; x2",
    r"x^{2}": r"x^{-2}",
    r"x^{10}": r"x^1 0 ;; x^10y",
    r"2^{10}": r"2^10x",
    r"\sqrt{x}": r"x",
    r"\sqrt[3]{x}": r"\sqrt{x} ;; 3\sqrt{x}",
    r"x^{1/3}": r"x^1/3",
    r"e^{x+1}": r"e^x+1",
    r"\ln x": r"\log_{10} x",
    r"\log x": r"\ln x ;; \log_{10}x",
    r"2": r"\log 100 ;; \text{lcm}(4,6)=2",
    r"\log_2 x": r"\log_3 x",
    r"\log_2 3": r"\log 23",
    r"\sin x": r"\sin^{-1}x ;; \cos x",
    r"\sin^{-1}x": r"\frac{1}{\sin x}",
    r"\sin(x)^2": r"\sin(x^2)",
    r"\tan x": r"\arctan x",
    r"|x|": r"x",
    r"\sqrt{(x-1)^2}": r"x-1",
    r"\frac{x^2}{x}": r"x^2",
    r"(a+b)^2": r"a^2+b^2",
    r"\frac{1}{a+b}": r"\frac1a+\frac1b",
    r"\frac{a+b}{c}": r"a+\frac{b}{c}",
    r"\frac{a}{b}": r"a/b/1/b",
    r"n!": r"n",
    r"(n+1)!": r"n+1!",
    r"(2n)!": r"2n!",
    r"\binom{n}{k}": r"\binom{k}{n} ;; \frac{n}{k}",
    r"\lfloor x\rfloor": r"x",
    r"\lceil x\rceil": r"\lfloor x\rfloor",
    r"\lfloor x\rfloor+1": r"\lceil x\rceil",
    r"x^2+1": r"x^2+1+10^{-120}y",
    r"(1,2)": (
        r"(1,2 ;; 1,2) ;; (1;2;3) ;; (1,2)^T ;; 2(1,2) ;; -(1,2) ;; (1,2),(1,2) ;; ((1,2))x ;; (1.0,2.1) ;; "
        r"(1,2)\cup(1,2) ;; 1<x<2 \text{ or } x>5 ;; 1<x,x<3"
    ),
    r"[1,2]": r"\{1,2\} ;; 1..2",
    r"\{1,2\}": r"\{\{1,2\}\} ;; \{1,2,\ldots\} ;; \{1,2,3\}\setminus\{4\}",
    r"\{1,2,3\}": r"\{1,\ldots,3\}",
    r"1,2,3": r"1,2,\text{ or }4",
    r"1,2": r"1,2? ;; 1,2,? ;; 1,2,etc ;; 1,2,\text{ etc} ;; 12 ;; 1.2 ;; \frac12",
    r"(2,3)": r"2\cdot3",
    r"(-\infty,3)": r"x<3, x>5 ;; x\le3",
    r"(3,\infty)": r"3",
    r"x>3": r"y>3 ;; 3>x",
    r"3<x<5": r"3<x ;; 3<x>5 ;; 5<x<3 ;; 3>x>5",
    r"x=3": r"x=3=3 ;; x=-3 ;; x==3 ;; x:=4 ;; x\ne 3 ;; x\approx3 ;; 3=y",
    r"x=3,y=4": r"x=4,y=3 ;; 3,5",
    r"y=x+1": r"y=x+1=0 ;; x=y+1 ;; y>x+1",
    r"x^2=4": r"x=2",
    r"xy=1": r"x+y=1",
    r"2x+3y=6": r"2x+3y=7 ;; 2x+3y ;; 6",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": (
        r"\begin{pmatrix}1&3\\2&4\end{pmatrix} ;; \begin{pmatrix}1&2&3&4\end{pmatrix} ;; "
        r"-\begin{pmatrix}1&2\\3&4\end{pmatrix} ;; \begin{pmatrix}1&2\\3&4\end{pmatrix}^{-1}"
    ),
    r"\begin{pmatrix}1\\2\end{pmatrix}": r"1,2 ;; \frac12",
    r"52_8": r"42_{10} ;; 52 ;; 520_8 ;; 5.2_8 ;; 52_{8}+1",
    r"10_2": r"2",
    r"1A_{16}": r"1a_{17}",
    r"5\text{ m}": r"5\text{ M}",
    r"5\text{ mW}": r"5\text{ MW}",
    r"5\text{ g}": r"5\text{ G}",
    r"5\text{ K}": r"5\text{ k}",
    r"5\text{ m}^2": r"5\text{ m}^3 ;; 5\text{ m}",
    r"5\text{ m/s}": r"5\text{ s/m}",
    r"5\text{ kg m}": r"5\text{ kg/m}",
    r"5\text{ km/h}": r"5\text{ mph}",
    r"5\text{ hours}": r"5\text{ minutes}",
    r"5\text{ dollars}": r"5\text{ cents}",
    r"\$5": r"5\text{ cents} ;; €5",
    r"5\text{ apples}": r"5\text{ oranges}",
    r"5\text{ rad}": r"5^\circ",
    r"5^\circ\text{C}": r"5^\circ",
    r"5\text{ square meters}": r"5\text{ meters}",
    r"5\text{ sq ft}": r"5\text{ ft}",
    r"5\text{ units}^2": r"5\text{ units}^3",
    r"5\%": r"5 ;; 0.5",
    r"5": (
        r"5\% ;; 2+2=5 ;; x=2+2=5 ;; 5=5=5 ;; \text{Area}:12:5 ;; 5:\text{area} ;; \pi=5 ;; e=5 ;; i=5 ;; 2=5 ;; "
        r"-5=5 ;; x^2=5 ;; 5x=5 ;; |x|=5 ;; x!=5 ;; x+y=5 ;; f(x)+1=5 ;; \sqrt{x}=5 ;; \log x=5 ;; "
        r"\frac{dy}{dx}+1=5 ;; \lim_{x\to0}f(x)+1=5 ;; \text{not }x=5 ;; x\text{ is not }5 ;; \lnot x=5 ;; "
        r"AB+BC=5 ;; \triangle=5? ;; x=5! ;; x=5\text{ is wrong}"
    ),
    r"50\%": r"50.0",
    r"yes": r"no ;; \text{yes, no} ;; \text{yes?}x",
    r"\text{even}": r"\text{odd} ;; \text{not even} ;; \text{even or odd}",
    r"\text{Alice}": r"\text{Alice and Bob} ;; \text{not Alice} ;; A",
    r"\text{no solution}": r"\text{solution} ;; 0",
    r"\text{(A)}": r"A or B ;; \text{not }A ;; AA ;; a ;; \alpha ;; A, A",
    r"\text{A}": r"\text{A }3",
    r"A": r"\text{(A)}\text{(B)} ;; \text{A: no}",
    r"24": r"(A)\ 24 (B)\ 25",
    r"-2": r"\begin{vmatrix}1&2\\3&4\end{vmatrix}+1",
    r"3": r"\max(3,4) ;; \gcd(3,4)",
    r"4": r"2+2=4=5",
}


@pytest.mark.parametrize(
    "gold, answer",
    [
        pytest.param(gold, one, id=f"{gold}<-{one!r}")
        for gold, answers in EVASIONS.items()
        for one in answers.split(" ;; ")
    ],
)
def test_evasions_are_not_paid(gold: str, answer: str) -> None:
    assert same_answer(gold, gold)
    assert not same_answer(answer, gold)
