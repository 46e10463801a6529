"""The content types of artifacts, which follow from their names; compression with gzip.

The content type of a name is fixed, so that every machine agrees. The system's own MIME files are not read:
they differ between machines, and decide whether a browser shows a log or saves it. Text is declared as UTF-8,
as by generic-worker: without a charset, browsers and requests decode it as windows-1252 or ISO 8859-1.

isal, if installed, makes compression and decompression several times faster.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from .sources import Block, Source, Spool

LOG_NAME = "public/logs/live_backing.log"
LOG_LINK = "public/logs/live.log"
"""The names under which everybody looks for a task's log; user interfaces open the link."""

DEFAULT_CONTENT_TYPE = "application/octet-stream"
"""The content type of names without a known ending."""

CONTENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        # Text that people read in a browser.
        **dict.fromkeys(
            (
                *(".asc", ".bat", ".cfg", ".cmd", ".conf", ".diff", ".err", ".ini", ".log", ".md"),
                *(".out", ".patch", ".pem", ".properties", ".ps1", ".py", ".rst", ".sh", ".toml", ".txt"),
                *(".c", ".cpp", ".go", ".h", ".java", ".rs", ".sha256", ".sha512", ".sums", ".info"),
            ),
            "text/plain; charset=utf-8",
        ),
        ".css": "text/css; charset=utf-8", ".csv": "text/csv; charset=utf-8",
        ".htm": "text/html; charset=utf-8", ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
        ".yaml": "application/yaml", ".yml": "application/yaml", ".json": "application/json",
        ".jsonl": "application/jsonl", ".map": "application/json", ".xhtml": "application/xhtml+xml",
        ".xml": "application/xml", ".wasm": "application/wasm",
        # Pictures, sound and film.
        ".avif": "image/avif", ".gif": "image/gif", ".ico": "image/vnd.microsoft.icon",
        ".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".png": "image/png", ".svg": "image/svg+xml",
        ".webp": "image/webp", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".mp4": "video/mp4",
        ".webm": "video/webm", ".pdf": "application/pdf", ".woff": "font/woff", ".woff2": "font/woff2",
        # Archives and packages.
        ".7z": "application/x-7z-compressed", ".apk": "application/vnd.android.package-archive",
        ".br": "application/x-brotli", ".bz2": "application/x-bzip2",
        ".deb": "application/vnd.debian.binary-package", ".dmg": "application/x-apple-diskimage",
        ".gz": "application/gzip", ".jar": "application/java-archive", ".lz4": "application/x-lz4",
        ".msi": "application/x-msi", ".msix": "application/msix", ".rpm": "application/x-rpm",
        ".tar": "application/x-tar", ".tgz": "application/gzip", ".whl": "application/zip",
        ".xpi": "application/x-xpinstall", ".xz": "application/x-xz", ".zip": "application/zip",
        ".zst": "application/zstd",
    }
)  # fmt: skip
"""The content type for each ending, in lower case."""

COMPRESSED_ENDINGS = frozenset(
    (
        *(".7z", ".aab", ".apk", ".avif", ".br", ".bz2", ".crx", ".deb", ".dmg", ".docx", ".flac", ".gif"),
        *(".gz", ".jar", ".jpeg", ".jpg", ".lz4", ".lzma", ".mar", ".mp3", ".mp4", ".msi", ".msix", ".npz"),
        *(".ogg", ".pdf", ".png", ".pptx", ".rpm", ".snap", ".tbz2", ".tgz", ".txz", ".webm", ".webp"),
        *(".whl", ".woff", ".woff2", ".xlsx", ".xpi", ".xz", ".zip", ".zst"),
    )
)
"""Endings of files that are compressed already. They are not compressed again."""

COMPRESSED_TYPES = frozenset(
    {
        "application/gzip", "application/java-archive", "application/pdf",
        "application/vnd.android.package-archive", "application/vnd.debian.binary-package",
        "application/x-7z-compressed", "application/x-apple-diskimage", "application/x-brotli",
        "application/x-bzip2", "application/x-gzip", "application/x-lz4", "application/x-rpm",
        "application/x-xpinstall", "application/x-xz", "application/x-zstd", "application/zip",
        "application/zstd", "font/woff", "font/woff2",
    }
)  # fmt: skip
"""Content types that are compressed already."""

_COMPRESSED_KINDS = ("audio/", "image/", "video/")
_TEXT_TYPES = frozenset({"application/json", "application/jsonl", "application/wasm", "application/yaml"})
_TEXT_SUFFIXES = ("+json", "+xml", "/xml")


def content_type_of(name: str) -> str:
    """Return the content type of an artifact, by the ending of its name."""
    return CONTENT_TYPES.get(_ending(name), DEFAULT_CONTENT_TYPE)


def is_compressed(name: str, content_type: str) -> bool:
    """Return whether an artifact is compressed already, by its name or its content type."""
    essence = _essence(content_type)
    by_type = essence in COMPRESSED_TYPES or (
        essence.startswith(_COMPRESSED_KINDS) and not essence.endswith(_TEXT_SUFFIXES)
    )
    return by_type or _ending(name) in COMPRESSED_ENDINGS


def is_text(content_type: str) -> bool:
    """Return whether content of this type usually shrinks: text of every kind, and WebAssembly."""
    essence = _essence(content_type)
    return essence.startswith("text/") or essence in _TEXT_TYPES or essence.endswith(_TEXT_SUFFIXES)


def _ending(name: str) -> str:
    _, dot, ending = name.rpartition("/")[2].rpartition(".")
    return dot + ending.lower()


def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


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
        """Yield the decoded content of a block."""
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
