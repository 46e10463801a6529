"""The endpoints that tell whether a service is there; they are the same in each service."""

from __future__ import annotations

import time
from typing import Any


class Monitoring:
    """Answers `ping`, `version` and the heartbeats, and hands everything else to a service.

    Args:
        service: The object whose methods are the service's other endpoints.
    """

    def __init__(self, service: object) -> None:
        self._service = service
        self._started = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def ping(self) -> dict[str, Any]:
        """That it is alive, and for how many seconds."""
        return {"alive": True, "uptime": time.monotonic() - self._started}

    def heartbeat(self) -> dict[str, Any]:
        """Nothing: that there is an answer is the answer."""
        return {}

    def lbheartbeat(self) -> dict[str, Any]:
        """The same, for load balancers."""
        return {}

    def version(self) -> dict[str, str]:
        """What a source checkout of the service says."""
        return {"version": "dev", "commit": "", "source": "", "build": ""}
