"""Any input is either read or refused with an error of the package."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.examples import examples
from tests.fuzz.targets import CORPUS, TARGETS, corpus


@st.composite
def changed(draw: st.DrawFn, known: list[bytes]) -> bytes:
    """Generate known inputs with some bytes replaced, removed, repeated, or taken from another input."""
    data = draw(st.sampled_from(known))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        other = draw(st.sampled_from(known))
        middle = draw(
            st.binary(max_size=8)
            | st.sampled_from(
                [b"", data[start:end] * 2, other[start:end], b"\xff", b"[" * 500, b'{"a":' * 1200]
            )
            | st.sampled_from([b"1e999", b"-1", b"null", b"\xed\xa0\x80", b"9" * 400, b"\\ud800", b"\x00"])
        )
        data = data[:start] + middle + data[end:]
    return data


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """Let no finalizer of an object of another test run at the limit of recursion, where it fails."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("target", TARGETS)
def test_every_input_is_read_or_refused(target: str) -> None:
    known = corpus(target)

    @settings(max_examples=examples(20))
    @given(changed(known) | st.binary(max_size=200))
    def is_read_or_refused(data: bytes) -> None:
        TARGETS[target](data)

    for each in known:
        TARGETS[target](each)
    is_read_or_refused()


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_accepts_the_good_inputs_of_the_corpus_and_refuses_the_others(target: str) -> None:
    """Without this test, a target that refuses everything, or nothing, would look like a safe one."""
    for path in (CORPUS / target).iterdir():
        assert TARGETS[target](path.read_bytes()) == path.name.startswith("good"), path
