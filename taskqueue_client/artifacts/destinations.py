"""Destinations of a download: a file, memory, or a stream of blocks."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import partial
from inspect import GEN_RUNNING, getgeneratorstate
from io import BytesIO, FileIO
from pathlib import Path

from taskqueue_client._arguments import check_kind
from taskqueue_client._protocol.conversation import Conversation, Item
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.slugid import slugid

from .artifact_errors import StreamInterrupted
from .sources import Block, is_path
from .transfers import Transfer


class Destination(ABC):
    """Receiver of the decoded blocks of a download. All methods except `take` may block."""

    @abstractmethod
    def take(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        """Receive the blocks of one attempt."""

    @abstractmethod
    def restart(self) -> None:
        """Prepare for the first block. Blocks that were received before are dropped: they come again."""

    def commit(self) -> None:  # noqa: B027 - there may be nothing to do
        """Keep the content: it is complete and verified."""

    def discard(self) -> None:  # noqa: B027 - as above
        """Remove the content, unless it was committed."""


class _Written(Destination):
    """Base class of destinations that write all blocks of an attempt on one thread."""

    def take(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        return (yield from transfer.work(lambda: self._write_all(pieces)))

    def _write_all(self, pieces: Generator[Block]) -> None:
        with closing(pieces):
            for piece in pieces:
                self.write(piece)

    @abstractmethod
    def write(self, block: Block) -> None:
        """Append a block."""


FILE = "the path of a file, not of a folder, device or FIFO"
"""The allowed destinations, in words."""

_DEVICES = Path("/dev")
"""The folder of `/dev/stdout`, which is a link to a file where the output of a program goes to a file."""


def checked_path(to: str | os.PathLike[str]) -> Path:
    """Return the path of a file that is to be written."""
    check_kind("to", to, str | os.PathLike, FILE)
    path = os.fspath(to)
    if path.endswith("/") or not Path(path).name or not is_path(path) or Path(path).parent == _DEVICES:
        raise InvalidArgument("to", to, FILE)
    return Path(path)


class FileDestination(_Written):
    """A file that appears under its path only when it is complete.

    Until then the content is in a temporary file in the same folder. There is no fsync: after a loss of power
    the file may be incomplete.

    Args:
        path: The path. An existing file is replaced, and a symbolic link, not the file that it leads to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f".{slugid()}.part")
        self._file: FileIO | None = None

    def restart(self) -> None:
        """Create the temporary file, or empty it."""
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
        elif self.path.exists() and not self.path.is_file():
            raise InvalidArgument("to", str(self.path), FILE)
        else:
            with self._naming_path():
                self._file = FileIO(self._partial, "x")

    def write(self, block: Block) -> None:
        """Append a block to the file."""
        assert self._file is not None  # noqa: S101 - restart comes first
        view = memoryview(block)
        with self._naming_path():
            while view:
                view = view[self._file.write(view) :]

    def commit(self) -> None:
        """Rename the temporary file to the path."""
        assert self._file is not None  # noqa: S101 - restart comes first
        self._file.close()
        with self._naming_path():
            self._partial.replace(self.path)
        self._file = None

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    @contextmanager
    def _naming_path(self) -> Generator[None]:
        """Raise errors with the path: the caller does not know the temporary file."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None


class MemoryDestination(_Written):
    """A buffer in memory."""

    def __init__(self) -> None:
        self._buffer = BytesIO()

    @property
    def content(self) -> bytes:
        """All blocks that were received."""
        return self._buffer.getvalue()

    def write(self, block: Block) -> None:
        """Append a block to the buffer."""
        self._buffer.write(block)

    def restart(self) -> None:
        """Empty the buffer."""
        self._buffer = BytesIO()


class StreamDestination(Destination):
    """A stream that passes each block to the caller at once, before the content is verified."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._given = 0

    def take(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        """See `Destination`."""

        def close() -> None:
            if getgeneratorstate(pieces) != GEN_RUNNING:  # else its thread, which still connects, ends it
                pieces.close()

        return transfer.releasing(close, self._given_one_by_one(pieces, transfer))

    def _given_one_by_one(self, pieces: Generator[Block], transfer: Transfer) -> Conversation[None]:
        while (piece := (yield from transfer.work(partial(next, pieces, None)))) is not None:
            self._given += len(piece)
            yield from Item(bytes(piece))

    def restart(self) -> None:
        """Fail if the caller has blocks already: they would be repeated."""
        if self._given:
            raise StreamInterrupted(self._name, self._given)
