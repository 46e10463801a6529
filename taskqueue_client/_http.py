"""HTTP/1.1 as bytes: the request that is to be sent, and the answer in what has arrived. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_LONGEST_HEAD = 64 * 1024
"""Bytes of an answer before its body, and of what is neither size nor content of a chunk."""
_BEGINNING = b"HTTP/1."
_HEAD_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})\b")
_NUMBER = re.compile(r"[0-9]{1,15}")
_FIRST_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
"""The line before a chunk."""
NEXT_CHUNK = re.compile(rb"\r?\n" + _FIRST_CHUNK.pattern)
"""The same, with the end of the chunk before."""
_TRAILERS = re.compile(rb"(?:[^\r\n]+\r?\n)*\r?\n")
_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WITHOUT_BODY = frozenset({204, 304})


class Address(NamedTuple):
    """Where a connection goes."""

    scheme: str
    host: str
    port: int

    @property
    def header(self) -> str:
        """The value of `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.port == (443 if self.scheme == "https" else 80)
        return host if is_usual else f"{host}:{self.port}"


class Sent(NamedTuple):
    """A request.

    Attributes:
        method: Any but `HEAD` and `CONNECT`, whose answers are framed in another way.
        target: The path and the query, exactly as they were signed.
        headers: All but `Host` and `Content-Length`.
        body: None if there is none, and no word of its length either.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None


class Received(NamedTuple):
    """An answer.

    Attributes:
        headers: By their names in lower case.
        body: As it came.
        is_last: The connection cannot be used again.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_last: bool


class UnfitRequest(ValueError):
    """What is to be sent is no good HTTP."""

    def __init__(self) -> None:
        super().__init__(
            "the request would be no good HTTP: its target or a header holds what cannot be sent"
        )


class UnfitAnswer(ValueError):
    """What came is no good HTTP."""

    def __init__(self) -> None:
        super().__init__("the answer is no good HTTP")


def written(address: Address, sent: Sent) -> bytes:
    """A request as it is sent (RFC 9112, sections 2 to 6).

    Raises:
        UnfitRequest: It would be none.
    """
    headers = {"Host": address.header, **sent.headers}
    if sent.body is not None:
        headers["Content-Length"] = str(len(sent.body))
    lines = [f"{sent.method} {sent.target} HTTP/1.1", *map(": ".join, headers.items())]
    text = "".join(lines)
    is_text = text.isascii() and text.isprintable() and " " not in sent.target
    if not is_text or "" in headers or not _NAMES.fullmatch("".join(headers)):
        raise UnfitRequest
    return "\r\n".join((*lines, "", "")).encode() + (sent.body or b"")


class Arriving:
    """An answer on its way in (RFC 9112, sections 6 and 7).

    Args:
        longest: How many bytes of its body are wanted.

    Attributes:
        needed: So many bytes must have arrived before it is worth to look again.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._arrived = bytearray()
        self._at = 0  # the end of what was read: heads, and chunks, so that each is read once
        self._head: _Head | None = None
        self._chunks = bytearray()
        self.needed = 1

    def take(self, data: bytes) -> Received | None:
        """The answer, if all of it is there with this.

        Raises:
            UnfitAnswer: It is none.
        """
        self._arrived += data
        return self._look(has_ended=False) if len(self._arrived) >= self.needed else None

    def end(self) -> Received | None:
        """The answer, if all of it is there when nothing more will come."""
        try:
            return self._look(has_ended=True)
        except UnfitAnswer:
            return None

    def _look(self, *, has_ended: bool) -> Received | None:
        while self._head is None or self._head.status < 200:  # noqa: PLR2004 - until then, there is more to come
            head = _head(self._arrived, self._at)
            if head is None:
                self.needed = len(self._arrived) + 1
                return None
            self._head, self._at = head, head.end
        head, body = self._head, self._body(self._head, has_ended=has_ended)
        return body and Received(head.status, head.headers, body.content, head.is_last or not body.is_all)

    def _body(self, head: _Head, *, has_ended: bool) -> _Body | None:
        if head.status in _WITHOUT_BODY:
            return self._of_length(0)
        encoding, length = head.headers.get("transfer-encoding"), head.headers.get("content-length")
        if encoding is not None:
            if encoding.lower() != "chunked":  # nobody has asked for another
                raise UnfitAnswer
            return self._in_chunks(head.end)
        if length is None:
            return self._until_end(has_ended=has_ended)
        first, *others = {each.strip() for each in length.split(",")}
        if others or not _NUMBER.fullmatch(first):
            raise UnfitAnswer
        return self._of_length(int(first))

    def _of_length(self, length: int) -> _Body | None:
        end = self._at + min(length, self._longest)
        if len(self._arrived) < end:
            self.needed = end
            return None
        is_all = len(self._arrived) == end and length <= self._longest
        return _Body(bytes(self._arrived[self._at : end]), is_all)

    def _until_end(self, *, has_ended: bool) -> _Body | None:
        end = self._at + self._longest
        if len(self._arrived) < end and not has_ended:
            self.needed = end
            return None
        return _Body(bytes(self._arrived[self._at : end]), is_all=False)

    def _in_chunks(self, first: int) -> _Body | None:
        while found := (_FIRST_CHUNK if self._at == first else NEXT_CHUNK).match(self._arrived, self._at):
            size = int(found[1], 16)
            if size == 0:
                return self._after_chunks(found.end())
            end = found.end() + min(size, self._longest - len(self._chunks))
            if len(self._arrived) < end:
                self.needed = end
                return None
            self._chunks += self._arrived[found.end() : end]
            if len(self._chunks) >= self._longest:
                return _Body(bytes(self._chunks), is_all=False)
            self._at = end
        if self._arrived.find(b"\n", self._at + 2) >= 0:  # a line, and not of a chunk
            raise UnfitAnswer
        self._wait_for_line()
        return None

    def _after_chunks(self, start: int) -> _Body | None:
        trailers = _TRAILERS.match(self._arrived, start)
        if trailers is None:
            self._wait_for_line()
            return None
        return _Body(bytes(self._chunks), trailers.end() == len(self._arrived))

    def _wait_for_line(self) -> None:
        if len(self._arrived) - self._at > _LONGEST_HEAD:
            raise UnfitAnswer
        self.needed = len(self._arrived) + 1


class _Head(NamedTuple):
    status: int
    headers: Mapping[str, str]
    is_last: bool
    """It says that the connection ends."""
    end: int


class _Body(NamedTuple):
    content: bytes
    is_all: bool
    """It has come to its end, and nothing follows."""


def _head(arrived: bytearray, start: int) -> _Head | None:
    """The head that begins at `start`, if it is all there."""
    end = arrived.find(_HEAD_END, start)
    if end < 0:
        _check_begun(arrived, start)
        return None
    if end > _LONGEST_HEAD:
        raise UnfitAnswer
    first, *lines = arrived[start:end].decode("latin-1").split("\r\n")
    found = _STATUS_LINE.match(first)
    if found is None:
        raise UnfitAnswer
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    is_last = found[1] == "0" or "close" in headers.get("connection", "").lower()
    return _Head(int(found[2]), headers, is_last, end + len(_HEAD_END))


def _check_begun(arrived: bytearray, start: int) -> None:
    """Refuse what can never become a head: else, it would be waited for."""
    begun = arrived[start:]
    is_long = len(arrived) >= _LONGEST_HEAD + len(_HEAD_END)
    if is_long or b"\n\n" in begun or not begun.startswith(_BEGINNING[: len(begun)]):
        raise UnfitAnswer
