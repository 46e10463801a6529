"""Messages of Azure storage queues: the XML of a poll, and the text of a message about a pending run.

The XML comes from the network, and a worker may send it to the Queue: it is parsed without document types,
and so without entities, and its size is bounded. Format: Azure's REST API, "Get Messages".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import NamedTuple
from xml.parsers import expat

import msgspec

from taskqueue_client.slugid import is_slugid

MAX_XML = 4 * 2**20
"""The largest response to a poll, in bytes: 32 messages of 64 KiB, and what surrounds them."""

_PATH = ["QueueMessagesList", "QueueMessage"]
_NUMBER = re.compile(r"[0-9]{1,9}")


class QueueMessage(NamedTuple):
    """A message as a poll returns it.

    Attributes:
        message_id: The identifier, which stays.
        pop_receipt: What a delete or update must present; each poll and each update makes a new one.
        dequeue_count: How often the message was polled.
        text: The text, base64.
    """

    message_id: str
    pop_receipt: str
    dequeue_count: int
    text: str


class RunMessage(msgspec.Struct, frozen=True, rename="camel"):
    """The text of a message, decoded: a pending run.

    Attributes:
        signature: The Queue's signature of task, run and task queue; empty in messages of old Queues.
    """

    task_id: str
    run_id: int
    signature: str = ""

    def encoded(self) -> str:
        return base64.b64encode(msgspec.json.encode(self)).decode()


def decode_run(text: str) -> RunMessage:
    """Return the pending run that the text of a message names."""
    try:
        message = msgspec.json.decode(base64.b64decode(text, validate=True), type=RunMessage)
    except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not base64 of a JSON object with taskId and runId: {error}") from None
    if not is_slugid(message.task_id) or message.run_id < 0:
        raise ValueError(f"taskId {message.task_id[:50]!r} with runId {message.run_id} does not name a run")
    return message


def parse_messages(xml: bytes) -> list[QueueMessage]:
    """Return the messages of a response to a poll; an empty list if there were none."""
    if len(xml) > MAX_XML:
        raise ValueError(f"{len(xml):,} bytes of XML; expected at most {MAX_XML:,}")
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_document_type
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.read
    try:
        parser.Parse(xml, True)  # noqa: FBT003 - expat takes no keywords
    except expat.ExpatError as error:
        raise ValueError(f"not XML: {error}") from None
    return reader.messages


def _refuse_document_type(*_: object) -> None:
    raise ValueError("the XML has a document type, which could declare entities; expected none")


class _Reader:
    """Collects messages from the elements of a list; at most three levels, so that depth is bounded, too."""

    def __init__(self) -> None:
        self.messages: list[QueueMessage] = []
        self._path: list[str] = []
        self._fields: dict[str, str] = {}

    def start(self, name: str, _: Mapping[str, str]) -> None:
        if self._path != _PATH and [*self._path, name] != _PATH[: len(self._path) + 1]:
            what = f"found <{name[:50]}> below /{'/'.join(self._path)}; expected /{'/'.join(_PATH)}"
            raise ValueError(what)
        self._path.append(name)

    def read(self, text: str) -> None:
        if len(self._path) > len(_PATH):
            self._fields[self._path[-1]] = self._fields.get(self._path[-1], "") + text

    def end(self, _: str) -> None:
        if self._path == _PATH:
            self.messages.append(_message(self._fields))
            self._fields = {}
        self._path.pop()


def _message(fields: Mapping[str, str]) -> QueueMessage:
    message_id, receipt = fields.get("MessageId", ""), fields.get("PopReceipt", "")
    count = fields.get("DequeueCount", "")
    if not (message_id and receipt and _NUMBER.fullmatch(count)):
        found = ", ".join(fields)[:200] or "nothing"
        raise ValueError(f"a message with {found}; expected MessageId, PopReceipt and DequeueCount")
    return QueueMessage(message_id, receipt, int(count), fields.get("MessageText", ""))
