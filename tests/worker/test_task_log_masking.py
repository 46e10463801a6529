"""Secrets in a stream of bytes."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.commands.masking import MASK, Masking, Secrets, masked_text

FEW_LETTERS = st.text("ab ", min_size=1, max_size=5).filter(str.strip)


def secrets_of(*texts: str) -> Secrets:
    secrets = Secrets()
    for text in texts:
        secrets.add(text)
    return secrets


def masked(secrets: Secrets, *chunks: bytes) -> bytes:
    masking = Masking(secrets)
    return b"".join([*(masking.feed(chunk) for chunk in chunks), masking.flush()])


def test_without_secrets_everything_goes_by_at_once() -> None:
    assert Masking(Secrets()).feed(b"\xff\x00text") == b"\xff\x00text"


def test_a_secret_is_masked_wherever_the_chunks_are_cut() -> None:
    text = b"before hunter2 after hunter2"
    for cut in range(len(text) + 1):
        assert masked(secrets_of("hunter2"), text[:cut], text[cut:]) == b"before [masked] after [masked]"


def test_a_secret_is_masked_that_comes_byte_by_byte() -> None:
    assert masked(secrets_of("hunter2"), *(bytes([each]) for each in b"xhunter2y")) == b"x[masked]y"


def test_only_the_possible_beginning_of_a_secret_is_delayed() -> None:
    masking = Masking(secrets_of("hunter2"))
    assert masking.feed(b"password: hunt") == b"password: "
    assert masking.feed(b"ing") == b"hunting"


def test_overlapping_secrets_are_masked_whole() -> None:
    assert masked(secrets_of("abcd", "cdef"), b"<abcdef>") == b"<[masked]>"
    assert masked(secrets_of("abcd", "cdef"), b"<abcd", b"ef>") == b"<[masked]>"
    assert masked(secrets_of("aXa"), b"<aXaXa>") == b"<[masked]>"


@settings(deadline=None)
@given(st.lists(FEW_LETTERS, min_size=1, max_size=3), st.lists(st.text("ab -", max_size=6).map(str.encode)))
def test_not_one_byte_of_a_secret_is_shown_and_nothing_else_is_masked(
    texts: list[str], chunks: list[bytes]
) -> None:
    secrets = secrets_of(*texts)
    whole = b"".join(chunks)
    hidden = {
        at
        for secret in secrets.known
        for start in range(len(whole))
        if whole.startswith(secret, start)
        for at in range(start, start + len(secret))
    }
    expected = bytes(0 if at in hidden else byte for at, byte in enumerate(whole))
    shown = masked(secrets, *chunks)
    pattern = b"".join(
        b"(?:" + re.escape(MASK) + b")+" if part.startswith(b"\0") else re.escape(part)
        for part in re.findall(rb"\0+|[^\0]+", expected)
    )
    assert re.fullmatch(pattern, shown)


def test_a_secret_that_is_added_meanwhile_is_masked_from_then_on() -> None:
    secrets = Secrets()
    masking = Masking(secrets)
    assert masking.feed(b"hunter2 ") == b"hunter2 "
    secrets.add("hunter2")
    assert masking.feed(b"hunter2 ") == b"[masked] "


def test_the_white_space_around_a_secret_does_not_count() -> None:
    assert masked(secrets_of("\thunter2\n"), b"'hunter2'\n") == b"'[masked]'\n"


def test_a_secret_of_several_lines_is_masked_as_a_whole_and_line_by_line() -> None:
    secrets = secrets_of("{\n  key: 567\n}")
    assert masked(secrets, b"[{\n  key: 567\n}]") == b"[[masked]]"
    assert masked(secrets, b"{} key: 567") == b"{} [masked]"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_secret_of_several_lines_is_masked_with_the_line_ends_of_terminals_and_of_files(end: str) -> None:
    secrets = secrets_of(end.join(["-----BEGIN KEY-----", "ab+/=="]))
    for shown in (b"\n", b"\r\n"):
        assert masked(secrets, b"<-----BEGIN KEY-----" + shown + b"ab+/==>") == b"<[masked]>"


def test_a_line_of_a_secret_of_fewer_than_8_characters_may_be_harmless() -> None:
    assert masked(secrets_of("one two\nthree four"), b"one two") == b"one two"


def test_a_secret_that_is_complete_is_masked_at_once() -> None:
    assert Masking(secrets_of("hunter2")).feed(b"it is hunter2") == b"it is [masked]"


def test_secrets_may_contain_any_characters() -> None:
    assert masked(secrets_of("pässwörd.*"), "<pässwörd.*>".encode()) == b"<[masked]>"


def test_a_secret_that_is_not_utf_8_is_masked_as_its_bytes_and_in_messages() -> None:
    secret = os.fsdecode(b"p\xe4ssword")
    secrets = secrets_of(secret)
    assert masked(secrets, b"<p\xe4ssword>") == b"<[masked]>"
    assert masked_text(f"<{secret}>", secrets) == "<[masked]>"
    assert masked(secrets_of("half a pair: \ud800"), b"half a pair: \\ud800") == b"[masked]"


@pytest.mark.parametrize("nothing", ["", " \n"])
def test_an_empty_secret_is_refused(nothing: str) -> None:
    with pytest.raises(InvalidArgument, match="secret: ''"):
        Secrets().add(nothing)
