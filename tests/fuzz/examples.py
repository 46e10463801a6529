"""How many examples a fuzz test tries."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """Return `FUZZ_EXAMPLES`, which `make fuzz` sets, or the number that the suite has time for."""
    return int(os.environ.get("FUZZ_EXAMPLES", usual))
