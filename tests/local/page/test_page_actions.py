"""Actions of the page on the queue; each action is shown in Python and in a shell as well."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from taskqueue_client import Queue
from taskqueue_client.errors import ConnectionFailed
from taskqueue_client.local import faults
from taskqueue_client.local.page import views

from .conftest import no_errors, picture

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect: Any = playwright.expect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page

    from taskqueue_client.local import LocalQueue

    from .scenery import Scenery

    Open = Callable[..., Page]


def _dialog(page: Page, button: str) -> Any:
    page.get_by_role("button", name=button, exact=True).first.click()
    return page.get_by_role("dialog")


def _confirm(page: Page) -> None:
    page.locator("dialog button[type=submit]").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def _codes(dialog: Any) -> tuple[str, str]:
    python, shell = dialog.locator("pre").all_text_contents()
    return python, shell


def test_a_task_is_scheduled_reprioritized_canceled_and_run_again(
    scenery: Scenery, open_page: Open, tmp_path: Path
) -> None:
    task_id = scenery.create("acted on", [scenery.create("before")])
    page = open_page(f"/task/{task_id}")
    with no_errors(page):
        dialog = _dialog(page, "Schedule")
        assert _codes(dialog) == (f'queue.schedule_task("{task_id}")', f"taskqueue schedule {task_id}")
        _confirm(page)
        expect(page.locator(".title .chip")).to_contain_text("pending")
        dialog = _dialog(page, "Priority")
        dialog.get_by_label("New priority").select_option("high")
        assert _codes(dialog)[1] == f"taskqueue priority high {task_id}"
        picture(page, "action", tmp_path)
        _confirm(page)
        expect(page.get_by_text("priority high")).to_be_visible()
        assert scenery.queue.status(task_id).status.priority == "high"
        _dialog(page, "Cancel")
        _confirm(page)
        expect(page.locator(".title .chip")).to_contain_text("exception: canceled")
        _dialog(page, "Rerun")
        _confirm(page)
        expect(page.get_by_role("rowheader", name="Run 1")).to_be_visible()
        assert scenery.queue.status(task_id).status.state == "pending"


def test_a_refusal_of_the_queue_is_shown_in_the_dialog(scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("refused")
    page = open_page(f"/task/{task_id}")
    dialog = _dialog(page, "Priority")
    dialog.get_by_label("New priority").select_option("lowest")
    page.locator("dialog button[type=submit]").click()
    expect(dialog.get_by_role("alert")).to_contain_text("priority")
    assert dialog.is_visible()


def test_a_group_is_reprioritized_and_canceled(scenery: Scenery, open_page: Open) -> None:
    ids = [scenery.create(f"task {number}") for number in range(3)]
    page = open_page(f"/group/{scenery.group}")
    _dialog(page, "Priority")
    _confirm(page)
    assert {scenery.queue.status(each).status.priority for each in ids} == {"medium"}
    dialog = _dialog(page, "Cancel group")
    assert _codes(dialog)[1] == f"taskqueue cancel --group {scenery.group}"
    _confirm(page)
    expect(page.get_by_role("button", name="3 exception")).to_be_visible()
    expect(page.get_by_text("3 × canceled")).to_be_visible()  # noqa: RUF001 - as the page writes it
    expect(page.get_by_text("sealed", exact=True)).to_be_visible()


def test_a_worker_is_quarantined(local: LocalQueue, scenery: Scenery, open_page: Open) -> None:
    scenery.create("work")
    scenery.claim("w-1")
    page = open_page()
    dialog = _dialog(page, "Quarantine")
    dialog.get_by_label("Hours from now").fill("0.25")
    dialog.get_by_label("Reason").fill("it's slow")
    _python, shell = _codes(dialog)
    options = ["--hours", "0.25", "--reason", "it's slow"]
    assert shlex.split(shell)[2:] == [*options, "proj-demo/linux", "rack-1", "w-1"]
    _confirm(page)
    expect(page.get_by_text("quarantined")).to_be_visible()
    local.clock.advance(0.25 * 60 * 60 + 1)  # the claim has not expired
    expect(page.get_by_text("quarantined")).to_have_count(0)
    expect(page.get_by_role("button", name="Quarantine")).to_be_visible()
    worker = scenery.queue.get_worker("proj-demo/linux", worker_group="rack-1", worker_id="w-1")
    assert worker.quarantine_until is not None


def test_the_python_and_the_shell_command_that_are_shown_do_the_same(
    local: LocalQueue, scenery: Scenery, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scenery.create("first")
    monkeypatch.setattr("tests.local.page.scenery.slugid", lambda: f"-{first[1:]}")
    second = scenery.create("second")  # its id looks like an option
    page = open_page(f"/task/{first}")
    python, _shell = _codes(_dialog(page, "Cancel"))
    exec(python, {"queue": scenery.queue})
    assert scenery.queue.status(first).status.state == "exception"
    page.goto(f"{local.root_url}/#/task/{second}")
    page.get_by_role("heading", name="second").wait_for()
    expect(page.get_by_role("dialog")).to_have_count(0)
    dialog = _dialog(page, "Cancel")
    dialog.get_by_role("button", name="Copy").last.click()
    copied: str = page.evaluate("navigator.clipboard.readText()")
    command = [sys.executable, "-m", "taskqueue_client", *shlex.split(copied)[1:]]
    settings = {
        "TASKCLUSTER_ROOT_URL": local.root_url,
        "TASKCLUSTER_CLIENT_ID": local.client_id,
        "TASKCLUSTER_ACCESS_TOKEN": local.access_token,
    }
    subprocess.run(command, env=settings, check=True, capture_output=True, timeout=60)
    assert scenery.queue.status(second).status.state == "exception"


def test_a_copy_that_the_browser_refuses_is_reported(scenery: Scenery, open_page: Open) -> None:
    page = open_page(f"/task/{scenery.create('copied')}/definition")
    with no_errors(page):
        page.evaluate(WITHOUT_CLIPBOARD)
        page.get_by_role("button", name="Copy JSON").click()
        expect(page.get_by_text("The browser does not let this page copy")).to_be_visible()
    expect(page.get_by_role("button", name="Copy JSON")).to_be_visible()


WITHOUT_CLIPBOARD = "() => { Object.defineProperty(navigator, 'clipboard', { value: undefined }) }"
"""The state of a page that another machine serves without TLS: browsers give it no clipboard."""


def test_the_buttons_of_the_clock_stay_when_its_time_is_drawn_again(open_page: Open) -> None:
    """A button that is replaced between the press and the release of the mouse gets no click."""
    page = open_page("/")
    with no_errors(page):
        page.get_by_title("The queue's clock").click()
        dialog = page.get_by_role("dialog")
        button = dialog.get_by_role("button", name="Move").element_handle()
        drawn = dialog.locator("time").first
        expect(drawn).not_to_have_text(drawn.inner_text())
        assert button.evaluate("button => button.isConnected")


def test_the_clock_is_held_and_moved_by_an_amount_and_to_the_next_claim_expiry(
    local: LocalQueue, scenery: Scenery, open_page: Open, tmp_path: Path
) -> None:
    task_id = scenery.create("claimed")
    scenery.claim()
    page = open_page(f"/task/{task_id}")
    with no_errors(page):
        page.get_by_title("The queue's clock").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Hold").click()
        expect(dialog.get_by_text("it stands still")).to_be_visible()
        before = local.clock.now()
        dialog.get_by_role("button", name="+ 1 min").click()
        expect(dialog.locator("pre").first).to_have_text("local.clock.advance(60)")
        expect(dialog).to_contain_text(re.compile("in 1[89] min"))
        assert local.clock.now() == pytest.approx(before + 60)
        expect(dialog).to_contain_text("needs a queue that was started with --admin-secret")
        picture(page, "clock", tmp_path)
        dialog.get_by_label("Seconds").fill("0.5")
        dialog.get_by_role("button", name="Move").click()
        expect(dialog.locator("pre").first).to_have_text("local.clock.advance(0.5)")
        assert local.clock.now() == pytest.approx(before + 60.5)
        dialog.get_by_role("button", name="To the next claim expiry").click()
        expect(page.get_by_role("row").filter(has_text="claim-expired")).to_be_visible()
        dialog.get_by_role("button", name="To the next deadline").click()
        expect(page.get_by_role("row").filter(has_text="deadline-exceeded")).to_be_visible()
        dialog.get_by_role("button", name="Release").click()
        expect(dialog.get_by_text("running")).to_be_visible()
        assert not local.clock.is_held


def test_faults_are_added_strike_and_are_removed(
    local: LocalQueue, scenery: Scenery, open_page: Open, tmp_path: Path
) -> None:
    page = open_page("/faults")
    with no_errors(page):
        dialog = _dialog(page, "A load balancer responds with 502, three times")
        python, shell = _codes(dialog)
        assert python == 'local.faults.add(Respond("queue.*", status=502, html=True, times=3))'
        assert "/admin/faults" in shell
        expect(dialog).to_contain_text("needs a queue that was started with --admin-secret")
        _confirm(page)
        waiting = page.get_by_role("region", name="Waiting faults")
        expect(waiting).to_contain_text("3 more")
        with Queue(local.root_url) as client:
            client.with_options(attempts=5).ping()
        expect(page.get_by_role("region", name="Hits").get_by_role("listitem")).to_have_count(3)
        expect(waiting).to_contain_text("No fault is waiting")
        picture(page, "faults", tmp_path)
        page.get_by_label("Status").fill("503")
        _dialog(page, "Add this fault")
        _confirm(page)
        expect(waiting).to_contain_text("queue.claimWork")
        _dialog(page, "Remove")
        _confirm(page)
        page.get_by_label("Kind").select_option("drop")
        page.get_by_label("Endpoint").fill("queue.task")
        _dialog(page, "Add this fault")
        _confirm(page)
        expect(waiting).to_contain_text("queue.task")
        _dialog(page, "Remove")
        _confirm(page)
        expect(waiting).to_contain_text("No fault is waiting")
        assert local.faults.waiting() == []
    assert scenery.group


def test_faults_that_another_window_or_program_adds_or_removes_are_shown(
    monkeypatch: pytest.MonkeyPatch, local: LocalQueue, open_page: Open
) -> None:
    monkeypatch.setattr(views, "_HEARTBEAT", 3600)  # the heartbeat would show the faults, too, but later
    page, other = open_page("/faults"), open_page("/faults")
    _dialog(other, "The response to a claim is lost")
    _confirm(other)
    waiting = page.get_by_role("region", name="Waiting faults")
    expect(waiting).to_contain_text("queue.claimWork")
    local.faults.clear()
    expect(waiting).to_contain_text("No fault is waiting")
    local.faults.add(faults.Drop("queue.task"))
    expect(waiting).to_contain_text("queue.task")


def test_a_request_whose_connection_a_fault_closes_has_no_status(
    local: LocalQueue, scenery: Scenery, open_page: Open
) -> None:
    local.faults.add(faults.Drop("queue.claimWork"))
    with pytest.raises(ConnectionFailed):
        scenery.claim()
    page = open_page("/requests")
    entry = page.locator(".entry")
    expect(entry).to_contain_text("fault: drop")
    expect(entry.locator(".chip")).to_have_text("\N{EN DASH}")
    entry.click()
    expect(page.get_by_role("region", name="Details")).to_contain_text("none: the connection was closed")


def test_every_ready_made_fault_is_accepted_also_as_the_python_that_is_shown(
    local: LocalQueue, open_page: Open
) -> None:
    page = open_page("/faults")
    presets = page.get_by_role("list", name="Ready-made faults").get_by_role("button")
    presets.first.wait_for()
    for index in range(presets.count()):
        presets.nth(index).click()
        python, _shell = _codes(page.get_by_role("dialog"))
        exec(python, {"local": local, **vars(faults)})
        _confirm(page)
    waiting = local.faults.waiting()
    assert len(waiting) == 2 * presets.count()
    assert waiting[::2] == waiting[1::2]


def test_a_task_is_written_with_its_problems_at_the_fields(
    scenery: Scenery, open_page: Open, tmp_path: Path
) -> None:
    page = open_page("/new")
    with no_errors(page):
        expect(page.get_by_text("No problems found")).to_be_visible()
        page.get_by_label("Name").fill("from the page")
        page.get_by_label("Task queue").fill("Not A Queue")
        page.get_by_label("Source").fill("nowhere")
        page.get_by_label("Payload").fill("{")
        page.get_by_label("Deadline").fill("2001-01-01T00:00:00Z")
        expect(page.locator("[id='new-taskQueueId-problem']")).to_contain_text("WORKER_TYPE")
        expect(page.locator("[id='new-metadata.source-problem']")).to_contain_text("https://")
        expect(page.locator("[id='new-payload-problem']")).to_contain_text("JSON")
        expect(page.locator("[id='new-deadline-problem']")).to_be_visible()
        picture(page, "editor", tmp_path)
        page.get_by_role("button", name="Create task").click()
        expect(page.locator("[aria-invalid=true]").first).to_be_focused()
        page.get_by_label("Task queue").fill("proj-demo/linux")
        page.get_by_label("Source").fill("https://example.com")
        page.get_by_label("Payload").fill('{"command": ["true", null, true]}')
        page.get_by_label("Deadline").fill(page.get_by_label("Created").input_value())
        page.get_by_label("Dependencies").fill(scenery.create("before"))
        expect(page.get_by_text("No problems found")).to_be_visible()
        page.get_by_role("button", name="JSON", exact=True).click()
        raw = json.loads(page.get_by_label("Definition").input_value())
        assert raw["payload"] == {"command": ["true", None, True]}
        page.get_by_label("Definition").fill(json.dumps({**raw, "deadline": _later(raw["created"])}))
        expect(page.get_by_text("No problems found")).to_be_visible()
        page.get_by_role("button", name="Create task").click()
        expect(page.get_by_role("heading", name="from the page")).to_be_visible()
        expect(page.locator(".title .chip")).to_contain_text("unscheduled")
        page.get_by_role("link", name="Edit a copy").click()
        expect(page.get_by_label("Name")).to_have_value("from the page")


def test_input_that_the_editor_cannot_read_is_kept_and_reported(open_page: Open) -> None:
    page = open_page("/new")
    turn = page.get_by_role("button", name="JSON", exact=True)
    with no_errors(page):
        payload = page.get_by_label("Payload")
        payload.fill('{"command": [], }')
        turn.click()
        expect(payload).to_be_focused()
        expect(payload).to_have_value('{"command": [], }')
        payload.fill("{}")
        turn.click()
        raw = page.get_by_label("Definition")
        expect(raw).to_have_value(re.compile("payload"))
        for text in ("null", "[]", "7"):
            raw.fill(text)
            turn.click()
            expect(page.get_by_role("alert")).to_have_text("$: an object")
            expect(raw).to_have_value(text)
        raw.fill('{"metadata": {"names": null}}')
        expect(page.get_by_role("alert")).to_contain_text("$.metadata.names: unknown key; known keys: name,")


def test_an_action_that_the_queue_did_not_get_says_so(scenery: Scenery, open_page: Open) -> None:
    scenery.create("claimed")
    scenery.claim()
    page = open_page("/new")
    expect(page.get_by_text("No problems found")).to_be_visible()
    page.route("**/page/check", lambda route: route.abort())
    page.get_by_role("button", name="Create task").click()
    expect(page.get_by_role("alert")).to_contain_text("The queue does not respond")
    page.get_by_role("link", name="Overview").click()
    dialog = _dialog(page, "Quarantine")
    dialog.get_by_label("Hours from now").fill("1e99")
    dialog.get_by_role("button", name="Quarantine the worker").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Invalid time value")


def test_an_edited_copy_has_every_field_of_the_task(scenery: Scenery, open_page: Open) -> None:
    more: dict[str, Any] = {
        "projectId": "my-project",
        "requires": "all-resolved",
        "dependencies": [scenery.create("before")],
        "routes": ["index.one", "index.two"],
        "scopes": ["a:b", "c d"],
        "priority": "high",
        "retries": 1,
        "tags": {"kind": "test"},
        "extra": {"deep": [{"x": None}]},
    }
    task_id = scenery.create("original", **more)
    page = open_page(f"/new?from={task_id}")
    page.get_by_role("button", name="Create task").click()
    page.wait_for_url(re.compile("#/task/"))
    copy: dict[str, Any] = {**scenery.queue.task(page.url.rpartition("/")[2])}
    assert {**copy, **more} == copy


def _later(moment: str) -> str:
    from datetime import datetime, timedelta

    return (datetime.fromisoformat(moment) + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
