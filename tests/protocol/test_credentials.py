"""Credentials: checked, made temporary, found in the environment, and never shown."""

from __future__ import annotations

import base64
import hashlib
import hmac
import pickle
import time
import traceback
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from taskqueue_client import AsyncQueue, Credentials, LocalQueue, Queue, temporary_credentials
from taskqueue_client.credentials import checked, checked_root_url, from_environment
from taskqueue_client.errors import InvalidArgument

ISSUER = Credentials("static/tester", "the-secret-of-the-tester")
START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def certificate(credentials: Credentials) -> dict[str, object]:
    assert credentials.certificate is not None
    return msgspec.json.decode(credentials.certificate, type=dict[str, object])


@pytest.mark.parametrize("name", [None, "named/one"])
def test_the_signature_covers_what_the_auth_service_checks(name: str | None) -> None:
    made = temporary_credentials(ISSUER, ["a:b", "c*"], start=START, lifetime=timedelta(days=31), name=name)
    found = certificate(made)
    lines = ["version:1", f"seed:{found['seed']}", f"start:{found['start']}", f"expiry:{found['expiry']}"]
    if name:
        lines[1:1] = [f"clientId:{name}", "issuer:static/tester"]
    text = "\n".join([*lines, "scopes:", "a:b", "c*"])
    expected = hmac.new(ISSUER.access_token.encode(), text.encode(), hashlib.sha256).digest()
    assert found["signature"] == base64.b64encode(expected).decode()
    assert found["start"] == 1_795_262_400_000
    assert found["expiry"] == 1_795_262_400_000 + 31 * 86_400_000
    assert ("issuer" in found) == (name is not None)
    assert made.client_id == (name or "static/tester")


def test_an_empty_list_of_scopes_is_signed_without_a_newline_at_the_end() -> None:
    found = certificate(temporary_credentials(ISSUER, [], start=START))
    text = f"version:1\nseed:{found['seed']}\nstart:{found['start']}\nexpiry:{found['expiry']}\nscopes:"
    expected = hmac.new(ISSUER.access_token.encode(), text.encode(), hashlib.sha256).digest()
    assert found["signature"] == base64.b64encode(expected).decode()


def test_a_restriction_of_the_issuer_is_kept() -> None:
    made = temporary_credentials(ISSUER.restricted_to(["a"]), ["a", "b"])
    assert made.authorized_scopes == ("a",)


@pytest.mark.parametrize(
    ("authorized", "scopes", "both"),
    [
        (["a", "b"], ["a"], ("a",)),
        (["a*"], ["a:b", "c"], ("a:b",)),
        (["a:b", "c"], ["a*"], ("a:b",)),
        (["a*", "b"], ["a*", "b*"], ("a*", "b")),
        (["a"], ["b"], ()),
        ([], ["*"], ()),
    ],
)
def test_temporary_credentials_of_a_restricted_issuer_have_what_both_lists_allow(
    authorized: list[str], scopes: list[str], both: tuple[str, ...]
) -> None:
    assert temporary_credentials(ISSUER.restricted_to(authorized), scopes).authorized_scopes == both


def test_the_auth_service_accepts_fewer_scopes_than_a_restricted_issuer_has(local_queue: LocalQueue) -> None:
    issuer = local_queue.credentials.restricted_to(["auth:current-scopes", "queue:claim-work:*"])
    with Queue(local_queue.root_url, temporary_credentials(issuer, ["auth:current-scopes"])) as queue:
        held = queue.current_scopes().scopes
    assert "auth:current-scopes" in held
    assert "queue:claim-work:*" not in held


