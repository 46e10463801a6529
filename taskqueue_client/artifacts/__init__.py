"""Uploads and downloads of artifacts: fast, bounded in memory, and verified.

The clients offer them as methods: `Queue.upload_artifact` and its neighbors.
"""

from __future__ import annotations

from .artifact_errors import (
    ArtifactError,
    ChainOfTrustError,
    DownloadCorrupt,
    DownloadTooLarge,
    HashMismatch,
    NotOffered,
    RedirectRefused,
    SourceChanged,
    StorageFailed,
    StorageRefused,
    StreamInterrupted,
    UploadAlreadyBegun,
)
from .chain_verification import ChainOfTrust
from .content import content_type_of, is_compressed
from .downloading import DownloadResult
from .many_uploads import UploadOutcome, UploadReport
from .sources import Content
from .uploading import UploadResult

__all__ = [
    "ArtifactError", "ChainOfTrust", "ChainOfTrustError", "Content", "DownloadCorrupt", "DownloadResult",
    "DownloadTooLarge", "HashMismatch", "NotOffered", "RedirectRefused", "SourceChanged", "StorageFailed",
    "StorageRefused", "StreamInterrupted", "UploadAlreadyBegun", "UploadOutcome", "UploadReport",
    "UploadResult", "content_type_of", "is_compressed",
]  # fmt: skip
