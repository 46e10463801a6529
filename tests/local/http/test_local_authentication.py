"""Hawk headers, bewits, certificates, restrictions and roles: accepted ones, and the errors for others."""

from __future__ import annotations

import math
import time
from base64 import b64encode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest

from taskqueue_client.local import ANONYMOUS_SCOPES, PUBLIC_SCOPES, Client, LocalQueue
from taskqueue_client.local.auth.known_clients import Roles, normalized
from tests.local.local_http import NO_SUCH_TASK, QUEUE, Key, Wire, payload_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = f"{QUEUE}/task-queues"
"""A resource that needs the scope `queue:list-task-queues`, which anonymous callers lack."""

_DAY = 86_400_000
CURRENT_SCOPES = "/api/auth/v1/scopes/current"
CURRENT = "auth:current-scopes"
LIMITED = Key("limited", "limited-token")
ISSUER = Key("issuer", "issuer-token")


@pytest.fixture(scope="module")
def local() -> Iterator[LocalQueue]:
    clients = [
        Client(
            "limited",
            "limited-token",
            ["queue:list-task-*", "assume:lister:west", "queue:get-task:*", CURRENT],
        ),
        Client("issuer", "issuer-token", ["auth:create-client:named/*", "auth:current-scopes", "queue:*"]),
        Client("disabled", "t", ["*"], disabled=True),
        Client("expired", "t", ["*"], expires=1.0),
        Client("nothing", "t"),
    ]
    roles = {"lister:*": ["queue:list-workers:<..>/*", "assume:inner"], "inner": ["queue:deep"]}
    with LocalQueue(clients=clients, roles=roles) as queue:
        yield queue


@pytest.fixture
def here(local: LocalQueue) -> Wire:
    return Wire(local)


def _scopes(wire: Wire, key: Key | None) -> list[str]:
    reply = wire.send("GET", CURRENT_SCOPES, key=key)
    assert reply.status == 200, reply.words
    scopes: list[str] = reply.json["scopes"]
    return scopes


def _refused(wire: Wire, key: Key) -> str:
    """Return the message of the 401."""
    reply = wire.send("GET", SECRET, key=key)
    assert (reply.status, reply.json["code"]) == (401, "AuthenticationFailed")
    assert reply.headers["www-authenticate"] == "hawk"
    return reply.words


def _refused_header(wire: Wire, header: str) -> str:
    reply = wire.send("GET", SECRET, headers={"Authorization": header})
    assert (reply.status, reply.json["code"]) == (401, "AuthenticationFailed")
    return reply.words


def test_a_good_signature_is_let_in(here: Wire) -> None:
    assert here.send("GET", SECRET, key=here.root).status == 200


def test_without_credentials_a_missing_scope_is_403_with_the_expression(here: Wire) -> None:
    reply = here.send("GET", SECRET)
    assert (reply.status, reply.json["code"]) == (403, "InsufficientScopes")
    assert "www-authenticate" not in reply.headers
    assert reply.words == (
        "This request requires Taskcluster credentials that satisfy the following scope expression:"
        "\n\n```\nqueue:list-task-queues\n```"
    )


