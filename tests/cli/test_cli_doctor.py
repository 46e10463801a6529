"""`taskqueue doctor`: what is wrong, in plain words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import certifi
import msgspec
import pytest

from taskqueue_client import Credentials, Queue, slugid, temporary_credentials
from taskqueue_client.cli.doctor import Finding, Subject, Verdict, findings
from taskqueue_client.cli.failures import ExitStatus
from taskqueue_client.events import PulseSettings
from taskqueue_client.local import Client, LocalQueue
from taskqueue_client.local.faults import ExpireUrl, Respond
from taskqueue_client.worker import WorkerConfig
from tests.cli.command import run, run_json
from tests.cli.terminal import on_a_terminal


def verdicts(*arguments: str) -> dict[str, tuple[str, str]]:
    """Run `doctor`; return verdict and message of each check."""
    findings: list[dict[str, Any]] = run_json("doctor", *arguments)
    return {each["check"]: (each["verdict"], each["message"]) for each in findings}


def become(monkeypatch: pytest.MonkeyPatch, credentials: Credentials) -> None:
    monkeypatch.setenv("TASKCLUSTER_CLIENT_ID", credentials.client_id)
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", credentials.access_token)
    monkeypatch.setenv("TASKCLUSTER_CERTIFICATE", credentials.certificate or "")


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=30)


def test_doctor_without_problems_reports_good_findings_and_exits_with_0(
    deployment: LocalQueue, running: tuple[str, Queue], monkeypatch: pytest.MonkeyPatch, broker_url: str
) -> None:
    task_id, run_queue = running
    run_queue.upload_artifact(task_id, 0, "public/a.txt", b"text", expires=soon())
    monkeypatch.setenv("PULSE_URL", broker_url)
    everything = ("proj/linux", "--worker-group", "g", "--worker-id", "w", "--task", task_id)
    with LocalQueue(amqp_url=broker_url):  # declares the exchanges
        assert run("doctor", *everything).exit_code == ExitStatus.DONE
        found = verdicts(*everything)
    assert {check for check, (verdict, _) in found.items() if verdict != "good"} == set()
    assert found["storage"][1] == f"public/a.txt of task {task_id} can be downloaded"
    assert found["root URL"][1] == deployment.root_url


@pytest.mark.parametrize(
    ("no_color", "terminal_type", "first"),
    [("1", "xterm", "good"), ("", "dumb", "good"), ("", "xterm", "\x1b[32mgood")],
)
def test_verdicts_have_no_colors_with_no_color_and_on_a_terminal_without_them(
    deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch, no_color: str, terminal_type: str, first: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    with on_a_terminal("doctor", terminal_type=terminal_type) as (_, terminal):
        shown = terminal.read_all()
    assert shown.startswith(first)
    assert f"root URL: {deployment.root_url}" in shown
    assert ("\x1b" in shown) == ("\x1b" in first)


def test_doctor_without_a_root_url_names_the_variable() -> None:
    assert run("doctor").exit_code == ExitStatus.NOT_COMPLETED
    (verdict, message) = verdicts()["environment"]
    assert verdict == "wrong"
    assert "TASKCLUSTER_ROOT_URL is not set" in message


def test_doctor_names_a_queue_that_does_not_respond(deployment: LocalQueue) -> None:
    root_url = deployment.root_url
    deployment.stop()
    verdict, message = verdicts()["service"]
    assert verdict == "wrong"
    assert f"cannot reach {root_url}" in message


@pytest.mark.usefixtures("deployment")
def test_doctor_reports_a_wrong_token_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", "not-the-token")
    found = verdicts("proj/linux")
    assert found["credentials"][0] == "wrong"
    hint = "check TASKCLUSTER_CLIENT_ID, _ACCESS_TOKEN and, for temporary ones, _CERTIFICATE"
    assert found["credentials"][1].endswith(hint)
    assert "not-the-token" not in str(found)


@pytest.mark.usefixtures("deployment")
def test_doctor_notes_missing_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKCLUSTER_CLIENT_ID")
    monkeypatch.delenv("TASKCLUSTER_ACCESS_TOKEN")
    assert verdicts()["credentials"][0] == "note"


def test_doctor_measures_clock_skew(deployment: LocalQueue) -> None:
    deployment.clock.advance(minutes=10)
    verdict, message = verdicts()["clock"]
    assert verdict == "wrong"
    assert "s behind the service's" in message


def test_doctor_notes_temporary_credentials_that_expire_soon(
    deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = deployment.credentials
    become(monkeypatch, temporary_credentials(issuer, ["*"], lifetime=timedelta(minutes=5)))
    verdict, message = verdicts()["certificate"]
    assert verdict == "note"
    assert "expire in 5 min" in message


def test_expired_credentials_are_named(
    deployment: LocalQueue, definition: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = temporary_credentials(
        deployment.credentials,
        ["*"],
        start=datetime.now(UTC) - timedelta(hours=2),
        lifetime=timedelta(minutes=1),
    )
    become(monkeypatch, expired)
    found = verdicts("proj/linux")
    assert found["certificate"] == ("wrong", "the temporary credentials have expired: get new ones")
    assert found.keys() & {"credentials", "task queue", "scopes to work"} == set()
    result = run(
        "submit", "-", stdin=json.dumps(definition | {"metadata": {**definition["metadata"], "name": "a"}})
    )
    assert result.exit_code == ExitStatus.REFUSED
    assert "the credentials have expired" in result.stderr


def test_a_certificate_without_a_date_of_expiry_is_not_called_expired(
    deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, msgspec.structs.replace(deployment.credentials, certificate="{}"))
    message = "not a certificate of temporary credentials: it has no `expiry`"
    assert verdicts()["certificate"] == ("wrong", message)


SUBMITTING = [
    "queue:create-task:highest:proj/linux",
    "queue:create-task:very-high:proj/linux",
    "queue:create-task:high:proj/linux",
    "queue:create-task:medium:proj/linux",
    "queue:create-task:low:proj/linux",
    "queue:create-task:very-low:proj/linux",
    "queue:create-task:lowest:proj/linux",
]
WORKER = ("--worker-group", "rack", "--worker-id", "one")


def quarantined(queue: Queue, hours: float, worker_id: str = "w") -> None:
    """Put a worker in quarantine, by default the one that has claimed the task of `running`."""
    queue.quarantine_worker(
        "proj/linux",
        worker_group="g",
        worker_id=worker_id,
        quarantine_until=queue.now() + timedelta(hours=hours),
        quarantine_info="a test",
    )


@pytest.mark.usefixtures("deployment", "running")
def test_a_quarantine_of_the_worker_is_wrong(queue: Queue) -> None:
    worker = ("proj/linux", "--worker-group", "g", "--worker-id", "w")
    assert verdicts(*worker)["worker"] == ("good", "proj/linux: g/w is not in quarantine")
    quarantined(queue, 1)
    verdict, message = verdicts(*worker)["worker"]
    assert verdict == "wrong"
    assert re.fullmatch(
        r"proj/linux: g/w is in quarantine until [-0-9]+ [:0-9]+ UTC, and gets no tasks; "
        r"to lift it, run taskqueue quarantine proj/linux g w --hours 0",
        message,
    )
    quarantined(queue, -1)
    assert verdicts(*worker)["worker"][0] == "good"


@pytest.mark.usefixtures("deployment", "running")
def test_doctor_without_a_worker_names_the_workers_in_quarantine(queue: Queue) -> None:
    assert verdicts("proj/linux")["workers"] == ("good", "proj/linux: none is in quarantine")
    quarantined(queue, 1)
    verdict, message = verdicts("proj/linux")["workers"]
    assert verdict == "note"
    assert re.fullmatch(
        r"proj/linux: in quarantine, where they get no tasks: g/w until [-0-9]+ [:0-9]+ UTC", message
    )
    assert "workers" not in verdicts("proj/linux", "--worker-group", "g", "--worker-id", "w")


@pytest.mark.usefixtures("deployment")
def test_doctor_names_three_of_the_workers_in_quarantine(queue: Queue, task_factory: Any) -> None:
    for worker_id in "abcde":
        queue.create_task(slugid(), task_factory(taskQueueId="proj/linux"))
        queue.claim_work("proj/linux", worker_group="g", worker_id=worker_id)
        quarantined(queue, 1, worker_id)
    message = verdicts("proj/linux")["workers"][1]
    assert re.findall(r"g/\w", message) == ["g/a", "g/b", "g/c"]
    assert message.endswith(" UTC and 2 more")


def test_doctor_without_the_scopes_to_list_workers_and_tasks_says_what_is_not_known(
    monkeypatch: pytest.MonkeyPatch, task_factory: Any
) -> None:
    counting = ("queue:pending-count:proj/linux", "queue:claimed-count:proj/linux")
    with LocalQueue(clients=[Client("w", "w-token", counting)], anonymous_scopes=()) as local:
        with Queue(local.root_url, local.credentials) as queue:
            queue.create_task(slugid(), task_factory(taskQueueId="proj/linux"))
        monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
        become(monkeypatch, Credentials("w", "w-token"))
        found = verdicts("proj/linux")
    assert found["task queue"][1].startswith("proj/linux: pending tasks: 1, claimed: 0; unknown whether")
    verdict, message = found["workers"]
    assert verdict == "note"
    assert message.startswith("proj/linux: unknown whether one is in quarantine: ")
    assert "queue:list-workers:proj/linux" in message


def test_a_task_queue_whose_tasks_are_pending_for_long_while_none_is_claimed_is_a_note(
    deployment: LocalQueue, queue: Queue, task_factory: Any
) -> None:
    task_ids = [slugid() for _ in range(3)]
    for each in task_ids:
        queue.create_task(each, task_factory(taskQueueId="proj/linux", retries=0))
    queue.claim_task(task_ids[2], 0, worker_group="g", worker_id="w")
    queue.report_completed(task_ids[2], 0)
    good = ("good", "proj/linux: pending tasks: 2, claimed: 0")
    assert verdicts("proj/linux")["task queue"] == good
    deployment.clock.advance(minutes=15)
    verdict, message = verdicts("proj/linux")["task queue"]
    assert verdict == "note"
    assert re.fullmatch(f"{good[1]}; the oldest has been pending for 0:1[45]:[0-9]+", message)
    queue.claim_task(task_ids[0], 0, worker_group="g", worker_id="w")
    assert verdicts("proj/linux")["task queue"] == ("good", "proj/linux: pending tasks: 1, claimed: 1")


def test_a_worker_that_is_not_known_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    with client_with(monkeypatch, "queue:*", "auth:current-scopes"):
        assert verdicts("proj/linux", *WORKER)["worker"] == (
            "note",
            "proj/linux: rack/one has not claimed lately",
        )


def test_without_the_scope_to_see_a_worker_it_is_not_known_whether_it_is_in_quarantine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counting = ("queue:pending-count:proj/linux", "queue:claimed-count:proj/linux")
    with LocalQueue(clients=[Client("w", "w-token", counting)], anonymous_scopes=()) as local:
        monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
        become(monkeypatch, Credentials("w", "w-token"))
        verdict, message = verdicts("proj/linux", *WORKER)["worker"]
    assert verdict == "note"
    assert message.startswith("proj/linux: rack/one: unknown whether it is in quarantine: ")
    assert "queue:get-worker:proj/linux/rack/one" in message


def test_the_worker_id_of_a_host_name_is_the_one_that_the_worker_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = ("--worker-group", "rack", "--worker-id", "one.example.com")
    shortened = WorkerConfig(task_queue_id="a/b", worker_group="rack", worker_id="one.example.com").worker_id
    scopes = ("queue:claim-work:proj/linux", f"queue:worker-id:rack/{shortened}")
    with client_with(monkeypatch, *scopes):
        found = verdicts("proj/linux", *named)
    assert found["scopes to work"] == ("good", "proj/linux: held")


@contextmanager
def client_with(monkeypatch: pytest.MonkeyPatch, *scopes: str) -> Generator[LocalQueue]:
    """A private deployment, and credentials with these scopes in the environment."""
    with LocalQueue(clients=[Client("w", "w-token", scopes)]) as local:
        monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
        become(monkeypatch, Credentials("w", "w-token"))
        yield local


def documented_scopes() -> list[str]:
    """The scopes that docs/security.md tells operators to give to a worker."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    scopes = re.findall(r"^\| `(queue:[^`]+)` \|", page, re.MULTILINE)
    values = {"task_queue_id": "proj/linux", "worker_group": "rack", "worker_id": "one", "task_id": "*"}
    return [re.sub(r"<(\w+)>", lambda found: values[found[1]], scope) for scope in scopes]


def test_doctor_accepts_the_documented_credentials_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with client_with(monkeypatch, *documented_scopes()):
        assert run("doctor", "proj/linux", *WORKER).exit_code == ExitStatus.DONE
        found = verdicts("proj/linux", *WORKER)
    assert found["credentials"] == (
        "note",
        "client 'w' is accepted; its scopes cannot be listed without the scope auth:current-scopes",
    )
    assert found["task queue"][0] == "note"
    assert "queue:claimed-count:proj/linux" in found["task queue"][1]
    assert found["scopes to work"] == ("good", "proj/linux: held")
    assert found["scopes to submit"][0] == "note"


@pytest.mark.parametrize("listing", [[], ["auth:current-scopes"]], ids=["unlisted", "listed"])
def test_missing_scopes_are_named_with_their_alternatives(
    monkeypatch: pytest.MonkeyPatch, listing: list[str]
) -> None:
    with client_with(monkeypatch, "queue:claim-work:proj/*", "queue:scheduler-id:-", *listing):
        found = verdicts("proj/linux", *WORKER)
    assert found["scopes to work"] == ("wrong", "proj/linux: missing: queue:worker-id:rack/one")
    alternatives = ", ".join(SUBMITTING)
    assert found["scopes to submit"] == (
        "note",
        f"proj/linux: missing: queue:create-task:project:none and one of: {alternatives}",
    )


@pytest.mark.parametrize("held", SUBMITTING[::3])
def test_one_of_the_alternatives_is_enough(monkeypatch: pytest.MonkeyPatch, held: str) -> None:
    with client_with(monkeypatch, held, "queue:scheduler-id:-", "queue:create-task:project:none"):
        assert verdicts("proj/linux")["scopes to submit"] == ("good", "proj/linux: held")


def test_without_a_worker_only_the_scope_to_claim_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with client_with(monkeypatch, "queue:claim-work:proj/linux"):
        verdict, message = verdicts("proj/linux")["scopes to work"]
    assert verdict == "note"
    assert message.startswith("proj/linux: held; give --worker-group and --worker-id")


@pytest.mark.usefixtures("deployment")
def test_doctor_notes_a_task_queue_without_workers() -> None:
    assert run("doctor", "proj/new").exit_code == ExitStatus.DONE
    verdict, message = verdicts("proj/new")["task queue"]
    assert verdict == "note"
    assert message == "proj/new: pending tasks: 0, claimed: 0; no worker has claimed from it lately"


@pytest.mark.usefixtures("deployment")
def test_a_malformed_task_queue_is_wrong() -> None:
    assert verdicts("linux")["task queue"][0] == "wrong"


def test_expired_permanent_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalQueue(clients=[Client("w", "w-token", ["*"], expires=1)]) as local:
        monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
        become(monkeypatch, Credentials("w", "w-token"))
        verdict, message = verdicts()["credentials"]
    assert verdict == "wrong"
    assert message.startswith("the credentials have expired")


@pytest.mark.usefixtures("deployment")
def test_doctor_reports_an_unreachable_broker_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PULSE_URL", "amqp://u:s3cret@127.0.0.1:1/")
    verdict, message = verdicts()["pulse"]
    assert verdict == "wrong"
    assert message.startswith("amqp://u:***@127.0.0.1:1/")
    assert message.endswith(": check PULSE_URL")
    assert "s3cret" not in message


@pytest.mark.usefixtures("deployment")
def test_doctor_reports_a_refusal_of_the_broker_as_listen_does(
    monkeypatch: pytest.MonkeyPatch, broker_url: str
) -> None:
    broker = PulseSettings.from_url(broker_url)
    monkeypatch.setenv("PULSE_URL", f"amqp://nobody:s3cret@{broker.host}:{broker.effective_port}/")
    verdict, message = verdicts()["pulse"]
    assert verdict == "wrong"
    assert message.endswith("the broker logfile: check PULSE_URL")


@pytest.mark.usefixtures("deployment")
def test_certificates_of_the_broker_that_cannot_be_read_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_URL", "amqps://u:p@127.0.0.1:1/?cafile=/nowhere/ca.pem")
    found = verdicts()
    assert found["pulse"][0] == "wrong"
    assert "/nowhere/ca.pem" in found["pulse"][1]
    assert "storage" in found, "the checks go on after the wrong one"


@pytest.mark.usefixtures("deployment")
def test_the_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://u:s3cret@127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    found = verdicts()
    assert found["proxy"] == ("good", "http://127.0.0.1:1")
    assert found["service"][0] == "wrong"
    assert "s3cret" not in str(found)


def test_what_a_proxy_responds_does_not_show_that_the_credentials_are_accepted(
    deployment: LocalQueue,
) -> None:
    deployment.faults.add(Respond("auth.currentScopes", status=403, html=True))
    verdict, message = verdicts()["credentials"]
    assert verdict == "wrong"
    assert "HTTP 403 and no error code of Taskcluster" in message


@pytest.mark.usefixtures("deployment")
def test_a_socks_proxy_is_noted_as_workers_cannot_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pysocks = ModuleType("socks")
    pysocks.__spec__ = ModuleSpec("socks", None)
    monkeypatch.setitem(sys.modules, "socks", pysocks)
    monkeypatch.setenv("HTTP_PROXY", "socks5h://u:s3cret@127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    environment = findings(Subject(()))
    assert next(environment).check == "root URL"
    message = "socks5h://127.0.0.1:1: AsyncQueue and workers cannot use a SOCKS proxy"
    assert next(environment) == Finding("proxy", Verdict.NOTE, message)


@pytest.mark.parametrize("variable", [None, "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_the_trusted_certificates_are_named(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    for each in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", "https://127.0.0.1:1")
    if variable is not None:
        monkeypatch.setenv(variable, certifi.where())
    used = "the system's and certifi's" if variable is None else f"{variable}={certifi.where()}"
    (found,) = [each for each in islice(findings(Subject(())), 3) if each.check == "certificates"]
    assert (found.verdict, found.message) == (Verdict.GOOD, used)


def test_a_proxy_that_adds_credentials_is_noted_as_a_worker_cannot_use_it(
    deployment: LocalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKCLUSTER_PROXY_URL", deployment.root_url)
    verdict, message = verdicts()["credentials"]
    assert verdict == "note"
    assert message == "TASKCLUSTER_PROXY_URL: the proxy adds credentials; a worker cannot use it"


def test_scopes_that_nobody_may_look_up_are_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = ("queue:pending-count:proj/linux", "queue:claimed-count:proj/linux")
    with LocalQueue(anonymous_scopes=counting) as local:
        monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
        monkeypatch.delenv("TASKCLUSTER_CLIENT_ID", raising=False)
        monkeypatch.delenv("TASKCLUSTER_ACCESS_TOKEN", raising=False)
        found = verdicts("proj/linux")
    message = "proj/linux: not checked: the scopes of the credentials are not known"
    assert found["scopes"] == ("note", message)


def test_certificates_that_cannot_be_read_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", "https://127.0.0.1:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")
    verdict, message = verdicts()["environment"]
    assert verdict == "wrong"
    assert "REQUESTS_CA_BUNDLE" in message
    assert "/nowhere/ca.pem" in message


@pytest.mark.usefixtures("without_pauses")
def test_storage_that_cannot_be_reached_is_wrong(deployment: LocalQueue, running: tuple[str, Queue]) -> None:
    task_id, run_queue = running
    assert verdicts("--task", task_id)["storage"][0] == "note"
    run_queue.upload_artifact(task_id, 0, "public/a.txt", b"text", expires=soon())
    deployment.faults.add(ExpireUrl(endpoint="storage.get", times=50))
    verdict, message = verdicts("--task", task_id)["storage"]
    assert verdict == "wrong"
    assert "403" in message


@pytest.mark.usefixtures("deployment")
def test_storage_is_checked_with_an_artifact_that_the_credentials_may_get(
    running: tuple[str, Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id, run_queue = running
    run_queue.upload_artifact(task_id, 0, "private/a.txt", b"text", expires=soon())
    for name in ("TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN"):
        monkeypatch.delenv(name)
    missing = "missing scope: queue:get-artifact:private/a.txt; use credentials that have it"
    found = verdicts("--task", task_id)["storage"]
    assert found == ("note", f"not checked: the request had no credentials; {missing}")
    run_queue.upload_artifact(task_id, 0, "public/a.txt", b"text", expires=soon())
    assert verdicts("--task", task_id)["storage"][0] == "good"


def test_each_of_several_task_queues_is_checked_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = ("queue:pending-count:*", "queue:claimed-count:*", "auth:current-scopes")
    monkeypatch.setenv("TASKQUEUE_TASK_QUEUE_ID", "proj/linux, windows proj/mac")
    with client_with(monkeypatch, "queue:claim-work:proj/mac", "queue:worker-id:*", *listing):
        found = [(each["check"], each["verdict"], each["message"]) for each in run_json("doctor", *WORKER)]
    queues = [(verdict, message.split(":")[0]) for check, verdict, message in found if check == "task queue"]
    assert [verdict for verdict, _ in queues] == ["good", "wrong", "good"]
    assert [queues[0][1], queues[2][1]] == ["proj/linux", "proj/mac"]
    to_work = [each for check, *each in found if check == "scopes to work"]
    assert to_work == [
        ["wrong", "proj/linux: missing: queue:claim-work:proj/linux"],
        ["good", "proj/mac: held"],
    ]
