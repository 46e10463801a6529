"""The state of the queue: one SQLite database, and transactions on it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_VERSION = 1
_CACHED_STATEMENTS = 256
MEMORY = ":memory:"

# The collation of the service's database, glibc's `en_US.utf8`: letters and digits decide first, whatever
# their case; then case, small letters first; then the other characters, each before any letter or digit.
# Only printable ASCII can occur.
_PRINTABLE = [chr(code) for code in range(0x20, 0x7F)]
_WEIGHTY = {char for char in _PRINTABLE if char.isalnum() or char == "$"}
_LETTERS = str.maketrans({c: c.lower() if c in _WEIGHTY else None for c in _PRINTABLE})
_CASE = str.maketrans({c: str(int(c.isupper())) if c in _WEIGHTY else None for c in _PRINTABLE})
_PUNCTUATION = str.maketrans(dict.fromkeys(_WEIGHTY, "\x7f"))

_SCHEMA = """
CREATE TABLE tasks (
    task_id TEXT PRIMARY KEY,
    sort_key TEXT NOT NULL,
    task_queue_id TEXT NOT NULL,
    scheduler_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    task_group_id TEXT NOT NULL,
    priority INTEGER NOT NULL,
    deadline INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    retries_left INTEGER NOT NULL,
    claimed_by_id INTEGER NOT NULL DEFAULT 0,  -- the last run was claimed by claimTask
    ever_resolved INTEGER NOT NULL DEFAULT 0,
    deadline_open INTEGER NOT NULL DEFAULT 1,  -- the deadline resolver has not seen the task
    runs BLOB NOT NULL,
    definition BLOB NOT NULL
) STRICT;
CREATE INDEX tasks_of_group ON tasks (task_group_id, sort_key);
CREATE INDEX tasks_never_resolved ON tasks (task_group_id) WHERE ever_resolved = 0;
CREATE INDEX tasks_by_deadline ON tasks (deadline) WHERE deadline_open;
CREATE INDEX tasks_by_expiry ON tasks (expires);

