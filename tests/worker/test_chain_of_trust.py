"""Chains of trust: what a worker signs, and what consumers verify before they use an artifact."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import errno
import hashlib
import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack
from urllib.parse import unquote

import aiohttp
import pytest
import requests
import taskcluster.aio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taskqueue_client import AsyncQueue, Queue, TaskFailed, WorkerLoop, slugid
from taskqueue_client.artifacts import ChainOfTrust, ChainOfTrustError, StorageRefused
from taskqueue_client.artifacts.sources import Source
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.local.faults import Delay, Respond
from taskqueue_client.testing import run_handler
from taskqueue_client.worker.features.chain_of_trust import RunChain, load_signing_key
from taskqueue_client.worker.loop import WorkerSettings
from taskqueue_client.worker.outcomes import IntermittentTask, InternalError
from taskqueue_client.worker.run.task_run import TaskRun
from tests.worker.queue_world import TASK_QUEUE_ID, World
from tests.worker.request_log import requests_noted
from tests.worker.worker_world import Handler, artifact, artifact_names, log_of, work, worker_for

Context: Any = import_module("scriptworker.context").Context
client: Any = import_module("scriptworker.client")
constants: Any = import_module("scriptworker.constants")
ed25519: Any = import_module("scriptworker.ed25519")
exceptions: Any = import_module("scriptworker.exceptions")
generate: Any = import_module("scriptworker.cot.generate")
verify: Any = import_module("scriptworker.cot.verify")
load_json_or_yaml: Any = import_module("scriptworker.utils").load_json_or_yaml

CHAIN = "public/chain-of-trust.json"
SIGNATURE = "public/chain-of-trust.json.sig"
CERTIFIED_LOG = "public/logs/certified.log"
NAMES = {CHAIN, SIGNATURE, CERTIFIED_LOG}
BIG = b"a line that is compressed\n" * 20_000


class Key:
    """An ed25519 key pair, encoded as in files."""

    def __init__(self) -> None:
        key = Ed25519PrivateKey.generate()
        self.private: str = ed25519.ed25519_private_key_to_string(key)
        self.public = base64.b64encode(key.public_key().public_bytes_raw()).decode()

    def pipe(self) -> str:
        """Return a path from which the private key can be read once."""
        reading, writing = os.pipe()
        os.write(writing, self.private.encode())
        os.close(writing)
        return f"/dev/fd/{reading}"

    def file(self, directory: Path, mode: int = 0o400) -> Path:
        path = directory / "signing.key"
        path.write_text(self.private + "\n")
        path.chmod(mode)
        return path


KEY = Key()


def make_artifacts(task: TaskRun) -> None:
    task.upload_artifact("public/small.txt", b"small")
    (task.work_directory / "big.txt").write_bytes(BIG)
    task.upload_artifact("public/big.txt", "big.txt")
    task.upload_artifact("public/object.bin", BIG, storage="object")
    task.log.info("made them")


def fail(task: TaskRun) -> None:
    make_artifacts(task)
    message = "red"
    raise TaskFailed(message)


def signed(
    world: World, handler: Handler, payload: dict[str, Any] | None = None, **settings: Unpack[WorkerSettings]
) -> str:
    """Have a worker with a key run a task; return the task's identifier."""
    task_id = world.create(payload, tags={"worker-implementation": "generic-worker"})
    settings = {"signing_key": KEY.pipe(), **settings}
    work(world, handler, **settings)
    return task_id


def content(world: World, task_id: str, name: str) -> bytes:
    """Return the content of an artifact, as a consumer downloads it."""
    found: Any = world.queue.artifact(task_id, 0, name)
    if found.storage_type == "object":
        return world.queue.download_artifact(task_id, name).content
    return requests.get(found.url, timeout=30).content


# What a worker signs


@pytest.mark.parametrize(("handler", "state"), [(make_artifacts, "completed"), (fail, "failed")])
def test_a_run_that_is_completed_or_failed_has_a_signed_list_of_its_artifacts(
    world: World, handler: Handler, state: str
) -> None:
    task_id = signed(world, handler)
    assert world.status(task_id).state == state
    chain = world.queue.verify_chain_of_trust(task_id, KEY.public)
    uploaded = artifact_names(world, task_id) - {CHAIN, SIGNATURE, "public/logs/live.log"}
    assert set(chain.artifacts) == uploaded
    assert uploaded >= {"public/small.txt", "public/big.txt", "public/object.bin", CERTIFIED_LOG}
    for name, hashes in chain.artifacts.items():
        assert hashes == {"sha256": hashlib.sha256(content(world, task_id, name)).hexdigest()}
    assert chain.task == world.queue.task(task_id)
    assert (chain.task_id, chain.run_id, chain.worker_group, chain.worker_id) == (
        task_id,
        0,
        "group",
        "worker",
    )
    assert artifact(world, task_id, CERTIFIED_LOG) == log_of(world, task_id)