def test_with_credentials_a_missing_scope_is_403_with_what_is_missing(here: Wire) -> None:
    reply = here.send("GET", f"{QUEUE}/task-queues/p%2Fw/counts", key=Key("nothing", "t"))
    assert reply.words == (
        "Client ID nothing does not have sufficient scopes and is missing the following scopes:"
        "\n\n```\nqueue:claimed-count:p/w\n```"
        "\n\nThis request requires the client to satisfy the following scope expression:"
        '\n\n```\n{\n  "AllOf": [\n    "queue:pending-count:p/w",\n    "queue:claimed-count:p/w"\n  ]\n}\n```'
    )


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (Key("no/such", "t"), "Client with clientId 'no/such' not found"),
        (Key("disabled", "t"), "Client with clientId 'disabled' is disabled"),
        (Key("expired", "t"), "Client with clientId: 'expired' has expired"),
        (Key("limited", "wrong"), "Unauthorized: Bad mac"),
    ],
)
def test_an_unknown_or_invalid_client_is_refused(here: Wire, key: Key, words: str) -> None:
    assert _refused(here, key) == words


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("Basic eDp5", "Unauthorized: Unauthorized"),
        ("Hawk", "Bad Request: Invalid header syntax"),
        ('Hawk id="x"', "Bad Request: Missing attributes"),
        ("Hawk nonsense", "Bad Request: Bad header format"),
        ('Hawk id="x", foo="y"', "Bad Request: Unknown attribute: foo"),
        ('Hawk id="x", id="y"', "Bad Request: Duplicate attribute: id"),
        ('Hawk id=""', "Bad Request: Bad attribute value: id"),
        ('Hawk id="' + "x" * 4096 + '"', "Bad Request: Header length too long"),
    ],
)
def test_a_header_that_cannot_be_read_is_refused(here: Wire, header: str, words: str) -> None:
    assert _refused_header(here, header) == words


def test_the_scheme_may_be_in_any_case(here: Wire) -> None:
    header = here.root.header("GET", SECRET, here.host).replace("Hawk", "hAWK")
    assert here.send("GET", SECRET, headers={"Authorization": header}).status == 200


@pytest.mark.parametrize(("offset", "status"), [(-880, 200), (880, 200), (-920, 401), (920, 401)])
def test_a_clock_may_be_fifteen_minutes_off(here: Wire, offset: int, status: int) -> None:
    header = here.root.header("GET", SECRET, here.host, ts=str(int(time.time()) + offset))
    reply = here.send("GET", SECRET, headers={"Authorization": header})
    assert reply.status == status
    assert status == 200 or reply.words == "Unauthorized: Stale timestamp"


@pytest.mark.parametrize("timestamp", ["-1", "1e9", ".5", " 7 ", "9" * 400])
def test_a_timestamp_of_another_time_is_stale(here: Wire, timestamp: str) -> None:
    header = here.root.header("GET", SECRET, here.host, ts=timestamp)
    assert _refused_header(here, header) == "Unauthorized: Stale timestamp"


@pytest.mark.parametrize("timestamp", ["soon", "nan", "1_0", "12:30"])
def test_a_timestamp_that_is_not_a_number_is_never_stale(here: Wire, timestamp: str) -> None:
    header = here.root.header("GET", SECRET, here.host, ts=timestamp)
    assert here.send("GET", SECRET, headers={"Authorization": header}).status == 200


def test_a_nonce_may_be_used_again(here: Wire) -> None:
    header = here.root.header("GET", SECRET, here.host)
    assert [here.send("GET", SECRET, headers={"Authorization": header}).status for _ in range(2)] == [
        200,
        200,
    ]


@pytest.mark.parametrize(
    ("forwarded", "host"),
    [
        ({"Host": "tc.example.com:8080"}, "tc.example.com:8080"),
        ({"Host": "TC.example.com"}, "tc.example.com:80"),
        ({"Host": "tc.example.com:8080", "x-forwarded-port": "99"}, "tc.example.com:99"),
        ({"Host": "tc.example.com:8080", "x-forwarded-proto": "https"}, "tc.example.com:443"),
        (
            {"Host": "tc.example.com", "x-forwarded-proto": "https", "x-forwarded-port": "99"},
            "tc.example.com:99",
        ),
        ({"Host": "tc.example.com", "x-forwarded-port": "99, 80"}, "tc.example.com:99"),
    ],
)
def test_host_and_port_are_those_the_client_used(forwarded: dict[str, str], host: str) -> None:
    with LocalQueue(allow_remote=True) as local:
        wire = Wire(local)
        authorization = wire.root.header("GET", SECRET, host)
        assert wire.send("GET", SECRET, headers={**forwarded, "Authorization": authorization}).status == 200


