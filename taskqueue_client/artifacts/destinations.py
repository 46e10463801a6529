"""Where a download goes: a file, memory, or whoever reads the stream."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO, FileIO
from pathlib import Path
from typing import Protocol

from taskqueue_client.errors import InvalidArgument
from taskqueue_client.slugid import slugid

from .buffers import Block
from .errors import DownloadTooLarge, StreamInterrupted


class Destination(Protocol):
    """Takes decoded blocks. All methods may block."""

    @property
    def is_impatient(self) -> bool:
        """Whether it wants what comes as soon as it comes, even if that takes longer."""
        ...

    def write(self, block: Block) -> None:
        """Take a block."""
        ...

    def restart(self) -> None:
        """Begin, or forget all blocks, as they come again from the start."""
        ...

    def commit(self) -> None:
        """Everything has come and is right."""
        ...

    def discard(self) -> None:
        """Leave nothing behind, unless it was committed."""
        ...


_FILE = "the path of a file, not of a folder"


class FileDestination:
    """A file that appears under its name only when it is complete.

    Until then it has a name of its own beside it. It survives the end of this process, but not a loss
    of power right after: it is not forced to the disk.

    Args:
        path: The name. A file that has it is replaced.

    Raises:
        InvalidArgument: It has no last part, as `.` and `/`.
    """

    is_impatient = False

    def __init__(self, path: Path) -> None:
        if not path.name:
            raise InvalidArgument("to", str(path), _FILE)
        self._path = path
        self._partial = path.with_name(f".{slugid()}.part")
        self._file: FileIO | None = None

    def restart(self) -> None:
        """Begin with an empty file.

        Raises:
            InvalidArgument: The name is that of a folder.
            OSError: There cannot be a file.
        """
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
        elif self._path.is_dir():
            raise InvalidArgument("to", str(self._path), _FILE)
        else:
            self._file = FileIO(self._partial, "x")

    def write(self, block: Block) -> None:
        """Take a block.

        Raises:
            OSError: The disk is full.
        """
        assert self._file is not None  # noqa: S101 - restart comes first
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]

    def commit(self) -> None:
        """Give the file its name."""
        assert self._file is not None  # noqa: S101 - restart comes first
        self._file.close()
        self._partial.replace(self._path)
        self._file = None

    def discard(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)


class MemoryDestination:
    """Memory, up to a limit.

    Args:
        name: The artifact's.
        max_bytes: The limit.
    """

    is_impatient = False

    def __init__(self, name: str, max_bytes: int) -> None:
        self._name = name
        self._max_bytes = max_bytes
        self._buffer = BytesIO()

    @property
    def content(self) -> bytes:
        """What has come."""
        return self._buffer.getvalue()

    def write(self, block: Block) -> None:
        """Take a block."""
        if self._buffer.tell() + len(block) > self._max_bytes:
            raise DownloadTooLarge(self._name, self._max_bytes)
        self._buffer.write(block)

    def restart(self) -> None:
        """Forget all blocks."""
        self._buffer = BytesIO()

    def commit(self) -> None:
        """There is nothing more to do."""

    def discard(self) -> None:
        """There is nothing to remove."""


class StreamDestination:
    """Hands blocks out at once, verified or not.

    Args:
        name: The artifact's.
        hand_out: Takes a block, and waits until there is room for it.
    """

    is_impatient = True

    def __init__(self, name: str, hand_out: Callable[[bytes], object]) -> None:
        self._name = name
        self._hand_out = hand_out
        self._handed_out = 0

    def write(self, block: Block) -> None:
        """Hand a block out."""
        self._handed_out += len(block)
        self._hand_out(bytes(block))

    def restart(self) -> None:
        """Blocks that were handed out cannot be taken back."""
        if self._handed_out:
            raise StreamInterrupted(self._name, self._handed_out)

    def commit(self) -> None:
        """There is nothing more to do."""

    def discard(self) -> None:
        """There is nothing to remove."""
