"""Maths grading: kind by kind, answers that are right and near misses that must never be paid."""

from __future__ import annotations

import ast
import json
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_replications.shared.grading.completions import boxed_answer, completion_text, last_boxed
from grpo_replications.shared.grading.maths_answers import UngradableGoldError, answer_parts, same_answer
from grpo_replications.shared.grading.maths_text import too_large
from grpo_replications.shared.tasks.math import problems_from

DATA = Path(__file__).parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this clone")

# kind: gold answer, answers that say the same, answers that do not; " ;; " stands between answers
KINDS: dict[str, list[tuple[str, str, str]]] = {
    "numbers": [
        (
            r"9",
            r"9.0 ;; +9 ;; 09 ;; 3^2 ;; \sqrt{81} ;; 9!/8! ;; \frac{18}{2} ;; \text{9}",
            r"9! ;; -9 ;; 9.0000001 ;; 99 ;; 0.9 ;; \frac19 ;; 9 9 ;; 9^{+} ;; \overline{9} ;; \cancel{9} ;; "
            r"~9 ;; 9?",
        ),
        (
            r"100000000000",
            r"100,000,000,000 ;; 10^{11} ;; 1e11",
            r"100000000001.0 ;; 100000000000.5 ;; 1e12 ;; 10^{-11}",
        ),
        (
            r"5^{-50}",
            r"\frac{1}{5^{50}}",
            r"5^{-51} ;; 0",
        ),
        (
            r"\frac37",
            r"3/7 ;; \dfrac{3}{7} ;; \frac{6}{14} ;; 3⁄7 ;; \tfrac37",
            r"0.428571 ;; 0.4286 ;; 7/3 ;; 37 ;; 3\frac17",
        ),
        (
            r"\frac{5}{4}",
            r"1.25 ;; 1\frac14 ;; 1 1/4 ;; 1¼ ;; \frac54",
            r"1.3 ;; 1\cdot\frac14 ;; 14 ;; 5:4",
        ),
        (
            r"-3.5",
            r"-3 1/2 ;; -3\frac{1}{2} ;; −3.5 ;; -7/2 ;; ﹣3.5",
            r"3.5 ;; -2.5 ;; -3, 5",
        ),
        (
            r"e^3",
            r"e\cdot e^2 ;; \exp(3)",
            r"20.0855 ;; E^3 ;; e^{3.0001} ;; 3^e ;; 3e",
        ),
        (
            r"\pi",
            r"π ;; \frac{2\pi}{2}",
            r"3.14 ;; 3.14159265358979 ;; \frac{22}{7} ;; p ;; \Pi ;; 180",
        ),
        (
            r"4\sqrt{2}",
            r"4√2 ;; \sqrt{32} ;; 4*sqrt(2) ;; \frac{8}{\sqrt2} ;; 4\cdot 2^{1/2}",
            r"4 ;; \sqrt{2} ;; 5.657 ;; 4\sqrt[3]{2} ;; 4\cdot 2",
        ),
        (
            r"\frac{1}{1+\sqrt{2}}",
            r"\sqrt2-1",
            r"1-\sqrt2 ;; \sqrt{2}+1 ;; 0.41421356",
        ),
        (
            r"\sqrt{2}+\sqrt{3}",
            r"\sqrt{5+2\sqrt{6}}",
            r"\sqrt{5} ;; \sqrt{2}+\sqrt{3}+10^{-60} ;; \sqrt{2}+\sqrt{3}+10^{-200}\sqrt{5}",
        ),
        (
            r"10",
            r"2(5) ;; (2)(5) ;; 2\cdot5 ;; \frac{20}{2}",
            r"7 ;; 25 ;; 2{5} ;; {2}{5} ;; 2 5 ;; 5\quad 2",
        ),
        (
            r"24",
            r"4! ;; \binom{24}{1}",
            r"4!! ;; 24!",
        ),
        (
            r"0.000123",
            r"1.23\times10^{-4} ;; 1.23e-4 ;; 1.23·10⁻⁴",
            r"1.23e-3 ;; 0.0001230001 ;; 0",
        ),
        (
            r"2^{20}",
            r"1048576 ;; 4^{10}",
            r"1048575 ;; 2^2 0 ;; 40",
        ),
        (
            r"0.\overline{6}",
            r"2/3",
            r"0.6 ;; 0.6667 ;; 0.67",
        ),
        (
            r"3+2i",
            r"2i+3 ;; 3+2\mathrm{i} ;; (3+2i)",
            r"3-2i ;; 5 ;; 3+2j ;; 3+2 ;; 2+3i",
        ),
        (
            r"\log_3 81",
            r"4",
            r"81/3 ;; 27 ;; \log 81",
        ),
        (
            r"\infty",
            r"∞",
            r"-\infty ;; oo ;; 8",
        ),
    ],
    "signs and digits": [
        (
            r"-12",
            r"−12 ;; –12 ;; - 12 ;; －１２ ;; -\,12",
            r"12 ;; --12 ;; -1 2 ;; \pm12 ;; 12-",
        ),
        (
            r"2500000",
            r"2,500,000 ;; 2 500 000 ;; 2\,500\,000 ;; 2{,}500{,}000 ;; 2.5\times 10^6 ;; 2.5\text{ million}",
            r"2,500,00 ;; 2.5 ;; 2,500,001 ;; 2.5\text{ billion}",
        ),
        (
            r"30",
            r"30° ;; 30^\circ ;; 30. ;; 30\text{ degrees} ;; 𝟑𝟎",
            r"30' ;; 30^\circ 30' ;; 30% ;; 30\text{ radians}^2\text{ or so}",
        ),
    ],
    "words beside a value": [
        (
            r"6",
            r"\text{The answer is } 6 ;; \text{so the total is }6 ;; 6\text{ students} ;; \text{6 ways} ;; "
            r"Answer: 6 ;; \text{Perimeter} = 6",
            r"6\text{ is wrong} ;; about 6 ;; \text{not }6 ;; 6\text{ halves} ;; 6\text{ squared} ;; "
            r"\text{twice }6 ;; \text{less than }6 ;; 6\text{ or fewer} ;; 6\text{ factorial} ;; "
            r"\text{the square of }6 ;; 6\text{ hundred} ;; 6\text{ percent} ;; 6\text{ dozen} ;; "
            r"\text{one more than }6 ;; \text{the negative of }6 ;; 6\text{ lakh} ;; "
            r"\text{my first guess was }6 ;; 6\text{ (unlikely)} ;; \text{the answer is not }6 ;; "
            r"\text{the wrong answer is }6 ;; \text{the square of x is }6 ;; 6\text{ mod }7 ;; "
            r"6\text{ in base }7 ;; \approx 6 ;; \sim 6 ;; 6\text{ thirds} ;; 6\text{ if }x>0 ;; "
            r"\text{at most }6 ;; 6\ldots ;; 6\text{ to }7",
        ),
        (
            r"72",
            r"6\text{ dozen}",
            r"",
        ),
        (
            r"0.03",
            r"3\text{ hundredths} ;; 3\% ;; \frac{3}{100}",
            r"3 ;; 3\text{ thousandths}",
        ),
        (
            r"\text{Friday}",
            r"Friday ;; \text{friday} ;; \textbf{Friday}",
            r"Monday ;; \text{not Friday} ;; \text{Friday or Monday} ;; 5",
        ),
        (
            r"\text{no}",
            r"no ;; \textbf{No}",
            r"yes ;; \text{yes and no} ;; on ;; \text{not no} ;; 0",
        ),
        (
            r"\text{(D)}",
            r"D ;; (D) ;; \textbf{D} ;; \text{D} ;; \textbf{(D)}\ 17",
            r"d ;; A ;; \text{A or D} ;; (A)(D) ;; C, D ;; E ;; D' ;; DD ;; \text{(D) or (E)} ;; \text{(D)}+1",
        ),
        (
            r"\textbf{(B)}\ 12",
            r"B ;; 12 ;; \textbf{(B)}\ 12",
            r"A ;; \textbf{(A)}\ 12 ;; \textbf{(B)}\ 13 ;; \textbf{(A)}\ 11 \textbf{(B)}\ 12",
        ),
    ],
    "units": [
        (
            r"8\text{ kV}",
            r"8",
            r"8\text{ V} ;; 8\text{ MV} ;; 9 ;; 8000\text{ V}",
        ),
        (
            r"3\text{ eV}",
            r"3\,\mathrm{eV} ;; 3",
            r"3\text{ keV} ;; 3\text{ J} ;; 3\text{ ev}",
        ),
        (
            r"12\text{ cm}",
            r"12\mathrm{~cm} ;; 12\text{ centimeters} ;; 12 cm ;; 12",
            r"12\text{ m} ;; 12\text{ mm} ;; 12\text{ cm}^2 ;; 0.12\text{ m} ;; 12\text{ inches}",
        ),
        (
            r"9.8\text{ m/s}^2",
            r"9.8\mathrm{~m}/\mathrm{s}^{2} ;; 9.8\text{ m s}^{-2} ;; 9.8",
            r"9.8\text{ m/s} ;; 9.8\text{ km/h} ;; 9.8\text{ m s}^{2}",
        ),
        (
            r"4\text{ N}",
            r"4 ;; 4\mathrm{N} ;; 4\text{ newtons}",
            r"4\text{ n} ;; 4n ;; 4N ;; 4\text{ kN} ;; 4\text{ J}",
        ),
        (
            r"100",
            r"100\text{ dollars} ;; \$100 ;; €100 ;; 100€",
            r"100\% ;; 100\text{ percent} ;; 100\text{ thousand}",
        ),
        (
            r"75\%",
            r"75\% ;; 75\text{ percent} ;; \frac34 ;; 0.75",
            r"75 ;; 7.5\% ;; 0.0075",
        ),
        (
            r"37^\circ\text{C}",
            r"37^\circ\mathrm{C} ;; 37",
            r"37^\circ\text{F} ;; 37\text{ K}",
        ),
        (
            r"7:45",
            r"7:45\text{ p.m.} ;; 7：45",
            r"7/45 ;; 7.45 ;; 45:7 ;; 7:46 ;; 7:45:00",
        ),
        (
            r"7:45\text{ a.m.}",
            r"7:45 am",
            r"7:45\text{ p.m.}",
        ),
        (
            r"£20",
            r"20 ;; £ 20",
            r"21 ;; €20 ;; \$20",
        ),
    ],
    "letters": [
        (
            r"n",
            r"n ;; \mathbf{n} ;; \frac{2n}{2}",
            r"N ;; m ;; \eta ;; n_1 ;; n' ;; 2n",
        ),
        (
            r"a^2",
            r"a\cdot a ;; a²",
            r"A^2 ;; a_2 ;; \alpha^2 ;; 2a",
        ),
        (
            r"V_0",
            r"V_{0} ;; V₀",
            r"v_0 ;; V0 ;; V_1 ;; V ;; V^0 ;; 0",
        ),
        (
            r"\gamma",
            r"γ",
            r"\Gamma ;; g ;; 0.5772156649 ;; \lambda",
        ),
        (
            r"x'",
            r"x' ;; x^{\prime}",
            r"x ;; x'' ;; x^1",
        ),
        (
            r"GM",
            r"GM",
            r"gm ;; MG ;; Gm ;; G",
        ),
        (
            r"pq",
            r"qp ;; p\cdot q ;; p\,q",
            r"p+q ;; pQ ;; \frac pq ;; p,q",
        ),
        (
            r"I(0)",
            r"I(0)",
            r"0 ;; I ;; i(0) ;; I(1)",
        ),
        (
            r"\omega_n t",
            r"t\omega_n ;; \omega_{n}t",
            r"wnt ;; \omega t ;; \Omega_n t",
        ),
    ],
    "expressions": [
        (
            r"x^2-9",
            r"(x-3)(x+3) ;; -9+x^2 ;; x²−9",
            r"x^2+9 ;; x^2-9.0000001 ;; x^2-9+10^{-80} ;; (x-3)^2 ;; X^2-9 ;; y^2-9 ;; x^{29} ;; x2-9",
        ),
        (
            r"\sqrt{y^2}",
            r"|y|",
            r"y ;; -y",
        ),
        (
            r"|t-1|",
            r"|1-t|",
            r"t-1 ;; 1-t ;; |t+1|",
        ),
        (
            r"\ln|x|",
            r"\ln |x|",
            r"\ln x ;; \log x ;; x",
        ),
        (
            r"\frac{1}{n(n+1)}",
            r"\frac1n-\frac{1}{n+1} ;; \frac{1}{n^2+n} ;; 1/(n(n+1))",
            r"1/n(n+1) ;; \frac{1}{n}(n+1) ;; \frac{1}{n+1}",
        ),
        (
            r"\frac{x}{2}",
            r"x/2 ;; 0.5x ;; \frac12 x ;; \frac{1}{2}x",
            r"x/2y ;; 1/2x ;; 2x ;; x2",
        ),
        (
            r"\sin 2x",
            r"2\sin x\cos x ;; \sin(2x)",
            r"\sin^2 x ;; 2\sin x ;; \sin x^2 ;; \sin 2",
        ),
        (
            r"3^{k+2}",
            r"9\cdot3^k ;; 3^(k+2)",
            r"3^k+2 ;; 3^k2 ;; 9k",
        ),
        (
            r"\sqrt{\frac{3}{m}}",
            r"\frac{\sqrt3}{\sqrt m}",
            r"\frac{3}{\sqrt m} ;; \sqrt{3m}",
        ),
        (
            r"e^{-2t}",
            r"\frac{1}{e^{2t}} ;; \exp(-2t)",
            r"e^{2t} ;; E^{-2t} ;; -e^{2t} ;; e^-2t",
        ),
        (
            r"\binom{n}{3}",
            r"\frac{n(n-1)(n-2)}{6}",
            r"\frac{n}{3} ;; \binom{3}{n}",
        ),
        (
            r"\lfloor x/2\rfloor",
            r"\left\lfloor\frac x2\right\rfloor",
            r"\lceil x/2\rceil ;; x/2",
        ),
        (
            r"n!",
            r"n\cdot(n-1)!",
            r"n ;; (n-1)! ;; n^2",
        ),
        (
            r"(n-2)2^n",
            r"2^n(n-2)",
            r"n-2^{n+1} ;; (n-2)2n",
        ),
    ],
    "collections": [
        (
            r"(3,8)",
            r"\langle 3,8\rangle ;; \left(3,8\right) ;; ( 3 , 8 )",
            r"\{3,8\} ;; [3,8] ;; (8,3) ;; 3,8 ;; (3,8] ;; (3,8,8) ;; (3;9)",
        ),
        (
            r"[0,4)",
            r"0\le x<4 ;; x\in[0,4) ;; 4>x\ge 0",
            r"(0,4) ;; [0,4] ;; 0<x<4 ;; \{0,4\} ;; 0\le x\le 4 ;; [0,4)∪{4}",
        ),
        (
            r"\{1,4,9\}",
            r"9,4,1 ;; \{9,1,4\} ;; 1, 4 and 9",
            r"(1,4,9) ;; \{1,4\} ;; 1,4,9,16 ;; \{1,4,9,9\} ;; 149 ;; [1,9]",
        ),
        (
            r"2,-2",
            r"\pm2 ;; x=\pm 2 ;; -2\text{ or }2 ;; x=2, x=-2",
            r"2 ;; -2 ;; (2,-2) ;; 2,2 ;; 2\pm2 ;; [-2,2]",
        ),
        (
            r"(-\infty,2)\cup(5,\infty)",
            r"(5,\infty)\cup(-\infty,2) ;; (−∞,2)∪(5,∞)",
            r"(-\infty,2)\cap(5,\infty) ;; (-\infty,2]\cup(5,\infty) ;; (2,5)",
        ),
        (
            r"\mathbb{R}",
            r"(-\infty,\infty)",
            r"[-\infty,\infty] ;; R ;; \mathbb{Z} ;; \mathbb{Q}",
        ),
        (
            r"\emptyset",
            r"\varnothing ;; \{\} ;; ∅",
            r"0 ;; \{0\} ;; \phi ;; \{\emptyset\}",
        ),
        (
            r"(1,2),(3,4)",
            r"(3,4),(1,2)",
            r"(1,2),(4,3) ;; (1,3),(2,4) ;; 1,2,3,4 ;; (1,2,3,4)",
        ),
        (
            r"5",
            r"",
            r"[5,5] ;; \{4,5\} ;; 5,5 ;; 4 or 5 ;; 5\lor6 ;; 5, 6 ;; (5,5)",
        ),
        (
            r"5:2",
            r"5：2 ;; 5 : 2",
            r"5/2 ;; 2.5 ;; 2:5 ;; (5,2)",
        ),
        (
            r"x \ge 4",
            r"[4,\infty) ;; 4\le x",
            r"x>4 ;; 4 ;; x\le4 ;; y\ge 4 ;; x=4",
        ),
        (
            r"x\ne 3",
            r"x \neq 3",
            r"3 ;; x=3",
        ),
        (
            r"\begin{pmatrix}2\\0\\1\end{pmatrix}",
            r"\begin{bmatrix}2\\0\\1\end{bmatrix} ;; \left(\begin{array}{c}2\\0\\1\end{array}\right)",
            r"\begin{pmatrix}2&0&1\end{pmatrix} ;; (2,0,1) ;; \begin{pmatrix}2\\1\\0\end{pmatrix} ;; "
            r"\begin{pmatrix}2\\0\end{pmatrix} ;; \begin{vmatrix}2\\0\\1\end{vmatrix} ;; 1",
        ),
        (
            r"1101_2",
            r"1101_{2} ;; (1101)_2 ;; 1101₂",
            r"1101_3 ;; 13 ;; 1101 ;; 1101^2 ;; 1100_2",
        ),
    ],
    "equations": [
        (
            r"x=6",
            r"6 ;; 6=x ;; x = 6.0 ;; x=\frac{12}{2}",
            r"y=6 ;; x=6=7 ;; x=5=6 ;; 2x=6 ;; x^2=6 ;; x>6 ;; x\ne6 ;; x\approx6 ;; 0=6",
        ),
        (
            r"36",
            r"6^2=36 ;; \text{Area}=36 ;; AB=36 ;; f(6)=36 ;; \angle A = 36^\circ ;; m_{\max}=36 ;; N = 36 ;; "
            r"P(A\mid B)=36 ;; \frac{dy}{dt}=36",
            r"5^2=36 ;; 1=36 ;; xy=36 ;; 36=35 ;; 6=36 ;; 6^2=36=36 ;; \infty=36 ;; e=36 ;; \pi=36 ;; "
            r"\sin x=36 ;; -x=36 ;; x+1=36 ;; \sqrt{x}=36 ;; \text{Area}\ne36 ;; \text{twice the area}=36 ;; "
            r"\frac1x=36 ;; 2f(x)=36",
        ),
        (
            r"y=3x-1",
            r"3x-1 ;; 3x-y=1 ;; y+1=3x ;; 2y=6x-2",
            r"y=3x+1 ;; x=3y-1 ;; y=y ;; 0=0 ;; 3x-y=-1 ;; 3x-1=0",
        ),
        (
            r"x^2+y^2=25",
            r"25=x^2+y^2 ;; x^2+y^2-25=0",
            r"x^2-y^2=25 ;; 25 ;; x+y=5 ;; (x+y)^2=25",
        ),
        (
            r"f(x)=2x+1",
            r"2x+1 ;; f(x)=1+2x",
            r"f(x)=2x-1 ;; g(x)=2x+1 ;; f(y)=2x+1 ;; 2x",
        ),
        (
            r"1",
            r"",
            r"1=2=1 ;; 1=1=1 ;; 0=1 ;; 1=0 ;; 1<2 ;; 1\le 1",
        ),
    ],
}
# gold answer: answers that are refused, and then those that are still the same
REFUSED: dict[str, tuple[str, str]] = {
    r"7": (r"7... ;; 7… ;; ～7 ;; ⑦", r"\text{the value of x is }7"),
    r"x=4": (r"\text{The answer is } y=4", r"\text{The answer is } x=4"),
    r"DNE": (r"", r"\text{DNE}"),
    r"\text{DNE}": (r"", r"DNE"),
    r"x<1 \text{ or } x>5": (r"x<1 \text{ and } x>5", r"x>5 \text{ or } x<1"),
    r"-2,2": (r"", r"-2\text{ or }2"),
    r"\text{Friday}": (r"", r"FRIDAY"),
    r"\text{yes}": (r"", r"YES ;; \text{Yes}"),
    r"A": (r"(A) B", r"(A) 17"),
    r"x=3,y=4": (r"4,3 ;; x=4,y=3 ;; 4,y=3", r"3,4 ;; y=4,x=3"),
    r"x=3\text{ and }y=4": (r"x=3\text{ or }y=4", r"x=3,y=4"),
    r"2,-2": (r"", r"x=2, x=-2"),
    r"1101_2": (r"", r"(1101)_2"),
    r"0": (r"\frac{5}{\ln 0} ;; \frac{1}{\frac{1}{0}} ;; 0\cdot\ln(0) ;; 0\cdot\tan(\frac{\pi}{2}) ;; 0xF", r"\ln 1"),
    r"\infty": (r"", r"\infty"),
    r"-\infty": (r"", r"-\infty"),
    r"60": (r"", r"{}60^{\circ}"),
    r"x^2+5": (r"", r"5+x^2"),
    r"\frac{1}{x}": (r"", r"x^{-1}"),
    r"\frac{e^x-e^{-x}}{2}": (r"", r"\frac{1}{2}(e^x-e^{-x})"),
    r"0.5": (r"", r"$\frac12$"),
    r"5,6": (r"", r"$5$ and $6$"),
    r"0.333": (r"0.333...", r""),
    r"1,2,3": (r"1,2,3,... ;; 1,2,3,\ldots", r""),
    r"|x+7|": (r"x+7", r""),
    r"\ln|x+7|": (r"\ln(x+7)", r""),
    r"x+100": (r"\sqrt{(x+100)^2}", r""),
    r"x+1000000": (r"\sqrt{(x+1000000)^2}", r""),
    r"\text{yes and no}": (r"\text{yes or no}", r""),
    r"(1,2)": (r"(1 \text{ or } 2)", r""),
    r"\text{odd}^2": (r"\text{odd}_2", r""),
    r"\text{at most }\frac{1}{2}": (r"\text{at most }12", r""),
    r"\text{if } (a+b)c": (r"\text{if } a+bc", r""),
    r"\text{CO}": (r"\text{Co}", r""),
    r"4": (r"x:4 ;; \text{the ratio is } x:4", r""),
    r"5": (r"\text{the sum of } x \text{ is } 5", r""),
    r"4,3": (r"x=3,y=4", r""),
    r"1": (r"0^0", r""),
    r"-101": (r"-101_2", r""),
    r"10": (r"10_{(2)}", r""),
    r"56": (r"$5$6 ;; \(5\)6", r""),
    r"123456": (r"$123$ $456$", r""),
    r"\sqrt{2}": (r"\sqrt{}2", r""),
}
CASES = [
    pytest.param(answer, gold, right, id=f"{kind}:{gold}<-{answer!r}")
    for kind, rows in KINDS.items()
    for gold, *both in rows
    for right, answers in zip((True, False), both)
    for answer in answers.split(" ;; ")
    if answer
]
CASES += [
    pytest.param(answer, gold, right, id=f"refused:{gold}<-{answer!r}")
    for gold, both in REFUSED.items()
    for right, answers in zip((False, True), both)
    for answer in answers.split(" ;; ")
    if answer
]
HOSTILE = [
    r"\binom{99999999}{4444444}",
    "9^{9^{9^{9}}}",
    "(((9!)!)!)",
    r"\frac{3}{0}\cdot 0",
    "3" + "0" * 1200,
    "{" * 300 + "3" + "}" * 299,
    r"\sum_{k=1}^{3}1",
    r"__import__('os')",
    r"\unknown{3}",
    "3\\",
    r"\sqrt",
    r"\frac{3}",
    "^3",
    "3_",
    "{3",
    "3}",
    "3&3",
    "3\ud83d",
    "\x003",
]


