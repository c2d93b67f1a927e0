"""Results as a commit holds them, read from git without a checkout."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.outcomes import VERDICTS_FILE

RESULTS = "results"


@dataclass(frozen=True)
class CommittedResults:
    """The directory `results/` of the checkout at `root` in the commit `commit`."""

    root: Path
    commit: str

    @classmethod
    def of(cls, root: Path, name: str) -> CommittedResults | None:
        """The results of the commit that `name` (a hash, HEAD, a branch) stands for; None where git knows none."""
        found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return cls(root, found.decode().strip()) if found else None

    def profiles(self) -> list[tuple[str, str]]:
        """(directory of the paper, profile) for all verdicts that the commit holds."""
        listed = _git(self.root, "ls-tree", "-r", "-z", "--name-only", self.commit, "--", RESULTS) or b""
        found = []
        for path in listed.decode().split("\0"):
            parts = path.split("/")
            if len(parts) == 4 and parts[-1] == VERDICTS_FILE:
                found.append((parts[1], parts[2]))
        return found

    def fetch(self, paper: str, profile: str, target: Path) -> Path:
        """Write the files of one profile below `target` and return their directory."""
        path = f"{RESULTS}/{paper}/{profile}"
        archive = _git(self.root, "archive", "--format=tar", self.commit, "--", path)
        if archive is None:
            raise ReplicationError(f"git cannot read {path} of the commit {self.commit[:12]}.")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for member in files:
                if member.isfile():
                    (target / member.name).parent.mkdir(parents=True, exist_ok=True)
                    (target / member.name).write_bytes(files.extractfile(member).read())
        return target / path


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
