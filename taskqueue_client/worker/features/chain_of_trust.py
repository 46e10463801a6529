"""Signing of the chain of trust of a run: a list of its artifacts, which later tasks can verify."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pwd
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from taskqueue_client._protocol.conversation import Conversation
from taskqueue_client.artifacts.chain_verification import KEY_LENGTH, MISSING, decoded_key
from taskqueue_client.artifacts.sources import Source
from taskqueue_client.artifacts.transfers import Transfer, TransferClient
from taskqueue_client.errors import InvalidArgument
from taskqueue_client.models import TaskClaim
from taskqueue_client.worker.commands.environment import protect_process
from taskqueue_client.worker.commands.masking import Secrets
from taskqueue_client.worker.config import WorkerConfig

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_LONGEST = 1024  # bytes that are read of a key's file; the key takes 44

_DESCRIPTOR = "/dev/fd/"
_STANDARD_ERROR = 2

_ALLOWED = (
    "a pipe, such as /dev/fd/3, or a file that only another user may read, opened before the worker runs as "
    "its own user (systemd: OpenFile=)"
)


class SigningKey:
    """The ed25519 key with which a worker signs, and the file that it was read from, for `check_hidden`."""

    def __init__(self, key: Ed25519PrivateKey, descriptor: int, path: Path) -> None:
        self._key = key
        self._descriptor: int | None = descriptor
        self._path = path
        self.public_key = base64.b64encode(key.public_key().public_bytes_raw()).decode()

    def sign(self, content: bytes) -> bytes:
        """Return the signature: 64 bytes."""
        return self._key.sign(content)

    def mask(self, secrets: Secrets) -> None:
        """Keep the key out of logs, even if a handler prints it."""
        secrets.add(base64.b64encode(self._key.private_bytes_raw()).decode())

    def chain_for(self, claim: TaskClaim, config: WorkerConfig) -> RunChain | None:
        """Return the chain of trust of a run; None if the task has to request it, but does not."""
        if config.chain_of_trust == "requested" and not _is_requested(claim.task):
            return None
        return RunChain(self, claim)

    def check_hidden(self) -> None:
        """Check that the worker's commands cannot read the key, neither from its file nor from memory."""
        protect_process()
        if self._descriptor is None:  # checked at an earlier start of this worker
            return
        if (why := _readable(self._descriptor)) is not None:
            raise InvalidArgument("signing_key", str(self._path), _ALLOWED, f"{self._path}: {why}")
        os.close(self._descriptor)
        self._descriptor = None

    def __repr__(self) -> str:
        return f"<SigningKey with public key {self.public_key}>"


def load_signing_key(path: Path) -> SigningKey:
    """Read a key: a file, a pipe or an open descriptor (`/dev/fd/3`) with 32 bytes in base64.

    Raises:
        InvalidArgument: The file cannot be read, or is not a key. The error shows nothing of the content.
        ImportError: cryptography is not installed (the extra `trust`).
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise ImportError(MISSING) from error
    try:
        descriptor = _opened(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument("signing_key", str(path), "", f"{path} cannot be opened: {error}") from error
    try:
        seed = _seed(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise InvalidArgument("signing_key", str(path), "", f"{path} cannot be read: {error}") from error
    if seed is None:
        os.close(descriptor)
        finding = f"the content of {path} is not a key"
        raise InvalidArgument("signing_key", str(path), "an ed25519 private key, 32 bytes in base64", finding)
    return SigningKey(Ed25519PrivateKey.from_private_bytes(seed), descriptor, path)


def _opened(path: Path) -> int:
    """Open a file. `/dev/fd/N` is duplicated instead: on Linux, opening it checks permissions again."""
    text = str(path)
    if not text.startswith(_DESCRIPTOR):
        return os.open(path, os.O_RDONLY)
    inherited = int(text.removeprefix(_DESCRIPTOR))
    descriptor = os.dup(inherited)
    if inherited > _STANDARD_ERROR:
        os.close(inherited)
    return descriptor


def _seed(descriptor: int) -> bytes | None:
    text = b""
    while len(text) < _LONGEST and b"\n" not in text and (block := os.read(descriptor, _LONGEST)):
        text += block
    try:
        seed = decoded_key(text.decode("ascii"))
    except ValueError:
        return None
    return seed if len(seed) == KEY_LENGTH else None


def _readable(descriptor: int) -> str | None:
    """Return why the user of this process, and so commands, can read a file; None if they cannot.

    The content of a pipe can be read only once, and nobody can open a file without a name.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not status.st_nlink:
        return None
    if status.st_uid != os.geteuid() and not _opens_again(descriptor):
        return None
    mode = stat.S_IMODE(status.st_mode)
    return (
        f"commands of tasks can read it: its mode is {mode:04o}, its owner {_user(status.st_uid)}, "
        f"and commands run as {_user(os.geteuid())}"
    )


def _opens_again(descriptor: int) -> bool:
    try:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
    except PermissionError:
        return False
    return True


def _user(uid: int) -> str:
    with suppress(KeyError):
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    return f"uid {uid}"


def _is_requested(task: Mapping[str, Any]) -> bool:
    """Return whether a task asks for a chain of trust, as tasks of generic-worker do."""
    features = task["payload"].get("features")
    return isinstance(features, Mapping) and cast("Mapping[str, Any]", features).get("chainOfTrust") is True


class RunChain:
    """The chain of trust of one run: the hashes of uploaded artifacts, and the document that lists them."""

    def __init__(self, key: SigningKey, claim: TaskClaim) -> None:
        self.sign = key.sign
        self._claim = claim
        self._hashes: dict[str, str] = {}

    def hashed(self, client: TransferClient, source: Source) -> Conversation[str]:
        """Return the sha256, in hex, of content that is uploaded next. Closes the source on an error."""
        if source.content is not None:
            return hashlib.sha256(source.content).hexdigest()
        transfer = Transfer(client)
        try:
            return (yield from transfer.work(lambda: _sha256_of(source, transfer.cancellation.check)))
        except BaseException:
            source.close()
            raise

    def add(self, name: str, sha256: str) -> None:
        """Note the hash of an artifact that was uploaded."""
        self._hashes[name] = sha256

    def document(self, environment: Mapping[str, str]) -> bytes:
        """Return the document about all artifacts that were added: version 1 of the format, in ASCII."""
        claim = self._claim
        document = {
            "chainOfTrustVersion": 1,
            "artifacts": {name: {"sha256": sha256} for name, sha256 in self._hashes.items()},
            "task": claim.task,
            "taskId": claim.status.task_id,
            "runId": claim.run_id,
            "workerGroup": claim.worker_group,
            "workerId": claim.worker_id,
            "workerType": claim.status.worker_type,
            "environment": {**environment},
        }
        return json.dumps(document, indent=2, sort_keys=True).encode()


def _sha256_of(source: Source, check: Callable[[], object]) -> str:
    hasher = hashlib.sha256()
    for block in source.blocks():
        check()
        hasher.update(block)
    return hasher.hexdigest()
