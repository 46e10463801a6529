"""Bodies of artifacts: the bytes in files with random names, their metadata in a table.

A body exists once its row is committed. An upload gets its response after that, so killing the process loses
no acknowledged body. Nothing is flushed to the disk itself, so a power cut can lose the last seconds (as with
the rest of the store). Files without a row are removed at the next start.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import msgspec

from taskqueue_client.local.engine.store import Store

BLOCK = 1 << 20
"""Bytes written at once: large enough for a thread switch not to matter, small enough to hold many."""

_MD5_LIMIT = 16 << 20  # bytes up to which a body gets its MD5 sum as its ETag
_ZEROS = bytes(BLOCK)
_FILE_NAME = re.compile(r"[0-9a-f]{32}")

_TABLE = """
CREATE TABLE IF NOT EXISTS bodies (
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    file TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    headers TEXT NOT NULL,
    modified REAL NOT NULL,
    PRIMARY KEY (bucket, key)
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Body:
    """One stored body, with the headers of its upload, which the download repeats."""

    path: Path
    size: int
    headers: Mapping[str, str]
    modified: float

    @property
    def etag(self) -> str:
        """The MD5 sum, as in S3; of a large body, whose upload the sum would slow down, a unique string."""
        return self.headers.get("ETag", f'"{self.path.name}-1"')


class BodyStore:
    """Keeps bodies by bucket and key, in a directory that no other process uses."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory
        store.change(_TABLE)
        self._remove_leftovers()

    def find(self, bucket: str, key: str) -> Body | None:
        """Return the body, if one was stored completely and its file still exists."""
        sql = "SELECT file, size, headers, modified FROM bodies WHERE bucket = ? AND key = ?"
        row = self._store.row(sql, bucket, key)
        if row is None or not (self._directory / row[0]).exists():
            return None
        (file, size, headers, modified) = row
        return Body(self._directory / file, size, msgspec.json.decode(headers, type=dict[str, str]), modified)

    async def receive(
        self, bucket: str, key: str, chunks: AsyncIterator[bytes], headers: Mapping[str, str], now: float
    ) -> Body:
        """Store a body while it arrives; it replaces an earlier one, which stays after an error."""
        with self._new_file() as path:
            with path.open("wb") as file:
                md5 = await _write_blocks(chunks, file)
            etag = {} if md5 is None else {"ETag": f'"{md5}"'}
            return self._keep(path, bucket, key, {**headers, **etag}, now)

    def save(self, bucket: str, key: str, data: bytes, headers: Mapping[str, str], now: float) -> Body:
        """Store a small body, in place of an earlier one."""
        with self._new_file() as path:
            path.write_bytes(data)
            return self._keep(path, bucket, key, headers, now)

    def remove(self, bucket: str, key: str) -> None:
        """Remove a body, if it exists. A download in progress is not cut short."""
        delete = "DELETE FROM bodies WHERE bucket = ? AND key = ? RETURNING file"
        if (file := self._store.value(delete, bucket, key)) is not None:
            self._remove_file(file)

    @contextmanager
    def _new_file(self) -> Generator[Path]:
        """Return the path of a new file, which is removed again if the block fails."""
        path = self._directory / uuid4().hex
        try:
            yield path
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError) and not self._directory.exists():  # a cleaner of /tmp
                finding = f"{self._directory} was deleted, with all artifacts; restart the local queue"
                raise FileNotFoundError(finding) from error
            raise

    def _keep(self, path: Path, bucket: str, key: str, headers: Mapping[str, str], now: float) -> Body:
        body = Body(path, path.stat().st_size, headers, now)
        before = self.find(bucket, key)
        row = (bucket, key, path.name, body.size, msgspec.json.encode(headers).decode(), now)
        self._store.insert("bodies", *row, verb="INSERT OR REPLACE")
        if before is not None:
            self._remove_file(before.path.name)
        return body

    def _remove_file(self, name: str) -> None:
        with suppress(OSError):  # the file does no harm, and the next start removes it
            (self._directory / name).unlink()

    def _remove_leftovers(self) -> None:
        """Remove the files of uploads that a killed process had not finished."""
        in_use = {file for (file,) in self._store.rows("SELECT file FROM bodies")}
        for path in self._directory.iterdir():
            if _FILE_NAME.fullmatch(path.name) and path.name not in in_use:
                path.unlink()


async def _write_blocks(chunks: AsyncIterator[bytes], file: BinaryIO) -> str | None:
    """Write the chunks as they arrive, in blocks, each in a thread: the disk may be slow.

    Returns the MD5 sum in hex; None for more than `_MD5_LIMIT` bytes.
    """
    block: list[bytes] = []
    held = written = 0
    md5 = hashlib.md5(usedforsecurity=False)
    async for chunk in chunks:
        block.append(chunk)
        written += len(chunk)
        if written <= _MD5_LIMIT:
            md5.update(chunk)
        held += len(chunk)
        if held >= BLOCK:
            await asyncio.to_thread(_write, block, file)
            (block, held) = ([], 0)
    _write(block, file)
    file.truncate()  # the end may be a hole
    return md5.hexdigest() if written <= _MD5_LIMIT else None


def _write(block: list[bytes], file: BinaryIO) -> None:
    """Write the chunks of a block; for zeros leave a hole, so that a sparse file stays sparse."""
    for chunk in block:
        if _ZEROS.startswith(chunk):
            file.seek(len(chunk), 1)
        else:
            file.write(chunk)
