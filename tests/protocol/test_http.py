"""Answers are read as RFC 9112 has them: in any framing, from any pieces, and refused where they are none."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from http.client import HTTPResponse
from io import BytesIO
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client import _http
from taskqueue_client._http import Address, Arriving, Received, UnfitAnswer

ANY = 1 << 30
HEAD_MOST = 64 * 1024
OK = b"HTTP/1.1 200 OK\r\n"
IN_CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def look(arrived: bytes, longest: int = ANY, *, has_ended: bool = False) -> Received | None:
    arriving = Arriving(longest)
    found = arriving.take(arrived)
    return arriving.end() if found is None and has_ended else found


def whole(arrived: bytes, longest: int = ANY, *, has_ended: bool = False) -> Received:
    found = look(arrived, longest, has_ended=has_ended)
    assert found is not None
    return found


def assert_each_beginning_is_waited_for(answer: bytes, longest: int = ANY) -> Received:
    """As it comes at once, and one byte after the other."""
    expected, arriving = whole(answer, longest), Arriving(longest)
    for length in range(1, len(answer)):
        assert look(answer[:length], longest) is None
        assert arriving.take(answer[length - 1 : length]) is None
        assert length < arriving.needed <= len(answer)
    assert arriving.take(answer[-1:]) == expected
    return expected


COMPLETE = [
    (OK + b"Content-Length: 2\r\n\r\nab", b"ab"),
    (OK + b"content-LENGTH:2 \r\n\r\nab", b"ab"),
    (OK + b"Content-Length: 2, 2\r\nContent-Length: 2\r\n\r\nab", b"ab"),
    (OK + b"Content-Length: 0\r\n\r\n", b""),
    (b"HTTP/1.1 404\r\nContent-Length: 2\r\n\r\nab", b"ab"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b""),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nab", b"ab"),
    (b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" * 2 + IN_CHUNKS + b"2\r\nab\r\n0\r\n\r\n", b"ab"),
    (IN_CHUNKS + b"0\r\n\r\n", b""),
    (IN_CHUNKS + b"2\r\nab\r\nA\r\n0123456789\r\n0\r\n\r\n", b"ab0123456789"),
    (IN_CHUNKS + b'02;a="b" ;c\r\nab\r\n1 \t\r\nc\r\n00;d\r\n\r\n', b"abc"),
    (IN_CHUNKS + b"2\r\nab\r\n0\r\nA: b\r\nC: d\r\n\r\n", b"ab"),
    (IN_CHUNKS + b"2\nab\n3\n\n\n0\n0\nA: b\n\n", b"ab\n\n0"),
    (IN_CHUNKS + b"4\r\n\r\n0\n\r\n0\r\n\r\n", b"\r\n0\n"),
    (OK + b"Content-Length: 9\r\nTRANSFER-encoding: Chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", b"ab"),
]


@pytest.mark.parametrize(("answer", "body"), COMPLETE)
def test_an_answer_ends_where_it_says_and_what_follows_ends_the_connection(
    answer: bytes, body: bytes
) -> None:
    found = assert_each_beginning_is_waited_for(answer)
    assert (found.body, found.is_last) == (body, False)
    for more in (b"!", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"):
        assert whole(answer + more) == found._replace(is_last=True)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n",
        OK + b"Connection: close\r\n",
        OK + b"CONNECTION: x, Close\r\n",
        OK + b"Connection: close\r\nConnection: x\r\n",
    ],
)
def test_a_connection_that_the_server_closes_is_not_used_again(head: bytes) -> None:
    assert whole(head + b"Content-Length: 2\r\n\r\nab").is_last


def test_headers_are_found_in_lower_case_without_spaces_and_repeated_ones_as_a_list() -> None:
    found = whole(OK + b"Content-Length: 0\r\nRetry-After:\t 7 \r\nX-\xe9: \xe9:b\r\nx:\r\nX: 2\r\n\r\n")
    assert found.headers == {"content-length": "0", "retry-after": "7", "x-é": "é:b", "x": ", 2"}


def test_what_has_no_length_goes_on_until_the_end() -> None:
    answer = OK + b"\r\n" + b"body"
    for length in range(len(answer) + 1):
        assert look(answer[:length]) is None
    assert whole(answer, has_ended=True) == Received(200, {}, b"body", is_last=True)
    assert whole(OK + b"\r\n", has_ended=True).body == b""


@pytest.mark.parametrize("answer", [b"", OK, OK + b"Content-Length: 2\r\n\r\na", IN_CHUNKS + b"2\r\nab\r\n"])
def test_the_end_does_not_complete_what_has_a_length(answer: bytes) -> None:
    assert look(answer, has_ended=True) is None


@pytest.mark.parametrize(
    "framed",
    [
        OK + b"Content-Length: 6\r\n\r\nxyZxyz",
        OK + b"Content-Length: 999999999999999\r\n\r\nxyZxyz",
        OK + b"\r\nxyZxyz",
        IN_CHUNKS + b"6\r\nxyZxyz\r\n0\r\n\r\n",
        IN_CHUNKS + b"2\r\nxy\r\n4\r\nZxyz\r\n0\r\n\r\n",
        IN_CHUNKS + b"fffffffffffffff\r\nxyZxyz",
    ],
)
def test_no_more_is_waited_for_than_is_wanted_and_the_rest_ends_the_connection(framed: bytes) -> None:
    cut = framed[: framed.index(b"Z") + 1]
    found = assert_each_beginning_is_waited_for(cut, longest=3)
    assert (found.body, found.is_last) == (b"xyZ", True)
    assert whole(framed, longest=3) == found


def test_a_body_of_just_the_wanted_length_is_no_reason_to_close() -> None:
    assert not whole(OK + b"Content-Length: 3\r\n\r\nabc", longest=3).is_last
    assert whole(IN_CHUNKS + b"0\r\n\r\n", longest=0).body == b""


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
        b"\r\nHTTP/1.1 200 OK\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"http/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 100 Continue\r\n\r\nx",
        OK + b"Content-Length: x\r\n\r\n",
        OK + b"Content-Length:\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: +1\r\n\r\n",
        OK + b"Content-Length: 1_0\r\n\r\n",
        OK + b"Content-Length: 1 0\r\n\r\n",
        OK + b"Content-Length: \xb2\r\n\r\n",
        OK + b"Content-Length: 1, 2\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        OK + b"Content-Length: 9999999999999999\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        IN_CHUNKS + b"x\r\n",
        IN_CHUNKS + b"-1\r\n",
        IN_CHUNKS + b"0x1\r\n",
        IN_CHUNKS + b"1_0\r\n",
        IN_CHUNKS + b"\r\n1\r\n",
        IN_CHUNKS + b"1 2\r\n",
        IN_CHUNKS + b"1000000000000000\r\n",
        IN_CHUNKS + b"2\r\nabc\r\n",
        IN_CHUNKS + b"2\r\nab0\r\n\r\n",
        IN_CHUNKS + b"2\r\nab\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_refused_at_once(garbage: bytes) -> None:
    with pytest.raises(UnfitAnswer):
        look(garbage)


@pytest.mark.parametrize(
    ("beginning", "filler"),
    [
        (OK + b"x: ", b"x"),
        (OK, b"x: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (IN_CHUNKS + b"1;", b"x"),
        (IN_CHUNKS + b"1\r\na\r\n1;", b"x"),
        (IN_CHUNKS + b"1\r\na\r\n0\r\n", b"x: y\r\n"),
        (IN_CHUNKS + b"0\r\nx: ", b"x"),
    ],
)
def test_what_is_not_content_cannot_go_on_forever(beginning: bytes, filler: bytes) -> None:
    assert look(beginning + filler * ((HEAD_MOST - 100) // len(filler))) is None
    with pytest.raises(UnfitAnswer):
        look(beginning + filler * (HEAD_MOST // len(filler) + 2))


def test_a_head_may_have_64_kib() -> None:
    head = (OK + b"Content-Length: 0\r\nx: ").ljust(HEAD_MOST, b"x")
    assert look(head + b"\r\n\r") is None
    assert whole(head + b"\r\n\r\n").status == 200
    with pytest.raises(UnfitAnswer):
        look(head + b"x\r\n\r")
    with pytest.raises(UnfitAnswer):
        look(head + b"x\r\n\r\n")


class Counting:
    """A pattern that counts how often it is looked for."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.count = 0

    def match(self, text: bytearray, at: int) -> re.Match[bytes] | None:
        self.count += 1
        return self._pattern.match(text, at)


