"""Access to the page, and what its responses allow a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import requests

from taskqueue_client.clock import MovableClock, SystemClock
from taskqueue_client.local import LocalQueue
from taskqueue_client.local.page.views import Views

from .scenery import SVG, Scenery

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRETS = ("/page/state", "/page/overview", "/page/history", "/page/stream", "/page/api/queue/v1/task-queues")


@pytest.fixture(scope="module")
def queue() -> Iterator[LocalQueue]:
    with LocalQueue(page=True) as local:
        yield local


@pytest.fixture
def session(queue: LocalQueue) -> Iterator[requests.Session]:
    """A browser that was let in."""
    with requests.Session() as made:
        assert _enter(made, queue, _token(queue)).status_code == 200
        yield made


def _token(queue: LocalQueue) -> str:
    assert queue.page_url is not None
    return queue.page_url.partition("#token=")[2]


def _enter(session: requests.Session, queue: LocalQueue, token: str, **headers: str) -> requests.Response:
    url = f"{queue.root_url}/page/session"
    return session.post(url, json={"token": token}, headers={"Origin": queue.root_url, **headers}, timeout=30)


ZIPPED = """
import sys
sys.path.insert(0, sys.argv[1])
import requests
from taskqueue_client import LocalQueue
with LocalQueue(page=True) as local:
    files = [local.root_url + "/", local.root_url + "/page/static/app.js"]
    print(*(requests.get(each, timeout=30).status_code for each in files))
