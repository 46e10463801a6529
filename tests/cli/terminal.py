"""A pseudoterminal, which programs take for a terminal."""

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
        reader: The file descriptor of the controlling end.
    """

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self.shown = ""

    def read_until(self, met: Callable[[str], bool]) -> str:
        """Read until `met` returns True for the text shown so far, or the program has closed the terminal."""
        while not met(self.shown):
            try:
                block = os.read(self._reader, 4096)
            except OSError:  # Linux reports the closed other end so
                break
            self.shown += block.decode(errors="replace")
        return self.shown

    def read_all(self) -> str:
        """Read until the program has closed the terminal."""
        return self.read_until(lambda _: False)


@contextmanager
def on_a_terminal(
    *arguments: str, columns: int = 100, terminal_type: str = "xterm"
) -> Generator[tuple[subprocess.Popen[bytes], Terminal]]:
    """Start the command in a separate process, with a terminal; kill it at the end of the block."""
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