CREATE TABLE task_groups (
    task_group_id TEXT PRIMARY KEY,
    scheduler_id TEXT NOT NULL,
    expires INTEGER NOT NULL,
    sealed INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE dependencies (
    required TEXT NOT NULL,
    dependent TEXT NOT NULL,
    requires TEXT NOT NULL,
    satisfied INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (required, dependent)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependencies_unsatisfied ON dependencies (dependent) WHERE satisfied = 0;

CREATE TABLE pending (
    seq INTEGER PRIMARY KEY,
    task_queue_id TEXT NOT NULL,
    priority INTEGER NOT NULL,
    inserted INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    run_id INTEGER NOT NULL
) STRICT;
CREATE INDEX pending_order ON pending (task_queue_id, priority DESC, seq, expires);
CREATE INDEX pending_of_task ON pending (task_id);

CREATE TABLE claims (
    task_id TEXT NOT NULL,
    run_id INTEGER NOT NULL,
    taken_until INTEGER NOT NULL,
    task_queue_id TEXT NOT NULL,
    worker_group TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    claimed INTEGER NOT NULL,
    PRIMARY KEY (task_id, run_id, taken_until)
) STRICT, WITHOUT ROWID;
CREATE INDEX claims_by_time ON claims (taken_until);
CREATE INDEX claims_of_queue ON claims (task_queue_id, taken_until);

CREATE TABLE resolved (
    seq INTEGER PRIMARY KEY,
    task_id TEXT NOT NULL,
    task_group_id TEXT NOT NULL,
    resolution TEXT NOT NULL,
    inserted INTEGER NOT NULL
) STRICT;

CREATE TABLE artifacts (
    task_id TEXT NOT NULL,
    run_id INTEGER NOT NULL,
    sort_key TEXT NOT NULL,
    name TEXT NOT NULL,
    storage_type TEXT NOT NULL,
    content_type TEXT NOT NULL,
    expires INTEGER NOT NULL,
    present INTEGER NOT NULL,
    details BLOB NOT NULL,
    PRIMARY KEY (task_id, run_id, sort_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX artifacts_by_expiry ON artifacts (expires);

CREATE TABLE task_queues (
    task_queue_id TEXT PRIMARY KEY,
    expires INTEGER NOT NULL,
    last_date_active INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    task_queue_id TEXT NOT NULL,
    worker_group TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    quarantine_until INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    first_claim INTEGER NOT NULL,
    last_date_active INTEGER NOT NULL,
    recent_tasks BLOB NOT NULL,
    quarantine_details BLOB NOT NULL,
    PRIMARY KEY (task_queue_id, worker_group, worker_id)
) STRICT, WITHOUT ROWID;
"""


def is_of_machine(error: Exception) -> bool:
    """Return whether an error is due to the machine, such as a full disk: a traceback does not help then."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    return isinstance(error, OSError) or code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}


class Store:
    """The database, a file or `:memory:`; every change belongs to a `transaction`.

    A file is locked for this process and, if it is created here, readable for its owner only. With its
    write-ahead log (WAL), commits survive if the process is killed, though not always if the machine crashes.

    Raises:
        OSError: The file cannot be written.
        sqlite3.DatabaseError: The file is not a queue of this version, or another process has locked it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if path != MEMORY:
            _make_private(path)
        with _naming(path):
            self.connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, cached_statements=_CACHED_STATEMENTS
            )
            self.connection.create_function("sort_key", 1, sort_key, deterministic=True)
            self._execute = self.connection.execute
            try:
                self._open()
            except sqlite3.Error:
                self.connection.close()
                raise

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        return self._execute(sql, values).fetchall()

    def row(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        """Return the first row of a query; None if there is no row."""
        found: tuple[Any, ...] | None = self._execute(sql, values).fetchone()
        return found

    def value(self, sql: str, *values: Any) -> Any:
        """Return the first column of the first row; None if there is no row."""
        found = self.row(sql, *values)
        return found[0] if found else None

    def change(self, sql: str, *values: Any) -> int:
        """Change rows, within a transaction; return how many were changed."""
        return self._execute(sql, values).rowcount

    def insert(self, into: str, *row: Any, verb: str = "INSERT") -> int:
        """Add a row, within a transaction; return how many rows were added.

        `into` is a table, with the columns of the row unless it has all. `INSERT OR REPLACE` replaces a row
        with the same key, `INSERT OR IGNORE` keeps it.
        """
        marks = ", ".join("?" * len(row))
        return self.change(f"{verb} INTO {into} VALUES ({marks})", *row)

    @contextmanager
    def transaction(self, keep: type[Exception] | tuple[()] = ()) -> Generator[None]:
        """Run the block as one transaction; an exception undoes it, unless it is of the kind `keep`."""
        with self.connection:
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
            except keep:
                self.connection.commit()
                raise

    def is_deleted(self) -> bool:
        """Return whether the file was deleted, which SQLite does not notice."""
        _, _, file = self.rows("PRAGMA database_list")[0]  # absolute; empty in memory
        return bool(file) and not os.path.exists(file)  # noqa: PTH110 - a str, as SQLite returns it

    def close(self) -> None:
        """Close the database; SQLite moves the content of the WAL into the file."""
        self.connection.close()

    def secret(self, table: str, column: str) -> str:
        """Return the only row of a table: a random secret, made at the first start of this store."""
        columns = f"only INTEGER PRIMARY KEY CHECK (only = 1), {column} TEXT NOT NULL"
        self._execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        self._execute(f"INSERT OR IGNORE INTO {table} VALUES (1, ?)", (secrets.token_urlsafe(33),))  # noqa: S608 - constants
        return str(self.value(f"SELECT {column} FROM {table}"))  # noqa: S608 - constants

    def _open(self) -> None:
        if self.path != MEMORY:
            self._execute("PRAGMA locking_mode = EXCLUSIVE")
            self._execute("BEGIN IMMEDIATE")  # two processes with read locks could not write
            self._check_owner()
            self._execute("COMMIT")
            self._execute("PRAGMA journal_mode = WAL")
            self._execute("PRAGMA synchronous = NORMAL")
        if self._is_empty():
            self.connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT"
            )

    def _check_owner(self) -> None:
        """Raise an error for a file that is not a queue of this version, before anything in it changes."""
        if self._is_empty():
            return
        if self.row("SELECT 1 FROM sqlite_master WHERE name = 'task_groups'") is None:
            raise sqlite3.DatabaseError("the database of another program, not of a local queue")
        if (version := self.value("PRAGMA user_version")) != _VERSION:
            raise sqlite3.DatabaseError(
                f"written by version {version} of the local queue; this version reads {_VERSION}"
            )

    def _is_empty(self) -> bool:
        return self.row("SELECT 1 FROM sqlite_master") is None


@contextmanager
def _naming(path: str) -> Generator[None]:
    """Add the path to an error of SQLite, which does not name the file."""
    try:
        yield
    except sqlite3.Error as error:
        error.add_note(f"the file of the local queue: {path}")
        raise


def _make_private(path: str) -> None:
    """Create a missing file for its owner only: it will contain the keys of credentials.

    If that fails, the error is better than SQLite's, which calls a read-only file system a "disk I/O error".
    A file that can be used is not opened: closing it would end the lock of another queue in this process.
    """
    if not (os.path.isfile(path) and os.access(path, os.R_OK | os.W_OK)):  # noqa: PTH113 - any kind of path
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def sort_key(text: str) -> str:
    """Return a string that sorts by code points as `text` sorts in the collation."""
    return "\0".join([text.translate(_LETTERS), text.translate(_CASE), text.translate(_PUNCTUATION)])
