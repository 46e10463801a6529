"""Attacks on the page, windows side by side, a queue that is restarted, the keyboard, and accessibility."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import requests

from taskqueue_client.local import LocalQueue
from tests.servers import reserved_port

from .conftest import go, no_errors
from .scenery import EVIL, LOG, SVG, Scenery, png

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect: Any = playwright.expect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    Open = Callable[..., Page]


@pytest.fixture
def evil_task(scenery: Scenery) -> str:
    """A task of which everything tries to be HTML."""
    task_id = scenery.create(EVIL, payload={EVIL: EVIL}, routes=[EVIL], tags={EVIL: EVIL}, extra={"x": EVIL})
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, "public/logs/live.log", LOG, "text/plain")
        scenery.upload(client, "public/evil.svg", SVG, "image/svg+xml")
        scenery.upload(client, "public/evil.html", EVIL, "text/html")
        scenery.upload(client, "public/not-a.png", EVIL, "image/png")
        scenery.upload(client, f"public/{EVIL}", png(), "image/png")
    return task_id


def test_nothing_of_a_task_is_run_or_becomes_an_element(
    scenery: Scenery, evil_task: str, open_page: Open
) -> None:
    page = open_page()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    for address in (
        "/",
        f"/group/{scenery.group}",
        f"/group/{scenery.group}?view=time",
        f"/group/{scenery.group}?view=list&search=<img",
        f"/task/{evil_task}",
        f"/task/{evil_task}/definition",
        f"/task/{evil_task}/artifacts/0/public/evil.svg",
        f"/task/{evil_task}/artifacts/0/public/evil.html",
        f"/task/{evil_task}/artifacts/0/public/not-a.png",
        f"/task/{evil_task}/log/0",
        "/messages?task=<img",
        "/requests?path=<script>",
        f"/new?from={evil_task}",
    ):
        go(page, address)
        assert (
            page.locator("main script, main iframe, main object, main [onerror], main [onload]").count() == 0
        )
        assert page.title() != "attacked"
    go(page, f"/task/{evil_task}/artifacts/0/public/evil.svg")
    expect(page.get_by_role("region", name="Preview").locator("pre")).to_have_text(SVG)
    assert dialogs == []


def test_a_script_cannot_be_added_to_the_page(open_page: Open) -> None:
    page = open_page()
    tried = """() => {
        const blocked = [];
        for (const act of [
            () => { document.body.innerHTML = '<p>' },
            () => { document.createElement('script').src = 'https://example.com/x.js' },
        ]) { try { act(); } catch (error) { blocked.push(error.name); } }
        return blocked;
    }"""
    assert page.evaluate(tried) == ["TypeError", "TypeError"]


_ATTACKS = """async ([queue, task]) => {
    const attempt = async (path, options) => {
        try {
            return (await (await fetch(queue + path, {credentials: 'include', ...options})).text()).length;
        } catch { return 'blocked'; }
    };
    const stream = new Promise((done) => {
        const source = new EventSource(`${queue}/page/stream`, {withCredentials: true});
        source.onerror = () => done('blocked');
        source.onmessage = () => done('read');
    });
    const step = {method: 'POST', mode: 'no-cors', body: '{"seconds": 9999}'};
    return [
        await attempt('/page/overview'),
        await attempt('/page/overview', {mode: 'no-cors'}),
        await attempt(`/page/api/queue/v1/task/${task}/cancel`, {method: 'POST'}),
        await attempt('/page/clock/advance', step),
        await stream,
    ];
}"""
_FRAME = """(queue) => new Promise((done) => {
    const frame = document.createElement('iframe');
    frame.onload = () => done(frame.contentDocument === null);
    frame.src = `${queue}/`;
    document.body.append(frame);
})"""


class _Attacker(BaseHTTPRequestHandler):
    """Another server on this machine: for a browser, its pages are of the same site as the queue's."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>attacker</title>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        del format, args


@contextmanager
def _attacker() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Attacker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_page_in_the_same_browser_neither_reads_nor_acts(
    local: LocalQueue, scenery: Scenery, open_page: Open
) -> None:
    task_id = scenery.create("precious")
    page = open_page()
    with _attacker() as attacker:
        other = page.context.new_page()
        other.goto(attacker)
        before = local.clock.now()
        assert set(other.evaluate(_ATTACKS, [local.root_url, task_id])) <= {"blocked", 0}
        assert other.evaluate(_FRAME, local.root_url)
        assert other.frames[-1].locator("#bar").count() == 0
    assert local.clock.now() < before + 9999
    assert scenery.queue.status(task_id).status.state == "pending"


