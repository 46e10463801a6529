"""Calls that ask whether the Queue runs. They need no scopes, and are safe to repeat."""

from __future__ import annotations

from types import NoneType

from taskqueue_client._call import Call
from taskqueue_client.models import Ping, Version


def ping() -> Call[Ping]:
    """Whether the Queue answers, and for how long it has been up."""
    return Call("ping", "GET", "/ping", Ping)


def lbheartbeat() -> Call[None]:
    """Succeeds if the Queue answers: for load balancers."""
    return Call("lbheartbeat", "GET", "/__lbheartbeat__", NoneType)


def version() -> Call[Version]:
    """Which version of the Queue is deployed."""
    return Call("version", "GET", "/__version__", Version)


def heartbeat() -> Call[None]:
    """Succeeds if the Queue answers; it looks at nothing beyond that."""
    return Call("heartbeat", "GET", "/__heartbeat__", NoneType)
