"""The object service: uploads that are agreed on, finished once, and downloaded with their hashes."""

from __future__ import annotations

import binascii
from base64 import b64decode
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from taskqueue_client.local.buckets import GRACE_SECONDS, OBJECTS, Buckets
from taskqueue_client.local.engine import times
from taskqueue_client.local.refusal import Caller, Refusal, bad_input, conflict, not_found

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Generator, Mapping

    from taskqueue_client.clock import Clock

_PUT_SECONDS = 45 * 60
_SIMPLE_SECONDS = 30 * 60
_GET_SECONDS = 60

_TABLE = """
CREATE TABLE IF NOT EXISTS objects (
    name TEXT NOT NULL PRIMARY KEY,
    project_id TEXT NOT NULL,
    upload_id TEXT,              -- NULL once the upload is finished
    upload_expires INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    hashes TEXT NOT NULL
) WITHOUT ROWID
"""


class _Object(msgspec.Struct):
    """A row of the table."""

    name: str
    project_id: str
    upload_id: str | None
    expires: int
    hashes: dict[str, Any]

    @property
    def is_finished(self) -> bool:
        return self.upload_id is None


class ObjectService:
    """Answers the endpoints of the object service; each method is named after its endpoint.

    Every name belongs to one backend, so that `NoMatchingBackend` never arises.

    Args:
        connection: Of the store, in autocommit mode; a transaction that is open takes part.
        buckets: Where the data lies.
        clock: What expiry is counted on.
    """

    def __init__(self, connection: sqlite3.Connection, buckets: Buckets, clock: Clock) -> None:
        self._connection = connection
        self._buckets = buckets
        self._clock = clock
        connection.execute(_TABLE)

    def create_upload(self, caller: Caller, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an upload, or go on with it on the same terms.

        Raises:
            Refusal: 403; 409 for other terms, a finished object or another hash; 400 for data that is
                not base64, or a content type that no header can hold.
        """
        caller.require(projectId=body["projectId"], name=name)
        proposed = body["proposedUploadMethods"]
        expires = times.parse(body["expires"], "expires")
        for method in proposed.values():
            _check_content_type(method["contentType"])
        inline = _decode(proposed["dataInline"]["objectData"]) if "dataInline" in proposed else None
        with self._transaction():
            self.lock_upload(name, body["projectId"], body["uploadId"], expires)
            self._add_hashes(name, body.get("hashes", {}))
        agreed = {key: body[key] for key in ("projectId", "uploadId", "expires")}
        if inline is not None:
            self._buckets.save(OBJECTS, name, inline, _headers(proposed["dataInline"]["contentType"]))
            return {**agreed, "uploadMethod": {"dataInline": True}}
        if "putUrl" in proposed:
            return {**agreed, "uploadMethod": {"putUrl": self._put_url(name, proposed["putUrl"])}}
        return {**agreed, "uploadMethod": {}}

    def finish_upload(self, caller: Caller, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object readable and immutable; may be repeated.

        Raises:
            Refusal: 403; 404; 400 for another project; 409 for another upload or other hashes.
        """
        caller.require(projectId=body["projectId"], name=name)
        found = self._existing(name)
        if found.project_id != body["projectId"]:
            message = f'Object "{name}" does not have projectId {body["projectId"]}'
            raise bad_input(message)
        if found.is_finished:
            _check_finished(found, body.get("hashes", {}))
            return {}
        if found.upload_id != body["uploadId"]:
            message = f'Object "{name}" does not have uploadId {body["uploadId"]}'
            raise conflict(message)
        with self._transaction():
            self._add_hashes(name, body.get("hashes", {}))
            self._connection.execute("UPDATE objects SET upload_id = NULL WHERE name = ?", (name,))
        return {}

    def start_download(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A URL to read an object from, by the method that suits the caller.

        Raises:
            Refusal: 404 for an object that is missing or unfinished; 406 when no method suits.
        """
        found = self._finished(name)
        accepted = body["acceptDownloadMethods"]
        if "getUrl" in accepted:
            return self._get_url(found)
        if "simple" in accepted:
            return {"method": "simple", "url": self.download(name)}
        code, message = "NoMatchingMethod", "Object supports methods simple, getUrl"
        raise Refusal(code, message)

    def object(self, name: str) -> dict[str, Any]:
        """What is known about an object.

        Raises:
            Refusal: 404 for one that is missing or unfinished.
        """
        found = self._finished(name)
        return {"projectId": found.project_id, "expires": times.text(found.expires), "hashes": found.hashes}

    def download(self, name: str) -> str:
        """The URL to redirect a reader to; it works for 30 minutes.

        Raises:
            Refusal: 404 for an object that is missing or unfinished.
        """
        return self._buckets.get_url(OBJECTS, self._finished(name).name, _SIMPLE_SECONDS)

    def lock_upload(self, name: str, project_id: str, upload_id: str, expires_ms: int) -> None:
        """Fix the terms of an upload, or check that they are those of the upload under way.

        Raises:
            Refusal: 409 when they are not, or the object is finished.
        """
        terms = (name, project_id, upload_id, expires_ms)
        self._connection.execute(
            "INSERT INTO objects (name, project_id, upload_id, expires, upload_expires, hashes)"
            " VALUES (?, ?, ?, ?, ?, '{}') ON CONFLICT DO NOTHING",
            (*terms, self._now_ms() + times.DAY),
        )
        found = self._existing(name)
        if (found.name, found.project_id, found.upload_id, found.expires) != terms:
            message = "Object already exists"
            raise conflict(message)

    def is_finished(self, name: str) -> bool:
        """Whether an object exists and is finished."""
        found = self._find(name)
        return found is not None and found.is_finished

    def remove(self, name: str) -> None:
        """Remove an object and its data, if it exists."""
        self._connection.execute("DELETE FROM objects WHERE name = ?", (name,))
        self._buckets.remove(OBJECTS, name)

    def expire(self) -> int:
        """Remove what has expired, and uploads that were not finished within a day; returns how many."""
        now = self._now_ms()
        names = self._connection.execute(
            "SELECT name FROM objects WHERE expires < ? OR (upload_id IS NOT NULL AND upload_expires < ?)",
            (now, now),
        ).fetchall()
        for (name,) in names:
            self.remove(name)
        return len(names)

    def _put_url(self, name: str, proposal: Mapping[str, Any]) -> dict[str, Any]:
        """Where to PUT the data, and with which headers: the signature covers all but the encoding."""
        kept = _headers(proposal["contentType"])
        signed = {**kept, "Content-Length": str(proposal["contentLength"])}
        return {
            "url": self._buckets.put_url(OBJECTS, name, _PUT_SECONDS + GRACE_SECONDS, signed),
            "expires": times.text(self._now_ms() + times.SECOND * _PUT_SECONDS),
            "headers": {**signed, "Content-Encoding": "identity"},
        }

    def _get_url(self, found: _Object) -> dict[str, Any]:
        return {
            "method": "getUrl",
            "url": self._buckets.get_url(OBJECTS, found.name, 2 * _GET_SECONDS),
            "expires": times.text(self._now_ms() + times.SECOND * _GET_SECONDS),
            "hashes": found.hashes,
        }

    def _find(self, name: str) -> _Object | None:
        row = self._connection.execute(
            "SELECT name, project_id, upload_id, expires, hashes FROM objects WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            return None
        (name, project_id, upload_id, expires, hashes) = row
        return _Object(name, project_id, upload_id, expires, msgspec.json.decode(hashes))

    def _existing(self, name: str) -> _Object:
        found = self._find(name)
        if found is None:
            message = f'Object "{name}" not found'
            raise not_found(message)
        return found

    def _finished(self, name: str) -> _Object:
        found = self._existing(name)
        if not found.is_finished:
            message = f'Object "{name}" not found'
            raise not_found(message)
        return found

    def _add_hashes(self, name: str, hashes: Mapping[str, Any]) -> None:
        known = self._existing(name).hashes
        if any(known.get(algorithm, value) != value for (algorithm, value) in hashes.items()):
            message = "Content hash already exists with a different value"
            raise conflict(message)
        merged = msgspec.json.encode({**known, **hashes}).decode()
        self._connection.execute("UPDATE objects SET hashes = ? WHERE name = ?", (merged, name))

    def _now_ms(self) -> int:
        return int(1000 * self._clock.now())

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _decode(data: str) -> bytes:
    """The bytes of base64 text, which may lack its padding."""
    try:
        return b64decode(data + "=" * (-len(data) % 4), validate=True)
    except (binascii.Error, ValueError):
        message = "Invalid base64 objectData"
        raise bad_input(message) from None


def _check_content_type(content_type: str) -> None:
    if not (content_type.isascii() and content_type.isprintable()):
        message = f"contentType must be printable ASCII, not {content_type!r}"
        raise bad_input(message)


def _headers(content_type: str) -> dict[str, str]:
    """The headers an object is stored with: a browser saves a page instead of showing it as the server's."""
    is_page = content_type.partition(";")[0].strip().lower() == "text/html"
    return {"Content-Type": content_type} | ({"Content-Disposition": "attachment"} if is_page else {})


def _check_finished(found: _Object, hashes: Mapping[str, Any]) -> None:
    """Raise a Refusal (409) if `hashes` say anything that the finished object does not say."""
    for algorithm, value in hashes.items():
        if found.hashes.get(algorithm) == value:
            continue
        but = "with a different hash for" if algorithm in found.hashes else "without hash"
        message = f'Object "{found.name}" is already finished, but {but} algorithm {algorithm}'
        raise conflict(message)