def _with_hash(wire: Wire, body: bytes, content_type: str, payload: str) -> tuple[int, str]:
    resource = f"{QUEUE}/tasks/status"
    headers = {
        "Content-Type": content_type,
        "Authorization": wire.root.header("POST", resource, wire.host, hash=payload),
    }
    reply = wire.send("POST", resource, body=body, headers=headers)
    return reply.status, "" if reply.status == 200 else reply.words


def test_a_body_is_compared_with_its_signed_hash(here: Wire) -> None:
    body = b'{"taskIds": ["x"]}'
    good = payload_hash("application/json", body)
    assert _with_hash(here, body, "application/json; charset=utf-8", good) == (200, "")
    status, words = _with_hash(here, b'{"taskIds": ["y"]}', "application/json", good)
    assert status == 401
    assert words.startswith("Invalid payload hash: {{hash}}\nComputed payload hash: ")


@pytest.mark.parametrize("wrong", ["x", "x" * 43 + "=", "x" * 100])
def test_a_wrong_hash_of_any_length_is_refused(here: Wire, wrong: str) -> None:
    assert _with_hash(here, b'{"taskIds": ["x"]}', "application/json", wrong)[0] == 401


def test_a_body_that_is_not_json_hashes_as_empty(here: Wire) -> None:
    header = here.root.header("GET", SECRET, here.host, hash=payload_hash("text/plain", b""))
    headers = {"Authorization": header, "Content-Type": "text/plain"}
    assert here.send("GET", SECRET, body=b"text", headers=headers).status == 200


def test_a_content_type_counts_in_the_hash_of_a_request_without_a_body(here: Wire) -> None:
    def status(hashed_type: str) -> int:
        header = here.root.header("GET", SECRET, here.host, hash=payload_hash(hashed_type, b""))
        headers = {"Authorization": header, "Content-Type": "application/json; charset=utf-8"}
        return here.send("GET", SECRET, headers=headers).status

    assert (status("application/json"), status("")) == (200, 401)


def test_no_body_and_no_type_hash_as_empty(here: Wire) -> None:
    header = here.root.header("GET", SECRET, here.host, hash=payload_hash("", b""))
    assert here.send("GET", SECRET, headers={"Authorization": header}).status == 200


@pytest.mark.parametrize(
    "ext", [b"!", b"{", b"\xff", b'{"a": NaN}', b"\xef\xbb\xbf{}", "{}".encode("utf-16")]
)
def test_an_ext_that_cannot_be_decoded_is_refused(here: Wire, ext: bytes) -> None:
    header = here.root.header("GET", SECRET, here.host, ext=b64encode(ext).decode())
    assert _refused_header(here, header) == "Failed to parse ext"


def test_an_ext_may_have_bytes_that_are_not_utf_8(here: Wire) -> None:
    attributes = {"ts": str(int(time.time())), "nonce": "x", "ext": b64encode(b'{"a": "\xff"}').decode()}
    mac = here.root.mac("header", attributes, "GET", SECRET, here.host)
    header = here.root.header("GET", SECRET, here.host, **attributes, mac=mac)
    assert here.send("GET", SECRET, headers={"Authorization": header}).status == 200


@pytest.mark.parametrize("ext", ["e3 0=", "e30=e30=", "e30", "e30=!"])
def test_an_ext_is_read_as_base64_whatever_else_it_has(here: Wire, ext: str) -> None:
    attributes = {"ts": str(int(time.time())), "nonce": "x", "ext": ext}
    mac = here.root.mac("header", attributes, "GET", SECRET, here.host)
    header = here.root.header("GET", SECRET, here.host, **attributes, mac=mac)
    assert here.send("GET", SECRET, headers={"Authorization": header}).status == 200


def test_temporary_credentials_have_the_certificates_scopes(here: Wire) -> None:
    assert _scopes(here, ISSUER.temporary([CURRENT, "queue:x"])) == sorted(
        [*ANONYMOUS_SCOPES, CURRENT, "assume:anonymous", "queue:x"]
    )


