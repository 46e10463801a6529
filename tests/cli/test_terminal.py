"""`taskqueue log` on a terminal: a task's log does not control it."""

from __future__ import annotations

import json
import os
import pickle
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import lists, sampled_from

from taskqueue_client import Queue
from taskqueue_client.cli.output import TerminalFilter, print_json
from taskqueue_client.definitions import from_now
from tests.cli.command import COMMAND
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.usefixtures("deployment")

RED = b"\x1b[1;31mred\x1b[0m"
CLIPBOARD = b"\x1b]52;c;cm0gLXJmIC8=\x07"

LOGS = [
    (b"plain, h\xc3\xa4\xc3\x9f, \xe8\x9b\x9b\n", b"plain, h\xc3\xa4\xc3\x9f, \xe8\x9b\x9b\n"),
    (RED, RED),
    (b"\x1b[38:2::1:2:3mx\x1b[m", b"\x1b[38:2::1:2:3mx\x1b[m"),
    (b"10%\r20%\tdone\r\n", b"10%\r20%\tdone\r\n"),
    (b"a" + CLIPBOARD + b"b", b"ab"),
    (b"a\x1b]0;a title\x1b\\b", b"ab"),
    (b"a\x1b]8;;https://example.com\x1b\\link\x1b]8;;\x1b\\b", b"alinkb"),
    (b"a\x1bPdevice control\x1b\\b\x1b_program\x1b\\c\x1b^private\x1b\\d\x1bXstring\x1b\\e", b"abcde"),
    (b"a\x1b]0;no end\nb", b"a\nb"),
    (b"a\x1b]0;no end" + RED, b"a" + RED),
    (b"a\x1b[2J\x1b[H\x1b[1A\x1b[?1049h\x1b[6n\x1b[>4;2mb", b"ab"),
    (b"a\x1b[1 qb\x1b[!pc", b"abc"),
    (b"a\x1bcb\x1b(0c\x1b7d", b"abcd"),
    (b"a\xc2\x9b2Jb", b"a2Jb"),
    (b"a\xc2\x07\x9b2Jb\xff\xed\xa0\x80", "a\ufffd\ufffd2Jb\ufffd\ufffd\ufffd\ufffd".encode()),
    ("a\u202eb\u202d\u2066c\u2069\u202c, שלום\u200f\u2026".encode(), "abc, שלום\u200f\u2026".encode()),
    (b"a\x07\x08\x00\x0e\x7fb", b"ab"),
    (b"a\x1b\nb", b"a\nb"),
    (b"a\x1b\xc3\xa4b", b"a\xc3\xa4b"),
]


@pytest.mark.parametrize(("log", "shown"), LOGS)
def test_colors_pass_and_other_control_sequences_are_removed(log: bytes, shown: bytes) -> None:
    assert TerminalFilter().filtered(log) + TerminalFilter().filtered(b"") == shown


@pytest.mark.parametrize(("log", "shown"), LOGS)
def test_a_sequence_may_be_cut_anywhere(log: bytes, shown: bytes) -> None:
    for at in range(len(log) + 1):
        of_log = TerminalFilter()
        assert of_log.filtered(log[:at]) + of_log.filtered(log[at:]) == shown
    of_log = TerminalFilter()
    assert b"".join(of_log.filtered(log[at : at + 1]) for at in range(len(log))) == shown


def test_a_string_without_an_end_takes_no_memory_and_hides_one_line() -> None:
    of_log = TerminalFilter()
    assert of_log.filtered(b"\x1b]0;") == b""
    for _ in range(100):
        assert of_log.filtered(b"x" * 10_000) == b""
    assert len(pickle.dumps(of_log)) < 1000
    assert of_log.filtered(b"x\nnext") == b"\nnext"


def test_a_sequence_of_endless_parameters_is_text() -> None:
    assert TerminalFilter().filtered(b"\x1b[" + b"1" * 1000) == b"1" * 1000


PIECES = [bytes([byte]) for byte in b"\x1b[]P\\\x07\nm1; a\xc2\x9b\x18"]


