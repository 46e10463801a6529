"""A wrong clock on this machine is measured, logged, and corrected."""

from __future__ import annotations

import base64
import logging
import re
import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import Any

import pytest

from taskqueue_client import Credentials, task_definition
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.calls import status
from taskqueue_client.errors import AuthenticationFailed, BadRequest
from tests.client.scripted import Received, Say, ScriptedServer, say

TASK = "Y9IplizWTj-eOJfHEC71Rw"
HOUR = 3600.0
SKEW_ALLOWED = 900  # seconds, by the auth service

CALLS = [
    Call("status", "GET", "/task/x/status", dict[str, Any]),
    Call("claimWork", "POST", "/claim-work/a%2Fb", dict[str, Any], body={}),
]


def service_with_time(offset: float, clock: Any) -> Any:
    """An auth check like the service's, on a clock that differs from ours by `offset`."""

    def respond(received: Received) -> Say:
        now = clock.now() + offset
        found = re.search(r'ts="(\d+)"', received.headers["Authorization"])
        assert found is not None
        date = formatdate(now, usegmt=True)
        if abs(int(found[1]) - now) > SKEW_ALLOWED:
            failed = {"code": "AuthenticationFailed", "message": "Unauthorized: Stale timestamp"}
            return say(failed, 401, Date=date)
        return say({"fine": True}, Date=date)

    return respond


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.endpoint)
@pytest.mark.parametrize("offset", [HOUR, -HOUR, 20 * 24 * HOUR])
def test_with_the_clock_wrong_every_call_works(
    client: Any, server: ScriptedServer, clock: Any, offset: float, call: Call[Any]
) -> None:
    server.otherwise = service_with_time(offset, clock)
    for _ in range(3):
        assert client.send(call) == {"fine": True}
    assert len(server.received) == 4  # only the first call had to be signed again