def test_named_temporary_credentials_go_by_their_name(here: Wire) -> None:
    reply = here.send("GET", SECRET, key=ISSUER.temporary([], name="named/one"))
    assert reply.words.startswith("Client ID named/one does not have sufficient scopes")


_NOW = int(time.time() * 1000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "ext.certificate.version must be 1"),
        ({"version": True}, "ext.certificate.version must be 1"),
        ({"seed": 1}, "ext.certificate.seed must be a string"),
        ({"seed": "x"}, "ext.certificate.seed must be 44 characters"),
        ({"start": "1"}, "ext.certificate.start must be a number"),
        ({"expiry": None}, "ext.certificate.expiry must be a number"),
        ({"scopes": ["ä"]}, "ext.certificate.scopes must be an array of valid scopes"),
        ({"start": _NOW + _DAY, "expiry": _NOW + 2 * _DAY}, "ext.certificate.start > now"),
        ({"start": _NOW - 900_000, "expiry": _NOW - 600_000}, "ext.certificate.expiry < now"),
        ({"start": _NOW, "expiry": _NOW + 31 * _DAY + 1}, "ext.certificate cannot last longer than 31 days!"),
        ({"start": -(10**400)}, "ext.certificate cannot last longer than 31 days!"),
        ({"start": 0.5, "expiry": 10**400}, "ext.certificate cannot last longer than 31 days!"),
        ({"signature": "x"}, "ext.certificate.signature is not valid"),
        ({"signature": "ä"}, "ext.certificate.signature is not valid"),
        ({"signature": None}, "ext.certificate.signature is not valid"),
        ({"clientId": "issuer"}, "ext.certificate.clientId must only be used with ext.certificate.issuer"),
        ({"issuer": "issuer"}, "ext.certificate.issuer must differ from the supplied clientId"),
        ({"issuer": 7}, "ext.certificate.issuer must be a string"),
        ({"issuer": []}, "ext.certificate.issuer must be a string"),
        ({"issuer": {}}, "ext.certificate.issuer must be a string"),
    ],
)
def test_a_certificate_that_breaks_a_rule_is_refused(here: Wire, changes: dict[str, Any], words: str) -> None:
    scopes: list[str] = changes.pop("scopes", [])
    key = ISSUER.temporary(scopes, None, None, **{"signature": "unused", **changes})
    assert _refused(here, key) == words


@pytest.mark.parametrize("certificate", ["{}", [], {}, 1])
def test_a_certificate_of_another_kind_is_refused(here: Wire, certificate: Any) -> None:
    words = _refused(here, Key("issuer", "issuer-token", {"certificate": certificate}))
    assert words.startswith("ext.certificate")


@pytest.mark.parametrize(("start", "expiry"), [(0, 31 * _DAY), (290_000, 1_000_000), (-900_000, -200_000)])
def test_a_certificate_at_its_limits_is_good(here: Wire, start: int, expiry: int) -> None:
    now = int(time.time() * 1000)
    key = ISSUER.temporary(["queue:*"], start=now + start, expiry=now + expiry)
    assert here.send("GET", SECRET, key=key).status == 200


def test_a_certificate_with_an_unknown_key_is_good(here: Wire) -> None:
    assert here.send("GET", SECRET, key=ISSUER.temporary(["queue:*"], unknown=1)).status == 200


def test_a_name_the_issuer_may_not_make_is_refused(here: Wire) -> None:
    words = _refused(here, ISSUER.temporary([], name="other"))
    assert words == (
        "ext.certificate issuer `issuer` doesn't have `auth:create-client:other` for supplied clientId."
    )


def test_scopes_the_issuer_does_not_have_are_refused(here: Wire) -> None:
    words = _refused(here, ISSUER.temporary(["queue:a", "other:b"]))
    assert words.startswith(
        "ext.certificate issuer `issuer` doesn't satisfy all certificate scopes queue:a, other:b."
    )


