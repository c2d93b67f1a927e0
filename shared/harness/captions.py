"""Captions of figures: three parts each, kept beside the figures for the report, the pages and LaTeX.

Reading them needs no plotting library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.jobs import write_atomic

CAPTIONS = "captions.json"
NO_NUMBER = "The paper prints no number for this."
MEAN_INTERVAL = "95 % intervals of the mean over seeds"
DIFFERENCE_INTERVAL = "95 % intervals of the mean paired difference over seeds"

_LATEX = {
    **{sign: rf"\{sign}" for sign in "%&_#{}$"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{"λ": r"$\lambda$", "σ": r"$\sigma$", "β": r"$\beta$", "π": r"$\pi$", "τ": r"$\tau$", "Δ": r"$\Delta$"},
    **{"ρ": r"$\rho$", "μ": r"$\mu$", "α": r"$\alpha$", "∇": r"$\nabla$", "²": r"$^2$"},
    **{"−": "$-$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$", "±": r"$\pm$", "‖": r"$\Vert$", "√": r"$\surd$"},
    **{"–": "--", "“": "``", "”": "''", "<": "$<$", ">": "$>$", "|": "$|$", "\u202f": r"\,", "\u00a0": "~"},
}


@dataclass(frozen=True)
class Caption:
    """What a figure shows; what the paper prints, and where; how many runs there are, and what bars and bands mean.

    The rest is measured when the figure is drawn: inches, the smallest type in points, and faults of the layout.
    """

    shows: str
    paper: str = ""
    sample: str = ""
    width: float = 0.0
    height: float = 0.0
    smallest_type: float = 0.0
    faults: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The caption as one paragraph."""
        return " ".join(part for part in (self.shows, self.paper, self.sample) if part)

    @property
    def latex(self) -> str:
        r"""The caption for `\caption{...}`: special characters escaped, Greek letters and signs as mathematics."""
        return "".join(_LATEX.get(sign, sign) for sign in self.text)

    def measured(self, width: float, height: float, smallest_type: float, faults: Iterable[str]) -> Caption:
        """The same caption with what was measured on the drawn figure."""
        return replace(self, width=width, height=height, smallest_type=smallest_type, faults=tuple(faults))


def runs(counts: Iterable[int], unit: str = "seeds") -> str:
    """`n = 5 seeds`, or `n = 4–5 seeds` where the counts differ; `n = 1 seed`."""
    found = sorted({int(count) for count in counts}) or [0]
    number = f"{found[0]:,}" if found[0] == found[-1] else f"{found[0]:,}–{found[-1]:,}"
    return f"n = {number} {unit.removesuffix('s') if found[-1] == 1 else unit}"


def read_captions(directory: Path) -> dict[str, Caption]:
    """Captions of the figures in a directory by the figure's name; nothing where none were written."""
    path = directory / CAPTIONS
    if not path.exists():
        return {}
    known = Caption.__dataclass_fields__
    entries: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Caption(**{key: tuple(v) if key == "faults" else v for key, v in entry.items() if key in known})
        for name, entry in entries.items()
    }


def write_captions(captions: dict[str, Caption], directory: Path) -> None:
    """Write the captions, each also as one text and as LaTeX; the old file stays until the new one is whole."""
    entries = {name: {**asdict(one), "text": one.text, "latex": one.latex} for name, one in captions.items()}
    content = json.dumps(entries, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / CAPTIONS, content)
