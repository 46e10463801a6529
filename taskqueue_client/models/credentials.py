"""A Taskcluster client's Hawk credentials, as services hand them out and as clients are given them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import msgspec

from taskqueue_client.errors import InvalidArgument

from ._base import Model


class Credentials(Model, frozen=True):
    """Who calls, and the key that proves it.

    The repr shows neither the token nor the certificate.

    Attributes:
        client_id: The Taskcluster client's name; of named temporary credentials, their name.
        access_token: The Hawk key.
        certificate: What makes the credentials temporary, as JSON text.
        authorized_scopes: What calls are restricted to; None leaves all scopes of the client.
    """

    client_id: str
    access_token: str
    certificate: str | None = None
    authorized_scopes: tuple[str, ...] | None = None

    def restricted_to(self, scopes: Sequence[str]) -> Self:
        """The same credentials for calls that may use no more than `scopes`.

        A worker that makes calls on behalf of a task restricts them to `task.scopes`. An empty list
        leaves what everybody may do.

        Raises:
            InvalidArgument: One text is given, which would be a scope for each letter.
        """
        if isinstance(scopes, str):
            raise InvalidArgument("scopes", scopes, "a list of scopes")
        return msgspec.structs.replace(self, authorized_scopes=tuple(scopes))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What the repr shows: who it is, and for how much and how long, but not by what secret."""
        return [
            ("client_id", self.client_id),
            ("temporary", self.certificate is not None),
            ("authorized_scopes", self.authorized_scopes),
        ]
