"""Signatures are those of mohawk and of the official client, byte for byte."""

from __future__ import annotations

import base64
import string
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from urllib.parse import quote

import mohawk
import mohawk.base
import mohawk.bewit
import msgspec
import pytest
import taskcluster
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue_client import Credentials, temporary_credentials
from taskqueue_client._protocol.wire import Origin, Signer, nonce
from taskqueue_client.errors import InvalidArgument

PERMANENT = Credentials("static/tester", "the-secret-of-the-tester")
TEMPORARY = temporary_credentials(PERMANENT, ["queue:*", "assume:a b"], name="named/one")

# Keys of more than 64 bytes, the block of SHA-256, are hashed first.
others = st.integers(1, 130).map(lambda length: Credentials("me", (5 * string.printable[:62])[:length]))
credentials = st.one_of(st.sampled_from([PERMANENT, TEMPORARY]), others).flatmap(
    lambda each: st.sampled_from([each, each.restricted_to([]), each.restricted_to(["queue:get-task:*"])])
)
segments = st.text(string.printable[:95], min_size=1).map(lambda text: quote(text, safe=""))
origins = st.sampled_from(
    ["http://127.0.0.1:8080", "https://tc.example.com", "http://TC.example.com", "https://tc.example.com:444"]
)


def mohawk_header(
    credentials: Credentials, method: str, url: str, body: bytes | None, ts: int, nonce: str, ext: str
) -> str:
    content = {} if body is None else {"content": body, "content_type": "application/json" if body else ""}
    sender = mohawk.Sender(
        {"id": credentials.client_id, "key": credentials.access_token, "algorithm": "sha256"},
        url,
        method,
        **content,
        always_hash_content=body is not None,
        ext=ext,
        nonce=nonce,
        _timestamp=ts,
    )
    return str(sender.request_header)


@settings(deadline=None)
@given(
    credentials=credentials,
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD"]),
    origin=origins,
    path=st.lists(segments, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts)),
    query=st.none() | segments,
    body=st.none()
    | st.binary(max_size=3000)
    | st.binary(min_size=1, max_size=1).map(lambda byte: byte * 2**20),
    ts=st.integers(1, 2**33),
    fresh=st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=12),
)
def test_the_header_is_mohawks(
    credentials: Credentials,
    method: str,
    origin: str,
    path: str,
    query: str | None,
    body: bytes | None,
    ts: int,
    fresh: str,
) -> None:
    resource = path if query is None else f"{path}?{query}"
    signer = Signer(credentials)
    ours = signer.header(
        method,
        Origin.of(origin),
        resource,
        timestamp=ts,
        nonce=fresh,
        content_type="application/json" if body else "",
        body=body,
    )
    assert ours == mohawk_header(credentials, method, origin + resource, body, ts, fresh, signer.ext)


def official_options(credentials: Credentials) -> dict[str, Any]:
    given = {"clientId": credentials.client_id, "accessToken": credentials.access_token}
    if credentials.certificate:
        given["certificate"] = credentials.certificate
    options: dict[str, Any] = {"rootUrl": "https://tc.example.com", "credentials": given}
    if credentials.authorized_scopes is not None:
        options["authorizedScopes"] = list(credentials.authorized_scopes)
    return options


@given(credentials=credentials)
def test_the_ext_of_a_request_is_that_of_the_official_client(credentials: Credentials) -> None:
    official = taskcluster.Queue(official_options(credentials)).makeHawkExt()
    ours = Signer(credentials).ext
    assert _decoded(ours) == _decoded(official)


def _decoded(ext: str | bytes) -> Any:
    raw = ext if isinstance(ext, bytes) else ext.encode()
    return msgspec.json.decode(base64.urlsafe_b64decode(raw)) if raw else {}


