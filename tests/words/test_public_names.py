"""The names of `import taskqueue_client`, and the modules that it imports only on first use."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import taskqueue_client
from taskqueue_client import calls

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_every_public_name_can_be_had() -> None:
    public = [name for name in dir(taskqueue_client) if not name.startswith("_")]
    assert {"AsyncQueue", "LocalQueue", "Queue", "WorkerLoop"} <= set(public)
    assert all(getattr(taskqueue_client, name) is not None for name in public)


@pytest.mark.parametrize("client", [taskqueue_client.Queue, taskqueue_client.AsyncQueue])
def test_a_client_shows_calls_and_what_users_need_beside_them(client: type) -> None:
    shown = {name for name in dir(client) if not name.startswith("_")}
    own = {"close", "credentials", "from_env", "now", "root_url", "send", "signed_url"}
    copies = {"with_credentials", "with_options"}
    assert shown - set(calls.__all__) == own | copies | TRANSFERS


TRANSFERS = {
    *("create_error_artifact", "create_link_artifact", "create_reference_artifact"),
    *("download_artifact", "stream_artifact", "upload_artifact", "upload_artifacts", "verify_chain_of_trust"),
}
"""The methods of clients that make several calls."""


def test_all_names_are_those_that_the_package_imports_itself_or_when_asked() -> None:
    modules = {name for name, value in vars(taskqueue_client).items() if isinstance(value, ModuleType)}
    public = {name for name in dir(taskqueue_client) if not name.startswith("_")}
    assert set(taskqueue_client.__all__) == public - modules - {"TYPE_CHECKING", "Any", "annotations"} | {
        "errors"
    }
    assert taskqueue_client.__all__ == sorted(taskqueue_client.__all__)


def test_scripts_that_submit_and_listen_need_no_posix() -> None:
    """As on Windows, which lacks these modules."""
    program = """if True:
        import sys
        sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "pty", "resource", "termios", "tty"))
        from taskqueue_client import AsyncQueue, Credentials, Queue, artifacts, graph, scopes, slugid
        from taskqueue_client.events import AsyncListener, Listener
        from taskqueue_client.cli import artifacts, listen, log, status, submit, task_actions
        Queue("https://tc.example.com").upload_artifacts, AsyncQueue("https://tc.example.com").upload_artifacts
    """
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


PUBLIC = [
    f"taskqueue_client.{each}"
    for each in [
        "artifacts",
        "calls",
        "clock",
        "credentials",
        "definitions",
        "errors",
        "events",
        "graph",
        "legacy",
        "local",
        "local.faults",
        "models",
        "models.messages",
        "scopes",
        "testing",
        "worker",
    ]
]
"""The modules that users import from, besides `taskqueue_client` itself."""


def documented() -> dict[str, set[str]]:
    """Return the names that the reference documents, by the module under which it names them."""
    names: dict[str, set[str]] = defaultdict(set)
    for page in sorted(REFERENCE.glob("*.md")):
        text = page.read_text()
        for kind, name, options in _DIRECTIVE.findall(text):
            module, _, attribute = name.rpartition(".")
            names[name if kind == "module" else module].update(
                _members(name, options) if kind == "module" else {attribute}
            )
        if listed := re.search(r"names in `(\S+)`", text):
            names[listed[1]].update(*(re.findall(r"``(\w+)``", table) for table in _TABLE.findall(text)))
    return names


_DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (taskqueue_client\S*)\n((?:   :.*\n)*)", re.MULTILINE)
_TABLE = re.compile(r"^\.\. list-table::\n(?:(?:   .*)?\n)+", re.MULTILINE)


def _members(module: str, options: str) -> set[str]:
    """Return the members that `automodule` shows: those listed, or `__all__`, or all described."""
    found = re.search(r":members:(.*)", options)
    if found is None:
        return set()
    excluded = re.search(r":exclude-members:(.*)", options)
    module_object = importlib.import_module(module)
    shown = _described(module_object) if "ignore-module-all" in options else {*module_object.__all__}
    return ({*re.findall(r"\w+", found[1])} or shown) - {*re.findall(r"\w+", excluded[1] if excluded else "")}


def _described(module: ModuleType) -> set[str]:
    """Return the public classes, functions and described values that a module defines itself."""
    body = ast.parse(inspect.getsource(module)).body
    names = {each.name for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
    for value, after in pairwise(body):
        if isinstance(value, ast.Assign) and isinstance(after, ast.Expr):
            names |= {each.id for each in value.targets if isinstance(each, ast.Name)}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_offers_what_the_reference_documents_and_nothing_else(module: str) -> None:
    offered = importlib.import_module(module).__all__
    assert set(offered) == documented()[module]
    assert all(hasattr(importlib.import_module(module), name) for name in offered)


def test_the_reference_documents_public_modules_only() -> None:
    assert sorted(documented().keys() - {""}) == PUBLIC


def test_a_public_module_gives_each_name_that_it_takes_from_an_inner_module_in_its_all() -> None:
    for name in PUBLIC:
        module = importlib.import_module(name)
        classes = [
            each
            for each, value in vars(module).items()
            if isinstance(value, type) and value.__module__.startswith(name) and not each.startswith("_")
        ]
        assert [each for each in classes if each not in module.__all__ and (name, each) not in INTERNAL] == []


INTERNAL = {
    ("taskqueue_client.legacy", "StoragePolling"),  # a benchmark polls with it
    ("taskqueue_client.legacy", "UrlRefused"),  # raised within the module
    ("taskqueue_client.local.faults", "FaultInjector"),  # the server's part
    ("taskqueue_client.models", "Credentials"),  # of `taskqueue_client.credentials`
    ("taskqueue_client.models", "OpenEnum"),  # the base of the enumerations
}
"""Defined in public modules, and not for users."""


def _imports(text: str) -> Iterator[str]:
    """Yield the module of each import from the package in code that readers see."""
    for module, names in re.findall(
        r"^\s*(?:>>> )?from (taskqueue_client[\w.]*) import (.*)", text, re.MULTILINE
    ):
        within = [f"{module}.{each}" for each in re.findall(r"\w+", names)]
        yield next((each for each in within if each in PUBLIC), module)


ROOT = REFERENCE.parents[1]
READ_BY_USERS = [
    ROOT / "README.md",
    *(each for each in ROOT.glob("docs/**/*.md") if each.name not in {"architecture.md", "leases.md"}),
    *ROOT.glob("examples/**/*.py"),
]


@pytest.mark.parametrize("path", READ_BY_USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_and_examples_import_from_public_modules(path: Path) -> None:
    shown = re.sub(r"<!-- hidden:.*?-->", "", path.read_text(), flags=re.DOTALL)
    assert set(_imports(shown)) - {"taskqueue_client", *PUBLIC} == set()


def test_the_reference_lists_every_name_at_the_top_of_the_package() -> None:
    page = (REFERENCE / "client.md").read_text().partition(".. list-table::")[2].partition("Calls as data")[0]
    assert {*re.findall(r"``(\w+)``", page)} == set(taskqueue_client.__all__)


def test_a_star_import_has_every_public_name() -> None:
    program = (
        "import taskqueue_client as package, sys; imported = set(sys.modules);"
        "from taskqueue_client import *;"
        "print(sorted(set(package.__all__) - set(globals())), 'requests' in imported, 'aiohttp' in imported)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[] False False"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Quue'"):
        _ = taskqueue_client.Quue  # type: ignore[attr-defined] # what the test is about


def test_the_blocking_client_does_not_import_what_it_does_not_need() -> None:
    program = (
        "import sys; from taskqueue_client import Queue; Queue('http://h');"
        "heavy = {'aiohttp', 'asyncio', 'jsonschema', 'tenacity', 'mohawk', 'sqlite3', 'aio_pika'};"
        "print(heavy & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
