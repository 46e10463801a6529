"""A call is retried if that is safe: freshly signed, after a growing wait, within a limit."""

from __future__ import annotations

import math
import re
import threading
from typing import Any

import pytest

from taskqueue_client import Queue, RetryPolicy
from taskqueue_client._protocol.api_responses import TransportFailed
from taskqueue_client._protocol.conversation import Call
from taskqueue_client._protocol.retry import PolicyRetries, Timeouts
from taskqueue_client._protocol.wire import Request
from taskqueue_client._transport.network import NetworkSettings
from taskqueue_client._transport.synchronous import SyncTransport
from taskqueue_client.errors import (
    BadRequest,
    CallTimedOut,
    ConnectionFailed,
    InternalServerError,
    InvalidArgument,
    NotFound,
    ResourceNotFound,
    ServerError,
    TaskQueueError,
    TooManyRequests,
    UnreadableResponse,
)
from tests.client.scripted import CUT, Received, Say, ScriptedServer, say

TASK = "Y9IplizWTj-eOJfHEC71Rw"
STATUS = Call("status", "GET", f"/task/{TASK}/status", dict[str, Any])
DECLARE = Call(
    "declareWorker", "PUT", "/somewhere", dict[str, Any], body={"expires": "2026-11-21T12:00:00.000Z"}
)

html_502 = Say(502, b"<html><title>502 Bad Gateway</title></html>", {"Content-Type": "text/html"})
internal = say({"code": "InternalServerError", "message": "Internal Server Error, incidentId 1."}, 500)
busy = say({"message": "slow down"}, 503)


@pytest.mark.parametrize(
    "failure", [CUT, html_502, internal, busy, say({}, 429), Say(504, b""), Say(408, b"")]
)
@pytest.mark.parametrize("call", [STATUS, DECLARE], ids=["GET", "PUT"])
def test_a_passing_failure_is_not_noticed(
    client: Any, server: ScriptedServer, failure: Say, call: Call[Any]
) -> None:
    server.script.extend([failure, failure, say({"fine": True})])
    assert client.send(call) == {"fine": True}
    assert len(server.received) == 3


def test_each_attempt_is_signed_afresh(client: Any, server: ScriptedServer) -> None:
    server.script.extend([internal, internal, say({})])
    client.send(DECLARE)
    nonces = [_attribute(each, "nonce") for each in server.received]
    assert len(set(nonces)) == 3


def _attribute(received: Received, name: str) -> str:
    found = re.search(f'{name}="([^"]*)"', received.headers["Authorization"])
    assert found is not None
    return found[1]


def test_the_waits_double_up_to_the_longest_one(make_client: Any, server: ScriptedServer, clock: Any) -> None:
    policy = RetryPolicy(attempts=6, wait_initial=1, wait_max=5, wait_jitter=0)
    server.otherwise = internal
    with pytest.raises(InternalServerError):
        make_client(clock=clock, retry=policy).send(DECLARE)
    assert clock.slept == [1, 2, 4, 5, 5]


def test_jitter_only_adds(make_client: Any, server: ScriptedServer, clock: Any) -> None:
    policy = RetryPolicy(attempts=20, wait_initial=1, wait_max=1, wait_jitter=0.5)
    server.otherwise = internal
    with pytest.raises(InternalServerError):
        make_client(clock=clock, retry=policy).send(DECLARE)
    assert all(1 <= wait <= 1.5 for wait in clock.slept)
    assert len(set(clock.slept)) > 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_that_the_service_asks_for_is_kept(
    make_client: Any, server: ScriptedServer, clock: Any, status: int
) -> None:
    server.script.append(say({}, status, Retry_After="17"))
    make_client(clock=clock).send(DECLARE)
    assert clock.slept == [17]


def test_a_wait_may_be_asked_for_as_a_date(make_client: Any, server: ScriptedServer, clock: Any) -> None:
    from email.utils import formatdate

    until = formatdate(clock.now() + 40, usegmt=True)
    server.script.append(say({}, 503, Retry_After=until, Date=formatdate(clock.now(), usegmt=True)))
    make_client(clock=clock).send(DECLARE)
    assert clock.slept == [pytest.approx(40, abs=1.1)]


def test_the_date_at_which_to_retry_is_read_on_the_clock_of_the_service(
    make_client: Any, server: ScriptedServer, clock: Any
) -> None:
    """This machine's clock may have been set since the service's time was learned."""
    from email.utils import formatdate

    client, now = make_client(clock=clock), clock.now()
    server.script.append(say({}, Date=formatdate(now, usegmt=True)))
    client.send(DECLARE)
    until, date = (formatdate(now + 5 * 3600 + passed, usegmt=True) for passed in (40, 0))
    server.script.append(say({}, 503, Retry_After=until, Date=date))
    client.send(DECLARE)
    assert clock.slept == [40]


def test_a_wait_that_would_not_end_in_time_is_not_begun(
    make_client: Any, server: ScriptedServer, clock: Any
) -> None:
    server.otherwise = say({}, 429, Retry_After="60")
    with pytest.raises(TooManyRequests) as caught:
        make_client(clock=clock, retry=RetryPolicy(timeout=30)).send(DECLARE)
    assert clock.slept == []
    assert caught.value.refused.retry_after == 60


