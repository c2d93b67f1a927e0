"""`replicate gpu-check`: in a few minutes, whether training and both theorems hold on the GPU of this machine.

Every number is a line with what is wanted of it; lines are printed as they come, and kept in a record and a table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from grpo_replications.replications.places import OWN, ROOT, VARIABLE, add_results_option, own_results
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import write_atomic
from grpo_replications.shared.harness.provenance import git_state, machine, origin, package_versions

if TYPE_CHECKING:
    from grpo_replications.replications.gpu_check_parts import Line, Place

NAME = "gpu-check"
MINUTES = 8.0


def add_command(commands: Any) -> None:
    """Add `gpu-check` to the sub-parsers `commands` of a parser."""
    text = "check training and both theorems on one GPU, in a few minutes and without a network"
    parser = commands.add_parser(NAME, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="N", help="default: %(default)g")
    parser.add_argument("--miniature", action="store_true", help="a tiny random model; the only size for a CPU")
    add_results_option(parser, f"{OWN}/")
    parser.set_defaults(action=gpu_check)


def gpu_check(options: argparse.Namespace, console: Console) -> int:
    """Run all parts, print and keep their lines; 0 if every line passes, else 1.

    Raises ReplicationError where the device is not there, and for a CPU without `--miniature`.
    """
    _choose_device(options)
    from transformers.utils.logging import disable_progress_bar

    from grpo_replications.replications.gpu_check_parts import FULL, MINIATURE, Place
    from grpo_replications.shared.models import catalog

    disable_progress_bar()  # of every model that is loaded
    sizes = MINIATURE if options.miniature else FULL
    catalog.prepare(sizes.model)  # said before anything else where it cannot be had
    named = options.results or os.environ.get(VARIABLE)
    target = (Path(named).resolve() if named else own_results()) / (NAME + ("-miniature" if options.miniature else ""))
    console.print(f"{NAME} on {_accelerator(options.device)['name']}", highlight=False, markup=False)
    began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as scratch:
        lines = _run_parts(Place(options.device, sizes, Path(scratch)), began, options.minutes, console)
    record = {
        "check": NAME,
        "passed": all(line.passed is not False for line in lines),
        "miniature": options.miniature,
        "device": options.device,
        "accelerator": _accelerator(options.device),
        "settings": asdict(sizes),
        "lines": [_as_json(line) for line in lines],
        **_provenance(options.command, started),
    }
    target.mkdir(parents=True, exist_ok=True)
    write_atomic(target / "record.json", json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomic(target / "table.md", _table(record, lines))
    failed = [line for line in lines if line.passed is False]
    judged = sum(line.passed is not None for line in lines)
    console.print(
        f"{judged - len(failed)} of {judged} lines pass. Record and table: {target}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    return 1 if failed else 0


def _choose_device(options: argparse.Namespace) -> None:
    """Let this process see the one GPU asked for, or none; the trainer takes every GPU that it sees."""
    if options.device == "cpu" and not options.miniature:
        raise ReplicationError(
            f"On a CPU only a miniature of the check runs: replicate {NAME} --device cpu --miniature"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if options.device == "cpu" else visible
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise ReplicationError(
            "torch finds no GPU here. On a machine that has one, install a torch built for its driver; without one, "
            f"go through the same steps in miniature: replicate {NAME} --device cpu --miniature"
        )
    if options.device == "cpu" and torch.cuda.is_available():
        raise ReplicationError(
            f"A GPU is in use by this process already; hide it: CUDA_VISIBLE_DEVICES= {options.command}"
        )
    torch.set_float32_matmul_precision("highest")  # float32 means float32, not TF32


def _run_parts(place: Place, began: float, minutes: float, console: Console) -> list[Line]:
    """The lines of all parts; a part that stops with an error, or that time does not allow, is a line that fails."""
    from grpo_replications.replications.gpu_check_parts import Line, at_most, measured, parts

    lines: list[Line] = []

    def say(line: Line) -> None:
        lines.append(line)
        console.print(_as_text(line), soft_wrap=True, highlight=False, markup=False)

    for name, part in parts(place).items():
        if time.monotonic() - began > 60 * minutes:
            say(Line(name, "not run: out of time", None, f"within {minutes:g} min", False))
            continue
        place.free()
        part_began = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a weight's audit warns of is a line of its own
                for line in part():
                    say(line)
        except Exception as error:  # the other parts still have something to say
            traceback.print_exc(file=sys.stderr)
            say(Line(name, f"stopped: {type(error).__name__}: {_first_line(error)}", None, "no error", False))
        say(measured(name, "seconds of this part", time.monotonic() - part_began, "s"))
    say(at_most("all parts", "minutes", (time.monotonic() - began) / 60, minutes, "min"))
    return lines


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def _accelerator(device: str) -> dict[str, Any]:
    """Name and memory of the GPU and what torch was built for; the processor's name on a CPU."""
    import torch

    if device == "cpu":
        return {"name": machine()["cpu"]}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }


def _provenance(command: str, started: str) -> dict[str, Any]:
    """What the record of a profile says of its origin, under the same names."""
    source = origin(ROOT, ROOT / "replications", git_state(ROOT))
    return {
        "command": command,
        "commit": source.commit,
        "uncommitted_changes": source.dirty,
        "source_fingerprint": source.fingerprint,
        "started": started,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "packages": package_versions(),
    }


def _as_json(line: Line) -> dict[str, Any]:
    """A line for the record; a value that is no finite number is given as text."""
    value = line.value
    return {**asdict(line), "value": value if value is None or math.isfinite(value) else str(value)}


def _verdict(line: Line) -> str:
    return {True: "pass", False: "FAIL", None: "    "}[line.passed]


def _number(line: Line) -> str:
    return "" if line.value is None else f"{line.value:.4g} {line.unit}".strip()


def _as_text(line: Line) -> str:
    return f"{_verdict(line)}  {f'{line.part}: {line.name}':<72} {_number(line):>16}  {line.wanted}".rstrip()


def _table(record: dict[str, Any], lines: Iterable[Line]) -> str:
    """The lines as a Markdown table, under what they were measured on."""
    title = "GPU check" + (", in miniature" if record["miniature"] else "")
    commit = (record["commit"] or "unknown")[:12] + (" with changes" if record["uncommitted_changes"] else "")
    head = [
        f"# {title}: {'passed' if record['passed'] else 'failed'}",
        "",
        f"{record['accelerator']['name']}, torch {record['packages']['torch']}, trl {record['packages']['trl']}, "
        f"commit {commit}, {record['started']}.",
        "",
        "| part | number | value | wanted | |",
        "|---|---|---|---|---|",
    ]
    rows = [
        f"| {line.part} | {line.name.replace('|', '/')} | {_number(line)} | {line.wanted} | {_verdict(line).strip()} |"
        for line in lines
    ]
    return "\n".join([*head, *rows]) + "\n"