def test_a_certificate_for_another_name_is_refused(here: Wire) -> None:
    key = ISSUER.temporary([], name="named/one")
    words = _refused(here, Key("named/two", key.access_token, key.ext))
    assert words == "ext.certificate.signature is not valid, or wrong clientId provided"


def test_a_name_outside_the_alphabet_is_refused(here: Wire) -> None:
    key = here.root.temporary([], name="artifact download")
    assert _refused(here, key).startswith("clientId 'artifact download' has characters other than")


def test_a_missing_certificate_is_refused(here: Wire) -> None:
    unnamed, named = ISSUER.temporary([]), ISSUER.temporary([], name="named/one")
    assert _refused(here, Key(unnamed.client_id, unnamed.access_token)) == "Unauthorized: Bad mac"
    assert (
        _refused(here, Key(named.client_id, named.access_token))
        == "Client with clientId 'named/one' not found"
    )


def test_authorized_scopes_replace_what_the_client_has(here: Wire) -> None:
    key = Key("issuer", "issuer-token", {"authorizedScopes": [CURRENT, "queue:x"]})
    assert _scopes(here, key) == sorted([*ANONYMOUS_SCOPES, CURRENT, "assume:anonymous", "queue:x"])


def test_empty_authorized_scopes_leave_the_anonymous_scopes(here: Wire) -> None:
    key = Key("issuer", "issuer-token", {"authorizedScopes": []})
    status = here.send("GET", f"{QUEUE}/task/{NO_SUCH_TASK}/status", key=key).status
    assert (status, here.send("GET", CURRENT_SCOPES, key=key).status) == (404, 403)


def test_authorized_scopes_that_the_client_lacks_are_refused(here: Wire) -> None:
    words = _refused(here, Key("nothing", "t", {"authorizedScopes": ["queue:x"]}))
    assert words.startswith("Supplied credentials do not satisfy authorizedScopes; credentials have scopes:")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("queue:x", "ext.authorizedScopes must be an array"),
        ({"0": "queue:x"}, "ext.authorizedScopes must be an array"),
        (["queue:x", 5], "ext.authorizedScopes must be an array of valid scopes"),
        (["queue:ü"], "ext.authorizedScopes must be an array of valid scopes"),
    ],
)
def test_authorized_scopes_that_are_not_a_list_of_scopes_are_refused(
    here: Wire, given: Any, words: str
) -> None:
    assert _refused(here, Key("issuer", "issuer-token", {"authorizedScopes": given})) == words


def test_authorized_scopes_narrow_a_certificate(here: Wire) -> None:
    key = ISSUER.temporary(
        ["queue:list-*", CURRENT], ext={"authorizedScopes": ["queue:list-task-queues", CURRENT]}
    )
    assert "queue:list-task-queues" in _scopes(here, key)
    assert _refused(here, ISSUER.temporary([], ext={"authorizedScopes": ["queue:x"]})).startswith("Supplied")


def _bewit(wire: Wire, key: Key, resource: str = SECRET, lifetime: int = 900) -> str:
    bewit = key.bewit(resource, wire.host, int(time.time()) + lifetime)
    return f"{resource}{'&' if '?' in resource else '?'}bewit={bewit}"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_signed_url_is_let_in(here: Wire, method: str) -> None:
    assert here.send(method, _bewit(here, here.root)).status == 200


def test_a_bewit_may_stand_anywhere_in_the_query(here: Wire) -> None:
    signed = _bewit(here, here.root, f"{SECRET}?limit=5")
    path, _, query = signed.partition("?")
    limit, bewit = query.split("&")
    assert here.send("GET", signed).status == 200
    assert here.send("GET", f"{path}?{bewit}&{limit}").status == 200
    assert here.send("GET", f"{signed}&").status == 401  # `&` announces another parameter


def test_a_bewit_carries_certificate_and_restrictions(here: Wire) -> None:
    key = ISSUER.temporary(
        ["queue:list-*", CURRENT], ext={"authorizedScopes": ["queue:list-task-queues", CURRENT]}
    )
    assert here.send("GET", _bewit(here, key)).status == 200