@pytest.mark.parametrize(
    ("name", "content", "content_type"), [("a.html", EVIL, "text/html"), ("a.svg", SVG, "image/svg+xml")]
)
def test_an_artifact_that_is_opened_by_its_url_neither_reads_nor_acts(
    local: LocalQueue, scenery: Scenery, open_page: Open, name: str, content: str, content_type: str
) -> None:
    scenery.create("hostile")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, f"public/{name}", content, content_type)
    precious = scenery.create("precious")
    other = open_page().context.new_page()
    other.goto(str(scenery.queue.artifact(*scenery.claimed[0], f"public/{name}").url))
    before = local.clock.now()
    assert set(other.evaluate(_ATTACKS, [local.root_url, precious])) <= {"blocked", 0}
    assert local.clock.now() < before + 9999
    assert scenery.queue.status(precious).status.state == "pending"
    with other.expect_popup():
        other.evaluate("window.open('about:blank')")


def test_a_pdf_is_not_isolated_as_browsers_would_not_show_it(scenery: Scenery) -> None:
    scenery.create("report")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, "public/a.pdf", "%PDF-1.7", "application/pdf")
    stored = requests.get(str(scenery.queue.artifact(*scenery.claimed[0], "public/a.pdf").url), timeout=30)
    assert "Content-Security-Policy" not in stored.headers