def test_the_document_has_the_fields_of_the_format(world: World) -> None:
    task_id = signed(world, make_artifacts)
    document = json.loads(content(world, task_id, CHAIN))
    assert set(document) == {
        *("chainOfTrustVersion", "artifacts", "task", "taskId", "runId", "workerGroup", "workerId"),
        *("workerType", "environment"),
    }
    assert (document["chainOfTrustVersion"], document["environment"]) == (1, {})
    assert document["workerType"] == TASK_QUEUE_ID.partition("/")[2] == document["task"]["workerType"]
    assert len(content(world, task_id, SIGNATURE)) == 64
    types = {each.name: each.content_type for each in world.queue.iter_artifacts(task_id, 0)}
    assert types[SIGNATURE] == "application/octet-stream"


def test_the_document_has_what_the_last_call_of_the_handler_says_of_its_environment(world: World) -> None:
    def handler(task: TaskRun) -> None:
        if not attempts:
            attempts.append(task)
            task.describe_environment({"instanceId": "first"})
            reason = "again"
            raise IntermittentTask(reason)
        task.describe_environment({"imageHash": "sha256:äb"})
        task.describe_environment({"instanceType": "large"})
        with pytest.raises(InternalError, match="attempt 1"):
            attempts[0].describe_environment({"instanceId": "first"})

    attempts: list[TaskRun] = []
    task_id = signed(world, handler, intermittent_attempts=2)
    document = json.loads(content(world, task_id, CHAIN))
    assert document["environment"] == {"imageHash": "sha256:äb", "instanceType": "large"}
    world.queue.verify_chain_of_trust(task_id, KEY.public)


@pytest.mark.parametrize(
    "wrong", ["text", [("a", "b")], {"a": 1}, {1: "a"}, {"a": "\ud800"}, {"\udc80": "a"}]
)
def test_an_environment_that_does_not_map_str_to_str_is_refused(wrong: Any) -> None:
    class Describing(WorkerLoop):
        def run_task(self, task: TaskRun) -> None:
            with pytest.raises(InvalidArgument, match=r"^properties: .* expected a dict"):
                task.describe_environment(wrong)

    assert run_handler(Describing, {}).outcome == "completed"


def test_the_chain_of_trust_is_uploaded_last_and_before_the_report(world: World) -> None:
    with requests_noted(world.local) as made:
        signed(world, make_artifacts)
    paths = [
        unquote(each.path) for each in made if "/runs/0/" in each.path and each.method in {"POST", "PUT"}
    ]
    assert [path.partition("/runs/0/")[2] for path in paths[-4:]] == [
        *(f"artifacts/{name}" for name in (CERTIFIED_LOG, CHAIN, SIGNATURE)),
        "completed",
    ]


def test_a_run_that_ends_as_an_exception_is_not_signed(world: World) -> None:
    def crash(task: TaskRun) -> None:
        make_artifacts(task)
        message = "a bug"
        raise ValueError(message)

    task_id = signed(world, crash)
    assert world.run(task_id).reason_resolved == "internal-error"
    assert not artifact_names(world, task_id) & NAMES
    assert "public/big.txt" in artifact_names(world, task_id)
    with pytest.raises(ChainOfTrustError, match="run 0 has no"):
        world.queue.verify_chain_of_trust(task_id, KEY.public)


def test_a_worker_without_a_key_signs_nothing(world: World) -> None:
    task_id = world.create({"features": {"chainOfTrust": True}})
    work(world, make_artifacts)
    assert not artifact_names(world, task_id) & NAMES


@pytest.mark.parametrize(
    ("payload", "is_signed"),
    [
        ({"features": {"chainOfTrust": True}}, True),
        ({"features": {"chainOfTrust": False}}, False),
        ({"features": ["chainOfTrust"]}, False),
        ({}, False),
    ],
)
def test_only_runs_of_tasks_that_ask_for_it_are_signed_on_request(
    world: World, payload: dict[str, Any], *, is_signed: bool
) -> None:
    task_id = signed(world, make_artifacts, payload, chain_of_trust="requested")
    assert (artifact_names(world, task_id) >= NAMES) is is_signed


def test_asynchronous_handlers_are_signed_too(world: World) -> None:
    async def handler(task: TaskRun) -> None:
        make_artifacts(task)

    task_id = world.create()
    work(world, awaited=handler, signing_key=KEY.pipe())
    assert world.queue.verify_chain_of_trust(task_id, KEY.public).artifacts


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_names_of_the_chain_of_trust_are_reserved(world: World, name: str) -> None:
    refused: list[str] = []

    def handler(task: TaskRun) -> None:
        with pytest.raises(InvalidArgument) as found:
            task.upload_artifact(name, b"my own")
        refused.append(str(found.value))

    signed(world, handler)
    assert refused == [
        f"name: '{name}' is not valid; expected any other name: this one is reserved for the chain of trust"
    ]


def test_a_task_that_creates_a_reserved_artifact_by_itself_fails(world: World) -> None:
    def handler(task: TaskRun) -> None:
        task.queue.create_reference_artifact(
            task.task_id, task.run_id, CHAIN, "https://example.com", expires=task.expires
        )

    task_id = signed(world, handler)
    assert world.run(task_id).reason_resolved == "failed"
    assert "reserved for its chain of trust" in log_of(world, task_id)