@pytest.mark.parametrize(
    ("argument", "refused"),
    [
        ("scopes", lambda: ISSUER.restricted_to("abc")),
        ("scopes", lambda: ISSUER.restricted_to(b"")),  # type: ignore[arg-type] # what is tested
        ("scopes", lambda: ISSUER.restricted_to(None)),  # type: ignore[arg-type] # what is tested
        ("scopes", lambda: ISSUER.restricted_to(5)),  # type: ignore[arg-type] # what is tested
        ("scopes", lambda: temporary_credentials(ISSUER, b"")),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # the same
        ("lifetime", lambda: temporary_credentials(ISSUER, [], lifetime=timedelta(days=31, milliseconds=1))),
        ("lifetime", lambda: temporary_credentials(ISSUER, [], lifetime=timedelta(0))),
        ("lifetime", lambda: temporary_credentials(ISSUER, [], lifetime=5)),  # type: ignore[arg-type] # wrong on purpose
        ("lifetime", lambda: temporary_credentials(ISSUER, [], lifetime=None)),  # type: ignore[arg-type] # wrong on purpose
        ("start", lambda: temporary_credentials(ISSUER, [], start=START.replace(tzinfo=None))),
        ("start", lambda: temporary_credentials(ISSUER, [], start=1)),  # type: ignore[arg-type] # wrong on purpose
        ("scopes", lambda: temporary_credentials(ISSUER, "a:b")),
        ("scopes", lambda: temporary_credentials(ISSUER, None)),  # type: ignore[arg-type] # wrong on purpose
        ("scopes", lambda: temporary_credentials(ISSUER, ["grün"])),
        ("scopes", lambda: temporary_credentials(ISSUER, ["a\nb"])),
        ("name", lambda: temporary_credentials(ISSUER, [], name="with space")),
        ("name", lambda: temporary_credentials(ISSUER, [], name="static/tester")),
        ("issuer", lambda: temporary_credentials(temporary_credentials(ISSUER, []), [])),
        ("issuer", lambda: temporary_credentials(None, [])),  # type: ignore[arg-type] # of a client without any
        ("client_id", lambda: checked(Credentials("", "token"))),
        ("access_token", lambda: checked(Credentials("me", ""))),
        ("access_token", lambda: checked(Credentials("me", "tok en"))),
        ("certificate", lambda: checked(Credentials("me", "token", "[]"))),
        ("certificate", lambda: checked(Credentials("me", "token", "{"))),
        ("authorized_scopes", lambda: checked(Credentials("me", "token", None, ("ä",)))),
        ("root_url", lambda: checked_root_url("tc.example.com")),
        ("root_url", lambda: checked_root_url("")),
        ("root_url", lambda: checked_root_url("ftp://tc.example.com")),
        ("root_url", lambda: checked_root_url("https://tc.example.com:port")),
        ("root_url", lambda: checked_root_url("https://tc.example.com/?a=b")),
        ("root_url", lambda: checked_root_url("https://me:password@tc.example.com")),
        ("TASKCLUSTER_ROOT_URL", lambda: from_environment({"TASKCLUSTER_ROOT_URL": ""})),
        (
            "TASKCLUSTER_ACCESS_TOKEN",
            lambda: from_environment({"TASKCLUSTER_ROOT_URL": "http://h", "TASKCLUSTER_CLIENT_ID": "me"}),
        ),
        (
            "TASKCLUSTER_CLIENT_ID",
            lambda: from_environment({"TASKCLUSTER_ROOT_URL": "http://h", "TASKCLUSTER_ACCESS_TOKEN": "t"}),
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused_by_name(argument: str, refused: object) -> None:
    assert callable(refused)
    with pytest.raises(InvalidArgument) as caught:
        refused()
    assert caught.value.argument == argument
    assert argument in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "malformed"),
    [
        ("TASKCLUSTER_PROXY_URL", "taskcluster"),
        ("TASKCLUSTER_ROOT_URL", "tc.example.com"),
        ("TASKCLUSTER_CLIENT_ID", "with space"),
        ("TASKCLUSTER_ACCESS_TOKEN", "with space"),
        ("TASKCLUSTER_CERTIFICATE", "{"),
    ],
)
def test_a_malformed_variable_is_named(variable: str, malformed: str) -> None:
    environ = {
        "TASKCLUSTER_ROOT_URL": "http://h",
        "TASKCLUSTER_CLIENT_ID": "me",
        "TASKCLUSTER_ACCESS_TOKEN": "token",
        variable: malformed,
    }
    with pytest.raises(InvalidArgument) as caught:
        from_environment(environ)
    assert caught.value.argument == variable


def test_a_lifetime_counts_from_now_though_the_credentials_are_valid_for_five_minutes_already() -> None:
    before = time.time() * 1000
    made = certificate(temporary_credentials(ISSUER, [], lifetime=timedelta(seconds=60)))
    assert isinstance(made["expiry"], int)
    assert isinstance(made["start"], int)
    assert made["expiry"] - made["start"] == 360_000
    assert before - 1 <= made["expiry"] - 60_000 <= time.time() * 1000


def test_the_longest_life_that_the_auth_service_allows_is_allowed() -> None:
    made = certificate(temporary_credentials(ISSUER, [], lifetime=timedelta(days=31)))
    assert isinstance(made["expiry"], int)
    assert isinstance(made["start"], int)
    assert made["expiry"] - made["start"] == 31 * 86_400_000


def test_the_proxy_comes_first_and_needs_no_credentials() -> None:
    environ = {
        "TASKCLUSTER_PROXY_URL": "http://taskcluster/",
        "TASKCLUSTER_ROOT_URL": "https://tc.example.com",
        "TASKCLUSTER_CLIENT_ID": "me",
        "TASKCLUSTER_ACCESS_TOKEN": "token",
    }
    assert from_environment(environ) == ("http://taskcluster", None)


def test_the_root_url_comes_with_its_credentials() -> None:
    environ = {
        "TASKCLUSTER_PROXY_URL": "",
        "TASKCLUSTER_ROOT_URL": "https://tc.example.com/",
        "TASKCLUSTER_CLIENT_ID": "me",
        "TASKCLUSTER_ACCESS_TOKEN": "token",
        "TASKCLUSTER_CERTIFICATE": '{"version":1}',
    }
    expected = Credentials("me", "token", '{"version":1}')
    assert from_environment(environ) == ("https://tc.example.com", expected)
    assert from_environment({**environ, "TASKCLUSTER_CERTIFICATE": ""})[1] == Credentials("me", "token")


def test_without_client_id_and_token_there_are_no_credentials() -> None:
    assert from_environment({"TASKCLUSTER_ROOT_URL": "http://localhost:80"}) == ("http://localhost:80", None)


def test_a_certificate_alone_is_not_ignored() -> None:
    environ = {"TASKCLUSTER_ROOT_URL": "http://h", "TASKCLUSTER_CERTIFICATE": '{"version":1}'}
    with pytest.raises(InvalidArgument) as caught:
        from_environment(environ)
    finding = "the environment variable is not set, but TASKCLUSTER_CERTIFICATE is"
    assert str(caught.value) == f"TASKCLUSTER_CLIENT_ID: {finding}"


def test_no_text_made_of_credentials_shows_a_secret() -> None:
    made = temporary_credentials(ISSUER, ["a"])
    for secret in (made.access_token, str(made.certificate)):
        for text in (str(made), repr(made), f"{made}", str([made]), repr({"c": made})):
            assert secret not in text


@pytest.mark.parametrize(
    "bad",
    [
        Credentials("me", "s3cret token"),
        Credentials("me", "t", "s3cret"),
        Credentials("", "s3cret", "s3cret"),
        Credentials("me", b"s3cret"),  # type: ignore[arg-type]
    ],
)
def test_no_refusal_of_credentials_shows_a_secret(bad: Credentials) -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked(bad)
    shown = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in shown + repr(caught.value) + repr(vars(caught.value))
    assert b"s3cret" not in pickle.dumps(caught.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Credentials(b"me", "t"), r"client_id: b'me' is not valid; expected a str of letters"),  # type: ignore[arg-type]
        (Credentials("me", b"t"), r"access_token: <class 'bytes'> is not valid; expected a str of"),  # type: ignore[arg-type]
        (Credentials("me", None), r"access_token: <class 'NoneType'> is not valid; expected a str of"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_is_not_text_is_refused_for_that(bad: Credentials, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        checked(bad)


@pytest.mark.parametrize("client", [Queue, AsyncQueue])
def test_the_error_about_a_dict_says_how_to_make_credentials_of_it(client: type[Queue]) -> None:
    given: Any = {"clientId": "me", "accessToken": "s3cret"}
    with pytest.raises(InvalidArgument) as caught:
        client("https://tc.example.com", given)
    expression = str(caught.value).partition("another client: ")[2]
    assert eval(expression, {"Credentials": Credentials, "given": given}) == Credentials("me", "s3cret")
    assert "s3cret" not in str(caught.value)
