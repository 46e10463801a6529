"""Names, content types and expiry of artifacts, validated and corrected before a request is made.

The content type of a name is fixed, so that every machine agrees. The system's own MIME files are not read:
they differ between machines, and decide whether a browser shows a log or saves it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType

from taskqueue_client._arguments import text
from taskqueue_client._dates import moment_of, timestamp
from taskqueue_client.errors import InvalidArgument

_NAME = re.compile(r"[\x20-\x7e]{1,1024}")
"""The Queue takes longer names too, but then fails to list them."""

_CONTENT_TYPE = re.compile(r"[\x20-\x7e]{1,255}")

_UNREADABLE_ON_S3 = re.compile(r"[%\[\]|\\]|//")
_UNREADABLE_AS_OBJECT = re.compile(r"[^A-Za-z0-9!@/:.+|_-]")

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?: *; *{_WORD}=(?:{_WORD}|\"[^\"\\]*\"))*")

_log = logging.getLogger("taskqueue_client.artifacts")

LOG_NAME = "public/logs/live_backing.log"
LOG_LINK = "public/logs/live.log"
"""The names under which everybody looks for a task's log; user interfaces open the link."""


def checked_name(name: object) -> str:
    """Return the name of an artifact that is to be created."""
    given = text("name", name, _NAME, "1 to 1024 printable ASCII characters")
    if {".", ".."} & set(given.split("/")):  # storage services and browsers resolve it as a relative path
        raise InvalidArgument("name", name, "a name in which no part between slashes is '.' or '..'")
    return given


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


def checked_content_type(content_type: object) -> str:
    """Return a content type that can be sent as a header."""
    return text("content_type", content_type, _CONTENT_TYPE, "1 to 255 printable ASCII characters")


def checked_media_type(content_type: str) -> str:
    """Return a content type that the object service can read: it fails for others, once the upload has begun.

    Raises:
        InvalidArgument: The content type is not one of RFC 9110.
    """
    if not _MEDIA_TYPE.fullmatch(content_type):
        allowed = "a type such as text/plain; charset=utf-8, which the object service requires"
        raise InvalidArgument("content_type", content_type, allowed)
    return content_type


def clamped_expiry(
    expires: datetime | str, task_expires: datetime | None, now: Callable[[], datetime]
) -> str:
    """Return an artifact's expiry, reduced to the task's: the Queue refuses a later one."""
    moment = moment_of("expires", expires, now)
    if task_expires is not None:
        moment = min(moment, moment_of("task_expires", task_expires))
    return timestamp(moment)


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
        ".css": "text/css",
        ".csv": "text/csv",
        ".htm": "text/html",
        ".html": "text/html",
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".yaml": "application/yaml",
        ".yml": "application/yaml",
        ".json": "application/json",
        ".jsonl": "application/jsonl",
        ".map": "application/json",
        ".xhtml": "application/xhtml+xml",
        ".xml": "application/xml",
        ".wasm": "application/wasm",
        # Pictures, sound and film.
        ".avif": "image/avif",
        ".gif": "image/gif",
        ".ico": "image/vnd.microsoft.icon",
        ".jpeg": "image/jpeg",
        ".jpg": "image/jpeg",
        ".png": "image/png",
        ".svg": "image/svg+xml",
        ".webp": "image/webp",
        ".mp3": "audio/mpeg",
        ".ogg": "audio/ogg",
        ".mp4": "video/mp4",
        ".webm": "video/webm",
        ".pdf": "application/pdf",
        ".woff": "font/woff",
        ".woff2": "font/woff2",
        # Archives and packages.
        ".7z": "application/x-7z-compressed",
        ".aab": "application/octet-stream",
        ".apk": "application/vnd.android.package-archive",
        ".br": "application/x-brotli",
        ".bz2": "application/x-bzip2",
        ".deb": "application/vnd.debian.binary-package",
        ".dmg": "application/x-apple-diskimage",
        ".gz": "application/gzip",
        ".jar": "application/java-archive",
        ".lz4": "application/x-lz4",
        ".mar": "application/octet-stream",
        ".msi": "application/x-msi",
        ".msix": "application/msix",
        ".pkg": "application/octet-stream",
        ".rpm": "application/x-rpm",
        ".snap": "application/octet-stream",
        ".tar": "application/x-tar",
        ".tgz": "application/gzip",
        ".whl": "application/zip",
        ".xpi": "application/x-xpinstall",
        ".xz": "application/x-xz",
        ".zip": "application/zip",
        ".zst": "application/zstd",
    }
)
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
        "application/gzip",
        "application/java-archive",
        "application/pdf",
        "application/vnd.android.package-archive",
        "application/vnd.debian.binary-package",
        "application/x-7z-compressed",
        "application/x-apple-diskimage",
        "application/x-brotli",
        "application/x-bzip2",
        "application/x-gzip",
        "application/x-lz4",
        "application/x-rpm",
        "application/x-xpinstall",
        "application/x-xz",
        "application/x-zstd",
        "application/zip",
        "application/zstd",
        "font/woff",
        "font/woff2",
    }
)
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
