"""Secrets that must not be shown, and the stream in which they are masked."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from taskqueue_client.errors import InvalidArgument

MASK = b"[masked]"

SHORTEST_LINE = 8
"""Characters of a line of a secret that make it one of its own: shorter ones, such as `}`, stand in
harmless text, too."""


class Secrets:
    """What must not be shown; it grows only. Safe to use from any thread."""

    def __init__(self) -> None:
        self.known: tuple[bytes, ...] = ()
        self._lock = threading.Lock()

    def add(self, secret: str) -> None:
        """Mask a text from now on, and each of its longer lines by itself. White space around does not count.

        Raises:
            InvalidArgument: There is nothing but white space. The error does not show it.
        """
        whole = secret.strip()
        if not whole:
            raise InvalidArgument("secret", "", "a text that is not empty")
        lines = [line.strip() for line in whole.splitlines()]
        texts = [whole, *(line for line in lines if len(line) >= SHORTEST_LINE)]
        with self._lock:
            self.known = (*{*self.known, *(text.encode(errors="backslashreplace") for text in texts)},)


def masked(text: bytes, secrets: Secrets) -> bytes:
    """A text that is all there, with what must not be shown masked."""
    if not any(map(text.__contains__, secrets.known)):
        return text
    masking = Masking(secrets)
    return masking.feed(text) + masking.flush()


class Masking:
    """A stream of bytes on its way, in chunks. A secret is masked wherever the chunks are cut.

    What may be the beginning of a secret is held back until it is known: less than the longest secret.

    Args:
        secrets: What to mask; those that are added meanwhile, too.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""
        self._covered = 0  # so many bytes of the held ones belong to a secret whose mask is out already

    def feed(self, chunk: bytes) -> bytes:
        """What can be shown when `chunk` has come."""
        known = self._secrets.known
        if not known and not self._held:
            return chunk
        text = self._held + chunk
        return self._shown(text, known, min((_beginning(text, each) for each in known), default=len(text)))

    def flush(self) -> bytes:
        """The rest, as nothing follows."""
        return self._shown(self._held, self._secrets.known, len(self._held))

    def _shown(self, text: bytes, known: tuple[bytes, ...], cut: int) -> bytes:
        """`text` up to `cut`, masked; what follows is held back."""
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
    """Where the secret stands; its occurrences may overlap."""
    start = text.find(secret)
    while start >= 0:
        yield start, start + len(secret)
        start = text.find(secret, start + 1)


def _beginning(text: bytes, secret: bytes) -> int:
    """Where a beginning of the secret stands that the text ends in; the text's length if there is none."""
    start = max(len(text) - len(secret) + 1, 0)
    while (start := text.find(secret[:1], start)) >= 0:
        if secret.startswith(text[start:]):
            return start
        start += 1
    return len(text)
