"""Arguments are refused before the call if, and only if, the Queue would refuse them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue_client import Queue, calls
from taskqueue_client._protocol.conversation import Call
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.slugid import is_slugid
from tests.protocol.calls_contract import SLUGID

WORKER: Any = {"worker_group": "g", "worker_id": "w"}
NEVER: Any = "not checked before the faulty one"

QUEUE = Queue("https://tc.example.com")
FILE = (SLUGID, 0, "public/x")
NOT_TEXT: Any = 5
AFTER_ALL_DATES = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))


def quarantine(info: str) -> object:
    return calls.quarantine_worker("p/w", **WORKER, quarantine_until="1 day", quarantine_info=info)


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("task_id", lambda: calls.status("")),
    ("task_id", lambda: calls.status(SLUGID + "\n")),
    ("task_id", lambda: calls.status(SLUGID[:-1] + "B")),
    ("task_id", lambda: calls.task("a/../" + SLUGID)),
    ("task_id", lambda: calls.task(None)),  # type: ignore[arg-type] # what is tested
    ("task_id", lambda: next(calls.create_task("x", NEVER))),
    ("task_group_id", lambda: calls.get_task_group("group")),
    ("task_ids", lambda: calls.statuses(SLUGID)),
    ("task_ids", lambda: calls.tasks([SLUGID, 1])),  # type: ignore[list-item] # what is tested
    ("task_ids", lambda: calls.tasks(None)),  # type: ignore[arg-type] # what is tested
    ("run_id", lambda: calls.reclaim_task(SLUGID, -1)),
    ("run_id", lambda: calls.reclaim_task(SLUGID, "0")),  # type: ignore[arg-type] # what is tested
    ("run_id", lambda: calls.reclaim_task(SLUGID, run_id=True)),
    ("run_id", lambda: calls.reclaim_task(SLUGID, 0.0)),  # type: ignore[arg-type] # what is tested
    ("name", lambda: calls.get_artifact(SLUGID, 0, "")),
    ("name", lambda: calls.get_artifact(SLUGID, 0, "public/a\n")),
    ("name", lambda: calls.get_latest_artifact(SLUGID, "public/\x7f")),
    ("name", lambda: calls.artifact_info(SLUGID, 0, "public/ü")),
    ("name", lambda: calls.object_metadata("\x00")),
    ("upload_id", lambda: calls.finish_artifact(SLUGID, 0, "a", upload_id="1")),
    ("new_priority", lambda: calls.change_task_priority(SLUGID, "normal")),  # type: ignore[arg-type] # what is tested
    ("reason", lambda: calls.report_exception(SLUGID, 0, "claim-expired")),  # type: ignore[arg-type] # what is tested
    ("tasks", lambda: calls.claim_work("p/w", **WORKER, tasks=0)),
    ("tasks", lambda: calls.claim_work("p/w", **WORKER, tasks=33)),
    ("worker_group", lambda: calls.claim_work("p/w", worker_group="", worker_id="w")),
    ("worker_id", lambda: calls.claim_work("p/w", worker_group="g", worker_id="i.0")),
    ("worker_id", lambda: calls.get_worker("p/w", worker_group="g", worker_id="x" * 39)),
    ("task_queue_id", lambda: calls.claim_work("p", **WORKER)),
    ("task_queue_id", lambda: calls.claim_work("p/W", **WORKER)),
    ("task_queue_id", lambda: calls.claim_work("p/w-", **WORKER)),
    ("task_queue_id", lambda: calls.claim_work("p/w/x", **WORKER)),
    ("task_queue_id", lambda: calls.claim_work(**WORKER)),
    ("task_queue_id", lambda: calls.claim_work("p/w", provisioner_id="p", worker_type="w", **WORKER)),
    ("task_queue_id", lambda: calls.get_task_queue(provisioner_id="p")),
    ("task_queue_id", lambda: calls.list_workers("p/w", worker_type="w")),
    ("task_queue_id", lambda: calls.list_workers("p")),
    ("task_queue_id", lambda: calls.get_worker_type("/w")),
    ("task_queue_id", lambda: calls.get_worker_type("p/w/x")),
    ("provisioner_id", lambda: calls.get_worker_type(provisioner_id="", worker_type="w")),
    ("worker_type", lambda: calls.get_worker_type(provisioner_id="p", worker_type="w/x")),
    ("provisioner_id", lambda: calls.get_provisioner("a/b")),
    ("limit", lambda: calls.list_task_queues(limit=-1)),
    ("limit", lambda: calls.list_task_queues(limit=True)),
    ("page_size", lambda: calls.iter_artifacts(SLUGID, 0, page_size=-1)),
    ("quarantined", lambda: calls.list_workers("p/w", quarantined="no")),  # type: ignore[arg-type] # what is tested
    ("page_size", lambda: calls.iter_workers("p/w", page_size="5")),  # type: ignore[arg-type] # what is tested
    ("request", lambda: calls.create_artifact(SLUGID, 0, "a", None)),  # type: ignore[arg-type] # what is tested
    ("expires", lambda: calls.create_artifact(SLUGID, 0, "a", {})),  # type: ignore[arg-type] # what is tested
    ("project_id", lambda: calls.finish_upload("a", project_id="a b", upload_id=SLUGID)),
    ("project_id", lambda: calls.finish_upload("a", project_id="", upload_id=SLUGID)),
    ("project_id", lambda: calls.finish_upload("a", project_id=501 * "p", upload_id=SLUGID)),
    ("project_id", lambda: calls.finish_upload("a", project_id="p\n", upload_id=SLUGID)),
    ("project_id", lambda: calls.finish_upload("a", project_id=5, upload_id=SLUGID)),  # type: ignore[arg-type] # what is tested
    ("hashes", lambda: calls.finish_upload("a", project_id="p", upload_id=SLUGID, hashes="a")),  # type: ignore[arg-type] # what is tested
    ("hashes", lambda: calls.finish_upload("a", project_id="p", upload_id=SLUGID, hashes=["ab"])),  # type: ignore[arg-type] # what is tested
    ("expires", lambda: calls.declare_worker("p/w", **WORKER, expires=AFTER_ALL_DATES)),
    (
        "message",
        lambda: QUEUE.create_error_artifact(*FILE, "file-missing-on-worker", NOT_TEXT, expires="1 day"),
    ),
    ("reason", lambda: QUEUE.create_error_artifact(*FILE, NEVER, "message", expires="1 day")),
    ("url", lambda: QUEUE.create_reference_artifact(*FILE, NOT_TEXT, expires="1 day")),
    ("url", lambda: QUEUE.create_reference_artifact(*FILE, "example.com/report", expires="1 day")),
    ("url", lambda: QUEUE.create_reference_artifact(*FILE, "localhost:8080/report", expires="1 day")),
    ("quarantine_info", lambda: quarantine(NOT_TEXT)),
    ("quarantine_info", lambda: quarantine("x" * 4001)),
    ("name", lambda: QUEUE.create_reference_artifact(SLUGID, 0, NOT_TEXT, "https://h", expires="1 day")),
    ("continuation_token", lambda: calls.list_task_queues(continuation_token="")),
    ("expires", lambda: calls.declare_worker("p/w", **WORKER, expires="tomorrow")),
    ("expires", lambda: calls.declare_worker("p/w", **WORKER, expires="2026-02-29T00:00:00Z")),
    ("expires", lambda: calls.declare_worker("p/w", **WORKER, expires=datetime(2026, 1, 1))),  # noqa: DTZ001 - what is tested
    ("client_scopes", lambda: calls.test_authenticate(client_scopes="a", required_scopes=[])),
]


@pytest.mark.parametrize(("argument", "describe"), REFUSED, ids=[argument for argument, _ in REFUSED])
def test_an_argument_that_the_queue_would_refuse_is_refused_by_name(
    argument: str, describe: Callable[[], object]
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        describe()
    assert refused.value.argument == argument
    assert refused.value.allowed


def test_the_error_about_the_url_of_a_reference_does_not_show_its_secrets() -> None:
    with pytest.raises(InvalidArgument) as refused:
        QUEUE.create_reference_artifact(*FILE, "user:secret@example.com/report?sig=secret", expires="1 day")
    assert str(refused.value) == (
        "url: it does not begin with a scheme; expected an absolute URL such as https://example.com/report"
    )
    assert "secret" not in repr(refused.value) + repr(refused.value.args)


@pytest.mark.parametrize("given", [None, 5, b"", [SLUGID]])
def test_a_value_that_is_not_text_is_not_a_slugid(given: object) -> None:
    assert not is_slugid(given)


@pytest.mark.parametrize("describe", [calls.reclaim_task, calls.report_completed, calls.list_artifacts])
def test_run_0_can_be_given_by_position_and_by_keyword(describe: Callable[..., Call[Any]]) -> None:
    assert describe(SLUGID, 0) == describe(task_id=SLUGID, run_id=0)


@pytest.mark.parametrize("run_id", [0, 1, 10, 1000, 10**30])
def test_any_run_id_that_is_on_the_queues_pattern_is_taken(run_id: int) -> None:
    assert re.fullmatch("[1-9]*[0-9]+", str(run_id))
    assert calls.reclaim_task(SLUGID, run_id).path == f"/task/{SLUGID}/runs/{run_id}/reclaim"


@settings(deadline=None)
@given(
    st.from_regex(
        r"[A-Za-z0-9_-]{8}[Q-T][A-Za-z0-9_-][CGKOSWaeimquy26-][A-Za-z0-9_-]{10}[AQgw]", fullmatch=True
    )
)
def test_any_task_id_that_is_on_the_queues_pattern_is_taken(task_id: str) -> None:
    assert calls.status(task_id).path == f"/task/{task_id}/status"


@settings(deadline=None)
@given(st.from_regex(r"[a-zA-Z0-9_-]{1,38}/[a-z]([-a-z0-9]{0,36}[a-z0-9])?", fullmatch=True))
def test_any_task_queue_id_that_is_on_the_queues_pattern_is_taken(task_queue_id: str) -> None:
    provisioner_id, worker_type = task_queue_id.split("/")
    by_pair = calls.get_task_queue(provisioner_id=provisioner_id, worker_type=worker_type)
    assert calls.get_task_queue(task_queue_id) == by_pair


@settings(deadline=None)
@given(st.from_regex(r"[a-zA-Z0-9_-]{1,38}", fullmatch=True))
def test_where_the_url_holds_the_pair_the_worker_type_may_be_any_identifier(worker_type: str) -> None:
    path = f"/provisioners/p/worker-types/{worker_type}"
    assert calls.get_worker_type(f"p/{worker_type}").path == path


def test_a_limit_is_sent_although_the_queue_may_refuse_it() -> None:
    assert calls.list_artifacts(SLUGID, 0, limit=0).query == {"limit": "0"}
    assert calls.list_artifacts(SLUGID, 0, limit=5000).query == {"limit": "5000"}


def test_a_list_of_workers_may_exclude_quarantined_ones_or_have_only_them() -> None:
    assert calls.list_workers("p/w", quarantined=True).query == {"quarantined": "true"}
    assert calls.list_workers("p/w", quarantined=False).query == {"quarantined": "false"}


class Name(str, Enum):  # noqa: UP042 - `str` of a StrEnum's member is its value, so that nothing can go wrong
    POOL = "p/w"
    TASK = SLUGID
    ARTIFACT = "public/a"
    PRIORITY = "high"


class Run(int, Enum):
    LAST = 3


def test_a_member_of_an_enumeration_is_sent_as_its_value() -> None:
    assert calls.pending_tasks(Name.POOL).path == "/pending/p%2Fw"
    artifact = calls.get_artifact(Name.TASK, Run.LAST, Name.ARTIFACT)
    assert artifact.path == f"/task/{SLUGID}/runs/3/artifacts/public%2Fa"
    priority: Any = Name.PRIORITY
    assert calls.change_task_priority(SLUGID, priority).body == {"newPriority": "high"}


def test_a_datetime_is_sent_in_utc_to_the_millisecond() -> None:
    moment = datetime(2026, 11, 21, 12, 0, 0, 999_999, timezone(timedelta(hours=2)))
    call = calls.quarantine_worker("p/w", **WORKER, quarantine_until=moment)
    assert call.body == {"quarantineUntil": "2026-11-21T10:00:00.999Z"}
    again = calls.declare_worker("p/w", **WORKER, expires=datetime(2026, 1, 2, tzinfo=UTC))
    assert again.body == {"expires": "2026-01-02T00:00:00.000Z"}


def test_a_moment_as_text_is_sent_as_it_is() -> None:
    call = calls.declare_worker("p/w", **WORKER, expires="2026-11-21 10:00:00+0100")
    assert call.body == {"expires": "2026-11-21 10:00:00+0100"}
