"""The one exception that the command line shows as a message instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ReplicationError(Exception):
    """An expected failure; its message says in one or two sentences what is wrong and what to do about it."""

    exit_code = 2  # of the command: a request that cannot be met as it stands


class Problems:
    """The mistakes of one piece of work, gathered so that all of them are told at once."""

    def __init__(self) -> None:
        self._messages: dict[str, None] = {}  # in order, each once

    @property
    def messages(self) -> list[str]:
        """One line a mistake."""
        return list(self._messages)

    def add(self, message: str) -> None:
        """Note a mistake, or several on a line each."""
        self._messages |= dict.fromkeys(message.splitlines())

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the ReplicationError that the block raises, and go on after the block."""
        try:
            yield
        except ReplicationError as error:
            self.add(str(error))

    def raise_any(self) -> None:
        """Raise one ReplicationError with a line for each mistake, if there is one."""
        if self._messages:
            raise ReplicationError("\n".join(self._messages))
