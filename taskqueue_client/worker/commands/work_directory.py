"""The directory of a worker, and in it one for each run."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Self
from uuid import uuid4

from taskqueue_client._arguments import check_kind, check_path
from taskqueue_client._transport.network import forget_in_children
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.worker_log import log

from .run_processes import kill_marked

_PREFIX = "taskqueue-worker-"
_KEPT_PREFIX = "taskqueue-kept-"

TO_END = 5.0
"""Seconds to wait for the removal of a worker's directory: a file system that hangs must not keep the worker
from ending. The directories of runs have been removed before, or given up."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

_WRONG_PATH = {
    errno.EEXIST,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
}
"""Errors of creating a directory that recur until somebody changes its path, or what is mounted there."""


class WorkDirectories:
    """A directory for one worker, locked while it is used.

    Directories that killed workers have left are removed, and what is left of their commands is killed.

    Args:
        parent: Where to create it; created if it is missing. Default: the directory for temporary files.
        keep: Keep the directories of runs, for debugging.

    Attributes:
        path: The directory. Other users cannot read it.

    Raises:
        InvalidArgument: `parent`, the setting `work_directory`, is wrong: no directory can be created there.
        OSError: The directory cannot be created for another reason, such as a full disk.
    """

    def __init__(self, parent: Path | None = None, *, keep: bool = False) -> None:
        self._keep = keep
        self._restoring = RLock()  # a finalizer that logs may come here, too
        try:
            self.path, self._lock = self._create(parent)
        except OSError as error:
            if error.errno not in _WRONG_PATH:
                raise
            finding = f"no directory can be created in {parent or 'the temporary directory'}: {error}"
            allowed = "a directory that the worker may write to, on a file system with locks"
            raise InvalidArgument("work_directory", parent, allowed, finding) from error
        forget_in_children(self)

    def forget(self) -> None:
        """See `Forked`: a child that outlives the worker would keep the directory locked, and on the disk."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _create(self, parent: Path | None) -> tuple[Path, int]:
        parent = _temporary_directory() if parent is None else parent.absolute()
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        return _locked_directory(parent, _KEPT_PREFIX if self._keep else _PREFIX)

    def make(self, name: str) -> Path:
        """Create a directory for a run. If its name is taken, which a task can do, another name is added.

        Raises:
            OSError: It cannot be created, for example because the disk is full.
        """
        self.restore()
        path = self.path / name
        try:
            path.mkdir(0o700)
        except FileExistsError:
            path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.path))
        return path

    def restore(self) -> None:
        """Make sure that files can be created in the worker's directory, whatever a task has done to it.

        Raises:
            OSError: Somebody has removed the directory, and it cannot be created again.
        """
        with self._restoring:
            if self._lock >= 0 and not self.path.exists():  # not after `close`
                self._create_again()
        self._restore_permissions()

    def _create_again(self) -> None:
        self.path.mkdir(0o700, parents=True, exist_ok=True)
        lock = os.open(self.path, _DIRECTORY)
        os.dup2(lock, self._lock, inheritable=False)
        os.close(lock)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def _restore_permissions(self) -> None:
        """Undo a `chmod` of a task, which would keep the worker from making and removing directories.

        Permissions of other users stay: a handler may have given them to commands that run as such.
        """
        if self._lock >= 0:
            mode = stat.S_IMODE(os.fstat(self._lock).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.fchmod(self._lock, mode | stat.S_IRWXU)

    def remove_empty(self, path: Path) -> bool:
        """Remove a run's directory if it is empty, unless directories are kept; return whether it is gone."""
        if self._keep:
            return False
        try:
            path.rmdir()
        except OSError:
            return False
        return True

    def remove(self, path: Path) -> None:
        """Remove a run's directory with `remove_tree`, unless directories are kept.

        Its task may have removed it, or replaced it with a symbolic link: the target of the link is kept.

        Raises:
            OSError: Something in it could not be removed.
        """
        if self._keep:
            return
        self._restore_permissions()
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            remove_tree(path)

    def close(self) -> None:
        """Remove everything unless it is kept; log what cannot be removed. May be called again."""
        if self._lock < 0:
            return
        try:
            if not self._keep:
                remove_tree(self.path)
            elif not any(self.path.iterdir()):
                self.path.rmdir()
        except OSError as error:
            log.error("cannot remove all of %s: %s", self.path, error)  # noqa: TRY400 - the error says it all
        self.forget()

    async def close_in_time(self) -> None:
        """Close, but wait for `TO_END` seconds at most."""
        try:
            async with asyncio.timeout(TO_END):
                await asyncio.to_thread(self.close)
        except TimeoutError:
            log.warning("%s is left behind: its file system does not respond, or it is large", self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _temporary_directory() -> Path:
    """Return the directory for temporary files.

    Raises:
        OSError: No directory for temporary files can be written to. The error is that of `TMPDIR` or `/tmp`:
            Python's own says that a directory is missing, also if the disk is full.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        path = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - where Python looks, too
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"written")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def _locked_directory(parent: Path, prefix: str) -> tuple[Path, int]:
    """Create a directory; return it with a file descriptor that holds the lock on it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):  # another worker took it for abandoned before it was locked
            lock = os.open(path, _DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:  # such as a network file system without locks
                os.close(lock)
                path.rmdir()
                raise OSError(error.errno, f"cannot be locked: {error.strerror}", str(path)) from error
            if os.fstat(lock).st_nlink:
                return path, lock
            os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            _remove_unless_locked(path)
        except FileNotFoundError:
            continue  # another worker has removed it
        except OSError as error:
            log.warning("cannot remove all of %s, left by a killed worker: %s", path, error)


def _remove_unless_locked(path: Path) -> None:
    try:
        lock = os.open(path, _DIRECTORY)
    except PermissionError:
        return  # it belongs to another user's worker, which may be alive
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return  # root can open it, but a process of that user could fill it again for ever
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill_marked(f"{path}/")
        remove_tree(path)
    except BlockingIOError:
        return  # its worker is alive
    finally:
        os.close(lock)


def remove_tree(path: Path) -> None:
    """Remove a directory with its content, whatever the permissions and the depth.

    What is mounted in it stays as it is: a task that is killed while it builds in a chroot may leave the
    machine's own `/dev` and `/home` there.

    Raises:
        OSError: Something could not be removed, such as a mount point, or another user's directory that is
            not empty; everything else was removed.
    """
    if _remove_if_empty(path):
        return
    top = _opened(path)
    emptying = _Emptying(top)
    try:
        emptying.run()
    finally:
        os.close(top)
    if emptying.failures:
        raise emptying.failures[0]
    path.rmdir()


def _remove_if_empty(directory: str | Path, *, dir_fd: int | None = None) -> bool:
    """Remove a directory if it is empty; return whether it is gone.

    Raises:
        OSError: Something is mounted there. No other call finds all kinds of mounts.
    """
    try:
        os.rmdir(directory, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise
        return False
    return True


def _opened(directory: str | Path, *, dir_fd: int | None = None) -> int:
    """Open a directory, with all permissions for its owner.

    A symbolic link that a process of another user has put in its place is not followed: a worker that runs as
    root would change the permissions of any directory of the machine.

    Raises:
        OSError: It cannot be opened, or there is such a link.
    """
    try:
        opened = os.open(directory, _DIRECTORY, dir_fd=dir_fd)
    except PermissionError:  # not for root
        os.chmod(directory, 0o700, dir_fd=dir_fd)
        opened = os.open(directory, _DIRECTORY, dir_fd=dir_fd)
    with suppress(PermissionError):  # it belongs to another user, and may be readable nevertheless
        os.fchmod(opened, 0o700)
    return opened


class _Emptying:
    """Removes what is in a directory.

    Inner directories are moved to the top and emptied one by one: no path gets too long, and there is no
    recursion. `top` is the directory's file descriptor.

    Attributes:
        failures: The errors of what could not be removed.
    """

    def __init__(self, top: int) -> None:
        self.failures: list[OSError] = []
        self._top = top
        self._fresh = map(f".{uuid4().hex}-{{}}".format, itertools.count())
        self._pending = ["."]

    def run(self) -> None:
        while self._pending:
            name = self._pending.pop()
            with self._noting_failure(name):
                self._empty(name)
                if name != ".":
                    os.rmdir(name, dir_fd=self._top)

    def _empty(self, name: str) -> None:
        directory = os.open(name, _DIRECTORY, dir_fd=self._top)
        try:
            with os.scandir(directory) as entries:
                for entry in list(entries):
                    with self._noting_failure(f"{name}/{entry.name}"):
                        self._remove(entry, directory, is_at_top=name == ".")
        finally:
            os.close(directory)

    def _remove(self, entry: os.DirEntry[str], directory: int, *, is_at_top: bool) -> None:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=directory)
            return
        if _remove_if_empty(entry.name, dir_fd=directory):
            return
        with suppress(PermissionError):  # it belongs to another user: it is moved nevertheless
            os.close(_opened(entry.name, dir_fd=directory))
        name = entry.name if is_at_top else next(self._fresh)
        if not is_at_top:
            os.rename(entry.name, name, src_dir_fd=directory, dst_dir_fd=self._top)
        self._pending.append(name)

    @contextmanager
    def _noting_failure(self, path: str) -> Generator[None]:
        """Note an error with the path below the top, where the cause is now: directories have been moved."""
        try:
            yield
        except OSError as error:
            self.failures.append(OSError(error.errno, error.strerror, os.path.normpath(path)))


def path_inside(
    directory: Path, path: str | os.PathLike[str], argument: str, *, allow_outside: bool = False
) -> Path:
    """Return an absolute path, given one that is relative to a directory.

    Raises:
        InvalidArgument: `path` cannot be a path, or leads out of the directory, by itself or through a
            symbolic link.
    """
    check_kind("allow_outside", allow_outside, bool)
    check_path(argument, path)
    absolute = directory / path
    if allow_outside:
        return absolute
    real = Path(os.path.realpath(absolute))
    if not real.is_relative_to(os.path.realpath(directory)):
        allowed = f"a path inside {directory}, also after following symbolic links"
        allowed += ", unless the handler sets allow_outside=True"
        raise InvalidArgument(argument, os.fspath(path), allowed)
    return real
