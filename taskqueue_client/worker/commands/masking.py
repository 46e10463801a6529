"""Mask secrets in a stream of bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

from taskqueue_client.credentials import Credentials
from taskqueue_client.errors import InvalidArgument

MASK = b"[masked]"

SHORTEST_LINE = 8
"""Characters from which on a line of a secret is masked by itself: shorter lines, such as `}`, appear in
harmless text, too."""


class Secrets:
    """Texts that must not be shown, including those of `shared`.

    Texts can be added, but not removed. Safe to use from any thread.
    """

    def __init__(self, shared: Secrets | None = None) -> None:
        self._own: tuple[bytes, ...] = ()
        self._shared = shared
        self._lock = threading.Lock()

    @classmethod
    def of(cls, credentials: Credentials | None) -> Self:
        """Return the secrets of credentials, if there are any."""
        secrets = cls()
        if credentials is not None:
            secrets.add_credentials(credentials)
        return secrets

    @property
    def known(self) -> tuple[bytes, ...]:
        """All texts so far, including lines that are masked separately."""
        return self._own if self._shared is None else self._own + self._shared.known

    def add(self, secret: object) -> None:
        """Mask a text from now on, and each of its longer lines separately; white space around is ignored.

        Lines may end with a line feed, or with a carriage return before it, as on a terminal.

        Raises:
            InvalidArgument: `secret` is not a str, or is empty or white space. The error does not show it.
        """
        if not isinstance(secret, str):
            raise InvalidArgument("secret", secret, "a non-empty str", f"of type {type(secret).__name__}")
        whole = secret.strip()
        if not whole:
            raise InvalidArgument("secret", "", "a str that is not empty or white space")
        lines = [line.strip() for line in whole.splitlines()]
        unix = whole.replace("\r\n", "\n")
        texts = {whole, unix, unix.replace("\n", "\r\n")}
        texts.update(line for line in lines if len(line) >= SHORTEST_LINE)
        with self._lock:
            self._own = (*{*self._own, *(form for text in texts for form in _encoded(text))},)

    def add_credentials(self, credentials: Credentials) -> None:
        """Mask credentials, in case a handler or command prints them. The keeper calls this."""
        self.add(credentials.access_token)
        if credentials.certificate is not None:
            self.add(credentials.certificate)


def _encoded(text: str) -> Iterator[bytes]:
    """Yield a text as messages have it and, if it comes from `os.fsdecode`, as commands print it."""
    yield text.encode(errors="backslashreplace")
    with suppress(UnicodeEncodeError):  # half of a surrogate pair
        yield text.encode(errors="surrogateescape")


def masked(text: bytes, secrets: Secrets) -> bytes:
    """Return a complete text with its secrets masked."""
    if not any(map(text.__contains__, secrets.known)):
        return text
    masking = Masking(secrets)
    return masking.feed(text) + masking.flush()


def masked_text(text: str, secrets: Secrets) -> str:
    """Return a complete text with its secrets masked."""
    return masked(text.encode(errors="backslashreplace"), secrets).decode(errors="replace")


class Masking:
    """Masks secrets in a stream of chunks, also secrets that are divided between chunks.

    Bytes that may be the beginning of a secret are held back until further bytes decide; they are fewer than
    those of the longest secret. Secrets that are added later are masked, too.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""
        self._covered = 0  # bytes of `_held` that belong to a secret whose mask was already returned

    def feed(self, chunk: bytes) -> bytes:
        """Add a chunk; return what can be shown now."""
        known = self._secrets.known
        if not known:
            return chunk
        text = self._held + chunk
        return self._shown(text, known, min(_beginning(text, each) for each in known))

    def flush(self) -> bytes:
        """Return the rest at the end of the stream."""
        return self._shown(self._held, self._secrets.known, len(self._held))

    def _shown(self, text: bytes, known: tuple[bytes, ...], cut: int) -> bytes:
        """Return `text` up to `cut`, masked; hold the rest back."""
        shown: list[bytes] = []
        at = self._covered
        for start, end in sorted(span for secret in known for span in _spans(text, secret)):
            if start >= cut:
                break
            if start >= at:
                shown += (text[at:start], MASK)
            at = max(at, end)
        shown.append(text[at:cut])
        self._held, self._covered = text[cut:], max(at - cut, 0)
        return b"".join(shown)


def _spans(text: bytes, secret: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the secret starts and ends; its occurrences may overlap."""
    start = text.find(secret)
    while start >= 0:
        yield start, start + len(secret)
        start = text.find(secret, start + 1)


def _beginning(text: bytes, secret: bytes) -> int:
    """Return the index of the incomplete secret at the end of the text, else the text's length."""
    start = max(len(text) - len(secret) + 1, 0)
    while (start := text.find(secret[:1], start)) >= 0:
        if secret.startswith(text[start:]):
            return start
        start += 1
    return len(text)
