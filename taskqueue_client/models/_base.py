"""Base classes of the models, JSON in models, and what all services share: credentials, scopes, states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Self, cast

import msgspec

from taskqueue_client._arguments import check_kind
from taskqueue_client._dates import timestamp
from taskqueue_client.errors import InvalidArgument

_URLS = frozenset({"url", "put_url", "signed_poll_task_url", "signed_poll_url", "signed_delete_url"})

DEEPEST = 500
"""Levels of lists and objects that are kept: Python's recursion limit of 1,000 counts calls, too."""

CUT_OFF = f"<cut off by taskqueue_client: nested more than {DEEPEST} levels deep>"
"""The text that replaces a list or an object that is nested too deeply."""

_MARK = f'"{CUT_OFF}"'.encode()
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def decoded(document: bytes | msgspec.Raw) -> Any:
    """Return a JSON document that is inside of a response, cut where it is too deep for this Python.

    Since Python 3.14, the readable depth depends on the stack: it may be less than when the response came.
    """
    try:
        return msgspec.json.decode(document)
    except RecursionError:
        return msgspec.json.decode(cut(bytes(document)))


def cut(document: bytes) -> bytes:
    """Return a JSON document without the lists and objects below `DEEPEST` levels.

    A document that is not valid JSON does not become valid by this.
    """
    kept: list[bytes] = []
    level = start = 0
    for token in _TOKEN.finditer(document):
        match token[0]:
            case b"[" | b"{":
                level += 1
                if level == DEEPEST + 1:
                    kept += document[start : token.start()], _MARK
            case b"]" | b"}":
                if level == DEEPEST + 1:
                    start = token.end()
                level -= 1
            case _:
                pass  # a string: brackets in it are not levels
    return b"".join([*kept, document[start:]])


def prepare(*kinds: type[msgspec.Struct]) -> None:
    """Have msgspec resolve the types of the fields now, while one thread imports the module.

    Otherwise it does so when a struct is decoded for the first time, and the process crashes if another
    thread decodes the same struct meanwhile (msgspec 0.22).
    """
    for each in kinds:
        msgspec.json.Decoder(each)


class Model(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base class of responses: frozen, with fields in snake_case. Unknown fields are ignored.

    The repr omits the query of a URL, which may be a signature.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the response as JSON values, for `json.dumps`: keys and times as the Queue writes them.

        A field that the response did not have has its default, which is None for most fields. The result
        includes secrets, such as the credentials of a claim.
        """
        names = zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True)
        return {key: _json_value(getattr(self, name)) for key, name in names}

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields for `rich`, which would show the whole URLs otherwise."""
        return [(name, _shown(name, getattr(self, name))) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


def _json_value(value: object) -> Any:
    """Return JSON values. msgspec would write a time with six digits after the second or none, not three."""
    if isinstance(value, Model):
        return value.to_dict()
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in cast("Iterable[object]", value)]
    return msgspec.to_builtins(value, enc_hook=decoded)


def _shown(name: str, value: object) -> object:
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode(errors="replace")
    if name in _URLS and "?" in str(value):
        return str(value).partition("?")[0] + "?<redacted>"
    return value


class Page(Model, frozen=True, kw_only=True):
    """Base class of pages; `continuation_token` is opaque, and None on the last page."""

    continuation_token: str | None = None


class OpenEnum(StrEnum):
    """An enumeration of strings. A value that this version does not know is accepted, and keeps its text."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        member = str.__new__(cls, value)
        member._name_, member._value_ = value, value
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle the value. Up to Python 3.11.3, enumerations pickle the name, which only members have."""
        return type(self), (self._value_,)


class Credentials(Model, frozen=True):
    """A Taskcluster client id and its access token.

    The repr shows neither the token nor the certificate.

    Attributes:
        client_id: The client id; for named temporary credentials, their name.
        access_token: The Hawk key.
        certificate: The certificate of temporary credentials, as JSON text.
        authorized_scopes: The scopes that calls are restricted to; None for all scopes of the client.
    """

    client_id: str
    access_token: str
    certificate: str | None = None
    authorized_scopes: tuple[str, ...] | None = None

    def restricted_to(self, scopes: Sequence[str]) -> Self:
        """Return the same credentials, restricted to `scopes`.

        A worker that makes calls on behalf of a task restricts them to `task.scopes`. With an
        empty list, calls have only the scopes of anonymous callers.

        Raises:
            InvalidArgument: `scopes` is not a list.
        """
        check_kind("scopes", scopes, Iterable, "a list of scopes")
        if isinstance(scopes, (str, bytes)):
            raise InvalidArgument("scopes", scopes, "a list of scopes")
        return msgspec.structs.replace(self, authorized_scopes=tuple(scopes))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields that the repr shows: no token and no certificate."""
        return [
            ("client_id", self.client_id),
            ("temporary", self.certificate is not None),
            ("authorized_scopes", self.authorized_scopes),
        ]


class ScopeSet(Model, frozen=True):
    """The scopes of credentials, with roles expanded."""

    scopes: list[str]


class Authentication(Model, frozen=True, kw_only=True):
    """The client id and scopes of the caller, as the auth service sees them."""

    client_id: str
    scopes: list[str]


class Ping(Model, frozen=True, kw_only=True):
    """The state of a service; `uptime` is in seconds."""

    alive: bool
    uptime: float


class Version(Model, frozen=True, kw_only=True):
    """The deployed version; in a source checkout, `version` is `dev` and other fields are empty."""

    version: str
    commit: str = ""
    source: str = ""
    build: str = ""
