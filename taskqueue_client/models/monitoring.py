"""Whether a service runs, and which version of it."""

from __future__ import annotations

from ._base import Model


class Ping(Model, frozen=True, kw_only=True):
    """The service is there, for `uptime` seconds."""

    alive: bool
    uptime: float


class Version(Model, frozen=True, kw_only=True):
    """What is deployed; empty texts, and the version `dev`, in a source checkout."""

    version: str
    commit: str = ""
    source: str = ""
    build: str = ""
