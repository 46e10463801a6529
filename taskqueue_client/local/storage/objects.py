"""The object service: objects are uploaded by an agreed method, finished once, and immutable then."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from taskqueue_client.clock import Clock
from taskqueue_client.local import endpoints, times
from taskqueue_client.local.auth.auth_service import Caller
from taskqueue_client.local.engine.store import Store
from taskqueue_client.local.http.request_bodies import media_type
from taskqueue_client.local.javascript_values import decode_base64
from taskqueue_client.local.refusal import conflict, existing, refuse

from .buckets import GRACE_SECONDS, OBJECTS, Buckets

OBJECT_METHODS = ("dataInline", "putUrl", "simple", "getUrl")
"""All upload and download methods of the object service."""

_UPLOAD = "object:upload:<projectId>:<name>"
_DOWNLOAD = "object:download:<name>"

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
_EXPIRED = (
    "SELECT name FROM objects WHERE expires < ? OR (upload_id IS NOT NULL AND upload_expires < ?) LIMIT ?"
)
_INDEX = "CREATE INDEX IF NOT EXISTS objects_by_upload ON objects (upload_id) WHERE upload_id IS NOT NULL"


class _Object(msgspec.Struct):
    name: str
    project_id: str
    upload_id: str | None
    expires: int
    hashes: dict[str, str]

    @property
    def is_finished(self) -> bool:
        return self.upload_id is None


@dataclass(frozen=True, slots=True)
class SeeOther:
    """A redirect whose body is text, as the object service sends it."""

    url: str


class ObjectService:
    """The endpoints of the object service; each method is named after its endpoint.

    Every name belongs to one backend, so that `NoMatchingBackend` never arises.
    """

    def __init__(self, store: Store, buckets: Buckets, clock: Clock, methods: Collection[str]) -> None:
        self._methods = methods
        self._store = store
        self._buckets = buckets
        self._clock = clock
        store.change(_TABLE)
        store.change(_INDEX)

    @endpoints.objects("PUT", "/upload/<name>", _UPLOAD, schema="create-upload-request", one_segment=True)
    def create_upload(self, caller: Caller, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an upload, or continue one with the same terms.

        As in the service, characters of the data that are not base64 are ignored.
        """
        caller.require(projectId=body["projectId"], name=name)
        offered = body["proposedUploadMethods"]
        proposed = {method: offered[method] for method in offered if method in self._methods}
        expires = times.parse(body["expires"], "expires")
        for method in proposed.values():
            _check_content_type(method["contentType"])
        with self._store.transaction():
            self.lock_upload(name, body["projectId"], body["uploadId"], expires)
            self._add_hashes(name, body.get("hashes", {}))
        agreed = {key: body[key] for key in ("projectId", "uploadId", "expires")}
        chosen: dict[str, Any] = {}
        if inline := proposed.get("dataInline"):
            data = decode_base64(inline["objectData"])
            self._buckets.save(OBJECTS, name, data, _headers(inline["contentType"]))
            chosen = {"dataInline": True}
        elif put := proposed.get("putUrl"):
            chosen = {"putUrl": self._put_url(name, put)}
        return {**agreed, "uploadMethod": chosen}

    @endpoints.objects(
        "POST", "/finish-upload/<name>", _UPLOAD, schema="finish-upload-request", one_segment=True
    )
    def finish_upload(self, caller: Caller, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object readable and immutable; may be repeated."""
        caller.require(projectId=body["projectId"], name=name)
        found = self._existing(name)
        if found.project_id != body["projectId"]:
            refuse("InputError", f'Object "{name}" does not have projectId {body["projectId"]}')
        if found.is_finished:
            _check_finished(found, body.get("hashes", {}))
            return {}
        if found.upload_id != body["uploadId"]:
            conflict(f'Object "{name}" does not have uploadId {body["uploadId"]}')
        with self._store.transaction():
            self._add_hashes(name, body.get("hashes", {}))
            self._store.change("UPDATE objects SET upload_id = NULL WHERE name = ?", name)
        return {}

    @endpoints.objects("PUT", "/start-download/<name>", _DOWNLOAD, schema="download-object-request")
    def start_download(self, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a URL to read an object from, by a download method that the caller accepts."""
        found = self._finished(name)
        accepted = body["acceptDownloadMethods"]
        if "getUrl" in accepted and "getUrl" in self._methods:
            return self._get_url(found)
        if "simple" not in accepted or "simple" not in self._methods:
            supported = [method for method in ("simple", "getUrl") if method in self._methods]
            refuse("NoMatchingMethod", f"Object supports methods {', '.join(supported)}")
        return {"method": "simple", "url": self.simple_url(name)}

    @endpoints.objects("GET", "/metadata/<name>", _DOWNLOAD)
    def object(self, name: str) -> dict[str, Any]:
        """Return project, expiry and hashes of an object."""
        found = self._finished(name)
        return {"projectId": found.project_id, "expires": times.text(found.expires), "hashes": found.hashes}

    @endpoints.objects("GET", "/download/<name>", _DOWNLOAD)
    def download(self, name: str) -> SeeOther:
        """Redirect to the object's data."""
        return SeeOther(self.simple_url(name))

    def simple_url(self, name: str) -> str:
        """Return a URL to read a finished object from; it works for 30 minutes."""
        found = self._finished(name)
        if "simple" not in self._methods:
            refuse("NoMatchingMethod", "Object does not support the method simple")
        return self._buckets.get_url(OBJECTS, found.name, _SIMPLE_SECONDS)

    def lock_upload(self, name: str, project_id: str, upload_id: str, expires_ms: int) -> None:
        """Record the terms of a new upload; refuse other terms than those of an upload in progress."""
        others = "SELECT 1 FROM objects WHERE upload_id = ? AND name != ?"
        if self._store.row(others, upload_id, name):
            conflict("Object already exists")
        terms = (project_id, upload_id, expires_ms)
        into = "objects (name, project_id, upload_id, expires, upload_expires, hashes)"
        row = (name, *terms, self._now_ms() + times.DAY, "{}")
        self._store.insert(into, *row, verb="INSERT OR IGNORE")
        found = self._existing(name)
        if (found.project_id, found.upload_id, found.expires) != terms:
            conflict("Object already exists")

    def is_finished(self, name: str) -> bool:
        """Return whether an object exists and is finished."""
        found = self._find(name)
        return found is not None and found.is_finished

    def remove(self, name: str) -> None:
        """Remove an object and its data, if it exists."""
        self._buckets.remove(OBJECTS, name)  # first: data without a record would stay for ever
        self._store.change("DELETE FROM objects WHERE name = ?", name)

    def expire(self, now: int, most: int) -> bool:
        """Remove what has expired, and uploads that were not finished within a day; `now` is in ms.

        Returns whether `most` objects were removed, so that there may be more.
        """
        names = self._store.rows(_EXPIRED, now, now, most)
        for (name,) in names:
            self.remove(name)
        return len(names) == most

    def _put_url(self, name: str, proposal: Mapping[str, Any]) -> dict[str, Any]:
        """Return where to PUT the data, and with which headers: the signature covers all but the encoding."""
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
        sql = "SELECT name, project_id, upload_id, expires, hashes FROM objects WHERE name = ?"
        row = self._store.row(sql, name)
        if row is None:
            return None
        (name, project_id, upload_id, expires, hashes) = row
        return _Object(name, project_id, upload_id, expires, msgspec.json.decode(hashes))

    def _existing(self, name: str) -> _Object:
        return existing(self._find(name), f'Object "{name}" not found')

    def _finished(self, name: str) -> _Object:
        found = self._existing(name)
        if not found.is_finished:
            refuse("ResourceNotFound", f'Object "{name}" not found')
        return found

    def _add_hashes(self, name: str, hashes: Mapping[str, Any]) -> None:
        known, new = self._existing(name).hashes, _as_texts(hashes)
        if any(known.get(algorithm, value) != value for (algorithm, value) in new.items()):
            conflict("Content hash already exists with a different value")
        merged = msgspec.json.encode({**known, **new}).decode()
        self._store.change("UPDATE objects SET hashes = ? WHERE name = ?", merged, name)

    def _now_ms(self) -> int:
        return times.milliseconds(self._clock.now())


def _check_content_type(content_type: str) -> None:
    if not (content_type.isascii() and content_type.isprintable()):
        refuse("InputError", f"contentType must be printable ASCII, not {content_type!r}")
    if media_type(content_type) is None:
        refuse("InputError", f"contentType must be like text/plain; charset=utf-8, not {content_type!r}")


def _headers(content_type: str) -> dict[str, str]:
    """Return the headers to store an object with; they make browsers save HTML pages, not show them."""
    is_page = media_type(content_type) == "text/html"
    return {"Content-Type": content_type} | ({"Content-Disposition": "attachment"} if is_page else {})


def _as_texts(hashes: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes as strings, which the service makes of values of any type for unknown algorithms."""
    if None in hashes.values():
        refuse("InputError", "a hash must not be null")
    return {
        algorithm: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for algorithm, value in hashes.items()
    }


def _check_finished(found: _Object, hashes: Mapping[str, Any]) -> None:
    """Raise a Refusal (409) if the finished object does not have all `hashes`."""
    for algorithm, value in hashes.items():
        if algorithm in found.hashes and found.hashes[algorithm] == value:
            continue
        but = "with a different hash for" if algorithm in found.hashes else "without hash"
        conflict(f'Object "{found.name}" is already finished, but {but} algorithm {algorithm}')
