from __future__ import annotations

import os
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sphinx.ext.napoleon.docstring import GoogleDocstring

from taskqueue_client.local import LocalQueue
from tests.broker import require_broker
from tests.docs import documents

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changelog/*.md")])
PAGES_WITH_EXAMPLES = [path for path in PAGES if re.search(r"^```\w", path.read_text(), re.MULTILINE)]
MODULES = sorted(ROOT.glob("taskqueue_client/**/*.py"))
MODULES_WITH_EXAMPLES = [path for path in MODULES if ">>> " in path.read_text()]
FRAGMENTS = sorted(path for path in ROOT.glob("changelog/*") if path.name != "README.md")
NOT_RUN = {
    "CONTRIBUTING.md": ["console"],
    "README.md": ["console", "text", "console"],
    "docs/fault-campaign.md": ["console"],
    "docs/how-to/chain-of-trust.md": ["console"],
    "docs/how-to/deploying.md": ["console"],
    "docs/how-to/events.md": ["console"],
    "docs/how-to/legacy-polling.md": ["console", "console"],  # they need a storage account
    "docs/how-to/tracing.md": ["console"],
    "docs/how-to/worker-runner.md": ["console"],
    "docs/leases.md": ["text"],
    "docs/tutorial.md": ["console"],
}
"""The languages of blocks that no test runs: pictures, and commands such as those that install things."""
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def local(page: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalQueue]:
    amqp_url = require_broker() if "needs: rabbitmq" in page.read_text() else None
    if amqp_url:
        monkeypatch.setenv("PULSE_URL", amqp_url)
    with LocalQueue(amqp_url=amqp_url) as local:
        yield local


@pytest.fixture
def reader(local: LocalQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a reader who tries the examples: in an empty directory, with a queue in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKCLUSTER_ROOT_URL", local.root_url)
    monkeypatch.setenv("TASKCLUSTER_CLIENT_ID", local.client_id)
    monkeypatch.setenv("TASKCLUSTER_ACCESS_TOKEN", local.access_token)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::DeprecationWarning")  # of installed plugins
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=name_of, indirect=True)
@pytest.mark.usefixtures("reader")
def test_the_examples_of_a_page_do_what_it_says(page: Path) -> None:
    assert documents.run(documents.read_page(page)) > 0


@pytest.mark.parametrize("page", MODULES_WITH_EXAMPLES, ids=name_of, indirect=True)
@pytest.mark.usefixtures("reader")
def test_the_examples_of_docstrings_do_what_they_say(page: Path) -> None:
    assert documents.run(documents.read_docstrings(page)) > 0


def test_only_known_blocks_of_pages_are_not_run() -> None:
    found = {name_of(page): documents.left_alone(page) for page in PAGES}
    assert {name: blocks for name, blocks in found.items() if blocks} == NOT_RUN


def test_readers_see_where_each_name_of_an_example_comes_from() -> None:
    found = {name_of(page): documents.unexplained_names(page) for page in PAGES}
    assert {name: names for name, names in found.items() if names} == {}


def test_all_code_in_docstrings_is_run() -> None:
    found = {name_of(module): documents.left_alone_in_docstrings(module) for module in MODULES}
    assert {name: code for name, code in found.items() if code} == {}


def test_the_extras_that_pages_install_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        extra
        for page in PAGES
        for extras in re.findall(r"^\$ pip install .*\[([\w,]+)\]", page.read_text(), re.MULTILINE)
        for extra in extras.split(",")
    }
    assert named
    assert named <= set(project["optional-dependencies"])


def test_the_architecture_names_every_module_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = "".join(re.findall(r"^\| \d \|(.*?)\|", text, re.MULTILINE))
    package = ROOT / "taskqueue_client"
    modules = {
        path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert set(re.findall(r"`(\w+)`", table)) == modules - {"__init__"}
    named = re.findall(r"`([\w/.-]+(?:\.(?:py|toml|md|yml)|/))`", text)
    assert len(named) > 50
    assert [each for each in named if not ((package / each).exists() or (ROOT / each).exists())] == []


def test_a_colon_in_the_first_line_of_a_property_does_not_make_it_a_type() -> None:
    lines = ["The run's number: `0` is the first run.", "", "More."]
    runpy.run_path(str(ROOT / "docs" / "conf.py"))["read_markdown"](
        None, "property", "run_id", None, {}, lines
    )
    converted = GoogleDocstring(lines, what="property", name="run_id").lines()
    assert converted[:3] == ["The run's number:", "``0`` is the first run.", ""]


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=name_of)
def test_a_fragment_of_the_change_log_says_what_kind_it_is(fragment: Path) -> None:
    assert fragment.name.removesuffix(".md").rpartition(".")[2] in KINDS


NOT_SAID = (
    "of its own accord",
    "when left out",
    " renewed",
    "renewal",
    "answer came",
    "hang up",
    "as often as ever",
    "hoever ",
    "as ever",
    " time is over",
    "come what may",
    "but for ",
    "a text of at most",
    "text or a path",
    "values are texts",
)
"""Phrases with a plainer form, such as by itself, by default, reclaimed, response, close, as usual, a str."""


@pytest.mark.parametrize("path", [*PAGES, *MODULES], ids=name_of)
def test_a_text_uses_the_terms_of_the_field(path: Path) -> None:
    text = " ".join(path.read_text().split())
    assert [phrase for phrase in NOT_SAID if phrase in text] == []


CODE = sorted([*MODULES, *ROOT.glob("taskqueue_client/**/*.js"), *ROOT.glob("examples/**/*.py")])


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_names_and_texts_of_code_say_response_not_answer(path: Path) -> None:
    assert re.findall(r"\w*answer\w*", path.read_text(), re.IGNORECASE) == []


WIDEST = 90
"""Characters that fit a line of a code block in the built documentation, at a window width of 1280 px."""


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=name_of)
def test_lines_of_code_fit_a_window_of_1280_px(page: Path) -> None:
    text = page.read_text()
    blocks = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    included = re.findall(r"^```\{literalinclude\} (\S+)$", text, re.MULTILINE)
    blocks += [(page.parent / name).read_text() for name in included]
    assert [line for block in blocks for line in block.splitlines() if len(line) > WIDEST] == []


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=name_of)
def test_the_copy_button_gets_all_lines_of_a_command(page: Path) -> None:
    blocks = re.findall(r"^ *```console\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    continued = [line for block in blocks for line in re.findall(r"\\\n *(.*)", block)]
    assert [line for line in continued if not line.startswith("> ")] == []


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_trees_in_docstrings_fit_a_window_of_1280_px(module: Path) -> None:
    trees = [line for line in module.read_text().splitlines() if "── " in line]
    assert [line for line in trees if len(line) > WIDEST] == []
