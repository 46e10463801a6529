"""Verification of a run's chain of trust: the signed list of the artifacts that its worker uploaded."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from taskqueue_client import calls
from taskqueue_client._arguments import check_kind
from taskqueue_client._protocol.conversation import Conversation
from taskqueue_client.errors import ErrorArtifact, InvalidArgument, ResourceNotFound
from taskqueue_client.models._base import prepare

from .artifact_errors import ChainOfTrustError, StorageRefused
from .downloading import Destination, DownloadRequest, downloading
from .storage import VERIFIABLE, no_progress
from .transfers import TransferClient

CHAIN_NAME = "public/chain-of-trust.json"
SIGNATURE_NAME = "public/chain-of-trust.json.sig"
CERTIFIED_LOG_NAME = "public/logs/certified.log"
"""The names of the artifacts that a signing worker adds to a run."""

KEY_LENGTH = 32
"""Bytes of an ed25519 key, public or private (RFC 8032)."""

_PRIME = 2**255 - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_ANYBODY = {0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8}
"""The y coordinates of points of small order: everybody can sign for such a key, as for one of only zeros."""

_LARGEST = 64 * 1024 * 1024  # the largest accepted document in bytes: enough for 400,000 artifacts

PublicKeys = str | Iterable[str]
"""One public key or several: ed25519, 32 bytes in base64."""

MISSING = 'chains of trust need cryptography: pip install "taskqueue_client[trust]"'


@dataclass(frozen=True, slots=True)
class ChainOfTrust:
    """The document that the worker of a run has signed.

    Attributes:
        task_id: The task.
        run_id: The run.
        worker_group: The group of the worker.
        worker_id: The worker.
        task: The task's definition, as the worker claimed it.
        artifacts: The hashes of each artifact's content, in hex by algorithm, by the artifact's name.
        environment: The worker's description of its machine; empty for most kinds of worker.
        public_key: The key that verified the signature, in base64.
    """

    task_id: str
    run_id: int
    worker_group: str
    worker_id: str
    task: dict[str, Any]
    artifacts: dict[str, dict[str, str]]
    environment: dict[str, Any]
    public_key: str

    def hashes_of(self, name: str) -> dict[str, str]:
        """Return the signed hashes of an artifact, in hex by algorithm.

        Raises:
            ChainOfTrustError: The document does not list the artifact, or lists it without a hash or with one
                that is neither sha256 nor sha512.
        """
        hashes = self.artifacts.get(name)
        if hashes is None:
            raise ChainOfTrustError(
                self.task_id, f"{name!r} is not one of the artifacts that were signed ({len(self.artifacts)})"
            )
        if not hashes or hashes.keys() - VERIFIABLE:
            raise ChainOfTrustError(
                self.task_id, f"{name!r} has the hashes {sorted(hashes)}; expected sha256 or sha512"
            )
        return {algorithm: value.lower() for algorithm, value in hashes.items()}


def verify_chain_of_trust(
    client: TransferClient, /, task_id: str, public_keys: PublicKeys, *, run_id: int | None = None
) -> Conversation[ChainOfTrust]:
    """Verify the chain of trust of a run: which worker signed which artifacts of which task.

    The signature of `public/chain-of-trust.json` is verified with the keys. The document must have version
    1 of the format, and name the task and the run from which it was downloaded. Needs the extra `trust`.

    Scopes: `queue:status:<task_id>` unless `run_id` is given, and `queue:get-artifact:` for
    `public/chain-of-trust.json` and `public/chain-of-trust.json.sig`. The standard deployment gives them to
    everybody.

    Args:
        client: The client.
        task_id: The task.
        public_keys: The public keys of the trusted workers, one or several: ed25519, 32 bytes in
            base64.
        run_id: The run; default: the latest one.

    Raises:
        InvalidArgument: A key is not valid, or `public_keys` is empty.
        ChainOfTrustError: The document or its signature is missing, no key verifies the signature, the
            document is not valid, or it belongs to another task or run.
        ArtifactError: The document or its signature could not be downloaded.
        CallFailed: The Queue or the object service refused, or did not respond.
        ImportError: cryptography is not installed (the extra `trust`).
    """
    keys = _checked_keys(public_keys)
    run_id = (yield from _latest_run(task_id)) if run_id is None else run_id
    document = yield from _content(client, DownloadRequest(task_id, run_id, CHAIN_NAME, _LARGEST))
    signature = yield from _content(client, DownloadRequest(task_id, run_id, SIGNATURE_NAME, _LARGEST))
    return _verified(document, signature, keys, (task_id, run_id))


def _latest_run(task_id: str) -> Conversation[int]:
    status = (yield from calls.status(task_id)).status
    if not status.runs:
        raise ChainOfTrustError(task_id, "the task has no run")
    return status.runs[-1].run_id


def _content(client: TransferClient, request: DownloadRequest) -> Conversation[bytes]:
    try:
        return (yield from downloading(client, request, Destination(), no_progress)).content
    except (ResourceNotFound, ErrorArtifact, StorageRefused) as error:
        if isinstance(error, StorageRefused) and not error.is_absence:
            raise
        reason = f"run {request.run_id} has no {request.name!r}: {error}"
        raise ChainOfTrustError(request.task_id, reason) from error


def _checked_keys(public_keys: PublicKeys) -> dict[str, bytes]:
    """Return the bytes of each key by its text."""
    check_kind("public_keys", public_keys, Iterable, "one public key or several")
    texts = [public_keys] if isinstance(public_keys, str) else list(public_keys)
    if not texts:
        raise InvalidArgument("public_keys", texts, "one public key or more")
    return {text: _checked_key(position, text) for position, text in enumerate(texts)}


def _checked_key(position: int, text: str) -> bytes:
    try:
        key = decoded_key(text)
    except (ValueError, AttributeError):
        key = b""
    y = int.from_bytes(key, "little") % 2**255 % _PRIME
    if len(key) != KEY_LENGTH or y in _ANYBODY:
        raise InvalidArgument(f"public_keys[{position}]", text, "an ed25519 public key, 32 bytes in base64")
    return key


def decoded_key(text: str) -> bytes:
    """Return the bytes of a key in base64, or raise ValueError. White space around it is ignored."""
    return base64.b64decode(text.strip().encode("ascii"), validate=True)


class _Task(msgspec.Struct, rename="camel"):
    """The fields that the format requires of a task's definition."""

    dependencies: list[str]
    payload: dict[str, Any]
    scopes: list[str]
    task_group_id: str
    worker_type: str


