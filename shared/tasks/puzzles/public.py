"""The public Knights & Knaves puzzles, in the division that Logic-RL and the AR-Lopti code train and test on.

The data set K-and-K/knights-and-knaves has a file of 1,000 puzzles for each number of people from 3 to 7. The first 900
are for training, the last 100 (numbered 1000 to 1099 there) for testing: 4,500 and 500 for 3 to 7 people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.sources import local_folder, one_line, split_revision

ROWS = {"train": slice(0, 900), "validation": slice(900, 1000)}
FILE = "train/people{people}_num1000.jsonl"


def public_files(source: str, side: str, counts: Sequence[int]) -> Iterator[tuple[Path, slice]]:
    """The file and the rows of each number of people, for the side "train" or "validation".

    `source`: a directory that holds the data set's files, or a hub id, looked for in one's own directory first
    (`shared.sources`). Raises ReplicationError, saying what to do,
    where a file is absent or the hub cannot be reached.
    """
    for people in counts:
        yield _file(source, FILE.format(people=people)), ROWS[side]


def _file(source: str, name: str) -> Path:
    identifier, revision = split_revision(source)
    directory = Path(source).expanduser()
    directory = directory if directory.is_dir() else local_folder(identifier)
    if directory is not None:
        if not (directory / name).is_file():
            raise ReplicationError(f"There is no file {directory / name}; the public puzzles need it.")
        return directory / name
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(identifier, name, repo_type="dataset", revision=revision))
    except Exception as error:  # offline, unknown, gated: the library raises many types
        raise ReplicationError(
            f"The puzzles {name} of {identifier} could not be fetched ({one_line(error)}). With a network, run the "
            "same command again; without one, fetch them elsewhere with `hf download --repo-type dataset "
            f"{identifier}` and give their directory in place of the hub id."
        ) from error