"""


def test_a_queue_in_a_zip_file_has_a_page(zipped_package: Path) -> None:
    command = [sys.executable, "-c", ZIPPED, str(zipped_package)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert shown.stdout == "200 200\n"


def test_a_queue_has_no_page_unless_it_is_asked_for() -> None:
    with LocalQueue() as local:
        assert local.page_url is None
        for path in ("/", "/page/state", "/page/static/app.js"):
            assert requests.get(local.root_url + path, timeout=30).status_code == 404


def test_a_queue_without_a_page_does_not_load_it() -> None:
    program = (
        "import sys\nfrom taskqueue_client.local import LocalQueue\n"
        "with LocalQueue(): sys.exit('taskqueue_client.local.page' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_the_token_is_exchanged_for_a_cookie_that_no_script_reads(queue: LocalQueue) -> None:
    with requests.Session() as session:
        response = _enter(session, queue, _token(queue))
        name, *attributes = response.headers["Set-Cookie"].split("; ")
        assert name.startswith(f"taskqueue-page-{queue.root_url.rpartition(':')[2]}=")
        assert attributes == ["Path=/page/", "HttpOnly", "SameSite=Strict"]
        assert _token(queue) not in response.headers["Set-Cookie"]


@pytest.mark.parametrize("token", ["", "0" * 64, "é"])
def test_another_token_gets_no_cookie(queue: LocalQueue, token: str) -> None:
    with requests.Session() as session:
        response = _enter(session, queue, token)
        assert response.status_code == 401
        assert "Set-Cookie" not in response.headers


@pytest.mark.parametrize("path", SECRETS)
def test_without_the_cookie_nothing_is_shown(queue: LocalQueue, path: str) -> None:
    cookie = f"taskqueue-page-{queue.root_url.rpartition(':')[2]}=guess"
    for headers in ({}, {"Cookie": cookie}, {"Authorization": f"Bearer {_token(queue)}"}):
        assert requests.get(queue.root_url + path, headers=headers, timeout=30).status_code == 401


@pytest.mark.parametrize("body", ["", "[]", '{"token": 1}', '{"token": "\\ud800"}', "\x80"])
def test_a_token_that_cannot_be_read_is_refused(queue: LocalQueue, body: str) -> None:
    url, headers = f"{queue.root_url}/page/session", {"Origin": queue.root_url}
    response = requests.post(url, data=body.encode("latin-1"), headers=headers, timeout=30)
    assert (response.status_code, response.json()["code"]) == (400, "InputError")


@pytest.mark.parametrize("path", ["task/%FF", "task/%ED%A0%80/status"])
def test_a_path_that_cannot_be_decoded_is_refused(
    queue: LocalQueue, session: requests.Session, path: str
) -> None:
    response = session.get(f"{queue.root_url}/page/api/queue/v1/{path}", timeout=30)
    assert (response.status_code, response.json()["code"]) == (400, "InputError")


@pytest.mark.parametrize("path", ["auth/v1/scopes/current", "object/v1/upload/x"])
def test_the_page_calls_no_other_service_than_the_queue(
    queue: LocalQueue, session: requests.Session, path: str
) -> None:
    response = session.get(f"{queue.root_url}/page/api/{path}", timeout=30)
    assert (response.status_code, response.json()["code"]) == (404, "ResourceNotFound")


@pytest.mark.parametrize("after", ["", "after=0", "after=²", f"after={'9' * 5000}"])
def test_the_stream_begins_after_whatever_entry_is_named(
    queue: LocalQueue, session: requests.Session, after: str
) -> None:
    """Python reads no number of more than 4,300 digits."""
    with session.get(f"{queue.root_url}/page/stream?{after}", stream=True, timeout=30) as response:
        assert response.status_code == 200
        first = next(response.iter_lines())
    assert "messages" in json.loads(first.removeprefix(b"data: "))


@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:80", "localhost.attacker.example", "", "x@["]
)
@pytest.mark.parametrize("path", ["/", "/page/static/app.js", *SECRETS])
def test_a_host_name_that_somebody_else_controls_is_refused(
    queue: LocalQueue, session: requests.Session, host: str, path: str
) -> None:
    cookie = "; ".join(f"{each.name}={each.value}" for each in session.cookies)
    response = requests.get(queue.root_url + path, headers={"Host": host, "Cookie": cookie}, timeout=30)
    assert response.status_code in {400, 403}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_page_in_the_same_browser_reads_and_does_nothing(
    queue: LocalQueue, session: requests.Session, headers: dict[str, str]
) -> None:
    for path in SECRETS[:3]:
        assert session.get(queue.root_url + path, headers=headers, timeout=30).status_code == 403
    before = queue.clock.now()
    step = session.post(
        f"{queue.root_url}/page/clock/advance", data='{"seconds": 9999}', headers=headers, timeout=30
    )
    assert step.status_code == 403
    assert queue.clock.now() < before + 9999
    assert _enter(session, queue, _token(queue), **headers).status_code == 403


def test_a_change_without_an_origin_is_refused(queue: LocalQueue, session: requests.Session) -> None:
    assert session.post(f"{queue.root_url}/page/clock/hold", timeout=30).status_code == 403
    assert not queue.clock.is_held


def test_no_response_lets_other_origins_read_it(queue: LocalQueue, session: requests.Session) -> None:
    for path in (
        "/",
        "/page/static/app.js",
        "/page/state",
        "/page/api/queue/v1/task-queues",
        "/page/nothing",
    ):
        headers = session.get(queue.root_url + path, timeout=30).headers
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["X-Content-Type-Options"] == "nosniff"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; img-src 'self' blob:;")
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy


@pytest.mark.parametrize(
    "path",
    ["/page/static/../views.py", "/page/static/%2e%2e/views.py", "/page/static//etc/passwd", "/page/static/"],
)
def test_only_the_pages_own_files_are_served(queue: LocalQueue, path: str) -> None:
    request = requests.Request("GET", queue.root_url).prepare()
    request.url = queue.root_url + path
    with requests.Session() as session:
        response = session.send(request, timeout=30)
    assert b"import" not in response.content[:2000]
    assert response.status_code in {200, 404}


def test_an_artifact_has_no_type_that_a_browser_runs(queue: LocalQueue, session: requests.Session) -> None:
    scenery = Scenery(queue)
    task_id = scenery.create("artifacts")
    (client,) = scenery.claim()
    with client, scenery.queue:
        scenery.upload(client, "public/evil.svg", SVG, "image/svg+xml")
        scenery.upload(client, "private/a b.html", "<script>1</script>", "text/html")
    for name in ("public/evil.svg", "private/a%20b.html"):
        url = f"{queue.root_url}/page/artifact/{task_id}/0/name={name}"
        response = session.get(url, timeout=30)
        assert response.status_code == 200
        assert session.head(url, timeout=30).headers["Content-Length"] == str(len(response.content))
        assert not [header for header in response.headers if header.startswith("Access-Control-")]
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert response.headers["Content-Disposition"] == "attachment"
        assert response.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"


def test_the_token_is_the_same_after_a_restart_of_a_queue_with_a_file(tmp_path: object) -> None:
    tokens: list[str] = []
    for _ in range(2):
        with LocalQueue(page=True, db=f"{tmp_path}/queue.sqlite") as local:
            tokens.append(_token(local))
    assert tokens[0] == tokens[1]
    with LocalQueue(page=True) as other:
        assert _token(other) != tokens[0]


@pytest.mark.parametrize(("options", "has_page"), [((), True), (("--no-page",), False)])
def test_the_command_prints_the_address_unless_there_is_no_page(
    options: tuple[str, ...], *, has_page: bool
) -> None:
    command = [sys.executable, "-m", "taskqueue_client", "local", "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        settings = json.loads(process.stdout.readline())
        page = requests.get(f"{settings['TASKCLUSTER_ROOT_URL']}/", timeout=30)
        process.terminate()
    assert page.ok == has_page
    assert ("page" in settings) == has_page
    if has_page:
        assert settings["page"].startswith(f"{settings['TASKCLUSTER_ROOT_URL']}/#token=")


@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
def test_the_reason_of_a_long_refusal_is_shown_however_it_was_compressed(
    queue: LocalQueue, session: requests.Session, coding: str
) -> None:
    url, headers = f"{queue.root_url}/api/queue/v1/tasks", {"Accept-Encoding": coding}
    assert requests.post(url, json={"x" * 2000: 1}, headers=headers, timeout=30).status_code == 400
    shown = session.get(f"{queue.root_url}/page/history", timeout=30).json()["requests"][-1]
    assert "Schema Validation Failed!" in shown["error"]


def test_definitions_of_several_megabytes_are_checked(queue: LocalQueue, session: requests.Session) -> None:
    url, headers = f"{queue.root_url}/page/check", {"Origin": queue.root_url}
    response = session.post(url, json={"payload": {"x": "y" * (3 << 20)}}, headers=headers, timeout=30)
    assert response.status_code == 200
    assert "$.created" in [each["path"] for each in response.json()["problems"]]


def test_the_clock_of_the_machine_is_shown_and_cannot_be_moved() -> None:
    with LocalQueue(clock=SystemClock(), page=True) as local, requests.Session() as session:
        _enter(session, local, _token(local))
        assert session.get(f"{local.root_url}/page/state", timeout=30).json()["clock"] == "fixed"
        for act in ("hold", "release", "advance"):
            response = session.post(
                f"{local.root_url}/page/clock/{act}",
                json={"seconds": 1},
                headers={"Origin": local.root_url},
                timeout=30,
            )
            assert response.status_code == 409
            message = "This queue follows the machine's clock, which cannot be moved"
            assert response.json() == {"code": "RequestConflict", "message": message}


def test_a_step_of_the_clock_that_is_too_long_is_refused_with_the_limits(
    queue: LocalQueue, session: requests.Session
) -> None:
    before = queue.clock.now()
    for seconds in (-1.0, 1e12):
        response = session.post(
            f"{queue.root_url}/page/clock/advance",
            json={"seconds": seconds},
            headers={"Origin": queue.root_url},
            timeout=30,
        )
        assert (response.status_code, response.json()["code"]) == (400, "InputError")
        assert response.json()["message"].startswith(f"seconds: {seconds} is out of range; allowed are 0 to ")
    assert queue.clock.now() - before < 3600


def test_an_artifact_whose_content_is_elsewhere_is_not_passed_on(
    queue: LocalQueue, session: requests.Session
) -> None:
    scenery = Scenery(queue)
    task_id = scenery.create("reference")
    (client,) = scenery.claim()
    with client, scenery.queue:
        client.create_reference_artifact(
            *(task_id, 0, "public/x", "http://127.0.0.1:9/secret"),
            content_type="text/plain",
            expires=datetime.now(UTC) + timedelta(minutes=30),
        )
    response = session.get(f"{queue.root_url}/page/artifact/{task_id}/0/name=public/x", timeout=30)
    message = "The content of public/x is not in this queue"
    assert (response.status_code, response.json()["message"]) == (400, message)


def test_the_details_of_a_bug_are_in_the_log_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Views) -> None:
        raise ZeroDivisionError("a detail")

    monkeypatch.setattr(Views, "overview", broken)
    with LocalQueue(page=True) as local, requests.Session() as session:
        _enter(session, local, _token(local))
        response = session.get(f"{local.root_url}/page/overview", timeout=30)
    assert response.status_code == 500
    message = "See the log of the queue"
    assert response.json() == {"code": "InternalServerError", "message": message}
    assert "page: GET /page/overview failed" in caplog.messages
    assert "ZeroDivisionError: a detail" in caplog.text


def test_a_clock_can_be_moved_after_its_queue_with_a_page_has_stopped() -> None:
    clock = MovableClock(held=True)
    with LocalQueue(clock=clock, page=True):
        before = clock.now()
    clock.advance(60)
    assert clock.now() == before + 60
