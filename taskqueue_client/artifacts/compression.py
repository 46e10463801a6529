"""Streamed compression and decompression of gzip. isal, if installed, makes both several times faster."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

GZIP = 31
"""zlib's `wbits` for a gzip header and the largest window."""

_RAW = -15
"""The same window without a header."""

_PIECE = 1024 * 1024
"""Bytes that decompression returns at a time: a bound for memory."""


class GrowingGzip:
    """Compresses content that grows, as gzip that can be ended more than once.

    A stream is the `HEADER`, what `add` and `flush` return, and what `end` returns. What comes up to a
    `flush` is the beginning of every longer stream. After a `flush`, there is no compressor in memory, as
    content may pause for hours, and each compressor takes more than 100 kB.
    """

    HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    """Neither name nor time (RFC 1952, 2.3)."""

    def __init__(self) -> None:
        self._library: Any = isal("isal_zlib") or zlib
        self._compressor: Any = None
        self._checksum = self._size = 0

    def _new_compressor(self) -> Any:
        return self._library.compressobj(wbits=_RAW)

    def add(self, block: bytes) -> bytes:
        """Return what can be written for a block now."""
        self._checksum = self._library.crc32(block, self._checksum)
        self._size += len(block)
        if self._compressor is None:
            self._compressor = self._new_compressor()
        return bytes(self._compressor.compress(block))

    def flush(self) -> bytes:
        """Return what is left to write of all blocks."""
        compressor, self._compressor = self._compressor, None
        return b"" if compressor is None else bytes(compressor.flush(zlib.Z_SYNC_FLUSH))

    def end(self, tail: bytes) -> bytes:
        """Return what ends the stream after a `flush`: a last text, and the checksum."""
        last = self._new_compressor()
        checksum = self._library.crc32(tail, self._checksum)
        trailer = struct.pack("<II", checksum, (self._size + len(tail)) % 2**32)
        return bytes(last.compress(tail) + last.flush()) + trailer


class BadGzip(ValueError):
    """Data that is not gzip, or is damaged."""


class Gunzip:
    """Decoder of gzip with one or more members. Returns pieces of bounded size."""

    def __init__(self) -> None:
        self._decompressor = _decompressor()
        self._begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the stream may end here."""
        return not self._begun

    def decode(self, block: bytes | memoryview) -> Iterator[bytes]:
        """Return the decoded content of a block."""
        is_cut = False
        while block or is_cut:
            self._begun = True
            piece = self._decompress(block)
            yield piece
            is_cut = len(piece) == _PIECE and not self._decompressor.eof
            block = self._rest()

    def _decompress(self, block: bytes | memoryview) -> bytes:
        try:
            return bytes(self._decompressor.decompress(block, _PIECE))
        except _errors() as error:
            raise BadGzip(str(error)) from error

    def _rest(self) -> bytes:
        """Return the part of a block that was not decoded yet, and start the next member if one has ended."""
        if not self._decompressor.eof:
            return bytes(self._decompressor.unconsumed_tail)
        rest = bytes(self._decompressor.unused_data)
        self._decompressor = _decompressor()
        self._begun = False
        return rest


def _errors() -> tuple[type[Exception], ...]:
    faster = isal("isal_zlib")
    return (zlib.error,) if faster is None else (zlib.error, faster.error)


def _decompressor() -> Any:
    return (isal("isal_zlib") or zlib).decompressobj(GZIP)


@cache
def isal(module: str) -> Any:
    """Return a module of isal, imported on first use; None if isal is not installed."""
    try:
        return import_module(f"isal.{module}")
    except ImportError:
        return None
