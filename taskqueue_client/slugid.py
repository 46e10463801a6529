"""Task ids: UUIDs written as 22 characters of URL-safe base64."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from hashlib import sha256
from uuid import UUID, uuid4

SLUGID = re.compile(r"[A-Za-z0-9_-]{8}[Q-T][A-Za-z0-9_-][CGKOSWaeimquy26-][A-Za-z0-9_-]{10}[AQgw]")
"""The Queue's pattern of a task id and of a task group id (use `fullmatch`)."""


def slugid() -> str:
    """Return a new task id that does not begin with a dash.

    The first bit of the UUID is cleared, as the `slugid` packages do for their "nice" ids: a command
    would read an id that begins with a dash as an option.
    """
    return _nice(uuid4())


def slugid_of(seed: str | None, name: str) -> str:
    """Return an id that depends only on a seed and a name; a new random id if there is no seed."""
    if seed is None:
        return slugid()
    digest = sha256(f"{len(name)} {name} {seed}".encode(errors="surrogatepass")).digest()
    return _nice(UUID(bytes=digest[:16], version=4))


def _nice(uuid: UUID) -> str:
    raw = bytearray(uuid.bytes)
    raw[0] &= 0x7F
    return urlsafe_b64encode(raw)[:22].decode()


def is_slugid(text: object) -> bool:
    """Return whether the Queue accepts `text` as a task id."""
    return isinstance(text, str) and SLUGID.fullmatch(text) is not None
