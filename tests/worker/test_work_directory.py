"""The directories of a worker and its runs."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from taskqueue_client.artifacts.transfers import open_real
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.worker.commands.work_directory import WorkDirectories, remove_tree
from tests.worker.queue_world import WAIT, World
from tests.worker.running_commands import open_descriptors
from tests.worker.worker_world import worker_for

NOBODY = 65534


@contextmanager
def nobody(tmp_path: Path) -> Generator[None]:
    """Be a user without root's rights during the block, who may write to this directory."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(tmp_path, NOBODY, -1)
    for parent in tmp_path.parents[:4]:
        if parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_run_has_a_directory_that_nobody_else_can_look_into(tmp_path: Path) -> None:
    with WorkDirectories(tmp_path) as directories:
        path = directories.make("run")
        assert path.parent == directories.path
        assert {each.stat().st_mode & 0o777 for each in (path, directories.path)} == {0o700}


def test_a_run_s_directory_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    with WorkDirectories(tmp_path) as directories:
        path = directories.make("run")
        (path / "a" / "b").mkdir(parents=True)
        (path / "a" / "b" / "file").write_text("text")
        directories.remove(path)
        assert list(directories.path.iterdir()) == []


def test_a_directory_that_its_task_has_removed_is_not_an_error(tmp_path: Path) -> None:
    with WorkDirectories(tmp_path) as directories:
        path = directories.make("run")
        path.rmdir()
        directories.remove(path)


def test_a_worker_s_directory_that_a_task_has_removed_is_made_again(tmp_path: Path) -> None:
    """As by `rm -rf "$TMPDIR"/*`: otherwise, each further run would end as internal-error."""
    parent = tmp_path / "parent"
    with WorkDirectories(parent) as directories:
        shutil.rmtree(parent)
        path = directories.make("run")
        assert directories.path.stat().st_mode & 0o777 == 0o700
        with WorkDirectories(parent):  # must not take it for abandoned
            assert path.is_dir()
    assert list(parent.iterdir()) == []


def test_permissions_that_a_task_has_taken_from_the_worker_s_directory_are_restored(tmp_path: Path) -> None:
    with nobody(tmp_path), WorkDirectories(tmp_path) as directories:
        first = directories.make("first")
        (first / "file").touch()
        directories.path.chmod(0)
        directories.remove(first)
        assert list(directories.path.iterdir()) == []
        directories.path.chmod(0)
        assert list(directories.make("second").iterdir()) == []


def test_permissions_that_a_handler_has_given_to_commands_of_another_user_stay(tmp_path: Path) -> None:
    with WorkDirectories(tmp_path) as directories:
        directories.path.chmod(0o711)
        directories.remove(directories.make("another"))
        assert directories.path.stat().st_mode & 0o777 == 0o711