def test_an_attempt_has_no_more_time_than_is_left_of_the_call() -> None:
    policy = RetryPolicy(timeout=60, connect_timeout=10, read_timeout=30)
    assert PolicyRetries(policy).attempt_timeouts(STATUS, 0) == (10, 30, 60)
    assert PolicyRetries(policy).attempt_timeouts(STATUS, 55) == (5, 5, 5)
    assert max(PolicyRetries(policy).attempt_timeouts(STATUS, 60)) <= 0.01


def test_a_claim_request_has_more_time_than_the_long_poll_takes() -> None:
    policy = RetryPolicy(timeout=30, connect_timeout=10, read_timeout=5)
    claim = Call("claimWork", "POST", "/claim-work/a%2Fb", dict[str, Any], body={})
    assert PolicyRetries(policy).attempt_timeouts(claim, 0) == (10, 45, 75)


@pytest.mark.parametrize("rate", [-1, "1000", None])
def test_a_minimum_rate_that_is_not_a_rate_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidArgument, match="min_rate"):
        RetryPolicy(min_rate=rate)


@pytest.mark.parametrize("rate", [0, 0.5, 1e9])
def test_any_minimum_rate_is_allowed(rate: float) -> None:
    assert RetryPolicy(min_rate=rate).min_rate == rate


def test_the_outcome_of_a_refused_call_is_known(client: Any, server: ScriptedServer) -> None:
    server.script.append(say({"code": "InputError", "message": "no"}, 400))
    with pytest.raises(BadRequest) as caught:
        client.send(DECLARE)
    assert not caught.value.attempted.outcome_unknown


def test_the_outcome_of_a_call_with_an_unreadable_response_is_unknown(
    client: Any, server: ScriptedServer
) -> None:
    server.otherwise = Say(200, b"{", {"Content-Length": "1"})
    with pytest.raises(UnreadableResponse) as caught:
        client.send(DECLARE)
    assert caught.value.attempted.outcome_unknown


def test_a_response_that_is_not_read_names_the_call_and_the_reason(server: ScriptedServer) -> None:
    server.otherwise = Say(200, b"{}", {"Content-Encoding": "compress"})
    with (
        Queue(server.root_url) as queue,
        pytest.raises(UnreadableResponse, match="expected gzip or deflate, found 'compress'") as caught,
    ):
        queue.send(DECLARE)
    assert (caught.value.attempted.endpoint, caught.value.status) == ("declareWorker", 200)


@pytest.mark.parametrize(("status", "attempts"), [(502, 3), (404, 1)])
def test_an_error_in_an_unknown_encoding_counts_by_its_status(
    server: ScriptedServer, clock: Any, status: int, attempts: int
) -> None:
    """A proxy may send its page compressed with brotli, which the client has not offered."""
    server.otherwise = Say(status, b"\x0b\x02\x80<html>\x03", {"Content-Encoding": "br"})
    with (
        Queue(server.root_url, clock=clock, retry=RetryPolicy(attempts=3)) as queue,
        pytest.raises((ServerError, NotFound), match="expected gzip or deflate, found 'br'"),
    ):
        queue.send(DECLARE)
    assert len(server.received) == attempts


def test_all_attempts_together_end_in_time(make_client: Any, server: ScriptedServer, clock: Any) -> None:
    server.otherwise = internal
    policy = RetryPolicy(attempts=1000, timeout=60, wait_initial=10, wait_max=10, wait_jitter=0)
    with pytest.raises(InternalServerError) as caught:
        make_client(clock=clock, retry=policy).send(DECLARE)
    assert sum(clock.slept) == 50
    assert caught.value.attempts == 6


@pytest.mark.parametrize("endpoint", ["changeTaskPriority", "claimWork", "quarantineWorker", "rerunTask"])
@pytest.mark.parametrize("failure", [CUT, html_502, internal, busy, say({}, 429)])
def test_a_call_that_is_not_safe_to_repeat_is_sent_once(
    client: Any, server: ScriptedServer, endpoint: str, failure: Say
) -> None:
    server.script.append(failure)
    with pytest.raises((ServerError, ConnectionFailed, TooManyRequests)) as caught:
        client.send(Call(endpoint, "POST", "/somewhere", dict[str, Any], body={}))
    assert len(server.received) == 1
    assert caught.value.attempts == 1


@pytest.mark.parametrize(("storage", "sent"), [("object", 1), ("s3", 2), ("reference", 2)])
def test_an_artifact_of_the_object_service_is_created_once(
    client: Any, server: ScriptedServer, storage: str, sent: int
) -> None:
    server.script.append(internal)
    call = Call("createArtifact", "POST", "/somewhere", dict[str, Any], body={"storageType": storage})
    if sent == 1:
        with pytest.raises(InternalServerError):
            client.send(call)
    else:
        client.send(call)
    assert len(server.received) == sent