@settings(deadline=None)
@given(credentials=credentials, path=st.lists(segments, min_size=1, max_size=4), query=st.none() | segments)
def test_a_signed_url_is_mohawks(credentials: Credentials, path: list[str], query: str | None) -> None:
    url = "https://tc.example.com/" + "/".join(path) + ("" if query is None else f"?{query}")
    signer = Signer(credentials)
    resource = mohawk.base.Resource(
        credentials={"id": credentials.client_id, "key": credentials.access_token, "algorithm": "sha256"},
        method="GET",
        ext=signer.ext,
        url=url,
        timestamp=1_795_000_000,
        nonce="",
    )
    theirs = mohawk.bewit.get_bewit(resource).rstrip("=")
    signed = signer.signed_url(url, expires=1_795_000_000)
    assert signed == f"{url}{'&' if query else '?'}bewit={theirs}"


class Account(str, Enum):  # noqa: UP042 - `str` of a StrEnum's member is its value, so that nothing can go wrong
    TESTER = "static/tester"
    NAMED = "named/one"


def test_a_member_of_an_enumeration_signs_as_its_value() -> None:
    member = Credentials(Account.TESTER, PERMANENT.access_token)
    headers = [
        Signer(each).header("GET", Origin("h", "80"), "/", timestamp=1, nonce="n")
        for each in (member, PERMANENT)
    ]
    assert headers[0] == headers[1]


def test_a_nonce_is_fresh_each_time() -> None:
    assert len({nonce() for _ in range(100)}) == 100
    assert all(set(nonce()) <= set(string.hexdigits) for _ in range(10))


@pytest.mark.parametrize("what", ["header", "URL"])
def test_a_certificate_with_too_many_scopes_is_refused_with_the_reason(what: str) -> None:
    wide = temporary_credentials(PERMANENT, [f"queue:create-artifact:{n:045}" for n in range(60)])
    signer = Signer(wide)
    made = {
        "header": lambda: signer.header("GET", Origin("h", "80"), "/", timestamp=1, nonce="n"),
        "URL": lambda: signer.signed_url("http://h/", expires=1),
    }
    with pytest.raises(
        InvalidArgument, match=rf"^credentials: .* {what} of at most 4096 characters, not \d{{4}}: .*scopes"
    ):
        made[what]()


def test_the_longest_header_that_the_queue_takes_is_made() -> None:
    def made(length: int) -> str:
        restricted = PERMANENT.restricted_to(["x" * length])
        return Signer(restricted).header("GET", Origin("h", "80"), "/", timestamp=1, nonce="n")

    longest = max(length for length in range(2800, 2950) if _fits(made, length))
    assert 4092 < len(made(longest)) <= 4096


def test_a_signed_url_may_have_4096_characters_and_no_more() -> None:
    def made(length: int) -> str:
        return Signer(PERMANENT).signed_url(f"http://h/{'x' * length}", expires=1)

    most = 4096 - len(made(0))
    assert len(made(most)) == 4096
    with pytest.raises(InvalidArgument, match="not 4097"):
        made(most + 1)


def _fits(made: Any, length: int) -> bool:
    try:
        made(length)
    except InvalidArgument:
        return False
    return True


@pytest.mark.parametrize(
    ("issuer", "name"),
    [
        (PERMANENT, "named/one"),
        (Credentials(Account.TESTER, PERMANENT.access_token), Account.NAMED),
    ],
    ids=["str", "enumeration"],
)
def test_an_official_client_makes_the_same_temporary_token_and_signature(
    monkeypatch: pytest.MonkeyPatch, issuer: Credentials, name: str
) -> None:
    start = datetime(2026, 11, 21, tzinfo=UTC)
    slugs = iter(["A" * 22, "B" * 22])
    monkeypatch.setattr(taskcluster.utils, "slugId", lambda: next(slugs))
    ours_slugs = iter(["A" * 22, "B" * 22])
    monkeypatch.setattr("taskqueue_client.credentials.slugid", lambda: next(ours_slugs))
    scopes = ["queue:get-task:*", "b"]
    theirs = taskcluster.createTemporaryCredentials(
        PERMANENT.client_id,
        PERMANENT.access_token,
        start,
        start + timedelta(hours=2),
        scopes,
        name="named/one",
    )
    ours = temporary_credentials(issuer, scopes, start=start, lifetime=timedelta(hours=2), name=name)
    assert ours.access_token == theirs["accessToken"].decode()
    assert ours.certificate is not None
    assert msgspec.json.decode(ours.certificate) == msgspec.json.decode(theirs["certificate"])
