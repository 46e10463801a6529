"""Legacy polling: pending tasks as messages of Azure storage queues, which workers poll directly.

Loaded only for a local queue with a connection string. The database is the truth: it decides about each
claim, and messages follow it.
"""

from __future__ import annotations

try:
    from .legacy_endpoints import LegacyPolling
except ModuleNotFoundError as error:
    _MISSING = "legacy polling needs azure-storage-queue: pip install 'taskqueue_client[azure]'"
    raise ImportError(_MISSING) from error

__all__ = ["LegacyPolling"]
