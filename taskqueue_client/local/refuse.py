"""Saying no in one line."""

from __future__ import annotations

from typing import NoReturn

from taskqueue_client.local.refusal import Refusal


def refuse(code: str, message: str) -> NoReturn:
    """Raise a Refusal with one of the codes in `refusal.STATUS`."""
    raise Refusal(code, message)
