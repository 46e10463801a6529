"""Messages of Azure storage queues: the XML of a poll, and the text of a message about a pending run.

The XML comes from the network, and a worker may send it to the Queue: it is parsed without document types,
and so without entities, and its size and the number of its tags are bounded. Format: Azure's REST API, "Get
Messages".
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple
from xml.etree import ElementTree as ET

import msgspec

from taskqueue_client.slugid import is_slugid

MAX_XML = 4 * 2**20
"""The largest response to a poll, in bytes: 32 messages of 64 KiB, and the XML around them."""

_MOST_TAGS = 5000
"""The most tags of such a response: 32 messages have about 600. Elements take more memory than their text."""

_NUMBER = re.compile(r"[0-9]{1,9}")


class QueueMessage(NamedTuple):
    """A message as a poll returns it.

    Attributes:
        message_id: The identifier, which never changes.
        pop_receipt: A token that a delete or update must send; each poll and each update makes a new one.
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
    if (tags := xml.count(b"<")) > _MOST_TAGS:
        raise ValueError(f"{tags:,} tags of XML; expected at most {_MOST_TAGS:,}")
    parser = ET.XMLParser(target=_Builder(), encoding="utf-8")  # noqa: S314 - entities are refused, see below
    try:
        found = ET.fromstring(xml, parser)  # noqa: S314 - as above
    except ET.ParseError as error:
        raise ValueError(f"not XML: {error}") from None
    if found.tag != "QueueMessagesList":
        raise ValueError(f"found <{found.tag[:50]}>; expected <QueueMessagesList>")
    return [_message(each) for each in found]


class _Builder(ET.TreeBuilder):
    """Builds the tree of a document; refuses a document type in any encoding."""

    def doctype(self, *_: object) -> None:
        """Refuse a document type: XMLParser calls this before an entity is declared."""
        raise ValueError("the XML has a document type, which could declare entities; expected none")


def _message(element: ET.Element) -> QueueMessage:
    if element.tag != "QueueMessage":
        raise ValueError(f"found <{element.tag[:50]}> below /QueueMessagesList; expected <QueueMessage>")
    fields = {each.tag: each.text or "" for each in element if not len(each)}
    message_id, receipt = fields.get("MessageId", ""), fields.get("PopReceipt", "")
    count = fields.get("DequeueCount", "")
    if not (message_id and receipt and _NUMBER.fullmatch(count)):
        found = ", ".join(fields)[:200] or "nothing"
        raise ValueError(f"a message with {found}; expected MessageId, PopReceipt and DequeueCount")
    return QueueMessage(message_id, receipt, int(count), fields.get("MessageText", ""))