@pytest.mark.parametrize("answer, gold, right", CASES)
def test_kinds(answer: str, gold: str, right: bool) -> None:
    assert same_answer(answer, gold) is right


@pytest.mark.parametrize("answer", HOSTILE)
def test_hostile_answers_are_wrong_at_once(answer: str) -> None:
    assert not same_answer(answer, "3")


@pytest.mark.parametrize("gold", sorted({gold for rows in KINDS.values() for gold, *_ in rows}))
def test_words_denials_and_second_thoughts_are_never_paid(gold: str) -> None:
    assert same_answer(gold, gold)
    words = [
        rf"{gold}\text{{ is wrong}}",
        rf"\text{{not }}{gold}",
        rf"\text{{about }}{gold}",
        rf"{gold}\text{{ or }}17",
    ]
    others = [f"{gold}={gold}=1", f"{gold}+1", f"{gold},{gold},17", rf"17\text{{ or }}{gold}", f"{{{gold}", ""]
    for wrong in words + others:
        assert not same_answer(wrong, gold), wrong


def _number(generator: random.Random, depth: int) -> tuple[str, Fraction]:
    """An arithmetic expression, written in one of several ways, and its value by exact arithmetic."""
    if depth == 0:
        n = generator.randint(1, 12)
        return generator.choice([(str(n), Fraction(n)), (f"{n}.5", n + Fraction(1, 2)), (f"({n})", Fraction(n))])
    (a, x), (b, y) = _number(generator, depth - 1), _number(generator, depth - 1)
    forms = [
        (rf"\left({a}+{b}\right)", x + y),
        (f"({a}-{b})", x - y),
        (rf"({a})\cdot({b})", x * y),
        (f"({a})({b})", x * y),
        (rf"{{({a})}}^2".replace("{(", "(").replace(")}", ")"), x * x),
        (rf"\sqrt{{({a})^2\cdot4}}", 2 * abs(x)),
        *([(rf"\frac{{{a}}}{{{b}}}", x / y), (f"(({a})/({b}))", x / y)] if y else []),
    ]
    return generator.choice(forms)


