"""The Slurm example of the manual: run in a shell with stand-ins, its commands are ones that `replicate` takes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from grpo_replications.replications.__main__ import _parser
from grpo_replications.shared.harness.papers import Paper
from grpo_replications.shared.harness.parts import Part

PAGE = Path(__file__).parents[2] / "replications" / "README.md"
STAND_INS = {
    "replicate": 'printf "%s\\n" "$*" >> "$CALLS"',
    "sbatch": """[ "$1" = --parsable ] && echo 41 && exit
        [ "$1" = --dependency=afterany:41 ] || exit 1
        while [ "$1" != --wrap ]; do shift; done; sh -c "$2\"""",
}


def test_the_commands_of_the_example_are_understood(tmp_path: Path) -> None:
    section = PAGE.read_text(encoding="utf-8").split("### Many machines", 1)[1].split("\n### ", 1)[0]
    array, afterwards = re.findall(r"```bash\n(.*?)```", section, re.S)
    for name, script in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    for task, script in ((1, array), (8, array), (None, afterwards)):
        own = {**environment, **({"SLURM_ARRAY_TASK_ID": str(task)} if task else {})}
        subprocess.run(["bash", "-eu", "-c", script], env=own, check=True)
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    parsed = [_parser().parse_args(arguments) for arguments in calls]
    assert [line[0] for line in calls] == ["run", "run", "status", "run"]
    assert [one.part and Part.parse(one.part) for one in (parsed[0], parsed[1], parsed[3])] == [
        Part(1, 8),
        Part(8, 8),
        None,
    ]
    assert re.search(r"--array=1-(\d+)", array)[1] == str(parsed[0].part.split("/")[1])
    paper = Paper.load(PAGE.parent / parsed[0].paper.replace("-", "_"))
    assert paper.profile(parsed[0].profile).requires == "hub"
    assert len({one.results for one in parsed}) == 1, "all in one directory"
