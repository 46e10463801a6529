"""A violation: something that neither the plan of a campaign nor its faults explain."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """A violation: its kind, its subject, and the finding."""

    rule: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}{': ' if self.detail else ''}{self.detail}"
