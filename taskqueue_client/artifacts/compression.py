"""Compression and decompression of gzip, as streams. isal, if installed, makes both several times faster."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cache
from importlib import import_module
from typing import Any

from .sources import Block, Source, Spool

GZIP = 31
"""zlib's `wbits` for a gzip header and the largest window."""

_PIECE = 1024 * 1024  # bytes that decompression returns at a time: a bound for memory

_MOST_THREADS = 4  # more threads don't help: one thread reads the source

_WORTH_THREADS = 4 * 1024 * 1024
"""Smaller content is compressed by one thread: several take twice the processor time for 1 MB, and four times
for 100 kB."""


def fast_zlib() -> Any:
    """Return isal's faster form of zlib, or zlib itself if isal is not installed."""
    return isal("isal_zlib") or zlib


@cache
def isal(module: str) -> Any:
    """Return a module of isal, imported on first use; None if isal is not installed."""
    try:
        return import_module(f"isal.{module}")
    except ImportError:
        return None


def gzipped_content(content: bytes) -> Source:
    """Compress small content in memory."""
    packed = fast_zlib().compress(content, wbits=GZIP)
    return Source("compressed content", io.BytesIO(packed), size=len(packed), content=packed)


def gzipped(source: Source, check: Callable[[], object]) -> Source:
    """Compress a source into a temporary file. Blocks."""
    with Spool() as spool:
        _compress(_checked(source.blocks(), check), spool, source.size)
        return spool.source()


def _checked(blocks: Iterable[Block], check: Callable[[], object]) -> Iterator[Block]:
    for block in blocks:
        check()
        yield block


def _compress(blocks: Iterable[Block], file: Spool, size: int) -> None:
    threaded = isal("igzip_threaded")
    if threaded is not None and size >= _WORTH_THREADS:
        threads = min(os.cpu_count() or 1, _MOST_THREADS)
        with closing(threaded.open(file, "wb", threads=threads)) as stream:
            for block in blocks:
                stream.write(block)
        return
    compressor = fast_zlib().compressobj(wbits=GZIP)
    for block in blocks:
        file.write(compressor.compress(block))
    file.write(compressor.flush())


class BadGzip(ValueError):
    """Data that is not gzip, or is damaged."""


class Gunzip:
    """Decoder of gzip with one or more members. Returns pieces of bounded size."""

    def __init__(self) -> None:
        self._decompressor = fast_zlib().decompressobj(GZIP)
        self._begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the stream may end here."""
        return not self._begun

    def decode(self, block: Block) -> Iterator[bytes]:
        """Return the decoded content of a block."""
        is_cut = False
        while block or is_cut:
            self._begun = True
            piece = self._decompress(block)
            yield piece
            is_cut = len(piece) == _PIECE and not self._decompressor.eof
            block = self._rest()

    def _decompress(self, block: Block) -> bytes:
        try:
            return bytes(self._decompressor.decompress(block, _PIECE))
        except (zlib.error, fast_zlib().error) as error:
            raise BadGzip(str(error)) from error

    def _rest(self) -> bytes:
        """Return the part of a block that was not decoded yet, and start the next member if one has ended."""
        if not self._decompressor.eof:
            return bytes(self._decompressor.unconsumed_tail)
        rest = bytes(self._decompressor.unused_data)
        self._decompressor = fast_zlib().decompressobj(GZIP)
        self._begun = False
        return rest