@pytest.mark.parametrize(
    ("method", "resource", "words"),
    [
        ("POST", f"{QUEUE}/task/{NO_SUCH_TASK}/runs/0/completed?bewit=eA", "Unauthorized: Invalid method"),
        ("GET", f"{SECRET}?bewit=", "Unauthorized: Empty bewit"),
        ("GET", f"{SECRET}?bewit=eA==", "Bad Request: Invalid bewit encoding"),
        ("GET", f"{SECRET}?bewit=eA", "Bad Request: Invalid bewit structure"),
        ("GET", f"{SECRET}?bewit=XFxc", "Bad Request: Missing bewit attributes"),
        ("GET", f"{SECRET}?bewit=eFxceFw", "Bad Request: Missing bewit attributes"),
        ("GET", f"{SECRET}?bewit=eFwtMVx4XA", "Client with clientId 'x' not found"),
        ("GET", f"{SECRET}?bewit={'x' * 4096}", "Bad Request: Resource path exceeds max length"),
    ],
)
def test_a_bewit_that_cannot_be_read_is_refused(here: Wire, method: str, resource: str, words: str) -> None:
    reply = here.send(method, resource)
    assert (reply.status, reply.words) == (401, words)


def test_a_bewit_ends_at_its_second(here: Wire) -> None:
    reply = here.send("GET", _bewit(here, here.root, lifetime=0))
    assert (reply.status, reply.words) == (401, "Unauthorized: Access expired")


def _bewit_until(wire: Wire, typed: str) -> str:
    mac = wire.root.mac("bewit", {"ts": typed, "nonce": ""}, "GET", SECRET, wire.host)
    text = f"{wire.root.client_id}\\{typed}\\{mac}\\"
    return f"{SECRET}?bewit={urlsafe_b64encode(text.encode()).rstrip(b'=').decode()}"


@pytest.mark.parametrize("typed", ["{}.5", "0{}", " {}", "{} UTC", "never"])
def test_the_expiry_of_a_bewit_is_signed_as_typed(here: Wire, typed: str) -> None:
    signed = _bewit_until(here, typed.format(int(time.time()) + 900))
    assert here.send("GET", signed).status == 200


@pytest.mark.parametrize("typed", ["0", "-1", "1.8e9"])
def test_a_bewit_ends_at_the_number_that_its_expiry_begins_with(here: Wire, typed: str) -> None:
    reply = here.send("GET", _bewit_until(here, typed))
    assert (reply.status, reply.words) == (401, "Unauthorized: Access expired")


def test_a_bewit_is_for_one_url(here: Wire) -> None:
    reply = here.send("GET", _bewit(here, here.root).replace("task-queues", "task-queues/"))
    assert (reply.status, reply.words) == (401, "Unauthorized: Bad mac")


def test_header_and_bewit_together_are_refused(here: Wire) -> None:
    reply = here.send("GET", _bewit(here, here.root), key=here.root)
    assert reply.status == 401
    assert reply.words.startswith("Cannot use two authentication schemes at once")


def test_roles_are_expanded_with_what_they_match(here: Wire) -> None:
    scopes = _scopes(here, LIMITED)
    assert "queue:deep" in scopes
    assert "queue:list-workers:*" in scopes  # a scope of everybody that covers the role's


@pytest.mark.parametrize(
    ("scopes", "expanded"),
    [
        (["assume:a"], ["assume:a", "x"]),
        (["assume:b:1"], ["assume:b:1", "b-1-end", "c"]),
        (["assume:b:1*"], ["assume:b:1*", "b-1*", "c"]),
        (["assume:*"], ["assume:*", "b-*", "c", "loop", "x"]),
        (["assum*"], ["assum*", "b-*", "c", "loop", "x"]),
        (["assume:loop"], ["assume:loop", "loop"]),
        (["*"], ["*"]),
        (["assume"], ["assume"]),
    ],
)
def test_a_scope_is_expanded_by_each_role_it_assumes(scopes: list[str], expanded: list[str]) -> None:
    roles = Roles({"a": ["x"], "b:*": ["b-<..>-end", "c"], "loop": ["assume:loop", "loop"]})
    assert roles.expand(scopes) == expanded