def test_values_are_those_of_exact_arithmetic() -> None:
    """The library's parser behind the reader, against fractions: whatever is accepted has this value and no other."""
    generator, read = random.Random(0), 0
    for _ in range(40):
        text, value = _number(generator, generator.randint(1, 2))
        gold = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        read += same_answer(text, gold)
        assert not same_answer(text, rf"\frac{{{value.numerator + 1}}}{{{value.denominator}}}"), text
    assert read >= 36


def test_a_long_lead_of_words_is_read_at_once() -> None:
    assert not same_answer("the " * 400 + "5", "5")  # exponential time would never end


def test_parts_of_an_answer() -> None:
    assert answer_parts("1, 2 and 3") == ("set", ["1", "2", "3"])
    assert answer_parts(r"\left(1, \frac12\right]") == ("(]", ["1", r"\frac{1}{2}"])
    assert answer_parts("1,234") == ("value", ["1,234"])
    assert answer_parts("x+1") == ("value", ["x+1"])


@pytest.mark.parametrize(
    "gold", ["", "  ", r"\frac{1}{", "???", r"\text{}", "10^{99999999}", "9" * 5000, "1=2=3", "3 4", r"\foo"]
)
def test_a_gold_that_cannot_be_read_is_refused(gold: str) -> None:
    with pytest.raises(UngradableGoldError):
        same_answer("1", gold)


