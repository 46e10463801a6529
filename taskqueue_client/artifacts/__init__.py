"""Uploads and downloads of artifacts: fast, bounded in memory, and verified.

The clients offer them as methods; `taskqueue_client.artifacts.blocking` and `.awaited` describe them.
"""

from __future__ import annotations

from .content_types import COMPRESSED_ENDINGS as COMPRESSED_ENDINGS
from .content_types import COMPRESSED_TYPES as COMPRESSED_TYPES
from .content_types import CONTENT_TYPES as CONTENT_TYPES
from .content_types import content_type_of as content_type_of
from .content_types import is_compressed as is_compressed
from .downloading import DownloadResult as DownloadResult
from .errors import ArtifactError as ArtifactError
from .errors import DownloadCorrupt as DownloadCorrupt
from .errors import DownloadTooLarge as DownloadTooLarge
from .errors import HashMismatch as HashMismatch
from .errors import NotOffered as NotOffered
from .errors import RedirectRefused as RedirectRefused
from .errors import SourceChanged as SourceChanged
from .errors import StorageFailed as StorageFailed
from .errors import StorageRefused as StorageRefused
from .errors import StreamInterrupted as StreamInterrupted
from .errors import UploadAlreadyBegun as UploadAlreadyBegun
from .records import create_error_artifact as create_error_artifact
from .records import create_link_artifact as create_link_artifact
from .records import create_reference_artifact as create_reference_artifact
from .reporting import UploadOutcome as UploadOutcome
from .reporting import UploadReport as UploadReport
from .steps import Settings as Settings
from .storage import Storage as Storage
from .uploading import UploadResult as UploadResult
