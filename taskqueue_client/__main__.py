"""`taskqueue`, or `python -m taskqueue_client`."""

from __future__ import annotations

import sys

_EXTRA = frozenset({"click", "rich", "yaml"})
"""The packages of the extra `cli`."""


def main() -> None:
    """Run the command; without the extra `cli`, say how to install it."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
    try:
        from taskqueue_client.cli import taskqueue  # noqa: PLC0415 - may be missing

        taskqueue(prog_name="taskqueue")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.exit(f"taskqueue needs {error.name}: pip install 'taskqueue_client[cli]'")


if __name__ == "__main__":
    main()