@pytest.mark.parametrize(
    ("roles", "expanded"),
    [
        ({"a*": ["assume:a<..>"]}, ["assume:aab"]),
        ({"a*": ["assume:<..>"]}, ["assume:aab", "assume:ab", "assume:b"]),
        ({"a*": ["assume:b<..>"], "b*": ["assume:a<..>"]}, ["assume:aab", "assume:bab"]),
        ({"a*": ["assume:a"], "a": ["b-<..>-and-more"]}, ["assume:a", "assume:aab", "b-<..>-and-more"]),
        ({"a*": ["b:<..>/and/more"]}, ["assume:aab", "b:ab/and/more"]),
    ],
)
def test_roles_in_a_circle_are_expanded_if_no_scope_grows(
    roles: dict[str, list[str]], expanded: list[str]
) -> None:
    assert Roles(roles).expand(["assume:aab"]) == expanded


def test_scopes_that_others_satisfy_are_omitted() -> None:
    assert normalized(["ab", "a*", "a", "b", "b", "abc*"]) == ["a*", "b"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": [Client("a b", "t")]}, "clientId 'a b'"),
        ({"clients": [Client("a", "")]}, "the access token of 'a'"),
        ({"clients": [Client("a", cast("str", b"t"))]}, "the access token of 'a'"),
        ({"clients": [Client("a", "t\n")]}, "the access token of 'a'"),
        ({"access_token": "t t"}, "the access token of 'local'"),
        ({"clients": [Client("a", "t", expires=cast("float", datetime.now(UTC)))]}, "expires: .* float"),
        ({"clients": [Client("a", "t", expires=math.inf)]}, "expires: inf .* years 1970 to 9999"),
        ({"clients": [Client("a", "t", expires=math.nan)]}, "expires: nan"),
        ({"clients": [Client("a", "t", expires=-1.0)]}, "expires: -1"),
        ({"clients": [Client("a", "t", disabled=cast("bool", "no"))]}, "disabled: 'no'"),
        ({"clients": [Client("a", "t", ["x**"])]}, "must not end in"),
        ({"clients": [Client("local", "t")]}, "two clients"),
        ({"roles": {"r": ["ä"]}}, "role 'r'"),
        ({"roles": {"a*": ["b*", "b:<..>:<..>"]}}, "role 'a\\*': scope 'b:<..>:<..>' .* at most one"),
        ({"roles": {"a*": ["b*<..>"]}}, "must not end in `\\*<..>`"),
        ({"roles": {"a*": ["assume:a<..>x"]}}, "longer without end"),
        ({"roles": {"a*": ["assume:aa<..>"]}}, "longer without end"),
        ({"roles": {"a:*": ["assume:b:<..>/x"], "b:*": ["y", "assume:a:<..>"]}}, "longer without end"),
        ({"roles": {"*": ["assume:<..>x"]}}, "longer without end"),
    ],
)
def test_malformed_clients_and_roles_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LocalQueue(**settings)


def test_secrets_are_in_no_repr() -> None:
    assert "t0ken" not in repr(Client("a", "t0ken"))


def _hawk(wire: Wire, **changes: Any) -> dict[str, Any]:
    host, _, port = wire.host.partition(":")
    body = {
        "method": "get",
        "resource": SECRET,
        "host": host,
        "port": int(port),
        "sourceIp": "127.0.0.1",
        **changes,
    }
    response: dict[str, Any] = wire.json("POST", "/api/auth/v1/authenticate-hawk", body).json
    return response


