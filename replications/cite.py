"""The options of `replicate cite`; what it does is in `cite_output`, which is imported when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

FORMATS = ("text", "latex", "bibtex", "json")
EXAMPLES = """
examples:
  replicate cite sigma-dapo-samples                        a sentence, verdict, caveat, origin, commands
  replicate cite sigma-dapo-samples@quick --format latex   the number of another profile, for LaTeX
  replicate cite sg-lopti sigma-mass-ratio -o cited.tex    \\input{cited}, then \\repnum{sg-lopti}
  replicate cite --check cited.tex                         fails where one of them changed
  replicate cite sg-lopti --format bibtex                  the entries to cite with it

Ids and aliases are in numbers.csv and in the report. An id with conditions needs quotes: 'ID[lr=0.001]'.
"""


def add_command(commands: Any, results_directory: Callable[[], Path]) -> None:
    """Add `cite` to the sub-parsers `commands` of a parser; `results_directory()` is where results lie."""
    text = "cite numbers: a sentence with interval, n and origin; LaTeX, BibTeX, JSON; pin them in a file"
    cite = commands.add_parser(
        "cite",
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cite.add_argument("ids", metavar="ID", nargs="*", help="an id or an alias, with @PROFILE if it is not to be full")
    cite.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    cite.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    cite.add_argument("--alias", metavar="NAME", action="append", help="name in LaTeX; once for each ID, in order")
    cite.add_argument("-o", "--output", type=Path, metavar="cited.tex", help="pin the numbers in this LaTeX file")
    cite.add_argument("--check", type=Path, metavar="cited.tex", help="exit with 1 where a pinned number changed")
    cite.set_defaults(action=lambda options, console: _cite(options, console, results_directory()))


def _cite(options: argparse.Namespace, console: Console, results: Path) -> int:
    from grpo_replications.replications.cite_output import cite

    return cite(options, console, results)
