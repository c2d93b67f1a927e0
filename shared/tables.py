"""Tables from files: `.csv`, `.json`, `.jsonl` and `.parquet`, read in one way wherever a user gives a path."""

from __future__ import annotations

import io
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.sources import FILE_TYPES as FILE_TYPES


def read_table(path: str | Path, kind: str | None = None) -> pd.DataFrame:
    """The rows of a file; every column has dtype object and holds plain Python values, None where one is missing.

    `kind`: one of FILE_TYPES, where the ending of the name does not say. A CSV may begin with lines that start with #.
    JSON holds records, one list per column, or a list of values (a column named "value"); one record a line is read
    from either ending. Raises ReplicationError for a file that is absent, a folder, unreadable or of another kind,
    and for rows longer than a CSV's header; a file without rows gives an empty table. Cost: linear in the file.
    """
    path = Path(path).expanduser()
    kind = kind or path.suffix
    if kind not in _READERS:
        raise ReplicationError(f"{path} is no table: its name must end in {', '.join(FILE_TYPES)}.")
    if path.is_dir():
        raise ReplicationError(f"{path} is a folder. Name its files one by one.")
    if not path.is_file():
        raise ReplicationError(f"There is no file {path}.")
    try:
        frame = _READERS[kind](path)
    except (OSError, ValueError, TypeError, pd.errors.ParserWarning, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ReplicationError(f"{path} could not be read as a {kind[1:]} file ({reason}).") from error
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    lines = io.StringIO(path.read_text(encoding="utf-8-sig")).readlines()
    # Only lines at the top are comments: a # may be part of a problem's text.
    text = "".join(itertools.dropwhile(lambda line: line.startswith("#") or not line.strip(), lines))
    if not text:
        return pd.DataFrame()
    with warnings.catch_warnings():
        # A row longer than the header, such as 0,5 for 0.5, would be cut with a warning only.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        frame = pd.read_csv(io.StringIO(text), skipinitialspace=True, index_col=False)
    return _plain({name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame})


def _read_json(path: Path) -> pd.DataFrame:
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        return pd.DataFrame()
    try:
        content = json.loads(text)
    except ValueError:
        # Not splitlines: a text inside a record may hold U+2028 and other marks that it takes for ends of lines.
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or (path.suffix == ".json" and not _is_json(lines[0][1])):
            raise
        content = [_record(line, number, number == lines[-1][0]) for number, line in lines]
    return _frame([content] if isinstance(content, dict) and path.suffix == ".jsonl" else content)


def _record(line: str, number: int, last: bool) -> Any:
    """The value in one line of a file; ValueError names the line where it is none."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        cut = "; it is the last line: was the file cut off?" if last else ""
        raise ValueError(f"line {number} is no JSON: {error.msg} at column {error.colno}{cut}") from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet

    return _plain(pyarrow.parquet.read_table(path).to_pydict())


def _frame(content: Any) -> pd.DataFrame:
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        names = dict.fromkeys(name for row in content for name in row)
        return _plain({name: [row.get(name) for row in content] for name in names})
    if isinstance(content, list) and not any(isinstance(row, (dict, list)) for row in content):
        return _plain({"value": content})
    if isinstance(content, dict) and all(isinstance(column, list) for column in content.values()):
        if len({len(column) for column in content.values()}) > 1:
            raise ValueError("columns of different lengths")
        return _plain(content)
    raise ValueError("neither records nor a list of values nor one list per column")


def _plain(columns: dict[Any, list[Any]]) -> pd.DataFrame:
    return pd.DataFrame({str(name): pd.Series(values, dtype=object) for name, values in columns.items()})


_READERS = {".csv": _read_csv, ".json": _read_json, ".jsonl": _read_json, ".parquet": _read_parquet}
