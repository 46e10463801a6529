"""A real browser, and a queue with a page for it."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from taskqueue_client.local import LocalQueue

from .scenery import Scenery

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

AXE = Path.home() / ".cache/taskqueue-client/node_modules/axe-core/axe.min.js"
PICTURES = os.environ.get("TASKQUEUE_DOCS_PICTURES")  # a folder: the pictures of the documentation go there
_MILLISECONDS = 20_000  # that a condition may take on a busy machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's Chromium. Not for the whole session: while it runs, no test can start an event loop."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        if "TASKQUEUE_REQUIRE_BROWSER" in os.environ:
            pytest.fail("there is no Chromium on the PATH")
        pytest.skip("there is no Chromium on the PATH")
    playwright.expect.set_options(timeout=_MILLISECONDS)
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which `.ci/run` installs."""
    if not AXE.exists():
        if "TASKQUEUE_REQUIRE_BROWSER" in os.environ:
            pytest.fail(f"axe-core is not installed: {AXE} does not exist")
        pytest.skip(f"axe-core is not installed: {AXE} does not exist")
    return AXE.read_text()


@pytest.fixture
def local() -> Iterator[LocalQueue]:
    with LocalQueue(page=True) as queue:
        yield queue


@pytest.fixture
def scenery(local: LocalQueue) -> Iterator[Scenery]:
    made = Scenery(local)
    yield made
    made.queue.close()


@pytest.fixture
def open_page(browser: Browser, local: LocalQueue) -> Iterator[Callable[..., Page]]:
    """Open a window with the page of the queue, in a separate browser profile."""
    contexts: list[BrowserContext] = []

    def open_it(address: str = "", *, width: int = 1280, height: int = 800, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
        )
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.set_default_timeout(_MILLISECONDS)
        assert local.page_url is not None
        page.goto(local.page_url)
        page.get_by_text("live", exact=True).wait_for()
        if address:
            page.goto(f"{local.root_url}/#{address}")
        return page

    yield open_it
    for context in contexts:
        context.close()


def go(page: Page, address: str) -> None:
    """Go to a view, and wait until it is shown."""
    page.goto(f"{page.url.partition('#')[0]}#{address}")
    shown: str = page.evaluate("location.hash")
    page.wait_for_selector(f"main[data-shown={json.dumps(shown)}] .panel", state="attached")


@contextmanager
def no_errors(page: Page) -> Generator[None]:
    """Fail if the page's console has an error within the block."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    yield
    assert errors == []


def picture(page: Page, name: str, tmp_path: Path) -> None:
    """Take a picture of a view, for the documentation if `TASKQUEUE_DOCS_PICTURES` is set."""
    folder = Path(PICTURES) if PICTURES else tmp_path
    assert len(page.screenshot(path=folder / f"{name}.png")) > 1000