def test_the_auth_service_judges_requests_of_others(here: Wire) -> None:
    header = LIMITED.header("GET", SECRET, here.host, hash="x" * 44)
    good = _hawk(here, authorization=header)
    assert good.keys() == {"status", "scheme", "expires", "scopes", "clientId", "hash"}
    assert (good["status"], good["scheme"], good["clientId"], good["hash"]) == (
        "auth-success",
        "hawk",
        "limited",
        "x" * 44,
    )
    assert _hawk(here, authorization="Hawk x") == {
        "status": "auth-failed",
        "message": "Bad Request: Bad header format",
    }
    nobody = _hawk(here)
    assert (nobody["status"], nobody["scheme"]) == ("no-auth", "none")
    assert nobody["scopes"] == sorted([*ANONYMOUS_SCOPES, "assume:anonymous"])


def test_test_authenticate_checks_the_scopes_it_is_asked_to(here: Wire) -> None:
    tester, resource = Key("tester", "no-secret"), "/api/auth/v1/test-authenticate"
    body = {"clientScopes": ["test:*", "x**"], "requiredScopes": ["test:a"]}
    good = here.json("POST", resource, body, key=tester)
    assert good.json == {"clientId": "tester", "scopes": ["assume:anonymous", "test:*", "x**"]}
    assert here.json("POST", resource, {"requiredScopes": ["test:a"]}, key=tester).status == 403
    assert here.json("POST", resource, body, key=here.root).status == 401


@pytest.mark.parametrize("key", [None, Key("nothing", "t")])
def test_current_scopes_needs_its_scope(here: Wire, key: Key | None) -> None:
    reply = here.send("GET", CURRENT_SCOPES, key=key)
    assert (reply.status, reply.json["code"]) == (403, "InsufficientScopes")


def test_a_public_deployment_shows_everybody_their_scopes_and_clients() -> None:
    with LocalQueue(anonymous_scopes=PUBLIC_SCOPES) as local:
        wire = Wire(local)
        assert _scopes(wire, None) == sorted([*PUBLIC_SCOPES, "assume:anonymous"])
        client = wire.send("GET", "/api/auth/v1/clients/local").json
        assert (client["clientId"], client["disabled"], client["scopes"]) == ("local", False, ["*"])
        assert client["expires"] > "9"
        assert "accessToken" not in client


def test_looking_up_a_client_needs_its_scope(here: Wire) -> None:
    path = "/api/auth/v1/clients/"
    assert here.send("GET", f"{path}limited").status == 403
    assert here.send("GET", f"{path}no%2Fbody", key=here.root).json["code"] == "ResourceNotFound"
    assert here.send("GET", f"{path}no/body", key=here.root).json == {"error": "Not found"}
    client = here.send("GET", f"{path}expired", key=here.root).json
    assert (client["clientId"], client["expires"]) == ("expired", "1970-01-01T00:00:01.000Z")
    assert "queue:deep" in here.send("GET", f"{path}limited", key=here.root).json["expandedScopes"]
    assert here.send("GET", f"{path}disabled", key=here.root).json["disabled"] is True


def test_an_ext_of_null_is_refused(here: Wire) -> None:
    header = here.root.header("GET", SECRET, here.host, ext="bnVsbA==")
    assert _refused_header(here, header) == "Failed to parse ext"


@pytest.mark.parametrize("query", ["?bewit=", "?limit=1&bewit="])
def test_an_empty_bewit_beside_a_header_is_ignored(here: Wire, query: str) -> None:
    assert here.send("GET", f"{SECRET}{query}", key=here.root).status == 200
    assert here.send("GET", f"{SECRET}{query}x", key=here.root).status == 401
    assert here.send("GET", f"{SECRET}{query}").status == 401


def test_the_testers_scopes_keep_their_order_and_are_not_reduced(here: Wire) -> None:
    given = ["test:z*", "test:a", "test:zz", "test:a"]
    body = {"clientScopes": ["test:z*", "test:a", "test:zz"], "requiredScopes": ["test:a"]}
    reply = here.json("POST", "/api/auth/v1/test-authenticate", body, key=Key("tester", "no-secret"))
    assert (reply.status, reply.json["scopes"]) == (200, ["assume:anonymous", *given[:3]])
