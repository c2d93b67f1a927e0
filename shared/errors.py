"""The one exception that the command line shows as a message instead of a traceback."""

from __future__ import annotations


class ReplicationError(Exception):
    """An expected failure; its message says in one or two sentences what is wrong and what to do about it."""