def test_without_the_token_the_page_is_locked(local: LocalQueue, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(local.root_url)
    expect(page.get_by_role("heading", name="This page is locked")).to_be_visible()
    page.goto(f"{local.root_url}/#token={'0' * 64}")
    expect(page.get_by_role("heading", name="This page is locked")).to_be_visible()
    assert local.page_url is not None
    page.goto(local.page_url)
    expect(page.get_by_role("heading", name="Task groups")).to_be_visible()
    assert "token" not in page.url
    context.close()


def test_two_windows_show_the_same_and_each_other_s_actions(scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("shared")
    first, second = open_page(f"/task/{task_id}"), open_page(f"/group/{scenery.group}")
    expect(second.get_by_role("button", name="1 pending")).to_be_visible()
    first.get_by_role("button", name="Cancel", exact=True).click()
    first.locator("dialog button[type=submit]").click()
    expect(second.get_by_role("button", name="1 exception")).to_be_visible()
    expect(first.locator(".title .chip")).to_contain_text("canceled")


REMEMBER_NOTICES = """() => {
    window.noticed = [];
    const note = (records) =>
        records.forEach((each) => each.addedNodes.forEach((node) => noticed.push(node.textContent)));
    new MutationObserver(note).observe(document.getElementById("notices"), { childList: true });
}"""
"""Records notices: each is removed after five seconds, so a slow test could miss it."""

WAIT_FOR_NOTICE = """async (text) => {
    while (!noticed.includes(text)) await new Promise(requestAnimationFrame);
}"""
"""Used in place of `wait_for_function`, which polls by `eval`: the page's policy forbids that."""


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


def test_a_queue_that_is_restarted_is_found_again(browser: Browser, port: int, tmp_path: Path) -> None:
    db = str(tmp_path / "queue.sqlite")
    context = browser.new_context()
    page = context.new_page()
    with LocalQueue(page=True, db=db, port=port) as local:
        scenery = Scenery(local)
        task_id = scenery.create("before")
        scenery.queue.close()
        assert local.page_url is not None
        page.goto(local.page_url)
        expect(page.get_by_role("link", name="before")).to_be_visible()
        page.evaluate(REMEMBER_NOTICES)
    expect(page.get_by_text("disconnected")).to_be_visible()
    with LocalQueue(page=True, db=db, port=port) as local:
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        page.evaluate(WAIT_FOR_NOTICE, "The queue was started again.")
        scenery = Scenery(local)
        scenery.create("after the restart")
        scenery.queue.close()
        expect(page.get_by_role("link", name="after the restart")).to_be_visible()
    with LocalQueue(page=True, port=port):  # another queue, with another token
        expect(page.get_by_role("heading", name="This page is locked")).to_be_visible()
    context.close()
    assert task_id


def test_lists_of_a_restarted_queue_are_those_of_the_new_one(
    browser: Browser, port: int, tmp_path: Path
) -> None:
    db = str(tmp_path / "queue.sqlite")
    context = browser.new_context()
    page = context.new_page()
    with LocalQueue(page=True, db=db, port=port) as local:
        scenery = Scenery(local)
        scenery.create("before")
        scenery.queue.close()
        assert local.page_url is not None
        page.goto(local.page_url)
        go(page, "/messages")
        expect(page.locator(".entry")).to_have_count(2)
        page.locator(".entry").first.click()
        before = page.locator(".entry").last.inner_text()
    expect(page.get_by_text("disconnected")).to_be_visible()
    with LocalQueue(page=True, db=db, port=port) as local:
        expect(page.get_by_text("No message was published yet.")).to_be_visible()
        scenery = Scenery(local)
        scenery.create("after")
        scenery.queue.close()
        expect(page.locator(".entry")).to_have_count(2)
        expect(page.locator("header .quiet[role=status]")).to_have_text("2")
        expect(page.get_by_text(before)).to_have_count(0)
    context.close()


def test_windows_in_the_background_leave_their_connections_to_others(
    scenery: Scenery, local: LocalQueue, browser: Browser
) -> None:
    """Browsers open six connections to a server at most, for all windows together."""
    with browser.new_context() as context:
        assert local.page_url is not None
        pages = [context.new_page() for _ in range(7)]
        for page in pages:
            page.goto(local.page_url)
            expect(page.get_by_text("live", exact=True)).to_be_visible()
            page.evaluate(BECOME, "hidden")
        scenery.create("in the meantime")
        pages[0].evaluate(BECOME, "visible")
        expect(pages[0].get_by_role("link", name="in the meantime")).to_be_visible()


BECOME = """(state) => {
    Object.defineProperty(document, "hidden", { value: state === "hidden", configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A browser without a screen considers all of its windows visible."""


def test_a_misspelled_address_and_the_skip_link_leave_a_page_that_works(
    scenery: Scenery, open_page: Open
) -> None:
    task_id = scenery.create("addressed")
    page = open_page()
    with no_errors(page):
        page.goto(f"{scenery.local.root_url}/#/100%")
        expect(page.get_by_role("heading", name="Task groups")).to_be_visible()
        go(page, f"/task/{task_id}/definition")
        page.get_by_role("link", name="Skip to the content").press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.reload()
        expect(page.get_by_role("button", name="Copy JSON")).to_be_visible()


@pytest.mark.parametrize("name", ["constructor", "__proto__"])
def test_an_address_with_a_name_that_all_objects_have_is_that_of_a_view(
    scenery: Scenery, open_page: Open, name: str
) -> None:
    task_id = scenery.create("addressed")
    page = open_page()
    with no_errors(page):
        go(page, f"/{name}")
        expect(page.get_by_role("heading", name="Task groups")).to_be_visible()
        go(page, f"/group/{scenery.group}?view={name}")
        expect(page.get_by_role("button", name="Graph", pressed=True)).to_be_visible()
        go(page, f"/task/{task_id}/{name}")
        expect(page.get_by_role("button", name="Runs", pressed=True)).to_be_visible()


def test_everything_is_reached_by_keyboard(scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("by keyboard")
    page = open_page()
    _tab_to(page, "by keyboard")
    page.keyboard.press("Enter")
    expect(page.locator(".node")).to_have_count(1)
    _tab_to(page, "by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by keyboard")).to_be_visible()
    _tab_to(page, "Cancel")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert scenery.queue.status(task_id).status.state == "pending"
    _tab_to(page, "Cancel")
    page.keyboard.press("Enter")
    _tab_to(page, "Cancel the task")
    page.keyboard.press("Enter")
    expect(page.locator(".title .chip")).to_contain_text("canceled")
    go(page, "/messages")
    page.locator(".virtual").focus()
    page.keyboard.press("End")
    expect(page.locator(".entry[aria-selected=true]")).to_contain_text("task-group-resolved")
    page.keyboard.press("Home")
    expect(page.get_by_role("region", name="Details")).to_contain_text("task-defined")


def _tab_to(page: Page, name: str) -> None:
    """Press Tab until the focus is on something with this text."""
    for _ in range(60):
        page.keyboard.press("Tab")
        text: str = page.evaluate("document.activeElement.textContent")
        if page.evaluate("document.activeElement.matches('a, button')") and (
            text == name or (name in text.split("\n", maxsplit=1)[0][:40] and text.startswith(name))
        ):
            return
    pytest.fail(f"nothing with the text {name!r} can be focused")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_violation_of_the_accessibility_rules(
    scenery: Scenery, evil_task: str, open_page: Open, axe: str, scheme: str
) -> None:
    scenery.create("waits", [evil_task])
    scenery.refused(evil_task)
    page = open_page(scheme=scheme)
    page.evaluate(axe)
    with no_errors(page):
        for address in (
            "/",
            f"/group/{scenery.group}",
            f"/group/{scenery.group}?view=time",
            f"/group/{scenery.group}?view=list",
            f"/task/{evil_task}",
            f"/task/{evil_task}/definition",
            f"/task/{evil_task}/artifacts/0/public/evil.svg",
            f"/task/{evil_task}/log/0",
            "/messages",
            "/requests",
            "/faults",
            "/new",
        ):
            go(page, address)
            if address == "/requests":
                page.locator(".entry").filter(has=page.get_by_text("403", exact=True)).click()
            if "/log/" in address:
                page.get_by_label("Search the log").fill("FAILED")
                page.locator("mark").wait_for()
            assert _violations(page) == [], address
        go(page, f"/task/{evil_task}")
        for button in ("Priority", re.compile(r"^\d\d:")):
            page.get_by_role("button", name=button).first.click()
            page.get_by_role("dialog").wait_for()
            assert _violations(page) == [], button
            page.keyboard.press("Escape")


def _violations(page: Page) -> list[str]:
    found: list[dict[str, Any]] = page.evaluate("axe.run().then(({violations}) => violations)")
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]