class _Document(msgspec.Struct, rename="camel"):
    """The document, in version 1 of the format."""

    chain_of_trust_version: Literal[1]
    artifacts: dict[str, dict[str, str]]
    environment: dict[str, Any]
    run_id: int
    task: dict[str, Any]
    task_id: str
    worker_group: str
    worker_id: str


prepare(_Task, _Document)


def _verified(
    content: bytes, signature: bytes, keys: Mapping[str, bytes], run: tuple[str, int]
) -> ChainOfTrust:
    task_id, run_id = run
    public_key = _signer(content, signature, keys)
    if public_key is None:
        raise ChainOfTrustError(task_id, f"none of the public keys ({len(keys)}) verifies the signature")
    document = _decoded(content, task_id)
    if (document.task_id, document.run_id) != run:
        reason = f"the document of {task_id}/{run_id} belongs to {document.task_id}/{document.run_id}"
        raise ChainOfTrustError(task_id, reason)
    return ChainOfTrust(
        task_id=task_id,
        run_id=run_id,
        worker_group=document.worker_group,
        worker_id=document.worker_id,
        task=document.task,
        artifacts=document.artifacts,
        environment=document.environment,
        public_key=public_key,
    )


def _decoded(content: bytes, task_id: str) -> _Document:
    try:
        document = msgspec.json.decode(content, type=_Document)
        msgspec.convert(document.task, _Task)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ChainOfTrustError(task_id, f"the signed document is not valid: {error}") from error
    return document


def _signer(content: bytes, signature: bytes, keys: Mapping[str, bytes]) -> str | None:
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra, and slow to import
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - as above
    except ImportError as error:
        raise ImportError(MISSING) from error
    for text, key in keys.items():
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
        except InvalidSignature:
            continue
        return text
    return None
