"""Which TRL the trainer has been tested with: it hooks into methods of `GRPOTrainer` that TRL may change."""

from __future__ import annotations

import importlib.metadata
import warnings

TESTED_TRL = ("1.14", "1.16")  # minor versions; the tests of `tests/shared/training` pass with each


def warn_of_untested_trl() -> None:
    """Warn where the installed TRL is of another minor version; nothing is said where none is installed."""
    try:
        version = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError:
        return
    if ".".join(version.split(".")[:2]) not in TESTED_TRL:
        warnings.warn(
            f"TRL {version} is installed; token weights, redraws and the group log have been tested with TRL "
            f"{' and '.join(TESTED_TRL)} only, and may be wrong with another. Install one of these, as in: "
            f'pip install "trl=={TESTED_TRL[-1]}.*"',
            stacklevel=2,
        )
