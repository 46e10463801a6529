"""The runner of examples notices each way in which an example can be wrong."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from sybil.example import SybilFailure

from tests.docs import documents


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(text: str) -> int:
    page = Path("page.md")
    page.write_text(text)
    return documents.run(documents.read_page(page))


def test_an_error_of_an_example_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run("```python\n1 / 0\n```\n")


def test_all_examples_of_a_page_share_their_names_also_hidden_ones() -> None:
    assert run("<!-- hidden:\na = 1\n-->\n```python\nb = a + 1\n```\n```python\nassert b == 2\n```\n") == 3


def test_a_name_that_readers_do_not_see_is_noticed() -> None:
    page = Path("page.md")
    page.write_text(
        "`said` is a list.\n<!-- hidden:\na = b = 1  # `a`\n-->\n"
        "```python\nimport os\n\ndef f(own):\n    return a, own, said, os, later, [x for x in own]\n```\n"
        "```python\nlater = len(b)\n```\n"
    )
    assert documents.unexplained_names(page) == {"a", "b", "later"}


def test_a_command_that_fails_is_noticed() -> None:
    with pytest.raises(SybilFailure, match="exit status 3"):
        run("```console\n$ exit 3\n```\n")


def test_a_command_that_prints_something_else_is_noticed() -> None:
    with pytest.raises(SybilFailure, match="expected:\ngood"):
        run("```console\n$ echo bad\ngood\n```\n")


def test_three_dots_stand_for_anything() -> None:
    assert run("```console\n$ echo one two three\none ... three\n$ true\n```\n") == 1


def test_a_file_is_there_for_the_examples_after_it() -> None:
    page = "<!-- file: a.yml -->\n\n```yaml\nkey: value\n```\n\n```console\n$ cat a.yml\nkey: value\n```\n"
    assert run(page) == 2
    assert Path("a.yml").read_text() == "key: value\n"


def test_a_block_that_says_why_is_not_run() -> None:
    run("<!-- not run: it takes a day -->\n\n```python\nopen('made', 'w')\n```\n")
    assert not Path("made").exists()


def test_a_block_in_an_unknown_language_has_to_say_why_it_is_not_run() -> None:
    with pytest.raises(SybilFailure, match="nothing is known of the language"):
        run("```ruby\nputs 1\n```\n")


def test_a_command_that_goes_on_is_interrupted_when_it_has_printed_what_is_shown() -> None:
    Path("goes_on.py").write_text(
        "import signal\ntry:\n    print('begun', flush=True)\n    signal.pause()\n"
        "except KeyboardInterrupt:\n    open('ended', 'w').close()\n"
    )
    run(f"<!-- until: Ctrl-C -->\n\n```console\n$ {shlex.quote(sys.executable)} goes_on.py\nbegun\n```\n")
    assert Path("ended").exists()


def test_a_command_that_goes_on_and_prints_something_else_is_noticed() -> None:
    with pytest.raises(SybilFailure, match="expected:\ngood"):
        run("<!-- until: Ctrl-C -->\n\n```console\n$ echo bad\ngood\n```\n")


def test_a_command_that_does_not_handle_an_interruption_is_noticed() -> None:
    with pytest.raises(SybilFailure, match="ended by signal 2"):
        run("<!-- until: Ctrl-C -->\n\n```console\n$ bash -c 'echo begun; exec sleep 600'\nbegun\n```\n")


def test_blocks_that_are_not_run_are_found() -> None:
    page = Path("page.md")
    page.write_text(
        "<!-- not run: why -->\n\n```console\n$ a\n```\n\n```text\nb\n```\n\n```python\nc = 1\n```\n"
    )
    assert documents.left_alone(page) == ["console", "text"]


@pytest.mark.parametrize(
    ("docstring", "count"),
    [
        ("Words.\n\n    with a as b:\n        c(b)\n", 1),
        ("Words.\n\ngraph = plan({\n    1: \N{HORIZONTAL ELLIPSIS},\n})\n", 1),
        ("Words.\n\n    >>> f()  # doctest: +SKIP\n", 1),
        ("Words:\nmore of them.\n\nArgs:\n    a: The first.\n\n    >>> f(1)\n    2\n", 0),
    ],
    ids=["indented", "abridged", "skipped", "run"],
)
def test_code_in_docstrings_that_is_not_run_is_found(docstring: str, count: int) -> None:
    module = Path("module.py")
    module.write_text(f'"""{docstring}"""\n')
    assert len(documents.left_alone_in_docstrings(module)) == count
