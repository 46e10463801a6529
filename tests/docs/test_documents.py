"""The runner of examples notices what is wrong with them."""

from __future__ import annotations

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


def test_what_an_example_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run("```python\n1 / 0\n```\n")


def test_examples_share_their_names_and_hidden_ones_with_them() -> None:
    assert run("<!-- hidden:\na = 1\n-->\n```python\nb = a + 1\n```\n```python\nassert b == 2\n```\n") == 3


def test_a_command_that_fails_is_noticed() -> None:
    with pytest.raises(SybilFailure, match="exit status 3"):
        run("```console\n$ exit 3\n```\n")


def test_a_command_that_prints_something_else_is_noticed() -> None:
    with pytest.raises(SybilFailure, match="expected:\ngood"):
        run("```console\n$ echo bad\ngood\n```\n")


def test_three_dots_stand_for_anything() -> None:
    assert run("```console\n$ echo one two three\none ... three\n$ true\n```\n") == 1


def test_a_file_is_there_for_the_examples_after_it() -> None:
    run("<!-- file: a.yml -->\n\n```yaml\nkey: value\n```\n\n```console\n$ cat a.yml\nkey: value\n```\n")


def test_a_block_that_says_why_is_not_run() -> None:
    run("<!-- not run: it takes a day -->\n\n```python\n1 / 0\n```\n")


def test_a_block_in_an_unknown_language_has_to_say_why_it_is_not_run() -> None:
    with pytest.raises(SybilFailure, match="nothing is known of the language"):
        run("```ruby\nputs 1\n```\n")
