"""Whether the models and data sets of a profile can be had, and at which commit: asked before anything is fetched."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_replications.shared.models.catalog import EMBEDDED, TINY, gated, hub_unreachable
from grpo_replications.shared.sources import local_folder, local_model, one_line

SECONDS = 10.0  # that the hub may take to answer
MODEL, DATA = "model", "dataset"
_WORDS = {MODEL: "The model", DATA: "The data set"}
PINNED, NOT_PINNED, LOCAL = "pinned", "not pinned", "local"


@dataclass(frozen=True)
class Source:
    """A model or a data set as it was found. `where`: hub, cache of the hub, or a path of this machine.

    `identity`: the commit on the hub, or a digest of local files; `pinned`: whether the profile names the commit;
    `problem`: why it cannot be had, empty where it can; `unreachable`: the reason where the hub did not answer; `size`:
    bytes that have to be fetched, as far as known.
    """

    kind: str
    name: str
    where: str = ""
    identity: str = ""
    pinned: str = NOT_PINNED
    problem: str = ""
    unreachable: str = ""
    size: int = 0

    @property
    def what(self) -> str:
        """Kind and name in words."""
        return f"{_WORDS[self.kind].lower()} {self.name}"

    def as_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        return asdict(self)


def find_model(name: str, revision: str | None) -> Source:
    """A model by its name in the settings."""
    if name in (EMBEDDED, TINY):
        return Source(MODEL, name, "this suite", name, PINNED)
    own = Path(name).expanduser() if Path(name).expanduser().is_dir() else local_model(name)
    if own is not None:
        if not list(own.glob("*.safetensors")):
            return Source(MODEL, name, str(own), problem=f"The directory {own} holds no *.safetensors file.")
        return Source(MODEL, name, str(own), _digest(sorted(own.glob("*"))), LOCAL)
    return _on_hub(MODEL, name, revision)


def find_data(name: str, revision: str | None, own: Path | None) -> Source:
    """A data set by its hub id; `own`: the file or the folder of this machine that is read in its place, if any."""
    own = own or local_folder(name)
    if own is None:
        return _on_hub(DATA, name.partition(":")[0], revision)
    if not own.exists():
        return Source(DATA, name, str(own), problem=f"There is no file {own}.")
    files = sorted(path for path in own.rglob("*") if path.is_file()) if own.is_dir() else [own]
    return Source(DATA, name, str(own), _digest(files), LOCAL)


def _digest(files: list[Path]) -> str:
    """A digest of the files: of their content up to 64 MB each, and of their sizes."""
    digest = hashlib.sha256()
    for path in files:
        if path.is_file():
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as stream:
                digest.update(stream.read(64 << 20))
    return f"sha256:{digest.hexdigest()[:16]}"


def _on_hub(kind: str, name: str, revision: str | None) -> Source:
    """Ask the hub for the commit of a model or data set and whether this account may read it."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    api = HfApi()
    what, page = f"{_WORDS[kind]} {name}", name if kind == MODEL else f"datasets/{name}"
    pinned = NOT_PINNED if revision is None else PINNED
    try:
        info = api.repo_info(name, repo_type=kind, revision=revision, timeout=SECONDS, files_metadata=True)
        api.auth_check(name, repo_type=kind)
    except GatedRepoError:
        return Source(kind, name, problem=gated(_WORDS[kind], name, page))
    except RevisionNotFoundError:
        return Source(kind, name, problem=f"{what} has no commit {revision}: correct it in `revisions`.")
    except (RepositoryNotFoundError, HFValidationError):
        problem = (
            f"{what} is not on the hub, or this account cannot see it. Check the spelling; if it is private, log in "
            "with `hf auth login` or set HF_TOKEN."
        )
        return Source(kind, name, problem=problem)
    except Exception as error:  # offline, no route, timed out: the library raises many types
        cached = _in_cache(kind, name, revision)
        if cached:
            return Source(kind, name, "cache of the hub", cached, pinned)
        return Source(kind, name, problem=hub_unreachable(what, error), unreachable=one_line(error))
    files = [file for file in info.siblings or [] if kind == DATA or file.rfilename.endswith(".safetensors")]
    if kind == MODEL and not files:
        return Source(kind, name, problem=f"{what} has no safetensors weights; pickled weights are not read.")
    to_fetch = 0 if _in_cache(kind, name, info.sha) else sum(file.size or 0 for file in files)
    return Source(kind, name, "hub", info.sha or "", pinned, size=to_fetch)


def _in_cache(kind: str, name: str, revision: str | None) -> str:
    """The commit of a repository that lies in the hub's cache on this machine; empty where there is none."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True)
    except Exception:  # not there, or only in part
        return ""
    weights = kind == DATA or list(Path(found).glob("*.safetensors"))
    return Path(found).name if weights else ""