def test_a_reserved_artifact_of_the_task_is_replaced_if_the_queue_allows_that(world: World) -> None:
    def handler(task: TaskRun) -> None:
        task.queue.upload_artifact(task.task_id, task.run_id, CHAIN, b"{}", expires="1 hour")

    task_id = signed(world, handler)
    assert world.run(task_id).reason_resolved == "completed"
    assert world.queue.verify_chain_of_trust(task_id, KEY.public).task_id == task_id


def test_a_conflict_of_a_proxy_is_not_taken_for_a_reserved_artifact_of_the_task(world: World) -> None:
    world.local.faults.add(Delay("queue.createArtifact", seconds=0, times=2))  # the log and its link
    world.local.faults.add(Respond("queue.createArtifact", status=409, html=True))
    task_id = signed(world, lambda _: None, upload_timeout=0)
    assert world.run(task_id).reason_resolved == "resource-unavailable"
    assert "reserved for its chain of trust" not in log_of(world, task_id)


def test_a_missing_file_makes_the_run_fail_and_is_not_among_the_signed_artifacts(world: World) -> None:
    def handler(task: TaskRun) -> None:
        make_artifacts(task)
        task.upload_artifact("public/missing.txt", "missing.txt")

    task_id = signed(world, handler)
    assert world.run(task_id).reason_resolved == "failed"
    chain = world.queue.verify_chain_of_trust(task_id, KEY.public)
    assert "public/missing.txt" not in chain.artifacts
    assert "public/big.txt" in chain.artifacts
    assert (
        hashlib.sha256(log_of(world, task_id).encode()).hexdigest()
        == (chain.artifacts["public/logs/live_backing.log"]["sha256"])
    )


def test_a_file_that_is_changed_while_it_is_hashed_fails_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = RunChain.hashed

    def grow_first(self: RunChain, queue: AsyncQueue, source: Source) -> Any:
        if source.name.endswith("big.txt"):
            with Path(source.name).open("ab") as file:
                file.write(b"more")
        return hashed(self, queue, source)

    monkeypatch.setattr(RunChain, "hashed", grow_first)
    task_id = signed(world, make_artifacts)
    assert world.run(task_id).reason_resolved == "failed"
    assert "big.txt: the file changed while it was uploaded" in log_of(world, task_id)
    assert "public/big.txt" not in world.queue.verify_chain_of_trust(task_id, KEY.public).artifacts