def test_of_a_directory_that_its_task_has_replaced_by_a_link_only_the_link_is_removed(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    with WorkDirectories(tmp_path) as directories:
        path = directories.make("run")
        path.rmdir()
        path.symlink_to(shared)
        directories.remove(path)
        assert not path.is_symlink()
    assert shared.stat().st_mode & 0o777 == 0o755


def test_only_a_directory_with_nothing_in_it_is_removed_at_once(tmp_path: Path) -> None:
    with WorkDirectories(tmp_path) as directories:
        full, empty = directories.make("full"), directories.make("empty")
        (full / "file").write_text("text")
        assert not directories.remove_empty(full)
        assert directories.remove_empty(empty)
        assert list(directories.path.iterdir()) == [full]


def test_an_empty_directory_that_is_to_be_kept_stays(tmp_path: Path) -> None:
    with WorkDirectories(tmp_path, keep=True) as directories:
        path = directories.make("run")
        assert not directories.remove_empty(path)
        assert path.is_dir()


def test_a_worker_leaves_nothing(tmp_path: Path) -> None:
    directories = WorkDirectories(tmp_path)
    (directories.make("run") / "file").write_text("text")
    directories.close()
    directories.close()
    assert list(tmp_path.iterdir()) == []


def test_the_place_for_temporary_files_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with WorkDirectories() as directories:
        assert directories.path.parent == tmp_path


def test_directories_are_kept_on_request(tmp_path: Path) -> None:
    with WorkDirectories(tmp_path / "new", keep=True) as directories:
        path = directories.make("run")
        directories.remove(path)
    WorkDirectories(tmp_path / "new").close()
    assert path.is_dir()


def test_a_worker_without_kept_work_directories_removes_its_directory(tmp_path: Path) -> None:
    WorkDirectories(tmp_path, keep=True).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_a_run_gets_another_directory_if_a_task_has_taken_its_name(tmp_path: Path, kind: str) -> None:
    """Otherwise a task could have the runs of other tasks end as internal errors."""
    with WorkDirectories(tmp_path / "own") as directories:
        taken = directories.path / "run"
        if kind == "directory":
            taken.mkdir()
            (taken / "theirs").touch()
        elif kind == "file":
            taken.touch()
        else:
            taken.symlink_to(tmp_path)
        path = directories.make("run")
        assert path.parent == directories.path
        assert list(path.iterdir()) == []
        assert path.stat().st_mode & 0o777 == 0o700
        directories.remove(path)
        assert list(directories.path.iterdir()) == [taken]


KILLED = """
import os, signal, sys
from pathlib import Path
from taskqueue_client.worker.commands.work_directory import WorkDirectories
directories = WorkDirectories(Path(sys.argv[1]))
directories.make("run")
if "forks" in sys.argv:
    begun, begins = os.pipe()
    if os.fork() == 0:
        os.write(begins, b"x")
        sys.stdin.read()
        os._exit(0)
    os.read(begun, 1)  # wait until the child has run the package's hooks for forks
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("forks", ["", "forks"])
def test_the_directory_of_a_worker_that_was_killed_is_removed_by_the_next_one(
    tmp_path: Path, forks: str
) -> None:
    """Also if a child that its handler has forked is still running, as those of `multiprocessing` may be."""
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path, forks], stdin=subprocess.PIPE) as killed:
        killed.wait(WAIT)
        (abandoned,) = tmp_path.iterdir()
        with WorkDirectories(tmp_path) as directories:
            assert not abandoned.exists()
            assert list(tmp_path.iterdir()) == [directories.path]


def test_a_directory_that_another_worker_removes_at_the_same_time_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def glob(path: Path, pattern: str) -> Generator[Path]:  # finds what is already gone
        yield path / pattern.replace("*", "removed")

    monkeypatch.setattr(Path, "glob", glob)
    WorkDirectories(tmp_path).close()
    assert caplog.text == ""


def test_the_directory_of_another_user_s_worker_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That worker may be alive: a warning about the rest of a killed worker would be wrong."""
    with WorkDirectories(tmp_path) as other:
        other.path.chmod(0)
        opened = os.open

        def refused(path: str | Path, flags: int) -> int:
            if path == other.path:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return opened(path, flags)

        monkeypatch.setattr(os, "open", refused)  # root could open it
        WorkDirectories(tmp_path).close()
        monkeypatch.undo()
        assert caplog.text == ""
        assert other.path.is_dir()


def test_the_next_worker_ends_the_commands_of_a_killed_one(tmp_path: Path) -> None:
    abandoned = tmp_path / "taskqueue-worker-abandoned"
    with WorkDirectories(tmp_path) as first:
        abandoned.mkdir()
        commands = [
            subprocess.Popen(["sleep", "1000"], env={"TASKQUEUE_RUN": f"{path}/taskid/0/"})
            for path in (abandoned, first.path)
        ]
        WorkDirectories(tmp_path).close()
        assert commands[0].wait(30) == -signal.SIGTERM
        assert commands[1].poll() is None
        commands[1].kill()
        commands[1].wait()


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with WorkDirectories(Path("here")) as directories:
        assert directories.path.parent == tmp_path / "here"


def test_the_directory_of_a_running_worker_is_not_removed(tmp_path: Path) -> None:
    with WorkDirectories(tmp_path) as first:
        WorkDirectories(tmp_path).close()
        assert first.path.is_dir()


def test_a_directory_that_another_worker_took_for_abandoned_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker removes it between its creation and its locking; here, `mkdtemp` does so."""
    mkdtemp = tempfile.mkdtemp
    made: list[str] = []

    def mkdtemp_and_lose_the_first(prefix: str, dir: Path) -> str:  # noqa: A002 - tempfile's name
        made.append(mkdtemp(prefix=prefix, dir=dir))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp_and_lose_the_first)
    with WorkDirectories(tmp_path) as directories:
        assert directories.path == Path(made[1])


def test_directories_without_permissions_are_removed(tmp_path: Path) -> None:
    with nobody(tmp_path):
        top = tmp_path / "top"
        (top / "closed" / "inner").mkdir(parents=True)
        (top / "closed" / "inner" / "file").write_text("text")
        (top / "closed" / "inner").chmod(0o000)
        (top / "closed").chmod(0o500)
        top.chmod(0o000)
        remove_tree(top)
        assert not top.exists()


def test_root_s_worker_leaves_alone_what_other_users_have_put_beside_its_directory(tmp_path: Path) -> None:
    """Removing a directory that a process keeps filling would not end, and the worker would not start."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files that belong to somebody else")
    theirs = tmp_path / "taskqueue-worker-theirs"
    (theirs / "folder").mkdir(parents=True)
    os.chown(theirs, NOBODY, -1)
    WorkDirectories(tmp_path).close()
    assert (theirs / "folder").exists()


