"""`replicate view`: the report in a browser."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from grpo_replications.shared.harness.serving import PORT, server


def add_commands(commands: Any, results_directory: Callable[[], Path]) -> None:
    """Add the command to the sub-parsers `commands` of a parser; `results_directory()` is where results lie."""
    text = "serve the report on this machine and print its address"
    view = commands.add_parser("view", help=text, description=text[0].upper() + text[1:] + ".")
    view.add_argument("--port", type=int, metavar="N", help=f"default {PORT}, or any free one where it is taken")
    view.set_defaults(action=lambda options, console: _view(options, console, results_directory()))


def _view(options: argparse.Namespace, console: Console, results: Path) -> int:
    with server(results, options.port) as running:
        address = f"http://{running.server_address[0]}:{running.server_port}/"
        console.print(f"The report: {address}  (Ctrl-C ends it)", soft_wrap=True, highlight=False)
        console.file.flush()
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            console.print()
    return 0
