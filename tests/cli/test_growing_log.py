"""A log that begins again at its start: each line is written once."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client.cli.log import JsonLines, LineWriter

texts = st.lists(st.sampled_from([b"\n", b"a", b"bc", b" ", b"\xff"]), max_size=20).map(b"".join)


@given(texts, st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=4))
def test_a_text_that_is_cut_anywhere_and_begins_again_is_written_once(
    text: bytes, cuts: list[tuple[int, int]]
) -> None:
    written: list[bytes] = []
    writer = LineWriter(written.append)
    for end, size in [*cuts, (len(text), 3)]:
        writer.begin_again()
        for at in range(0, min(end, len(text)), size):
            writer.write(text[at : min(at + size, end)])
    assert b"".join(written) == text


def test_a_line_that_got_shorter_is_not_written_again() -> None:
    written: list[bytes] = []
    writer = LineWriter(written.append)
    writer.write(b"10%\r20%\rdone\nnext")
    writer.begin_again()
    writer.write(b"done\nnext line\nlast\n")
    assert b"".join(written) == b"10%\r20%\rdone\nnext line\nlast\n"


def test_a_progress_bar_whose_line_has_not_ended_is_written_again_with_its_last_state() -> None:
    written: list[bytes] = []
    writer = LineWriter(written.append)
    writer.write(b"10%\r20%\r")
    writer.begin_again()
    writer.write(b"done\nlast\n")
    assert b"".join(written) == b"10%\r20%\rdone\nlast\n"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_are_objects_however_the_log_is_cut(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = "one\n\ntwö\r→\nthe end".encode()
    lines = JsonLines()
    for at in range(0, len(text), size):
        lines(text[at : at + size])
    lines.close()
    printed = [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["one", "", "twö\r→", "the end"]


def test_a_line_as_long_as_the_log_takes_time_in_proportion_to_its_length() -> None:
    def seconds(blocks: int) -> float:
        lines, begun = JsonLines(), time.thread_time()
        for _ in range(blocks):
            lines(1024 * b"x")
        return time.thread_time() - begun

    assert seconds(8_000) < 100 * seconds(500) + 1  # 16 times the blocks: 256 if it were quadratic
