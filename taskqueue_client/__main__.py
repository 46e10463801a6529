"""`taskqueue`, or `python -m taskqueue_client`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_EXTRA = frozenset({"click", "rich", "yaml"})
"""The packages of the extra `cli`."""


def main() -> None:
    """Run the command; without the extra `cli`, say how to install it."""
    _replace_closed_streams()
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
    try:
        from taskqueue_client.cli import taskqueue  # noqa: PLC0415 - may be missing

        taskqueue(prog_name="taskqueue")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f"taskqueue needs {error.name}: pip install 'taskqueue_client[cli]'")


def _replace_closed_streams() -> None:
    """Open `/dev/null` for each closed standard stream, whose file descriptor another file would get."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the end


if __name__ == "__main__":
    main()
