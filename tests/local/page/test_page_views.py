"""Every view of the page, in a real browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from taskqueue_client import _arguments
from taskqueue_client import local as local_queue

from .conftest import go, no_errors, picture
from .scenery import EVIL, LOG, SVG, Scenery, png

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect: Any = playwright.expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page, Request, Route

    from taskqueue_client.local import LocalQueue

    Open = Callable[..., Page]

STATIC = Path(local_queue.__file__).parent / "page/static"
_LIVE_LOG = re.compile(r"live\.log")
MOST_NODES = 1500
"""Elements of a view, however many tasks, messages or lines there are."""


def _elements(page: Page) -> int:
    count: int = page.evaluate("document.querySelectorAll('*').length")
    return count


def _graph(scenery: Scenery) -> dict[str, str]:
    """Create a small project, half of it done; return the task ids by name."""
    ids = {"setup": scenery.create("setup")}
    for system in ("linux", "macos", "windows"):
        ids[f"build {system}"] = scenery.create(f"build {system}", [ids["setup"]])
        for kind in ("unit", "web"):
            ids[f"{kind} {system}"] = scenery.create(f"{kind} tests {system}", [ids[f"build {system}"]])
    ids["release"] = scenery.create(
        "release", [ids[f"unit {each}"] for each in ("linux", "macos", "windows")]
    )
    scenery.work("completed", "completed", worker_id="w-1")
    scenery.work("completed", "intermittent-task", worker_id="w-2")
    scenery.work("completed", "failed", worker_id="w-3")
    scenery.claim("w-1", tasks=2)
    return ids


def test_the_overview_shows_queues_groups_and_workers_as_they_change(
    scenery: Scenery, open_page: Open, tmp_path: Path
) -> None:
    ids = _graph(scenery)
    page = open_page()
    with no_errors(page):
        queues = page.get_by_role("region", name="Task queues", exact=True)
        expect(queues.get_by_role("columnheader").last).to_have_text("History")  # of any length
        expect(queues.get_by_role("row").nth(1)).to_contain_text("proj-demo/linux")
        groups = page.get_by_role("region", name="Task groups", exact=True)
        expect(groups.get_by_role("row").nth(1)).to_contain_text("4 completed")
        workers = page.get_by_role("region", name="Workers", exact=True)
        expect(workers.get_by_role("row")).to_have_count(4)
        picture(page, "overview", tmp_path)
        scenery.queue.cancel_task(ids["release"])
        expect(groups.get_by_role("row").nth(1)).to_contain_text("1 exception")
        scenery.claim("another")
        expect(workers.get_by_role("row")).to_have_count(5)


def test_a_group_has_a_graph_a_time_line_and_a_list(
    scenery: Scenery, open_page: Open, tmp_path: Path
) -> None:
    ids = _graph(scenery)
    page = open_page(f"/group/{scenery.group}")
    with no_errors(page):
        nodes = page.locator(".node")
        expect(nodes).to_have_count(11)
        setup, release = (page.locator(f'.node[href="#/task/{ids[name]}"]') for name in ("setup", "release"))
        assert setup.bounding_box()["x"] < release.bounding_box()["x"]  # type: ignore[index]
        picture(page, "graph", tmp_path)
        page.get_by_role("button", name="Time line").click()
        expect(page.locator(".lane")).to_have_text(["rack-1/w-1", "rack-1/w-2", "rack-1/w-3"])
        expect(page.locator(".node", has_text="intermittent-task")).to_have_count(1)
        picture(page, "time-line", tmp_path)
        page.get_by_role("button", name="List").click()
        expect(page.get_by_role("listitem")).to_have_count(11)
        page.get_by_role("link", name="release").click()
        expect(page.get_by_role("heading", name="release")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("listitem")).to_have_count(11)


def test_a_group_is_searched_and_filtered_and_the_address_remembers_it(
    scenery: Scenery, open_page: Open
) -> None:
    _graph(scenery)
    page = open_page(f"/group/{scenery.group}?view=list")
    page.get_by_role("button", name="completed").click()
    expect(page.get_by_role("listitem")).to_have_count(4)
    page.get_by_label("Search tasks").fill("build")
    expect(page.get_by_role("listitem")).to_have_count(2)
    page.reload()
    expect(page.get_by_role("listitem")).to_have_count(2)
    expect(page.get_by_label("Search tasks")).to_have_value("build")
    expect(page.get_by_text("intermittent-task")).to_be_visible()
    scenery.create("elsewhere", task_queue_id="Proj_GPU/linux")
    page.get_by_role("button", name="completed").click()
    page.get_by_label("Search tasks").fill("Proj_gpu")
    expect(page.get_by_role("listitem")).to_have_count(1)


def test_a_group_of_very_many_tasks_stays_small_in_the_browser(scenery: Scenery, open_page: Open) -> None:
    first = scenery.create("first")
    for number in range(500):
        scenery.create(f"task {number}", [first])
    page = open_page(f"/group/{scenery.group}")
    for view in ("Graph", "Time line", "List"):
        page.get_by_role("button", name=view).click()
        expect(page.get_by_text("501 tasks")).to_be_visible()
        assert _elements(page) < MOST_NODES
    page.get_by_label("Search tasks").fill("task 499")
    expect(page.get_by_role("listitem")).to_have_count(1)
    page.get_by_role("button", name="Graph").click()
    page.get_by_label("Search tasks").press("Enter")
    expect(page.locator(".node:not(.dim)", has_text="task 499")).to_be_visible()


@pytest.mark.parametrize(("scheme", "ground"), [("light", [236, 238, 242]), ("dark", [42, 50, 64])])
def test_a_graph_from_far_is_painted_in_the_colors_of_the_page(
    scenery: Scenery, open_page: Open, scheme: str, ground: list[int]
) -> None:
    first = scenery.create("first")
    for number in range(300):
        scenery.create(f"task {number}", [first])
    page = open_page(f"/group/{scenery.group}", scheme=scheme)
    page.get_by_role("button", name="Graph").click()
    expect(page.get_by_text("301 tasks")).to_be_visible()
    page.evaluate(
        """async ([red, green, blue]) => {
          const isPainted = () => {
            const canvas = document.querySelector("canvas");
            const image = canvas?.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const pixels = image?.data ?? [];
            for (let at = 0; at < pixels.length; at += 4)
              if (pixels[at] === red && pixels[at + 1] === green && pixels[at + 2] === blue) return true;
            return false;
          };
          while (!isPainted()) await new Promise(requestAnimationFrame);
        }""",
        ground,
    )


def test_the_bar_is_painted_with_its_style_before_anything_else_is_loaded(
    local: LocalQueue, browser: Browser
) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.route("**/page/static/**", lambda route: route.abort())
        page.goto(f"{local.root_url}/")
        links = page.get_by_role("navigation", name="Views").get_by_role("link")
        expect(links).to_have_text(["Overview", "Messages", "Requests", "Faults", "New task"])
        expect(page.get_by_role("banner")).to_have_css("display", "flex")


def test_a_task_shows_its_runs_and_a_claim_that_counts_down(
    local: LocalQueue, scenery: Scenery, open_page: Open, tmp_path: Path
) -> None:
    ids = _graph(scenery)
    task_id = scenery.claimed[0][0]
    local.clock.hold()
    page = open_page(f"/task/{task_id}")
    with no_errors(page):
        run = page.get_by_role("region", name="Runs", exact=True).get_by_role("row").nth(1)
        expect(run).to_contain_text("rack-1/w-1")
        expect(run).to_contain_text("expires in 20 min")
        expect(page.get_by_text("5 retries left")).to_be_visible()
        picture(page, "task", tmp_path)
        local.clock.advance(600)
        expect(run).to_contain_text("expires in 10 min")
        local.clock.advance(601)
        expect(page.get_by_text("exception: claim-expired")).to_be_visible()
        expect(page.get_by_text("4 retries left")).to_be_visible()
        page.get_by_role("link", name="setup").or_(
            page.get_by_role("link", name=re.compile("^build"))
        ).first.click()
        expect(page.get_by_role("list", name="Dependents")).to_be_visible()
    assert ids


def test_a_definition_is_shown_readable_and_as_json(scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("definition", payload={"command": ["make", EVIL]}, tags={"kind": "demo"})
    page = open_page(f"/task/{task_id}/definition")
    expect(page.get_by_text("https://example.com/project")).to_be_visible()
    expect(page.locator("pre").first).to_contain_text(EVIL.replace('"', '\\"'))
    page.get_by_role("button", name="JSON", exact=True).click()
    expect(page.locator("pre.text")).to_contain_text('"provisionerId": "proj-demo"')


@pytest.fixture
def task_with_artifacts(scenery: Scenery) -> str:
    scenery.create("artifacts")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, "public/logs/live.log", LOG, "text/plain")
        scenery.upload(client, "public/report.json", '{"passed": 41}', "application/json")
        scenery.upload(client, "public/picture.png", png(), "image/png")
        scenery.upload(client, "public/evil.svg", SVG, "image/svg+xml")
        scenery.upload(client, "public/evil.html", EVIL, "text/html")
        scenery.upload(client, "private/a (b)/c.txt", "private text", "text/plain")
    return scenery.claimed[0][0]


def test_artifacts_are_previewed_and_downloaded(
    task_with_artifacts: str, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(f"/task/{task_with_artifacts}/artifacts")
    with no_errors(page):
        preview = page.get_by_role("region", name="Preview")
        page.get_by_role("link", name="public/report.json", exact=True).click()
        expect(preview).to_contain_text('"passed": 41')
        expect(page.get_by_role("row", name="public/report.json")).to_contain_text("14 B")
        page.get_by_role("link", name="public/picture.png", exact=True).click()
        expect(preview.get_by_role("img")).to_be_visible()
        expect(preview.get_by_role("img")).to_have_js_property("naturalWidth", 64)
        picture(page, "artifacts", tmp_path)
        page.get_by_role("link", name="private/a (b)/c.txt", exact=True).click()
        expect(preview).to_contain_text("private text")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download public/report.json").click()
        assert download.value.path().read_text() == '{"passed": 41}'
        assert download.value.suggested_filename == "report.json"


def test_a_link_has_the_size_of_the_artifact_that_it_leads_to(scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("link")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, "public/logs/live_backing.log", "x" * 33, "text/plain")
        client.create_link_artifact(
            task_id,
            0,
            "public/logs/live.log",
            "public/logs/live_backing.log",
            content_type="text/plain",
            expires=datetime.fromtimestamp(scenery.local.clock.now(), UTC) + timedelta(minutes=5),
        )
    page = open_page(f"/task/{task_id}/artifacts")
    expect(page.get_by_role("row", name="public/logs/live.log")).to_contain_text("33 B")


def test_a_preview_has_the_values_of_the_file_and_only_its_beginning(
    scenery: Scenery, open_page: Open
) -> None:
    task_id = scenery.create("previews")
    (client,) = scenery.claim()
    exact = '{"id":12345678901234567890,"2":[1.0,-0,1e999],"1":{},"1":"a, {b} \\"","c":[ ], "d":null}'
    with client:
        scenery.upload(client, "public/exact.json", exact, "application/json")
        scenery.upload(client, "public/deep.json", "[" * 9000 + "]" * 9000, "application/json")
        scenery.upload(client, "public/broken.json", '{"a":1,', "application/json")
        scenery.upload(client, "public/large.txt", "0123456789" * 300_000, "text/plain")
    page = open_page(f"/task/{task_id}/artifacts")
    text = page.get_by_role("region", name="Preview").locator("pre")
    with no_errors(page):
        page.get_by_role("link", name="public/exact.json", exact=True).click()
        expect(text).to_have_text(EXACT, use_inner_text=True)
        assert text.inner_text() == EXACT
        page.get_by_role("link", name="public/deep.json", exact=True).click()
        expect(text).to_have_text("[" * 9000 + "]" * 9000)
        page.get_by_role("link", name="public/broken.json", exact=True).click()
        expect(text).to_have_text('{"a":1,')
        page.get_by_role("link", name="public/large.txt", exact=True).click()
        expect(text).to_contain_text("this is the beginning")
        assert len(text.inner_text()) < 401_000


EXACT = """{
  "id": 12345678901234567890,
  "2": [
    1.0,
    -0,
    1e999
  ],
  "1": {},
  "1": "a, {b} \\"",
  "c": [],
  "d": null
}"""


@pytest.mark.parametrize("name", ["/first", "public//double", "public/last/", "public/50%2F?#.txt"])
def test_an_artifact_is_previewed_whatever_its_name(scenery: Scenery, open_page: Open, name: str) -> None:
    task_id = scenery.create("names")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, name, "its content", "text/plain")
    page = open_page(f"/task/{task_id}/artifacts")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("region", name="Preview").locator("pre")).to_have_text("its content")


@pytest.mark.parametrize("name", [".", ".."])
def test_an_artifact_is_previewed_whose_name_browsers_resolve_in_urls(
    monkeypatch: pytest.MonkeyPatch, scenery: Scenery, open_page: Open, name: str
) -> None:
    monkeypatch.setattr(_arguments, "new_name", str)  # other clients do not refuse it
    task_id = scenery.create("names")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, name, "its content", "text/plain")
    page = open_page(f"/task/{task_id}/artifacts")
    with no_errors(page):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("region", name="Preview").locator("pre")).to_have_text("its content")


def test_a_preview_that_is_loaded_late_does_not_replace_that_of_another_artifact(
    scenery: Scenery, open_page: Open
) -> None:
    task_id = scenery.create("previews")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, "public/slow.txt", "the slow one", "text/plain")
        scenery.upload(client, "public/quick.txt", "the quick one", "text/plain")
        page = open_page(f"/task/{task_id}/artifacts")
        late: list[Route] = []
        page.route(
            "**slow.txt",
            lambda route: late.append(route) if _is_preview(route.request) else route.continue_(),
        )
        with page.expect_request(_is_preview):
            page.get_by_role("link", name="public/slow.txt", exact=True).click()
        page.get_by_role("link", name="public/quick.txt", exact=True).click()
        expect(page.get_by_role("region", name="Preview")).to_contain_text("the quick one")
        page.evaluate(REMEMBER_PREVIEWS)
        late[0].continue_()
        scenery.upload(client, "public/next.txt", "", "text/plain")
        expect(page.get_by_role("link", name="public/next.txt", exact=True)).to_be_visible()
        assert page.evaluate("window.previewed") == []


REMEMBER_PREVIEWS = """() => {
    window.previewed = [];
    const note = () => {
        const text = document.querySelector(".preview").textContent;
        if (!text.includes("the quick one")) window.previewed.push(text);
    };
    const all = { childList: true, subtree: true, characterData: true };
    new MutationObserver(note).observe(document.body, all);
}"""


def _is_preview(request: Request) -> bool:
    return request.url.endswith("slow.txt") and request.method == "GET"


def test_a_run_may_have_more_artifacts_than_a_response(task_with_artifacts: str, open_page: Open) -> None:
    page = open_page()
    page.route(
        "**/artifacts?limit=*",
        lambda route: route.continue_(url=re.sub(r"limit=\d+", "limit=4", route.request.url)),
    )
    go(page, f"/task/{task_with_artifacts}/log")
    expect(page.get_by_role("button", name="Artifacts6")).to_be_visible()
    expect(page.get_by_text("FAILED")).to_be_visible()


def test_a_log_is_followed_in_its_colors_searched_and_linked_to(
    scenery: Scenery, open_page: Open, tmp_path: Path
) -> None:
    task_id = scenery.create("log")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, "public/logs/live.log", LOG, "text/plain")
        page = open_page(f"/task/{task_id}/log/0")
        with no_errors(page):
            expect(page.locator(".line .f2").first).to_have_text("ok")
            expect(page.locator(".line .f1").first).to_have_text("FAILED")
            expect(page.get_by_text("downloading 100 %")).to_be_visible()
            expect(page.get_by_text("downloading 10 %")).to_have_count(0)
            picture(page, "log", tmp_path)
            more = LOG + "".join(f"line {number}\n" for number in range(5000)) + "the needle\n"
            scenery.upload(client, "public/logs/live.log", more, "text/plain")
            expect(page.get_by_text("the needle")).to_be_visible()  # the view scrolls to the new end
            assert _elements(page) < MOST_NODES
            page.get_by_label("Search the log").fill("line 2500")
            expect(page.get_by_text("1 of 1")).to_be_visible()
            expect(page.locator("mark", has_text="line 2500")).to_be_visible()
            page.get_by_role("link", name="Link to line 2507").click()
            assert page.url.endswith("?line=2507")
            go(page, f"/task/{task_id}/log/0?line=7")  # an address that was pasted
            expect(page.locator(".line.chosen")).to_contain_text("line 0")
            go(page, f"/task/{task_id}/log/0?line=2507")
        page.reload()
        expect(page.locator(".line.chosen")).to_contain_text("line 2500")


def test_the_last_line_of_a_log_is_counted_and_found_before_it_ends(
    scenery: Scenery, open_page: Open
) -> None:
    task_id = scenery.create("log")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, "public/logs/live.log", "one\ntwo\nat 10 %\rat 20 %", "text/plain")
    page = open_page(f"/task/{task_id}/log")
    expect(page.get_by_text("3 lines")).to_be_visible()
    expect(page.locator(".line").last).to_have_text("3at 20 %")
    page.get_by_label("Search the log").fill("at 20")
    expect(page.get_by_text("1 of 1")).to_be_visible()


def test_a_text_is_found_anywhere_in_a_very_long_line(scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("long line")
    (client,) = scenery.claim()
    with client:
        line = "x" * 30_000 + "needle"
        scenery.upload(client, "public/logs/live.log", f"first\n{line}\nlast", "text/plain")
    page = open_page(f"/task/{task_id}/log")
    page.get_by_label("Search the log").fill("needle")
    expect(page.get_by_text("1 of 1")).to_be_visible()
    expect(page.locator(".line.hit")).to_contain_text("… and 10006 more characters")


def test_a_text_is_found_in_a_log_that_comes_after_it_was_typed(scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("late log")
    (client,) = scenery.claim()
    with client:
        scenery.upload(client, "public/logs/live.log", 500 * "hay\n" + "needle\nneedle\n", "text/plain")
    page = open_page()
    held: list[Route] = []
    page.route(_LIVE_LOG, lambda route: held.append(route))  # noqa: PLW0108 - Playwright refuses a method
    with page.expect_request(_LIVE_LOG):
        page.goto(f"{scenery.local.root_url}/#/task/{task_id}/log")
    page.get_by_label("Search the log").fill("needle")
    expect(page.get_by_text("not found", exact=True)).to_be_visible()
    held[0].continue_()
    page.unroute(_LIVE_LOG)
    expect(page.get_by_text("1 of 2")).to_be_visible()
    expect(page.locator(".line.hit")).to_have_text("501needle")


def test_the_end_of_a_list_is_reached_that_is_higher_than_browsers_allow(open_page: Open) -> None:
    page = open_page()
    shown: list[str] = page.evaluate(
        """async () => {
            const { h, VirtualList } = await import("/page/static/dom.js");
            const row = (index) => h("i", null, String(index));
            const list = new VirtualList({ rowHeight: 18, label: "", row });
            document.getElementById("main").replaceWith(list.root);
            list.root.classList.add("log");
            const seen = () => {
                const box = list.root.getBoundingClientRect();
                return [...list.inner.children]
                    .map((each) => [each.getBoundingClientRect().top, each.textContent])
                    .filter(([top]) => top >= box.top && top + 18 <= box.bottom + 1)
                    .map(([, text]) => text);
            };
            list.setCount(3_000_000);
            list.root.scrollTop = list.root.scrollHeight;
            list.draw();
            const last = seen().at(-1);
            list.scrollTo(2_000_000);
            const middle = seen().includes("2000000");
            list.root.scrollTop = 0;
            list.draw();
            return [last, middle, seen()[0]];
        }"""
    )
    assert shown == ["2999999", True, "0"]


def test_the_log_of_a_run_whose_worker_streams_it_is_that_of_the_last_checkpoint(
    scenery: Scenery, open_page: Open
) -> None:
    task_id = scenery.create("streamed")
    (client,) = scenery.claim()
    expires = datetime.fromtimestamp(scenery.local.clock.now(), UTC) + timedelta(hours=1)
    stream = {"storageType": "reference", "url": "http://127.0.0.1:1/log", "contentType": "text/plain"}
    with client:
        client.create_artifact(
            task_id, 0, "public/logs/live.log", cast("Any", {**stream, "expires": expires})
        )
        page = open_page(f"/task/{task_id}/log")
        expect(page.get_by_role("link", name="public/logs/live.log")).to_be_visible()
        scenery.upload(client, "public/logs/live_backing.log", "a checkpoint\n", "text/plain")
        expect(page.locator(".line")).to_contain_text("a checkpoint")


def test_messages_are_shown_as_they_are_published(scenery: Scenery, open_page: Open, tmp_path: Path) -> None:
    first = scenery.create("first", routes=["index.demo.first"])
    page = open_page("/messages")
    with no_errors(page):
        entries = page.locator(".entry")
        expect(entries).to_have_count(2)
        second = scenery.create("second")
        expect(entries).to_have_count(4)
        entries.first.click()
        details = page.get_by_role("region", name="Details")
        expect(details).to_contain_text("exchange/taskcluster-queue/v1/task-defined")
        expect(details).to_contain_text("route.index.demo.first")
        expect(details.locator("pre")).to_contain_text(f'"taskId": "{first}"')
        picture(page, "messages", tmp_path)
        page.get_by_label("All exchanges").select_option("task-pending")
        expect(entries).to_have_count(2)
        page.get_by_label("Task, group, queue or route").fill(second)
        expect(entries).to_have_count(1)


def test_a_request_is_shown_that_comes_while_the_view_is_loaded(scenery: Scenery, open_page: Open) -> None:
    page = open_page()

    def respond_late(route: Route) -> None:
        response = route.fetch()
        scenery.create("meanwhile")
        page.wait_for_timeout(600)  # meanwhile, the stream sends this request to the page
        route.fulfill(response=response)

    page.route("**/history", respond_late)
    page.evaluate("location.hash = '#/requests'")
    expect(page.locator(".entry").filter(has=page.get_by_text("PUT", exact=True))).to_have_count(1)
    page.unroute_all(behavior="wait")


def test_requests_say_who_was_refused_and_why(scenery: Scenery, open_page: Open, tmp_path: Path) -> None:
    task_id = scenery.create("refused")
    page = open_page("/requests")
    with no_errors(page):
        scenery.refused(task_id)
        entry = page.locator(".entry").filter(has=page.get_by_text("403", exact=True))
        expect(entry).to_contain_text("poor/reader")
        entry.click()
        details = page.get_by_role("region", name="Details")
        expect(details).to_contain_text("Missing scopes")
        expect(details).to_contain_text(f"queue:cancel-task:-/{scenery.group}/{task_id}")
        picture(page, "requests", tmp_path)
        page.get_by_label("All statuses").select_option("4xx")
        expect(page.locator(".entry")).to_have_count(1)


def test_everything_that_the_first_view_needs_is_fetched_at_once() -> None:
    html = (STATIC / "index.html").read_text()
    preloaded = re.findall(r'rel="modulepreload" href="/page/static/([a-z]+)\.js"', html)
    found = ["app"]
    for name in found:  # the loop extends it
        imports = re.findall(
            r'^import .* from "\./([a-z]+)\.js";', (STATIC / f"{name}.js").read_text(), re.MULTILINE
        )
        found += [each for each in imports if each not in found]
    assert sorted(preloaded) == sorted(found[1:])


def test_times_are_written_on_the_clock_of_the_machine_with_the_day_of_another_one(open_page: Open) -> None:
    page = open_page()
    written = page.evaluate(
        """async () => {
          const { clockTime } = await import("/page/static/words.js");
          const { now } = await import("/page/static/queue.js");
          const date = new Date(now() * 1000);
          date.setHours(9, 5, 7);
          const other = new Date(2024, 0, 3, 23, 4, 5);
          return [clockTime(date / 1000), clockTime(other / 1000)];
        }"""
    )
    assert written == ["09:05:07", "3 Jan 2024 23:04:05"]


def test_the_first_view_is_small_and_the_page_is_usable_on_every_screen(
    scenery: Scenery, open_page: Open
) -> None:
    _graph(scenery)
    page = open_page()
    sizes: int = page.evaluate(
        "performance.getEntriesByType('resource').reduce((sum, each) => sum + each.decodedBodySize, 0)"
    )
    assert sizes < 120_000
    for width in (360, 3840):
        page.set_viewport_size({"width": width, "height": 800})
        for address in (
            "/",
            f"/group/{scenery.group}",
            f"/task/{scenery.claimed[0][0]}",
            "/messages",
            "/faults",
            "/new",
        ):
            go(page, address)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(CUT_LISTS) == [], address


CUT_LISTS = """[...document.querySelectorAll("ul")]
    .filter((list) => list.scrollWidth > list.clientWidth).map((list) => list.ariaLabel)"""


def test_views_follow_1000_messages_a_second(local: LocalQueue, scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("busy")
    page = open_page("/messages")
    page.locator(".entry").first.wait_for()
    page.evaluate(
        "() => { window.updates = 0; new MutationObserver(() => window.updates++).observe("
        "document.querySelector('.inner'), {childList: true, subtree: true, characterData: true}); }"
    )
    message = _latest_message(local, scenery, task_id)
    started: float = page.evaluate("performance.now()")
    for number in range(1, 21):
        local.call(lambda: _repeat(message, 100))
        expect(page.locator("header .quiet[role=status]")).to_have_text(str(6 + 100 * number))
    seconds = (page.evaluate("performance.now()") - started) / 1000
    assert page.evaluate("window.updates") <= 4 * (20 * seconds + 5)  # each update makes a few mutations
    assert _elements(page) < MOST_NODES


def _repeat(act: Callable[[], object], times: int) -> None:
    for _ in range(times):
        act()


def _latest_message(local: LocalQueue, scenery: Scenery, task_id: str) -> Callable[[], object]:
    """Return a function that publishes a message of a task once more, as the engine does."""
    seen: list[Any] = []
    local.subscribe(seen.append)
    scenery.queue.change_task_priority(task_id, "high")
    for priority in ("low", "medium", "high"):
        scenery.queue.change_task_priority(task_id, priority)
    audience = local._audience  # pyright: ignore[reportPrivateUsage] - no API publishes a thousand at once
    return lambda: audience.publish(seen[0])


def test_a_task_with_many_dependents_shows_that_there_are_more(scenery: Scenery, open_page: Open) -> None:
    task_id = scenery.create("first")
    for number in range(101):
        scenery.create(f"after {number}", [task_id])
    page = open_page(f"/task/{task_id}")
    expect(page.get_by_text("more than 100")).to_be_visible()
