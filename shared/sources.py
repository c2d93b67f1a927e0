"""Where models and data sets come from: a directory of one's own first, then the hub, there at a pinned commit.

`REPLICATE_DATA` (or `--data-dir`) names the directory. In it, or one folder below:

    models/ORG/NAME/ or models/NAME/   a model as safetensors, under its name on the hub
    NAME.jsonl (.json, .parquet, .csv) a data set, under the last part of its name on the hub or a benchmark's name;
                                       only letters and digits count, in either case: aime24, open-rs, OpenRS
    NAME/                              the files of a data set that has several, under the last part of its name

A hub id may carry the commit that is meant, `ORG/NAME@COMMIT`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from grpo_replications.shared.errors import ReplicationError

DATA = "REPLICATE_DATA"
FILE_TYPES = (".csv", ".json", ".jsonl", ".parquet")  # of data sets that are read from a file


def cache_directory() -> Path:
    """Directory that holds prepared models: `REPLICATE_CACHE`, or `grpo-replications` in the user's cache."""
    override = os.environ.get("REPLICATE_CACHE")
    if override:
        return Path(override).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "grpo-replications"


def data_directory() -> Path | None:
    """The directory of one's own models and data sets, or None; ReplicationError where it is named and absent."""
    named = os.environ.get(DATA)
    if not named:
        return None
    directory = Path(named).expanduser()
    if not directory.is_dir():
        raise ReplicationError(f"{DATA} is {named}, and there is no such directory. Name another, or unset it.")
    return directory.resolve()


def local_model(name: str) -> Path | None:
    """The directory of a model in one's own directory, by its name on the hub."""
    directory = data_directory()
    if directory is None:
        return None
    found = [directory / "models" / name, directory / "models" / name.rpartition("/")[2]]
    return next((path for path in found if path.is_dir()), None)


def local_table(*names: str) -> Path | None:
    """The file of a data set in one's own directory, by any of its names; ReplicationError where two files fit."""
    wanted = {_plain(name.rpartition("/")[2]) for name in names}
    found = [path for path in _entries() if path.suffix in FILE_TYPES and _plain(path.stem) in wanted]
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise ReplicationError(f"{len(found)} files could be {names[0]}: {listed}. Leave one of them.")
    return found[0] if found else None


def local_folder(name: str) -> Path | None:
    """The folder of a data set with several files in one's own directory, by its name on the hub."""
    wanted = _plain(name.rpartition("/")[2])
    return next((path for path in _entries() if path.is_dir() and _plain(path.name) == wanted), None)


def split_revision(name: str) -> tuple[str, str | None]:
    """A hub id and the commit that it carries, None without one; a path of this machine stays whole."""
    if Path(name).expanduser().exists():
        return name, None
    identifier, _, revision = name.partition("@")
    return identifier, revision or None


def pinned(name: str, revisions: Mapping[str, str]) -> str:
    """The name with the commit that `revisions` gives for it, as `split_revision` reads it."""
    return f"{name}@{revisions[name]}" if name in revisions else name


def one_line(error: BaseException, length: int = 200) -> str:
    """The first line of an error's message, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0][:length] if lines else type(error).__name__


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _entries() -> Iterator[Path]:
    """Files and folders of one's own directory, and those one folder below, but for the models."""
    directory = data_directory()
    for path in sorted(directory.iterdir()) if directory else ():
        if path.name == "models" or path.name.startswith("."):
            continue
        yield path
        if path.is_dir():
            yield from sorted(path.iterdir())