@pytest.mark.parametrize("status", [400, 401, 403, 404, 406, 409, 410, 413, 424])
def test_a_refusal_is_final(client: Any, server: ScriptedServer, status: int) -> None:
    server.script.append(say({"message": "no"}, status))
    with pytest.raises(TaskQueueError):
        client.send(DECLARE)
    assert len(server.received) == 1


def test_the_traceback_of_a_refusal_shows_no_retry_loop(client: Any, server: ScriptedServer) -> None:
    """Importing tenacity takes 40 ms, so a call without a retry does not import it."""
    server.otherwise = say({"code": "ResourceNotFound", "message": "none"}, 404)
    with pytest.raises(ResourceNotFound) as caught:
        client.send(STATUS)
    assert not [each for each in caught.traceback if "tenacity" in str(each.path)]


def test_an_error_tells_of_all_attempts(make_client: Any, server: ScriptedServer, clock: Any) -> None:
    server.otherwise = html_502
    policy = RetryPolicy(attempts=3, wait_initial=1, wait_jitter=0)
    with pytest.raises(
        ServerError, match=r"attempted 3 times in 3\.0 s.*HTTP 502: 502 Bad Gateway"
    ) as caught:
        make_client(clock=clock, retry=policy).send(DECLARE)
    assert caught.value.attempted.attempts == 3
    assert caught.value.attempted.outcome_unknown
    assert caught.value.elapsed == 3
    assert "attempts=3" in repr(caught.value)


def test_an_outcome_stays_unknown_when_a_later_attempt_is_refused(
    client: Any, server: ScriptedServer
) -> None:
    server.script.extend([html_502, say({"code": "InputError", "message": "no"}, 400)])
    with pytest.raises(BadRequest) as caught:
        client.send(DECLARE)
    assert caught.value.attempted.outcome_unknown


def test_a_call_can_have_its_own_policy(client: Any, server: ScriptedServer) -> None:
    server.otherwise = internal
    with pytest.raises(InternalServerError) as caught:
        client.with_options(attempts=2).send(DECLARE)
    assert caught.value.attempts == 2
    with pytest.raises(InternalServerError) as caught:
        client.send(DECLARE)
    assert caught.value.attempts == 6


def test_a_response_that_does_not_come_is_a_timeout(make_client: Any, server: ScriptedServer) -> None:
    never = threading.Event()
    server.script.append(Say(wait_for=never))
    try:
        with pytest.raises(CallTimedOut, match=r"no response: the response was not complete in time$"):
            make_client(retry=RetryPolicy(attempts=1, read_timeout=0.05)).send(DECLARE)
    finally:
        never.set()


def test_an_attempt_whose_time_is_over_before_it_waits_for_a_response_is_a_timeout(
    server: ScriptedServer,
) -> None:
    transport = SyncTransport(None, server.root_url, NetworkSettings())
    request = Request("GET", f"{server.root_url}/api/queue/v1/ping", {}, None)
    server.script.append(Say())
    transport.request(request, Timeouts(10, 10, 10))  # the next request uses this connection
    with pytest.raises(TransportFailed, match=r"^the response was not complete in time$"):
        transport.request(request, Timeouts(10, 10, 0))
    transport.close()


def test_the_total_time_bounds_a_single_attempt(make_client: Any, server: ScriptedServer) -> None:
    never = threading.Event()
    server.script.append(Say(wait_for=never))
    try:
        with pytest.raises(CallTimedOut, match=r"no response: the response was not complete in time$"):
            make_client(retry=RetryPolicy(timeout=0.05)).send(DECLARE)
    finally:
        never.set()


def test_a_long_poll_is_waited_for_longer_than_the_queue_takes() -> None:
    claim = Call("claimWork", "POST", "/claim-work/a%2Fb", dict[str, Any])
    policy = RetryPolicy(read_timeout=5, timeout=5)
    assert PolicyRetries(policy).attempt_timeouts(claim, elapsed=0)[1] > 20
    assert PolicyRetries(policy).attempt_timeouts(STATUS, elapsed=2)[1] == 3


def test_the_error_of_a_refused_connection_is_in_plain_words(make_client: Any) -> None:
    nobody = make_client("http://127.0.0.1:9", retry=RetryPolicy(attempts=1))
    with pytest.raises(ConnectionFailed, match=r"GET http://127.0.0.1:9/api/queue/v1/task.*refused|Connect"):
        nobody.send(STATUS)


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"timeout": 0}, {"read_timeout": -1}, {"connect_timeout": 0}, {"wait_max": -1},
     {"attempts": True}, {"timeout": True}, {"wait_initial": True}, {"timeout": math.inf},
     {"timeout": math.nan}, {"connect_timeout": math.inf}, {"read_timeout": 1e300},
     {"min_rate_window": 10**400}],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        RetryPolicy(**wrong)


@pytest.mark.parametrize("name", ["timeout", "wait_max"])
def test_a_policy_says_that_its_durations_are_numbers(name: str) -> None:
    """Other arguments may be such text: "expected more than 0" would not explain the error."""
    policy: dict[str, Any] = {name: "10 minutes"}
    with pytest.raises(
        InvalidArgument, match=f"{name}: '10 minutes' is not valid; expected a number of seconds"
    ):
        RetryPolicy(**policy)
