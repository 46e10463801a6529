"""The record of a campaign: each fault, as a line of JSON on the disk and in memory."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec


class Incident(msgspec.Struct, omit_defaults=True):
    """A fault, or anything else that explains what happened to a run.

    Attributes:
        kind: Such as `worker killed` or `exchange dropped`.
        target: The worker's id, `queue`, `broker`, `storage`, or an exchange's method and path.
        began: When it began, in seconds since the epoch.
        ended: When it ended, in seconds since the epoch; None while it lasts.
        runs: The runs, as `TASK/RUN`, that the queue has claimed for a worker which got no response.
        detail: Anything else.
    """

    kind: str
    target: str
    began: float
    ended: float | None = None
    runs: list[str] = []
    detail: str = ""

    def overlaps(self, began: float, ended: float) -> bool:
        """Return whether any part of the incident lies between two moments."""
        return self.began <= ended and (self.ended is None or self.ended >= began)


class IncidentLog:
    """All incidents of a campaign.

    Args:
        path: The file that gets a line for each incident.
        seed: The seed of the campaign, which each line repeats.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self.incidents: list[Incident] = []
        self._seed = seed
        self._file = path.open("wb")

    def add(self, kind: str, target: str, *, runs: list[str] | None = None, detail: str = "") -> Incident:
        """Note an incident that happens now."""
        now = time.time()
        incident = Incident(kind, target, now, now, runs or [], detail)
        self._begin(incident)
        return incident

    @contextmanager
    def lasting(self, kind: str, target: str, detail: str = "") -> Generator[Incident]:
        """Note an incident that lasts as long as the block."""
        incident = Incident(kind, target, time.time(), None, [], detail)
        self._begin(incident)
        try:
            yield incident
        finally:
            incident.ended = time.time()
            self._write(incident)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _begin(self, incident: Incident) -> None:
        self.incidents.append(incident)
        self._write(incident)

    def _write(self, incident: Incident) -> None:
        line = {"seed": self._seed, **msgspec.to_builtins(incident)}
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
