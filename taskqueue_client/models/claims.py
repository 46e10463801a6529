"""Claimed runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ._base import Model
from .credentials import Credentials
from .status import TaskStatus


class TaskClaim(Model, frozen=True, kw_only=True):
    """One claimed run: what to do, until when it is ours, and the credentials to do it with.

    `task` is the definition as the plain dict of the Queue's schema. If it is nested deeper
    than Python can read (1,000 levels before Python 3.12, 10,000 since), the text `models.nesting.CUT_OFF`
    stands for what is more than 500 levels deep in the answer.

    The credentials are temporary; their certificate holds, in milliseconds since the epoch, the `expiry`.
    """

    status: TaskStatus
    run_id: int
    worker_group: str
    worker_id: str
    taken_until: datetime
    task: dict[str, Any]
    credentials: Credentials


class ClaimWorkResponse(Model, frozen=True):
    """The runs that a worker was given: none, if none came within the long poll."""

    tasks: list[TaskClaim]


class TaskReclaim(Model, frozen=True, kw_only=True):
    """A claim that now lasts longer, with fresh credentials; the old ones last until their own expiry."""

    status: TaskStatus
    run_id: int
    worker_group: str
    worker_id: str
    taken_until: datetime
    credentials: Credentials
