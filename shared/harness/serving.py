"""The results directory in a browser: a server for this machine alone, from the standard library."""

from __future__ import annotations

import errno
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from grpo_replications.shared.errors import ReplicationError

HOST, PORT = "127.0.0.1", 8000


class _Quiet(SimpleHTTPRequestHandler):
    """Files of one directory, always as they are on disk now, without a line for every request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the address was printed once."""

    def end_headers(self) -> None:
        """A report that was generated again must not come from a cache."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


def server(directory: Path, port: int | None = None) -> ThreadingHTTPServer:
    """A server of `directory` on 127.0.0.1; `server_port` is its port, and `serve_forever` starts it.

    Without `port` it takes 8000, or any free one where 8000 is taken; 0 means any free one. Raises ReplicationError
    where there is no report, or the port that was asked for cannot be had.
    """
    if not (directory / "index.html").is_file():
        raise ReplicationError(f"{directory} has no report to show; write it by: replicate report")
    handler = partial(_Quiet, directory=str(directory))
    try:
        return ThreadingHTTPServer((HOST, PORT if port is None else port), handler)
    except (OSError, OverflowError) as error:
        if port is None and getattr(error, "errno", None) == errno.EADDRINUSE:
            return ThreadingHTTPServer((HOST, 0), handler)
        reason = getattr(error, "strerror", None) or error
        raise ReplicationError(
            f"Port {PORT if port is None else port} cannot be used ({reason}); give another by --port, or 0 for any."
        ) from None
