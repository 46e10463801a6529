"""Names, content types and expiry of artifacts, validated and corrected before a request is made.

The content type of a name is fixed, so that every machine agrees. The system's own MIME files are not read:
they differ between machines, and decide whether a browser shows a log or saves it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from types import MappingProxyType

_UNREADABLE_ON_S3 = re.compile(r"[%\[\]|\\]|//")
_UNREADABLE_AS_OBJECT = re.compile(r"[^A-Za-z0-9!@/:.+|_-]")

_log = logging.getLogger("taskqueue_client.artifacts")

LOG_NAME = "public/logs/live_backing.log"
LOG_LINK = "public/logs/live.log"
"""The names under which everybody looks for a task's log; user interfaces open the link."""


def warn_if_unreadable(name: str, storage: str) -> None:
    """Log a warning if readers will fail, as measured on the service, though the upload succeeds."""
    if storage == "s3" and name.startswith("public/") and (found := _UNREADABLE_ON_S3.search(name)):
        _log.warning(
            "artifact %r can be uploaded but not downloaded: S3 does not find names that contain %r",
            name,
            found[0],
        )
    elif storage == "object" and (found := _UNREADABLE_AS_OBJECT.search(name)):
        _log.warning(
            "artifact %r can be downloaded by this client only: for names that contain %r, the Queue issues "
            "invalid credentials for the object service",
            name,
            found[0],
        )


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
            "text/plain",
        ),
        ".css": "text/css", ".csv": "text/csv", ".htm": "text/html", ".html": "text/html",
        ".js": "text/javascript", ".mjs": "text/javascript", ".yaml": "application/yaml",
        ".yml": "application/yaml", ".json": "application/json", ".jsonl": "application/jsonl",
        ".map": "application/json", ".xhtml": "application/xhtml+xml", ".xml": "application/xml",
        ".wasm": "application/wasm",
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