def test_a_disk_that_cannot_be_read_at_hashing_is_an_internal_error_and_nothing_is_signed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = Source.blocks

    def broken(self: Source) -> Any:
        if self.name.endswith("big.txt"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
        return blocks(self)

    monkeypatch.setattr(Source, "blocks", broken)
    task_id = signed(world, make_artifacts)
    assert world.run(task_id).reason_resolved == "internal-error"
    assert not artifact_names(world, task_id) & NAMES


@pytest.mark.parametrize("position", [1, 2, 3], ids=[CERTIFIED_LOG, CHAIN, SIGNATURE])
def test_a_run_whose_chain_of_trust_cannot_be_uploaded_is_not_completed(world: World, position: int) -> None:
    world.local.faults.add(Delay(endpoint="storage.put", seconds=0, times=position))  # the log precedes them
    world.local.faults.add(Respond(endpoint="storage.put", status=403))
    task_id = signed(world, lambda _: None)
    assert world.run(task_id).reason_resolved == "internal-error"
    with pytest.raises(ChainOfTrustError):
        world.queue.verify_chain_of_trust(task_id, KEY.public)


# The key


def key_in(text: str, directory: Path) -> Path:
    path = directory / "broken.key"
    path.write_text(text)
    return path


def test_a_key_that_commands_can_read_is_refused_at_start_with_mode_and_owner(
    world: World, tmp_path: Path
) -> None:
    path = KEY.file(tmp_path, 0o640)
    worker = worker_for(world, make_artifacts, signing_key=path)
    with pytest.raises(InvalidArgument):
        worker.serve()
    with pytest.raises(InvalidArgument) as found:
        worker.serve()
    user = f"{os.environ.get('USER', 'root')} (uid {os.geteuid()})" if os.geteuid() == 0 else ""
    assert f"{path}: commands of tasks can read it: its mode is 0640, its owner {user}" in str(found.value)
    assert "expected a pipe, such as /dev/fd/3" in str(found.value)
    assert KEY.private not in str(found.value)


def test_without_cryptography_signing_and_verifying_name_the_extra(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = signed(world, make_artifacts)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(ImportError, match=r"cryptography: pip install .taskqueue_client\[trust\]"):
        world.queue.verify_chain_of_trust(task_id, KEY.public)
    with pytest.raises(ImportError, match=r"cryptography: pip install .taskqueue_client\[trust\]"):
        worker_for(world, make_artifacts, signing_key=KEY.file(tmp_path, 0o600))


DROP = textwrap.dedent("""
    import ctypes, os, pwd, sys
    from pathlib import Path
    import cryptography.hazmat.primitives.asymmetric.ed25519
    from taskqueue_client.errors import InvalidArgument
    from taskqueue_client.worker.features.chain_of_trust import load_signing_key

    key = load_signing_key(Path(sys.argv[1]))
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        key.check_hidden()
    except InvalidArgument as error:
        print("refused:", error)
    else:
        print("accepted", len(key.sign(b"content")))
""")


def as_other_user(path: Path | str, *, pass_fds: Sequence[int] = ()) -> str:
    """Load a key as root, and check it as another user, like a worker; return what is printed."""
    command = [sys.executable, "-c", DROP, str(path)]
    return subprocess.check_output(command, text=True, timeout=60, pass_fds=pass_fds)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a worker as another user")


@as_root
def test_a_key_that_only_root_may_read_is_accepted_once_the_worker_has_dropped_its_privileges(
    tmp_path: Path,
) -> None:
    path = KEY.file(tmp_path, 0o600)
    assert as_other_user(path).strip() == "accepted 64"
    descriptor = os.open(path, os.O_RDONLY)  # as systemd does for OpenFile=
    assert as_other_user(f"/dev/fd/{descriptor}", pass_fds=[descriptor]).strip() == "accepted 64"
    os.close(descriptor)


@as_root
@pytest.mark.parametrize(("mode", "owner"), [(0o404, 0), (0o000, 65534)])
def test_a_key_of_the_worker_or_for_everybody_is_refused(tmp_path: Path, mode: int, owner: int) -> None:
    path = KEY.file(tmp_path, mode)
    os.chown(path, owner, owner)
    said = as_other_user(path)
    assert said.startswith("refused: signing_key")
    assert f"its mode is {mode:04o}, its owner" in said
    assert f"(uid {owner})" in said


@pytest.mark.parametrize(
    ("text", "name"),
    [("", "empty"), ("c2hvcnQ=", "short"), ("nöt base64 at all!", "other"), ("A" * 5000, "long")],
)
def test_a_file_that_is_not_a_key_is_refused_and_not_shown(
    world: World, tmp_path: Path, text: str, name: str
) -> None:
    del name
    path = key_in(text, tmp_path)
    with pytest.raises(
        InvalidArgument, match=r"the content of .*broken.key is not a key; expected an ed25519"
    ) as found:
        worker_for(world, make_artifacts, signing_key=path)
    assert not text or text not in repr(found.value)
    assert found.value.__cause__ is None


@pytest.mark.parametrize("path", ["/nowhere/signing.key", "/dev/fd/9999", "/dev/fd/x"])
def test_a_key_that_cannot_be_opened_is_refused(world: World, path: str) -> None:
    with pytest.raises(InvalidArgument, match=f"signing_key: {path} cannot be opened"):
        worker_for(world, make_artifacts, signing_key=path)


def test_a_key_that_cannot_be_read_is_refused_with_the_cause(world: World, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=rf"signing_key: {tmp_path} cannot be read: .*Is a directory"):
        worker_for(world, make_artifacts, signing_key=tmp_path)


def test_commands_find_the_key_in_no_descriptor_variable_or_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = load_signing_key(Path(KEY.pipe()))
    assert KEY.private not in f"{key!r} {key} {vars(key)}"
    script = "import os; print(dict(os.environ)); print(sorted(os.listdir('/proc/self/fd')))"

    def handler(task: TaskRun) -> None:
        task.run_command([sys.executable, "-c", script])
        task.log.info("the key is %s", KEY.private)

    task_id = signed(world, handler)
    log = log_of(world, task_id)
    assert "the key is [masked]" in log
    assert "SIGNING" not in log
    assert "['0', '1', '2', '3']" in log  # 3 is the descriptor of the listing
    assert KEY.private not in caplog.text


def test_a_worker_may_run_again_with_the_same_key(world: World) -> None:
    worker = worker_for(world, make_artifacts, signing_key=KEY.pipe(), max_tasks=1)
    for _ in range(2):
        task_id = world.create()
        worker.serve()
        assert world.queue.verify_chain_of_trust(task_id, KEY.public).task_id == task_id


# What a consumer verifies


class Consumer:
    """Either client; the methods of both return results, not awaitables."""

    def __init__(self, world: World, *, is_async: bool) -> None:
        self._world = world
        self._is_async = is_async

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if not self._is_async:
                return getattr(self._world.queue, name)(*args, **options)
            return asyncio.run(self._call(name, *args, **options))

        return call

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        async with AsyncQueue(self._world.local.root_url, self._world.local.credentials) as queue:
            return await getattr(queue, name)(*args, **options)


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def consumer(world: World, request: pytest.FixtureRequest) -> Consumer:
    return Consumer(world, is_async=request.param)


class Uploader:
    """A run whose artifacts a test uploads and signs, rightly or wrongly."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.task_id = world.create()
        world.queue.claim_work(TASK_QUEUE_ID, worker_group="group", worker_id="worker")
        self.chain: dict[str, Any] = {
            "chainOfTrustVersion": 1,
            "artifacts": {},
            "task": dict(world.queue.task(self.task_id)),
            "taskId": self.task_id,
            "runId": 0,
            "workerGroup": "group",
            "workerId": "worker",
            "environment": {},
        }

    def upload(self, name: str, content: bytes, *, hashes: dict[str, str] | None = None) -> None:
        self._put(name, content)
        sha256 = hashlib.sha256(content).hexdigest()
        self.chain["artifacts"][name] = {"sha256": sha256} if hashes is None else hashes

    def sign(self, key: Key = KEY, *, signature: bytes | None = None, document: bytes | None = None) -> None:
        content = json.dumps(self.chain).encode() if document is None else document
        made = (
            ed25519.ed25519_private_key_from_string(key.private).sign(content)
            if signature is None
            else signature
        )
        self._put(CHAIN, content)
        self._put(SIGNATURE, made)

    def _put(self, name: str, content: bytes) -> None:
        expires = self.world.status(self.task_id).expires
        self.world.queue.upload_artifact(self.task_id, 0, name, content, expires=expires)

    tamper = _put


@pytest.fixture
def uploader(world: World) -> Uploader:
    return Uploader(world)


def test_a_signed_artifact_is_handed_over(consumer: Consumer, uploader: Uploader, tmp_path: Path) -> None:
    uploader.upload("public/x.txt", BIG)
    uploader.sign()
    keys = [Key().public, KEY.public + "\n"]
    found = consumer.download_artifact(uploader.task_id, "public/x.txt", verified_by=keys)
    assert found.content == BIG
    assert found.hashes["sha256"] == hashlib.sha256(BIG).hexdigest()
    to = tmp_path / "x.txt"
    consumer.download_artifact(uploader.task_id, "public/x.txt", to=to, verified_by=keys)
    assert to.read_bytes() == BIG


def test_a_chain_is_verified_once_for_many_artifacts(consumer: Consumer, uploader: Uploader) -> None:
    for number in range(3):
        uploader.upload(f"public/{number}.txt", b"%d" % number)
    uploader.sign()
    chain = consumer.verify_chain_of_trust(uploader.task_id, [KEY.public], run_id=0)
    assert isinstance(chain, ChainOfTrust)
    assert chain.public_key == KEY.public
    for number in range(3):
        found = consumer.download_artifact(uploader.task_id, f"public/{number}.txt", verified_by=chain)
        assert found.content == b"%d" % number
    other = dataclasses.replace(chain, task_id=slugid())
    with pytest.raises(InvalidArgument, match="it is the chain of trust of"):
        consumer.download_artifact(uploader.task_id, "public/0.txt", verified_by=other)
    with pytest.raises(InvalidArgument, match="it is the chain of trust of"):
        consumer.download_artifact(uploader.task_id, "public/0.txt", run_id=1, verified_by=chain)


def test_a_tampered_artifact_is_not_handed_over(
    consumer: Consumer, uploader: Uploader, tmp_path: Path
) -> None:
    uploader.upload("public/x.txt", BIG)
    uploader.sign()
    uploader.tamper("public/x.txt", BIG[:-1] + b"!")
    for options in ({}, {"to": tmp_path / "x.txt"}):
        reason = f"task {uploader.task_id}: 'public/x.txt' is not what was signed: received .* signed"
        with pytest.raises(ChainOfTrustError, match=reason):
            consumer.download_artifact(uploader.task_id, "public/x.txt", verified_by=KEY.public, **options)
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_that_was_not_signed_is_not_handed_over(consumer: Consumer, uploader: Uploader) -> None:
    uploader.sign()
    uploader.tamper("public/x.txt", b"added later")
    with pytest.raises(
        ChainOfTrustError, match=r"'public/x.txt' is not one of the artifacts that were signed \(0\)"
    ):
        consumer.download_artifact(uploader.task_id, "public/x.txt", verified_by=KEY.public)


def upstream(uploader: Uploader, *entries: dict[str, Any], keys: Any = KEY.public) -> tuple[str, list[str]]:
    """Run a task with these upstream artifacts, verified with `keys`; return its id and their names."""
    world, names = uploader.world, list[str]()

    def handler(task: TaskRun) -> None:
        names.extend(each.name for each in task.upstream_artifacts(verified_by=keys, to="cot"))

    listed = [{"taskId": uploader.task_id, **each} for each in entries]
    task_id = world.create({"upstreamArtifacts": listed}, taskGroupId=uploader.task_id)
    work(world, handler)
    return task_id, names


def test_upstream_artifacts_are_those_that_a_trusted_worker_has_signed(uploader: Uploader) -> None:
    for name in ("public/a.txt", "public/b.txt", "public/c.zip"):
        uploader.upload(name, name.encode())
    uploader.sign()
    uploader.tamper("public/unsigned.txt", b"added later")
    keys = [Key().public, KEY.public]
    with requests_noted(uploader.world.local) as made:
        task_id, names = upstream(
            uploader,
            {"paths": ["public/*.txt"]},
            {"paths": ["public/unsigned.txt", "public/none"], "optional": True},
            {},
            keys=keys,
        )
    assert uploader.world.status(task_id).state == "completed"
    assert names == ["public/a.txt", "public/b.txt", "public/c.zip"]
    log = log_of(uploader.world, task_id)
    for name in ("public/unsigned.txt", "public/none"):
        assert f"optional artifact {name} of task {uploader.task_id} is not in the chain of trust" in log
    assert sum(unquote(each.path).endswith(f"/artifact-content/{CHAIN}") for each in made) == 1


@pytest.mark.parametrize("path", ["public/unsigned.txt", "public/tampered.txt", CHAIN])
def test_an_upstream_artifact_that_was_not_signed_makes_the_payload_malformed(
    uploader: Uploader, path: str
) -> None:
    uploader.upload("public/tampered.txt", b"content")
    uploader.sign()
    uploader.tamper("public/tampered.txt", b"tampered")
    uploader.tamper("public/unsigned.txt", b"added later")
    task_id, names = upstream(uploader, {"paths": [path]})
    assert uploader.world.run(task_id).reason_resolved == "malformed-payload"
    assert f"payload.upstreamArtifacts: chain of trust of task {uploader.task_id}: '{path}' is not" in log_of(
        uploader.world, task_id
    )
    assert names == []


@pytest.mark.parametrize(
    ("keys", "outcome"),
    [(Key().public, "malformed-payload"), ([], "internal-error"), ("x", "internal-error")],
    ids=["other", "none", "wrong"],
)
def test_upstream_artifacts_of_a_worker_that_is_not_trusted_are_not_downloaded(
    uploader: Uploader, keys: Any, outcome: str
) -> None:
    uploader.upload("public/a.txt", b"a")
    uploader.sign()
    task_id, names = upstream(uploader, {"paths": ["public/a.txt"], "optional": True}, keys=keys)
    assert uploader.world.run(task_id).reason_resolved == outcome
    assert names == []


def test_what_a_proxy_responds_in_the_place_of_storage_is_not_the_task_s_fault(uploader: Uploader) -> None:
    uploader.upload("public/a.txt", b"a")
    uploader.sign()
    of_cdn_and_of_storage = Respond("storage.get", status=403, html=True, times=2)
    uploader.world.local.faults.add(of_cdn_and_of_storage)
    task_id, _ = upstream(uploader, {"paths": ["public/a.txt"]})
    assert uploader.world.run(task_id).reason_resolved == "internal-error"


@pytest.mark.parametrize("hashes", [{}, {"md5": "0" * 32}, {"md5": "0" * 32, "sha256": "0" * 64}])
def test_hashes_by_other_algorithms_prove_nothing(
    consumer: Consumer, uploader: Uploader, hashes: dict[str, str]
) -> None:
    uploader.upload("public/x.txt", b"x", hashes=hashes)
    uploader.sign()
    with pytest.raises(ChainOfTrustError, match="expected sha256 or sha512"):
        consumer.download_artifact(uploader.task_id, "public/x.txt", verified_by=KEY.public)


def test_sha512_proves_content_as_well(consumer: Consumer, uploader: Uploader) -> None:
    uploader.upload("public/x.txt", b"x", hashes={"sha512": hashlib.sha512(b"x").hexdigest().upper()})
    uploader.sign()
    found = consumer.download_artifact(uploader.task_id, "public/x.txt", verified_by=KEY.public)
    assert found.content == b"x"


def wrong_key(uploader: Uploader) -> None:
    uploader.sign(Key())


def wrong_signature(uploader: Uploader) -> None:
    uploader.sign(signature=b"\0" * 64)


def short_signature(uploader: Uploader) -> None:
    uploader.sign(signature=b"short")


def changed_document(uploader: Uploader) -> None:
    uploader.sign()
    uploader.tamper(CHAIN, json.dumps(uploader.chain, indent=1).encode())


def missing_signature(uploader: Uploader) -> None:
    uploader.tamper(CHAIN, json.dumps(uploader.chain).encode())


def nothing(uploader: Uploader) -> None:
    del uploader


def error_in_its_place(uploader: Uploader) -> None:
    expires = uploader.world.status(uploader.task_id).expires
    uploader.world.queue.create_error_artifact(
        uploader.task_id, 0, CHAIN, "file-missing-on-worker", "no key", expires=expires
    )


def another_task(uploader: Uploader) -> None:
    uploader.chain["taskId"] = slugid()
    uploader.sign()


def another_run(uploader: Uploader) -> None:
    uploader.chain["runId"] = 1
    uploader.sign()


def another_version(uploader: Uploader) -> None:
    uploader.chain["chainOfTrustVersion"] = 2
    uploader.sign()


def without_worker(uploader: Uploader) -> None:
    del uploader.chain["workerId"]
    uploader.sign()


def without_scopes(uploader: Uploader) -> None:
    del uploader.chain["task"]["scopes"]
    uploader.sign()


def no_json(uploader: Uploader) -> None:
    uploader.sign(document=b"\xff{")


def too_deep(uploader: Uploader) -> None:
    uploader.sign(document=b"[" * 100_000)


INVALID = [
    (wrong_key, r"none of the public keys \(1\) verifies the signature"),
    (wrong_signature, r"none of the public keys \(1\) verifies the signature"),
    (short_signature, r"none of the public keys \(1\) verifies the signature"),
    (changed_document, r"none of the public keys \(1\) verifies the signature"),
    (missing_signature, "run 0 has no 'public/chain-of-trust.json.sig': "),
    (nothing, "run 0 has no 'public/chain-of-trust.json': "),
    (error_in_its_place, "run 0 has no 'public/chain-of-trust.json': .*no key"),
    (another_task, "the document of .*/0 belongs to .*/0"),
    (another_run, "the document of .*/0 belongs to .*/1"),
    (another_version, "the signed document is not valid: Invalid enum value 2"),
    (without_worker, "the signed document is not valid: .*workerId"),
    (without_scopes, "the signed document is not valid: .*scopes"),
    (no_json, "the signed document is not valid"),
    (too_deep, "the signed document is not valid"),
]


@pytest.mark.parametrize(("make", "words"), INVALID, ids=[make.__name__ for make, _ in INVALID])
def test_a_chain_that_is_not_valid_proves_nothing(
    uploader: Uploader, tmp_path: Path, make: Callable[[Uploader], None], words: str
) -> None:
    consumer = uploader.world.queue
    uploader.upload("public/x.txt", b"x")
    make(uploader)
    with pytest.raises(ChainOfTrustError, match=f"chain of trust of task {uploader.task_id}: {words}"):
        consumer.verify_chain_of_trust(uploader.task_id, KEY.public)
    with pytest.raises(ChainOfTrustError, match=words):
        consumer.download_artifact(
            uploader.task_id, "public/x.txt", to=tmp_path / "x.txt", verified_by=[KEY.public]
        )
    assert list(tmp_path.iterdir()) == []


def test_a_document_that_an_http_proxy_refuses_does_not_count_as_missing(
    consumer: Consumer, uploader: Uploader, world: World
) -> None:
    uploader.sign()
    world.local.faults.add(Respond(endpoint="storage.get", status=407))
    with pytest.raises(StorageRefused, match="HTTP 407"):
        consumer.verify_chain_of_trust(uploader.task_id, KEY.public)


def test_the_chain_of_an_earlier_run_does_not_stand_for_the_latest(
    consumer: Consumer, uploader: Uploader, world: World
) -> None:
    uploader.upload("public/x.txt", b"x")
    uploader.sign()
    assert consumer.verify_chain_of_trust(uploader.task_id, KEY.public).run_id == 0
    world.queue.report_exception(uploader.task_id, 0, "intermittent-task")
    with pytest.raises(ChainOfTrustError, match="run 1 has no"):
        consumer.verify_chain_of_trust(uploader.task_id, KEY.public)
    assert consumer.verify_chain_of_trust(uploader.task_id, KEY.public, run_id=0).run_id == 0


def test_a_task_without_a_run_has_no_chain_of_trust(consumer: Consumer, world: World) -> None:
    task_id = world.create(dependencies=[world.create()])
    with pytest.raises(ChainOfTrustError, match="the task has no run"):
        consumer.verify_chain_of_trust(task_id, KEY.public)


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ([], "public_keys"),
        (["x"], r"public_keys\[0\]"),
        ([KEY.public, "c2hvcnQ="], r"public_keys\[1\]"),
        ("é", "keys"),
    ],
)
def test_public_keys_are_checked_before_anything_is_sent(consumer: Consumer, keys: Any, where: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{where}.* expected"):
        consumer.verify_chain_of_trust("fN1SbArXTPSVFNUvaOlinQ", keys)


def small_order_keys() -> list[bytes]:
    """Return keys with which a signature by nobody verifies: all that libsodium refuses, too."""
    of_order_8 = int.from_bytes(
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
    )
    prime = 2**255 - 19
    ys = [0, 1, prime - 1, prime, prime + 1, of_order_8, prime - of_order_8]
    return [(y + sign * 2**255).to_bytes(32, "little") for y in ys for sign in (0, 1)]


@pytest.mark.parametrize("key", small_order_keys(), ids=bytes.hex)
def test_a_key_with_which_anybody_can_sign_is_refused(consumer: Consumer, key: bytes) -> None:
    """Such as a placeholder of zeros in a configuration."""
    with pytest.raises(InvalidArgument, match=r"public_keys\[0\]: .* expected an ed25519 public key"):
        consumer.verify_chain_of_trust("fN1SbArXTPSVFNUvaOlinQ", base64.b64encode(key).decode())


# scriptworker


def scriptworker_chain(directory: Path, root_url: str, *task_ids: str, **config: Any) -> Any:
    """Return the context with which scriptworker's functions verify tasks."""
    context, keys = Context(), [Key().public, KEY.public]
    netloc = root_url.removeprefix("http://")
    path = r"^/api/queue/v1/task/(?P<taskId>[^/]+)(/runs/\d+)?/artifacts/(?P<filepath>.*)$"
    context.config = {
        **constants.DEFAULT_CONFIG,
        "work_dir": str(directory / "work"),
        "verify_cot_signature": True,
        "ed25519_public_keys": {"docker-worker": keys, "generic-worker": keys},
        "valid_artifact_rules": ({"schemes": ("http",), "netlocs": (netloc,), "path_regexes": (path,)},),
        **config,
    }
    links = {task_id: verify.LinkOfTrust(context, "build", task_id) for task_id in task_ids}
    for task_id, link in links.items():
        link.task = requests.get(f"{root_url}/api/queue/v1/task/{task_id}", timeout=30).json()  # with its tag
    return SimpleNamespace(context=context, links=[*links.values()], get_link=links.get)


async def verified_by_scriptworker(world: World, chain: Any, names: list[str]) -> list[str]:
    """Download and verify artifacts by scriptworker's own functions; return their paths."""
    link = chain.links[0]
    async with aiohttp.ClientSession() as session:
        chain.context.session = session
        chain.context.queue = taskcluster.aio.Queue({"rootUrl": world.local.root_url}, session=session)
        await verify.download_cot(chain)
        verify.verify_cot_signatures(chain)
        return [await verify.download_cot_artifact(chain, link.task_id, name) for name in names]


def test_scriptworker_verifies_what_a_worker_signed(world: World, tmp_path: Path) -> None:
    task_id = signed(world, make_artifacts)
    chain = scriptworker_chain(tmp_path, world.local.root_url, task_id)
    names = ["public/small.txt", "public/big.txt", CERTIFIED_LOG]
    small, big, _ = asyncio.run(verified_by_scriptworker(world, chain, names))
    assert (Path(small).read_bytes(), Path(big).read_bytes()) == (b"small", BIG)
    schema = load_json_or_yaml(chain.context.config["cot_schema_path"], is_path=True)
    client.validate_json_schema(chain.links[0].cot, schema, name="chain of trust")


@pytest.mark.parametrize("is_the_image", [True, False])
def test_scriptworker_verifies_the_image_that_a_worker_says_it_has_used(
    world: World, tmp_path: Path, *, is_the_image: bool
) -> None:
    def use_image(task: TaskRun) -> None:
        sha256 = hashlib.sha256(BIG if is_the_image else b"another").hexdigest()
        task.describe_environment({"imageArtifactHash": f"sha256:{sha256}"})

    image_id = signed(world, make_artifacts)
    image = {"type": "task-image", "taskId": image_id, "path": "public/big.txt"}
    task_id = world.create(
        {"image": image, "features": {}, "env": {}},
        tags={"worker-implementation": "docker-worker"},
        extra={"chainOfTrust": {"inputs": {"docker-image": image_id}}},
    )
    work(world, use_image, signing_key=KEY.pipe())
    chain = scriptworker_chain(tmp_path, world.local.root_url, task_id, image_id)
    asyncio.run(verified_by_scriptworker(world, chain, []))
    if is_the_image:
        asyncio.run(verify.verify_docker_worker_task(chain, chain.links[0]))
    else:
        with pytest.raises(exceptions.CoTError, match="docker sha doesn't match"):
            asyncio.run(verify.verify_docker_worker_task(chain, chain.links[0]))


def test_scriptworker_refuses_a_worker_with_another_key(world: World, tmp_path: Path) -> None:
    task_id = signed(world, make_artifacts)
    keys = {"generic-worker": [Key().public]}
    chain = scriptworker_chain(tmp_path, world.local.root_url, task_id, ed25519_public_keys=keys)
    with pytest.raises((exceptions.CoTError, exceptions.ScriptWorkerEd25519Error)):
        asyncio.run(verified_by_scriptworker(world, chain, []))


def test_a_chain_of_trust_that_scriptworker_generated_is_verified(
    consumer: Consumer, uploader: Uploader, tmp_path: Path
) -> None:
    made = tmp_path / "artifacts"
    (made / "public" / "logs").mkdir(parents=True)
    (made / "public" / "build.zip").write_bytes(BIG)
    (made / "public" / "logs" / "live_backing.log").write_text("a line\n")
    context = Context()
    context.config = {
        **constants.DEFAULT_CONFIG,
        "artifact_dir": str(made),
        "worker_id": "scriptworker-1",
        "worker_type": "signing",
        "sign_chain_of_trust": True,
        "ed25519_private_key_path": str(KEY.file(tmp_path)),
    }
    context.task = uploader.chain["task"]
    status = {"taskId": uploader.task_id}
    context._claim_task = {"runId": 0, "workerGroup": "scriptworker", "status": status}
    generate.generate_cot(context)
    for path in made.rglob("*"):
        if path.is_file():
            uploader.tamper(str(path.relative_to(made)), path.read_bytes())
    chain = consumer.verify_chain_of_trust(uploader.task_id, KEY.public)
    assert (chain.worker_group, chain.worker_id) == ("scriptworker", "scriptworker-1")
    found = consumer.download_artifact(uploader.task_id, "public/build.zip", verified_by=chain)
    assert found.content == BIG
    uploader.tamper("public/build.zip", b"tampered")
    with pytest.raises(ChainOfTrustError, match="is not what was signed"):
        consumer.download_artifact(uploader.task_id, "public/build.zip", verified_by=KEY.public)


def test_the_blocking_client_imports_cryptography_when_it_verifies(world: World) -> None:
    program = (
        "import sys; from taskqueue_client import Queue; from taskqueue_client.worker import WorkerLoop;"
        "Queue('http://h').verify_chain_of_trust; print('cryptography' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
    assert isinstance(world.queue, Queue)
