"""The broker, as for the tests of events."""

from __future__ import annotations

from tests.events.conftest import broker_url

__all__ = ["broker_url"]