@pytest.mark.parametrize(
    "text, large",
    [
        (r"\frac{6^{6^{6^{6}}} - 6}{11}", True),
        ("9^9^9", True),
        ("9**9**9", True),
        ("10^{10^{10}}", True),
        ("(9!)!", True),
        ("99999!", True),
        (r"\binom{100000}{50000}", True),
        ("1" * 1001, True),
        ("2^{1009}", False),
        ("x^{2^{3}}", False),
        ("10!", False),
        ("3^{-40}", False),
        (r"e^{x^{2}}", False),
    ],
)
def test_too_large(text: str, large: bool) -> None:
    assert too_large(text) is large


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="\\{}boxed a7", max_size=60))
def test_last_boxed_is_balanced(text: str) -> None:
    content = last_boxed(text)
    if content is not None:
        assert text.count("{" + content + "}") >= 1
        unescaped = re.sub(r"\\.", "", content)  # without escaped braces, and without the commands' first letters
        assert unescaped.count("{") == unescaped.count("}")


# Files.


@needs_data
@pytest.mark.parametrize("name", ["cases_grading.json", "cases_grading_2.json"])
def test_public_cases_have_no_false_reward_and_nearly_all_right_answers(name: str) -> None:
    cases = json.loads((DATA / name).read_text(encoding="utf-8"))
    paid = {True: [], False: []}
    for case in cases:
        text = case["completion"]
        box = boxed_answer(completion_text(ast.literal_eval(text)) if text.startswith("[{") else text)
        paid[case["correct"]].append(box is not None and same_answer(box, case["gold"]))
    assert len(cases) >= 24 and not any(paid[False])
    assert sum(paid[True]) >= 0.98 * len(paid[True])


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows", "ungradable"), [
    ("math500.parquet", 500, 0), ("olympiadbench.jsonl", 675, 1), ("minerva_math.jsonl", 272, 0),
    ("aime24.jsonl", 30, 0), ("amc23.jsonl", 40, 0),
])  # fmt: skip
def test_benchmark_answers_accept_themselves_and_no_other(name: str, rows: int, ungradable: int) -> None:
    usable = problems_from(str(DATA / name), ungradable="drop")["solution"]
    assert len(usable) == rows - ungradable
    for gold in usable:
        digit = re.search(r"\d", gold)
        changed = gold[: digit.start()] + str((int(digit[0]) + 1) % 10) + gold[digit.end() :] if digit else f"2+{gold}"
        assert not same_answer(changed, gold)
        assert not same_answer(rf"{gold}\text{{ is wrong}}", gold)