def test_chunks_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else, an answer of many chunks would take the square of its length."""
    counting = Counting(_http.NEXT_CHUNK)
    monkeypatch.setattr(_http, "NEXT_CHUNK", counting)
    arriving = Arriving(ANY)
    arriving.take(IN_CHUNKS)
    for _ in range(1000):
        arriving.take(b"3\r\nabc\r\n")
    found = arriving.take(b"0\r\n\r\n")
    assert found is not None
    assert found.body == b"abc" * 1000
    assert counting.count <= 2001


def in_chunks(sizes: list[int], body: bytes) -> bytes:
    framed = b""
    for size in sizes:
        part, body = body[:size], body[size:]
        framed += b"%x;a=b\r\n%s\r\n" % (len(part), part) if part else b""
    return framed + (b"%X\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\nTrailer: x\r\n\r\n"


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Well-formed ones, that say where they end."""
    body = draw(st.binary(max_size=30) | st.sampled_from([b"\r\n\r\n", b"0\r\n\r\n", OK]))
    names = st.text("abcXYZ-", min_size=1, max_size=5)
    headers = draw(
        st.lists(
            st.tuples(names, st.text("ab :;,", max_size=5)), max_size=3, unique_by=lambda x: x[0].lower()
        )
    )
    status = draw(st.sampled_from([200, 204, 299, 304, 403, 500]))
    if draw(st.booleans()):
        headers.append(("Connection", draw(st.sampled_from(["close", "Keep-Alive", "CLOSE"]))))
    if status in {204, 304}:
        framed = b""
    elif draw(st.booleans()):
        headers.append(("Content-Length", str(len(body))))
        framed = body
    else:
        headers.append(("Transfer-Encoding", "chunked"))
        framed = in_chunks(draw(st.lists(st.integers(1, 20), max_size=4)), body)
    lines = [f"HTTP/1.1 {status} Why", *map(": ".join, draw(st.permutations(headers))), "", ""]
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    return interim + "\r\n".join(lines).encode() + framed


