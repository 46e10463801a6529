"""Content types by name, and what is worth compressing: fixed, so that every machine agrees.

The system's own MIME files are not read: they differ between machines, and decide whether a browser
shows a log or saves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DEFAULT_CONTENT_TYPE = "application/octet-stream"
"""For names that say nothing."""

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
"""What is compressed already, by its ending; it is never compressed again."""

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
"""What is compressed already, by its content type."""

_COMPRESSED_KINDS = ("audio/", "image/", "video/")
_TEXT_TYPES = frozenset({"application/json", "application/jsonl", "application/wasm", "application/yaml"})
_TEXT_SUFFIXES = ("+json", "+xml", "/xml")


def content_type_of(name: str) -> str:
    """The content type of an artifact, by the ending of its name."""
    return CONTENT_TYPES.get(_ending(name), DEFAULT_CONTENT_TYPE)


def is_compressed(name: str, content_type: str) -> bool:
    """Whether an artifact is compressed already, by its name or its content type."""
    essence = _essence(content_type)
    by_type = essence in COMPRESSED_TYPES or (
        essence.startswith(_COMPRESSED_KINDS) and not essence.endswith(_TEXT_SUFFIXES)
    )
    return by_type or _ending(name) in COMPRESSED_ENDINGS


def is_text(content_type: str) -> bool:
    """Whether compressing pays for sure: text of every kind, and WebAssembly."""
    essence = _essence(content_type)
    return essence.startswith("text/") or essence in _TEXT_TYPES or essence.endswith(_TEXT_SUFFIXES)


def _ending(name: str) -> str:
    _, dot, ending = name.rpartition("/")[2].rpartition(".")
    return dot + ending.lower()


def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
