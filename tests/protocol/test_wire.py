"""The encoding of requests and the decoding of responses, without a server."""

from __future__ import annotations

import gzip
import json
import logging
import tracemalloc
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

import pytest

from taskqueue_client import Credentials, calls, errors
from taskqueue_client._protocol.api_responses import Response, ResponseRefused, unpacked
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.wire import Wire
from taskqueue_client.clock import MovableClock

TASK_ID = "fN1SbArXTPSVFNUvaOlinQ"
CALL = Call("x", "POST", "/x", dict[str, Any], body={"a": None, "when": datetime(2026, 11, 22, tzinfo=UTC)})


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(1_795_000_000, held=True)


@pytest.fixture
def wire(clock: MovableClock) -> Wire:
    return Wire("https://tc.example.com", Credentials("me", "secret"), clock)


def test_a_body_may_have_nulls_and_dates(wire: Wire) -> None:
    body = wire.encode(CALL).body
    assert body is not None
    assert json.loads(body) == {"a": None, "when": "2026-11-22T00:00:00Z"}


@pytest.mark.parametrize(("service", "path"), [("queue", "/api/queue/v1/x"), ("", "/v1/x")])
def test_old_calls_that_belong_to_no_service_have_a_short_path(wire: Wire, service: str, path: str) -> None:
    call = Call("x", "GET", "/x", dict[str, Any], service=service)
    assert wire.encode(call).url == f"https://tc.example.com{path}"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_refused(wire: Wire, wrong: float) -> None:
    with pytest.raises(errors.InvalidArgument, match="JSON"):
        wire.encode(Call("x", "POST", "/x", dict[str, Any], body={"a": wrong}))


def test_a_response_without_length_that_ends_too_early_is_incomplete(wire: Wire) -> None:
    with pytest.raises(errors.ConnectionFailed, match=r"the response is incomplete: .*truncated"):
        wire.decode(CALL, Response(200, {}, b'{"a": 1'))


@pytest.mark.parametrize("header", [("content-length", "7"), ("transfer-encoding", "chunked")])
def test_a_response_with_a_known_end_is_complete_and_unreadable(wire: Wire, header: tuple[str, str]) -> None:
    """The server has sent the whole body, and would send the same one again."""
    with pytest.raises(errors.UnreadableResponse):
        wire.decode(CALL, Response(200, dict([header]), b'{"a": 1'))


def test_a_time_to_retry_that_has_passed_is_not_waited_for(wire: Wire, clock: MovableClock) -> None:
    past = formatdate(clock.now() - 100, usegmt=True)
    with pytest.raises(errors.ServerError) as refused:
        wire.decode(CALL, Response(503, {"retry-after": past}, b""))
    assert refused.value.refused.retry_after == 0


def test_the_beginning_of_a_long_page_is_the_message_of_its_error(wire: Wire) -> None:
    page = b"<h1>" + b"sorry " * 200 + b"</h1>"
    with pytest.raises(errors.ServerError) as refused:
        wire.decode(CALL, Response(502, {}, page))
    assert refused.value.refused.message == ("sorry " * 84)[:500] + "…"


def test_the_document_of_a_refusal_is_not_in_its_repr(wire: Wire) -> None:
    """Its parts are shown already, and the rest may be long."""
    document = {"code": "InputError", "message": "sorry", "details": "a long story"}
    with pytest.raises(errors.InputError) as refused:
        wire.decode(CALL, Response(400, {}, json.dumps(document).encode()))
    assert refused.value.refused.document == document
    assert "message='sorry', request_info=" in repr(refused.value)
    assert "a long story" not in repr(refused.value)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", " GZIP "])
def test_gzip_has_two_names(coding: str) -> None:  # RFC 9110, 8.4.1.3
    assert unpacked(200, {"content-encoding": coding}, gzip.compress(b"{}"), 100) == b"{}"


@pytest.mark.parametrize("headers", [{}, {"location": ""}])
def test_a_redirect_without_an_address_is_unreadable(wire: Wire, headers: dict[str, str]) -> None:
    with pytest.raises(errors.UnreadableResponse, match="the header Location is missing or empty"):
        wire.decode(calls.download_object("x"), Response(303, headers, b""))


def test_a_wrong_clock_is_in_the_log_once_even_if_credentials_are_refused_later(
    wire: Wire, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    late = {"date": formatdate(clock.now() + 3600, usegmt=True)}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(errors.AuthenticationFailed):
                wire.decode(CALL, Response(401, late, b""))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("lifetime", [0.5, 1])
def test_a_signed_url_may_be_short_lived(wire: Wire, lifetime: float) -> None:
    assert wire.signed_url(calls.status(TASK_ID), lifetime).startswith("https://tc.example.com/api/queue/v1/")


def test_no_more_than_the_limit_is_decompressed() -> None:
    packed = gzip.compress(bytes(50_000_000), 9)
    tracemalloc.start()
    try:
        with pytest.raises(ResponseRefused, match="larger than 1 MiB") as refused:
            unpacked(200, {"content-encoding": "gzip"}, packed, 2**20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.status == 200
    assert peak < 4 * 2**20
