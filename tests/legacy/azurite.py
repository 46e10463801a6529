"""Azurite, Microsoft's emulator of Azure storage, on loopback."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

MAIN = Path.home() / ".cache/taskqueue-client/node_modules/azurite/dist/src/queue/main.js"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The well-known key of the emulator."""


class Azurite:
    """The queue service of the emulator; when it is started again, it has the same port and data.

    Args:
        folder: The directory of its data.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}/{ACCOUNT}"

    @property
    def connection_string(self) -> str:
        return self.connection_string_of(self.endpoint)

    @staticmethod
    def connection_string_of(endpoint: str) -> str:
        account = f"AccountName={ACCOUNT};AccountKey={KEY}"
        return f"DefaultEndpointsProtocol=http;{account};QueueEndpoint={endpoint};"

    def start(self) -> None:
        """Start the emulator; return when it accepts requests."""
        command = ["node", str(MAIN), "--queueHost", "127.0.0.1", "--queuePort", str(self._port)]
        command += [
            "--location",
            str(self._folder),
            "--silent",
            "--disableTelemetry",
            "--skipApiVersionCheck",
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=self._folder
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(rb"successfully listens on http://127.0.0.1:(\d+)", line):
                self._port = int(found[1])
                return
        raise AssertionError("Azurite ended: " + str(self._process.wait()))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