def test_another_user_s_directory_is_an_error_and_everything_else_is_removed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files that belong to somebody else")
    top = tmp_path / "top"
    (top / "theirs").mkdir(parents=True)
    (top / "theirs" / "file").write_text("text")
    (top / "ours").mkdir()
    (top / "ours" / "file").write_text("text")
    for each in (top, top / "ours"):
        os.chown(each, NOBODY, -1)
    with nobody(tmp_path), pytest.raises(PermissionError, match=r"Permission denied: 'theirs/file'$"):
        remove_tree(top)
    assert [each.name for each in top.iterdir()] == ["theirs"]


def test_the_error_about_what_is_left_has_the_path_at_which_it_is_now(tmp_path: Path) -> None:
    """Otherwise nobody knows what to unmount: directories are moved before they are emptied."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files that belong to somebody else")
    top = tmp_path / "top"
    (top / "ours" / "theirs" / "folder").mkdir(parents=True)
    for each in (top, top / "ours"):
        os.chown(each, NOBODY, -1)
    with nobody(tmp_path), pytest.raises(PermissionError) as found:
        remove_tree(top)
    assert (top / found.value.filename).samefile(*top.glob("*/theirs"))


MOUNTING = """
import os, subprocess, sys
from pathlib import Path
from taskqueue_client.worker.commands.work_directory import remove_tree

outside, top = map(Path, sys.argv[1:])
for place in (top, top / "here", top / "inner" / "here"):
    (top / "inner").mkdir(parents=True)
    (top / "inner" / "file").touch()
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", outside, place], check=True)
    try:
        remove_tree(top)
    except OSError as error:
        print(error.strerror, [each.name for each in outside.iterdir()], oct(outside.stat().st_mode))
    subprocess.run(["umount", place], check=True)
    remove_tree(top)
    print(top.exists())
"""


def test_what_a_task_has_mounted_stays_as_it_is(tmp_path: Path) -> None:
    """As by a canceled build in a chroot: removing the mount's content would remove files of the machine."""
    namespaces = ["unshare", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*namespaces, "true"], check=False).returncode:
        pytest.skip("this user cannot make namespaces, in which to mount something")
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o750)
    (outside / "precious").touch()
    program: list[str | Path] = [*namespaces, sys.executable, "-c", MOUNTING, outside, tmp_path / "top"]
    done = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "Device or resource busy ['precious'] 0o40750\nFalse\n" * 3


def test_links_are_removed_and_their_targets_are_not(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("text")
    outside.chmod(0o500)
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    (top / "nowhere").symlink_to(tmp_path / "missing")
    remove_tree(top)
    assert (outside / "file").exists()
    assert outside.stat().st_mode & 0o777 == 0o500


def test_a_link_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "top").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="top"):
        remove_tree(tmp_path / "top")
    assert (tmp_path / "outside").is_dir()


