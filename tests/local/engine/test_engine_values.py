"""The small parts: times, collation, tokens, and the store."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskqueue_client.local import times
from taskqueue_client.local.engine import Store, pages
from taskqueue_client.local.engine.pages import decode_index, encode_index
from taskqueue_client.local.engine.store import sort_key
from taskqueue_client.local.javascript_values import in_database_order
from taskqueue_client.local.refusal import Refusal

if TYPE_CHECKING:
    from pathlib import Path

MOMENT = 1_795_255_999_120


def test_a_time_has_a_form_for_each_place() -> None:
    assert times.text(MOMENT) == "2026-11-21T10:13:19.120Z"
    assert times.database_text(MOMENT) == "2026-11-21T10:13:19.12+00:00"
    assert times.database_text(MOMENT - 120) == "2026-11-21T10:13:19+00:00"
    assert times.seconds_text(MOMENT) == "1795255999.12"
    assert times.seconds_text(MOMENT - 120) == "1795255999"


@pytest.mark.parametrize(
    "given",
    [
        "2026-11-21T10:13:19.120Z",
        "2026-11-21t10:13:19.12z",
        "2026-11-21 10:13:19.1209999+00:00",
        "2026-11-21T10:13:19.120",
        "2026-11-21T11:13:19.120+0100",
        "2026-11-21 11:13:19.120+01",
    ],
)
def test_times_are_read_in_all_forms_that_the_service_takes(given: str) -> None:
    assert times.parse(given, "when") == MOMENT


@pytest.mark.parametrize("given", ["", "tomorrow", "2026-11-21T10:13:60Z", "0001-01-01T00:00:00+14:00"])
def test_a_text_that_is_not_a_time_is_refused_by_name(given: str) -> None:
    with pytest.raises(Refusal, match="`when`"):
        times.parse(given, "when")


def test_a_year_later_29_february_is_1_march() -> None:
    start = times.parse("2028-02-29T12:00:00Z", "when")
    assert times.text(times.add_years(start, 1)) == "2029-03-01T12:00:00.000Z"
    assert times.text(times.add_years(start, 4)) == "2032-02-29T12:00:00.000Z"


def test_texts_sort_as_under_glibcs_english_locale() -> None:
    # What `sort` of glibc 2.36 makes of these under en_US.UTF-8.
    expected = ["$1", "1-1", "11", "12", "a_b", "ab", "aB", "A-b", "Ab", "AB", "abc", "a-c", "b"]
    shuffled = random.Random(1).sample(expected, len(expected))
    assert sorted(shuffled, key=sort_key) == expected


def test_different_texts_never_sort_alike() -> None:
    texts = [a + b for a in "aA-_/. 1$" for b in "aA-_/. 1$"]
    assert len({sort_key(text) for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("number", "token"),
    [(0, "xa63OW3q4b"), (1, "qzxkXG8ZWa"), (2, "jGzmdv8vpK"), (1000, "xa63Olw8q4")],
)
def test_offset_tokens_are_hashids(number: int, token: str) -> None:
    assert pages.encode_offset(number) == token
    assert pages.decode_offset(token) == number


def test_every_offset_token_can_be_read_back() -> None:
    for number in [*range(3000), 10**6, 2**40, 2**53]:
        assert pages.decode_offset(pages.encode_offset(number)) == number


@pytest.mark.parametrize("token", ["", "a", "abcdef", "qzxkXG8ZWb", "1" * 100])
def test_other_texts_are_not_offset_tokens(token: str) -> None:
    assert pages.decode_offset(token) is None


def test_index_tokens_are_base64_of_json() -> None:
    token = "WyJOYjhWVURDY1ROUzAyY2VWYzZ4VkNnIiwwLCJwdWJsaWMvZXJyb3IiXQ=="
    key = ("Nb8VUDCcTNS02ceVc6xVCg", 0, "public/error")
    assert encode_index(*key) == token
    assert decode_index(token, tuple[str, int, str]) == key


@pytest.mark.parametrize("token", ["WyJhIiwwLCJiIl0=", "WyJhIiwwLCJiIl0", "WyJhIiww LCJiIl0=="])
def test_an_index_token_may_lack_its_padding(token: str) -> None:
    assert decode_index(token, tuple[str, int, str]) == ("a", 0, "b")


@pytest.mark.parametrize("token", [None, "", "rubbish", "é", "W10=", "eyJhIjoxfQ=="])
def test_garbage_is_not_an_index_token(token: str | None) -> None:
    assert decode_index(token, tuple[str, int, str]) is None


def test_a_store_in_a_file_has_its_rows_when_it_is_opened_again(tmp_path: Path) -> None:
    path = str(tmp_path / "q.sqlite")
    store = Store(path)
    with store.transaction(keep=KeyError):
        store.change("INSERT INTO task_groups VALUES ('g', 's', 1, NULL)")
    store.close()
    again = Store(path)
    assert again.rows("SELECT * FROM task_groups") == [("g", "s", 1, None)]
    again.close()


def insert(store: Store, *groups: tuple[str, str], error: type[Exception] | None = None) -> None:
    """Insert groups in one transaction, and then raise an error in it."""
    with store.transaction(keep=KeyError):
        for group in groups:
            store.change("INSERT INTO task_groups VALUES (?, ?, 1, NULL)", *group)
        if error is not None:
            raise error


def test_a_transaction_is_undone_by_any_error_except_those_to_keep(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "q.sqlite"))
    for name, error in (("undone", ValueError), ("kept", KeyError)):
        with pytest.raises(error):
            insert(store, (name, "s"), error=error)
    assert store.rows("SELECT task_group_id FROM task_groups") == [("kept",)]
    store.close()


def test_a_full_disk_undoes_the_transaction_and_the_store_goes_on(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "q.sqlite"))
    pages = store.value("PRAGMA page_count")
    store.rows(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        insert(store, ("small", "s"), ("big", "x" * 100_000))
    assert store.rows("SELECT 1 FROM task_groups") == []
    insert(store, ("small", "s"))
    assert store.rows("SELECT task_group_id FROM task_groups") == [("small",)]
    store.close()


def test_two_processes_cannot_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "q.sqlite")
    first = Store(path)
    with first.transaction(keep=KeyError):
        first.change("INSERT INTO task_groups VALUES ('g', 's', 1, NULL)")
    other = sqlite3.connect(path, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("SELECT * FROM task_groups")
    other.close()
    first.close()


READ = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT * FROM task_groups')"


def test_a_second_store_in_the_process_does_not_end_the_lock_that_keeps_other_processes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "q.sqlite")
    first = Store(path)
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0))
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        Store(path)
    command = [sys.executable, "-c", READ, path]
    other = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    first.close()
    assert "database is locked" in other.stderr


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "q.sqlite")
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(sqlite3.DatabaseError, match="written by version 99"):
        Store(path)


def _is_array_index(key: str) -> bool:
    return key.isascii() and key.isdecimal() and str(int(key)) == key and int(key) < 2**32 - 1


@given(st.lists(st.text(st.sampled_from("0129:/a_é\N{SNOWMAN}"), max_size=3) | st.text(max_size=12)))
@example(["a", "90"])
@example(["a", "10"])
@example(["b", "a", "aa", "", "10", "9", "4294967294", "4294967295", "01", "é", "ab"])
def test_keys_are_in_the_database_s_order_after_those_that_javascript_takes_for_indices(
    keys: list[str],
) -> None:
    indices = [key for key in keys if _is_array_index(key)]
    others = sorted({*keys} - {*indices}, key=lambda key: (len(key.encode()), key.encode()))
    assert [*in_database_order(dict.fromkeys(keys, 1.0))] == [*sorted({*indices}, key=int), *others]
