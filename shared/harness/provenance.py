"""What a result must say about its origin: source, packages, machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_replications.shared.harness.jobs import Origin

PACKAGES = (
    "torch", "transformers", "trl", "datasets", "accelerate", "peft", "tokenizers", "gguf", "math-verify",
    "numpy", "scipy", "pandas", "matplotlib", "joblib", "rich",
)  # fmt: skip
SOURCE_DIRECTORIES = ("grpo_replications", "shared", "synthetic", "replications")
# Results, the generated tables inside read-me files and the table of ids change with a run; they are no source.
NO_SOURCE = (":(exclude)results", ":(exclude,glob)**/*.md", ":(exclude)replications/number_ids.csv")
PAPER_SOURCE = (".py", ".toml")  # what of a paper's directory outside the checkout decides its results
LARGEST_IN_PATCH = 5 * 2**20


@dataclass(frozen=True)
class GitState:
    """The commit and what differs from it; `commit` is None outside a git checkout.

    `diff` is a patch from the commit to the source that is there, new files included. Of a new file over
    `LARGEST_IN_PATCH` bytes it has a line with name and SHA-256 only.
    """

    commit: str | None
    dirty: bool
    diff: str
    untracked: tuple[str, ...]

    def __str__(self) -> str:
        if self.commit is None:
            return "not a git checkout"
        return self.commit[:12] + (" with uncommitted changes" if self.dirty else "")


def git_state(root: Path, paper_directory: Path | None = None) -> GitState:
    """Commit, changes and new source files of the checkout at `root`, results and read-mes left out.

    New files are those below the source directories that git does not know and does not ignore, and those of a paper
    that lies outside the checkout, which no commit of it holds.
    """
    commit = _git(root, "rev-parse", "HEAD")
    # Of an installed copy inside another project's repository, git knows no file: the commit is not ours.
    if commit is None or not _git(root, "ls-files", "--", "."):
        return GitState(None, False, "", ())
    diff = _git(root, "diff", "HEAD", "--binary", "--", ".", *NO_SOURCE) or ""
    directories = [name for name in SOURCE_DIRECTORIES if (root / name).is_dir()]
    listed = _git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *directories, *NO_SOURCE)
    new = [(root, name) for name in (listed or "").split("\0") if name and directories]
    if paper_directory is not None and not paper_directory.is_relative_to(root):
        base = paper_directory.parent
        paths = sorted(path for path in paper_directory.rglob("*") if path.suffix in PAPER_SOURCE and path.is_file())
        new += [(base, path.relative_to(base).as_posix()) for path in paths]
    names = tuple(name for _, name in new)
    patches = [_new_file(base, name) for base, name in new]
    return GitState(commit.strip(), bool(diff or names), diff + "".join(patches), names)


def _new_file(base: Path, name: str) -> str:
    """The patch that makes the file `name`, a path from `base`; for a large file a line that says which it was."""
    path = base / name
    if path.stat().st_size > LARGEST_IN_PATCH:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return f"New file {name}, too large for this patch; SHA-256 {digest}\n"
    # git diff says by 1 that there is a difference.
    return _output("git", "-C", str(base), "diff", "--no-index", "--binary", "--", "/dev/null", name, good=(0, 1)) or ""


def source_fingerprint(root: Path, paper_directory: Path) -> str:
    """Digest of every Python file that can have a hand in a result, by relative name and content."""
    digest = hashlib.sha256()
    directories = [root / name for name in SOURCE_DIRECTORIES]
    if not any(paper_directory.is_relative_to(directory) for directory in directories):
        directories.append(paper_directory)
    for directory in directories:
        for path in sorted(directory.rglob("*.py")):
            digest.update(f"{directory.name}/{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def origin(root: Path, paper_directory: Path, git: GitState) -> Origin:
    """What is stored with every job that runs from the present source on this machine."""
    return Origin(git.commit, git.dirty, source_fingerprint(root, paper_directory), cpu_model())


def machine() -> dict[str, Any]:
    """CPU model, usable cores, memory and GPUs of this machine, and its system; no name and no address."""
    return {
        "cpu": cpu_model(),
        "instructions": vector_instructions(),
        "cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "gpus": gpus(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def package_versions() -> dict[str, str]:
    """Versions of the packages that can have a hand in a result, where installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def usable_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        name = _output("sysctl", "-n", "machdep.cpu.brand_string")
        if name:
            return name.strip()
    return platform.processor() or platform.machine()


def gpus() -> list[str]:
    """Names of the GPUs that torch can use; imports torch."""
    if not importlib.util.find_spec("torch"):
        return []
    import torch

    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return []


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _git(root: Path, *arguments: str) -> str | None:
    return _output("git", "-C", str(root), *arguments)


def _output(*command: str, good: tuple[int, ...] = (0,)) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, errors="replace", check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode in good else None


def vector_instructions() -> str:
    """The widest vector instructions of this processor, which decide how it rounds sums; empty where unknown.

    Processors of one name, such as "AMD EPYC", may differ in them.
    """
    names = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sve": "SVE", "asimd": "NEON"}
    return next((name for flag, name in names.items() if flag in _cpu_flags()), "")


def computes_in_16_bits() -> bool:
    """Whether this processor has instructions for bfloat16; True where the system does not say."""
    return not _cpu_flags() or bool(_cpu_flags() & {"avx512_bf16", "avx_ne_convert", "amx_bf16", "bf16"})


@lru_cache(maxsize=1)
def _cpu_flags() -> frozenset[str]:
    """What the processor can do, in the system's words; nothing where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split())