@given(lists(lists(sampled_from(PIECES), max_size=8).map(b"".join), max_size=8))
def test_only_colors_of_any_log_are_shown_however_it_is_cut_into_blocks(blocks: list[bytes]) -> None:
    of_log = TerminalFilter()
    shown = b"".join(map(of_log.filtered, blocks))
    assert shown == TerminalFilter().filtered(b"".join(blocks))
    rest = re.sub(rb"\x1b\[[0-9;:]*m", b"", shown)
    assert not re.search(rb"\x1b|\xc2\x9b|[\x07\x18]", rest)


INTERRUPTED = """
import sys, threading
from rich import live

class Interrupted(live._RefreshThread):
    def start(self):
        raise KeyboardInterrupt

live._RefreshThread = Interrupted
from taskqueue_client.__main__ import main
sys.exit(main())
"""


def printed_on_a_terminal(command: Sequence[str], directory: Path) -> tuple[str, int]:
    """Return what a command prints on a terminal, and its exit status."""
    reader, terminal = pty.openpty()
    with subprocess.Popen(
        command, stdout=terminal, stderr=terminal, cwd=directory, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(terminal)
        output = Terminal(reader).read_all()
        status = process.wait(60)
    os.close(reader)
    return output, status


@pytest.mark.parametrize("command", [["watch"], ["artifacts", "get"]])
def test_the_cursor_comes_back_if_ctrl_c_comes_while_a_display_starts(
    command: list[str], running: tuple[str, Queue], tmp_path: Path
) -> None:
    interrupted = [sys.executable, "-c", INTERRUPTED, *command, running[0]]
    output, status = printed_on_a_terminal(interrupted, tmp_path)
    assert status == 130
    assert re.findall(r"\x1b\[\?25[hl]", output) == ["\x1b[?25l", "\x1b[?25h"]


def test_a_task_is_watched_on_a_terminal_until_it_is_resolved(
    running: tuple[str, Queue], tmp_path: Path
) -> None:
    task_id, run_client = running
    run_client.report_completed(task_id, 0)
    output, status = printed_on_a_terminal([*COMMAND, "watch", task_id], tmp_path)
    assert status == 0
    assert "completed" in output
    assert re.findall(r"\x1b\[\?25[hl]", output)[-1] == "\x1b[?25h"


LOG = b"one " + RED + CLIPBOARD + b"\x1b[2Jtwo\n\x1b[8mhidden"


@pytest.mark.parametrize(
    ("log", "end"),
    [(b"\x1b[8mhidden\n", b"\x1b[0m"), (RED, b""), (b"\x1b[31mred\x1b[m", b""), (b"plain\x1b[2J", b"")],
)
def test_colors_end_with_the_log(log: bytes, end: bytes) -> None:
    of_log = TerminalFilter()
    of_log.filtered(log)
    assert of_log.end() == end


def test_json_has_the_text_of_a_log_without_what_controls_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "\x1b[2J\x7f\x9b2J\u202eb\u2069 שלום"
    print_json({"line": text})
    shown = capsys.readouterr().out
    assert not re.search("[\x1b\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert json.loads(shown) == {"line": text}


@pytest.fixture
def logged(running: tuple[str, Queue]) -> str:
    task_id, run_client = running
    run_client.upload_artifact(task_id, 0, "public/logs/live.log", LOG, expires=from_now("1 hour"))
    return task_id


def test_a_log_on_a_terminal_has_its_colors_to_its_end_and_no_other_sequence(logged: str) -> None:
    ours, its = pty.openpty()
    try:
        subprocess.run([*COMMAND, "log", logged, "--no-follow"], stdout=its, check=True, timeout=60)
        assert os.read(ours, 1000) == b"one " + RED + b"two\r\n\x1b[8mhidden\x1b[0m"
    finally:
        os.close(its)
        os.close(ours)


def test_a_log_in_a_pipe_has_all_of_its_bytes(logged: str) -> None:
    command = [*COMMAND, "log", logged, "--no-follow"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == LOG