def test_a_client_with_other_credentials_knows_the_service_s_time(
    client: Any, server: ScriptedServer, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker has a client for each run: only the first call of the first one is signed again."""
    server.otherwise = service_with_time(HOUR, clock)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            of_run = client.with_credentials(Credentials(f"run/{number}", "a-secret-of-the-tests"))
            assert of_run.send(CALLS[0]) == {"fine": True}
    assert len(server.received) == 4
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("age", "skew"), [("3600", 0), ("0", -HOUR), ("x", -HOUR), ("9" * 99, 2**31 - HOUR)])
def test_a_response_that_a_cache_has_kept_does_not_make_the_clock_look_wrong(
    client: Any, server: ScriptedServer, clock: Any, caplog: pytest.LogCaptureFixture, age: str, skew: float
) -> None:
    """RFC 9111, 5.1: `Date` is the time of the origin's response, `Age` the seconds since then."""
    server.otherwise = say({"fine": True}, Date=formatdate(clock.now() - HOUR, usegmt=True), Age=age)
    client.send(CALLS[0])
    assert abs(client.now().timestamp() - clock.now() - skew) < 10
    assert ("clock" in caplog.text) == bool(skew)


def test_a_date_without_a_zone_is_gmt(
    client: Any, server: ScriptedServer, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9110, 5.6.7: asctime's form is obsolete, but has to be read."""
    monkeypatch.setenv("TZ", "Etc/GMT+5")
    time.tzset()
    try:
        server.otherwise = say({"fine": True}, Date=time.asctime(time.gmtime(clock.now())))
        client.send(CALLS[0])
        assert abs(client.now().timestamp() - clock.now()) < 10
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_clock_that_jumps_later_is_noticed_too(client: Any, server: ScriptedServer, clock: Any) -> None:
    server.otherwise = service_with_time(0, clock)
    client.send(CALLS[0])
    server.otherwise = service_with_time(HOUR, clock)
    assert client.send(CALLS[0]) == {"fine": True}


@pytest.mark.parametrize("step", [600, -600, 20 * 24 * HOUR, -20 * 24 * HOUR])
def test_a_clock_that_is_set_is_noticed_even_if_no_credentials_are_refused(
    make_client: Any, server: ScriptedServer, clock: Any, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """As behind a proxy that adds credentials: without this, `queue.now()` would stay wrong."""
    client, true = make_client(credentials=None, clock=clock), clock.now()
    server.otherwise = say({"fine": True}, Date=formatdate(true, usegmt=True))
    client.send(CALLS[0])
    for now in (true + step, true):
        monkeypatch.setattr(clock, "now", lambda now=now: now)
        client.send(CALLS[0])
        assert abs(client.now().timestamp() - true) < 10


@pytest.mark.parametrize("offset", [0, HOUR, -HOUR])
def test_the_service_s_time_does_not_go_back_with_this_machine_s_clock(
    client: Any, server: ScriptedServer, clock: Any, monkeypatch: pytest.MonkeyPatch, offset: float
) -> None:
    """Else an artifact that is to expire in a day would be expired at once, until the next response."""
    before = clock.now
    server.otherwise = service_with_time(offset, clock)
    client.send(CALLS[0])
    monkeypatch.setattr(clock, "now", lambda: before() - 24 * HOUR)
    clock.advance(hours=1)
    assert abs(client.queue.now().timestamp() - before() - offset) < 10


def test_a_definition_is_not_measured_by_a_clock_that_was_set_since_the_last_response(
    client: Any, server: ScriptedServer, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has booted with a wrong clock, which is set later."""
    true = clock.now()
    created = datetime.fromtimestamp(true, UTC)
    definition = task_definition("a/b", {}, created=created, name="n", owner="o", source="https://a.example")
    server.otherwise = say({"message": "no"}, 400, Date=formatdate(true, usegmt=True))
    for now in (true - HOUR, true, true - HOUR):
        monkeypatch.setattr(clock, "now", lambda now=now: now)
        with pytest.raises(BadRequest):
            client.create_task(TASK, definition)
    assert len(server.received) == 3


def test_a_time_that_stays_refused_is_an_error(client: Any, server: ScriptedServer, clock: Any) -> None:
    failed = {"code": "AuthenticationFailed", "message": "Unauthorized: Stale timestamp"}
    server.otherwise = say(failed, 401, Date=formatdate(clock.now() + HOUR, usegmt=True))
    with pytest.raises(AuthenticationFailed):
        client.send(CALLS[0])
    assert len(server.received) == 2


def test_another_refusal_of_credentials_is_final(client: Any, server: ScriptedServer, clock: Any) -> None:
    failed = {"code": "AuthenticationFailed", "message": "Unauthorized: Bad mac"}
    server.otherwise = say(failed, 401, Date=formatdate(clock.now() + HOUR, usegmt=True))
    with pytest.raises(AuthenticationFailed):
        client.send(CALLS[0])
    assert len(server.received) == 1


@pytest.mark.parametrize(("offset", "words"), [(HOUR, "3600 s behind"), (-HOUR, "3600 s ahead of")])
def test_a_skew_is_warned_about_once(
    client: Any,
    server: ScriptedServer,
    clock: Any,
    caplog: pytest.LogCaptureFixture,
    offset: float,
    words: str,
) -> None:
    server.otherwise = service_with_time(offset, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            client.send(CALLS[0])
            clock.advance(hours=1)
    assert len(caplog.records) == 1
    assert re.search(words.replace("3600", "36(00|01)|3599"), caplog.text)


def test_a_clock_that_is_set_wrongly_later_is_warned_about_again(
    client: Any, server: ScriptedServer, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock of a machine that has just booted is wrong, then right, and wrong in another way later."""
    with caplog.at_level(logging.WARNING):
        for offset in (HOUR, 0, -2 * HOUR):
            server.otherwise = service_with_time(offset, clock)
            client.send(CALLS[0])
            client.send(CALLS[0])
    found = re.findall(r"clock is (\d+) s (behind|ahead)", caplog.text)
    rounded = [(round(int(seconds), -2), which) for seconds, which in found]
    assert rounded == [(3600, "behind"), (7200, "ahead")]


def test_a_skew_of_about_a_minute_is_warned_about_once(
    client: Any, server: ScriptedServer, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each refusal of credentials shows the service's time again, in whole seconds."""
    refused = {"code": "AuthenticationFailed", "message": "Unauthorized: Bad mac"}
    with caplog.at_level(logging.WARNING):
        for offset in (65, 55, 65):
            server.otherwise = say(refused, 401, Date=formatdate(clock.now() + offset, usegmt=True))
            with pytest.raises(AuthenticationFailed):
                client.send(CALLS[0])
    assert caplog.text.count("clock is") == 1


@pytest.mark.parametrize("offset", [6, 20, 50, -6, -20, -50])
def test_a_skew_of_some_seconds_is_corrected_without_a_warning(
    client: Any, server: ScriptedServer, clock: Any, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    """It is too small to be refused, but URLs may expire within such a time."""
    server.otherwise = service_with_time(offset, clock)
    client.send(CALLS[0])
    client.send(CALLS[0])
    found = re.search(r'ts="(\d+)"', server.received[-1].headers["Authorization"])
    assert found is not None
    assert int(found[1]) == pytest.approx(clock.now() + offset, abs=2.5)
    assert caplog.records == []


def test_a_small_difference_is_not_corrected(
    client: Any, server: ScriptedServer, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.otherwise = service_with_time(3, clock)
    client.send(CALLS[0])
    client.send(CALLS[0])
    assert f'ts="{int(clock.now())}"' in server.received[-1].headers["Authorization"]
    assert caplog.records == []


def test_a_signed_url_expires_by_the_services_clock(client: Any, server: ScriptedServer, clock: Any) -> None:
    server.otherwise = service_with_time(HOUR, clock)
    client.send(CALLS[0])
    url = client.queue.signed_url(status(TASK), lifetime=timedelta(minutes=1))
    bewit = base64.urlsafe_b64decode(url.partition("bewit=")[2] + "==").decode()
    assert int(bewit.split("\\")[1]) == pytest.approx(clock.now() + HOUR + 60, abs=1.5)