def test_directories_within_directories_are_removed_however_long_the_path(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    directory = os.open(top, os.O_RDONLY)
    for _ in range(500):  # a path of 100 kB; the system opens at most 4 kB
        os.mkdir("d" * 200, dir_fd=directory)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(directory)
    remove_tree(top)
    assert not top.exists()


def test_pipes_and_sockets_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    os.mkfifo(top / "pipe")
    remove_tree(top)
    assert not top.exists()


def test_a_directory_that_cannot_be_removed_at_the_end_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directories = WorkDirectories(tmp_path)
    directories.path.rename(tmp_path / "moved")
    directories.close()
    assert f"cannot remove all of {directories.path}" in caplog.text


@pytest.mark.parametrize("path", ["file", "file/below", "loop", "long" * 100])
def test_a_work_directory_that_cannot_be_used_names_the_setting(
    world: World, tmp_path: Path, path: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InvalidArgument, match=f"^work_directory: .*{path}") as caught:
        worker_for(world, work_directory=tmp_path / path).serve()
    assert caught.value.argument == "work_directory"


def test_a_work_directory_on_a_read_only_file_system_names_the_setting(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in containers. It is simulated, as only root could mount one here."""

    def refuse(*, dir: Path, **_: str) -> str:  # noqa: A002 - tempfile's name
        raise OSError(errno.EROFS, "Read-only file system", str(dir))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(InvalidArgument, match=f"^work_directory: .*{tmp_path}.*Read-only file system"):
        worker_for(world, work_directory=tmp_path).serve()


@pytest.mark.parametrize(
    ("number", "kind", "setting"),
    [
        (errno.EOPNOTSUPP, InvalidArgument, "work_directory: "),
        (errno.ENOSYS, InvalidArgument, "work_directory: "),
        (errno.ENOLCK, OSError, ""),  # also while a machine boots: supervisors must start the worker again
    ],
)
def test_a_work_directory_that_cannot_be_locked_is_named_and_left_empty(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[Exception],
    setting: str,
) -> None:
    """As on some network and FUSE file systems: no start of the worker may leave a directory behind."""

    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    finding = f"cannot be locked: {os.strerror(number)}: '{tmp_path}/"
    with pytest.raises(kind, match=f"{setting}.*{finding}"):
        worker_for(world, work_directory=tmp_path).serve()
    assert not any(tmp_path.iterdir())


ON_A_FULL_DISK = """
import resource
from taskqueue_client.worker.commands.work_directory import WorkDirectories
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    WorkDirectories()
except OSError as error:
    print(type(error).__name__, error.errno, error.filename)
"""


def test_a_directory_that_another_worker_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []
    flock = fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].rmdir()
        flock(descriptor, operation)

    before = open_descriptors()
    monkeypatch.setattr(fcntl, "flock", remove_first)
    with WorkDirectories(tmp_path) as directories:
        assert [directories.path] == [*tmp_path.iterdir()] != removed
    assert open_descriptors() <= before


def test_a_full_disk_is_not_a_wrong_setting_as_a_restart_helps_later(tmp_path: Path) -> None:
    """A service manager does not restart a worker whose setting is wrong."""
    command = [sys.executable, "-c", ON_A_FULL_DISK]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == (f"OSError {errno.EFBIG} {tmp_path}\n", "")


@pytest.mark.parametrize("replaced", ["run", "run/folder", "run/folder/inner"])
def test_a_link_that_is_put_in_the_place_of_a_directory_while_it_is_removed_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """A process of another user may try this with a worker that runs as root."""
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o755)
    (tmp_path / "run/folder/inner").mkdir(parents=True)
    (tmp_path / "run/folder/inner/x").touch()
    remove_empty = os.rmdir

    def remove_or_replace(directory: str | Path, *, dir_fd: int | None = None) -> None:
        try:
            remove_empty(directory, dir_fd=dir_fd)
        except OSError:  # the directory is not empty yet
            if Path(directory).name == Path(replaced).name:
                os.rename(directory, tmp_path / "before", src_dir_fd=dir_fd)
                os.symlink(outside, directory, dir_fd=dir_fd)
            raise

    monkeypatch.setattr(os, "rmdir", remove_or_replace)
    with pytest.raises(NotADirectoryError):
        remove_tree(tmp_path / "run")
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755


def test_a_file_in_a_directory_that_cannot_be_listed_is_opened(tmp_path: Path) -> None:
    with nobody(tmp_path):
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder/x").write_text("content")
        (tmp_path / "folder").chmod(0o100)
        with os.fdopen(open_real(f"{tmp_path}/folder/x", os.O_RDONLY)) as file:
            assert file.read() == "content"


def test_an_error_of_opening_names_the_whole_path_and_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    for missing in (tmp_path / "folder/x", tmp_path / "x"):
        with pytest.raises(FileNotFoundError, match=re.escape(str(missing))):
            open_real(str(missing), os.O_RDONLY)
    assert psutil.Process().num_fds() == before