class _Socket(BytesIO):
    def makefile(self, _mode: str) -> BytesIO:
        return self


@given(answer=answers())
def test_well_formed_answers_are_read_as_the_standard_library_does(answer: bytes) -> None:
    found = assert_each_beginning_is_waited_for(answer)
    theirs = HTTPResponse(cast("socket.socket", _Socket(answer)), method="GET")
    theirs.begin()
    assert (found.status, found.is_last) == (theirs.status, theirs.will_close)
    assert found.headers == {name.lower(): value.strip() for name, value in theirs.headers.items()}
    assert found.body == theirs.read()


@given(
    before=st.sampled_from([b"", OK, IN_CHUNKS, IN_CHUNKS + b"2\r\nab", OK + b"Content-Length:"]),
    rest=st.lists(st.sampled_from([b"\r", b"\n", b"0", b"f", b";", b":", b" ", b"a", b"\xff"])).map(b"".join),
    has_ended=st.booleans(),
)
def test_whatever_comes_is_an_answer_or_waited_for_or_refused(
    before: bytes, rest: bytes, *, has_ended: bool
) -> None:
    with suppress(UnfitAnswer):
        look(before + rest, has_ended=has_ended)


@pytest.mark.parametrize(
    ("address", "value"),
    [
        (Address("http", "a.test", 80), "a.test"),
        (Address("https", "a.test", 443), "a.test"),
        (Address("http", "a.test", 443), "a.test:443"),
        (Address("https", "::1", 443), "[::1]"),
        (Address("https", "::1", 80), "[::1]:80"),
    ],
)
def test_hosts_are_named_with_the_port_unless_it_is_the_usual_one(address: Address, value: str) -> None:
    assert address.header == value
