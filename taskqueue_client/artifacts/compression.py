"""Gzip, streamed both ways. isal, where it is installed, is several times as fast as zlib."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .buffers import Block
from .sources import Source, Spool

if TYPE_CHECKING:
    from .cancellation import Cancellation

_GZIP = 31
"""zlib's `wbits` for a gzip header and the largest window."""

_MOST_THREADS = 4
"""More don't help: the source is read by one."""

_PIECE = 1024 * 1024
"""Bytes that decompressing gives at a time, however small they were packed."""


def gzipped(source: Source, cancellation: Cancellation) -> Source:
    """The source, compressed into a temporary file. Blocks.

    Raises:
        SourceChanged: It was changed meanwhile.
        OSError: It cannot be read, or the disk is full.
    """
    spool = Spool()
    try:
        _compress(cancellation.checked(source.blocks()), spool)
        return spool.source()
    except BaseException:
        spool.close()
        raise


def _compress(blocks: Iterable[Block], spool: Spool) -> None:
    threaded = _isal("igzip_threaded")
    if threaded is None:
        _compress_by_zlib(blocks, spool)
        return
    threads = min(os.cpu_count() or 1, _MOST_THREADS)
    with closing(threaded.open(spool.file, "wb", threads=threads)) as stream:
        for block in blocks:
            stream.write(block)


def _compress_by_zlib(blocks: Iterable[Block], spool: Spool) -> None:
    compressor = zlib.compressobj(wbits=_GZIP)
    for block in blocks:
        spool.write(compressor.compress(block))
    spool.write(compressor.flush())


class BadGzip(ValueError):
    """What should be gzip is something else, or is damaged."""


class Gunzip:
    """Decodes gzip, of one member or several, in pieces of bounded size."""

    def __init__(self) -> None:
        self._decompressor = _decompressor()
        self._begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the stream may end here."""
        return not self._begun

    def decode(self, block: Block) -> Iterator[bytes]:
        """What a block of the encoded stream stands for.

        Raises:
            BadGzip: It is no gzip, or its checksum is wrong.
        """
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
        except _errors() as error:
            raise BadGzip(str(error)) from error

    def _rest(self) -> bytes:
        """What is left of a block: the next member's, if one has ended."""
        if not self._decompressor.eof:
            return bytes(self._decompressor.unconsumed_tail)
        rest = bytes(self._decompressor.unused_data)
        self._decompressor = _decompressor()
        self._begun = False
        return rest


def _errors() -> tuple[type[Exception], ...]:
    faster = _isal("isal_zlib")
    return (zlib.error,) if faster is None else (zlib.error, faster.error)


def _decompressor() -> Any:
    return (_isal("isal_zlib") or zlib).decompressobj(_GZIP)


@cache
def _isal(module: str) -> Any:
    """A module of isal, if that is installed; imported when it is first needed."""
    try:
        return import_module(f"isal.{module}")
    except ImportError:
        return None
