"""A terminal, as far as a program can tell."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tests.cli.command import COMMAND


class Terminal:
    """The text that a terminal has shown so far.

    Args:
        reader: The end of it that nobody writes to.
    """

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self.shown = ""

    def read_until(self, met: Callable[[str], bool]) -> str:
        """Read until what was shown is as `met` wants it, or nothing more can come."""
        while not met(self.shown):
            try:
                block = os.read(self._reader, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            self.shown += block.decode(errors="replace")
        return self.shown

    def read_all(self) -> str:
        """Read until nothing more can come."""
        return self.read_until(lambda _: False)


@contextmanager
def on_a_terminal(
    *arguments: str, columns: int = 100, terminal_type: str = "xterm"
) -> Generator[tuple[subprocess.Popen[bytes], Terminal]]:
    """The command, in a separate process, with a terminal."""
    reader, terminal = pty.openpty()
    environment = {**os.environ, "TERM": terminal_type, "COLUMNS": str(columns), "LINES": "30"}
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        try:
            yield process, Terminal(reader)
        finally:
            process.kill()
            os.close(reader)
