"""The suite's import name: `grpo_replications.shared`, `.synthetic` and `.replications`.

An installed package holds the three inside this directory. In a checkout they lie beside it, at the top level of the
project, and are found there. One name of our own keeps them apart from a project that has a `shared` package itself.
"""

from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parent.parent
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "shared" / "errors.py").is_file():
    __path__.append(str(_CHECKOUT))
