"""The XML of a poll and the text of a message, with any content."""

from __future__ import annotations

import base64
import json
import traceback
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client._protocol.queue_messages import (
    MAX_XML,
    QueueMessage,
    RunMessage,
    decode_run,
    parse_messages,
)
from taskqueue_client.errors import ConnectionFailed
from taskqueue_client.legacy import PollQueue, StoragePolling

MESSAGE = (
    "<QueueMessage><MessageId>id-1</MessageId><InsertionTime>Fri, 09 Oct 2015 21:04:30 GMT</InsertionTime>"
    "<ExpirationTime>Fri, 16 Oct 2015 21:04:30 GMT</ExpirationTime><PopReceipt>a+b/c=&amp; d</PopReceipt>"
    "<TimeNextVisible>Fri, 09 Oct 2015 23:29:20 GMT</TimeNextVisible><DequeueCount>2</DequeueCount>"
    "<MessageText>UEhNPg==</MessageText></QueueMessage>"
)
LIST = f'<?xml version="1.0" encoding="utf-8"?><QueueMessagesList>{MESSAGE}{MESSAGE}</QueueMessagesList>'
TASK_ID = "fN1SbArXTPSVFNUvaOlinQ"


def text(document: object) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


class TestResponsesToPolls:
    def test_are_read(self) -> None:
        message = QueueMessage("id-1", "a+b/c=& d", 2, "UEhNPg==")
        assert parse_messages(LIST.encode()) == [message, message]

    @pytest.mark.parametrize("document", ["<QueueMessagesList />", "<QueueMessagesList></QueueMessagesList>"])
    def test_may_be_empty(self, document: str) -> None:
        assert parse_messages(document.encode()) == []

    def test_may_begin_with_a_byte_order_mark(self) -> None:
        assert len(parse_messages(LIST.encode("utf-8-sig"))) == 2

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])  # expat detects them
    @pytest.mark.parametrize(
        "document_type",
        [
            '<!DOCTYPE q [<!ENTITY a "b">]>',
            '<!DOCTYPE q [<!ENTITY a SYSTEM "file:///etc/passwd">]>',
            '<!DOCTYPE q [<!ENTITY % a SYSTEM "http://127.0.0.1:9/x.dtd"> %a;]>',
            '<!DOCTYPE q SYSTEM "http://127.0.0.1:9/x.dtd">',
            "<!DOCTYPE q>",
        ],
    )
    def test_with_a_document_type_are_refused_before_it_has_an_effect(
        self, document_type: str, encoding: str
    ) -> None:
        document = f"{document_type}<QueueMessagesList>&a;</QueueMessagesList>"
        with pytest.raises(ValueError, match="document type"):
            parse_messages(document.encode(encoding))

    @pytest.mark.parametrize(
        ("document", "finding"),
        [
            ("", "no element found"),
            ("no XML", "not XML"),
            (LIST[:-5], "not XML"),
            (LIST.replace("UEhNPg==", "&unknown;"), "undefined entity"),
            ("<html></html>", "found <html>"),
            ("<QueueMessagesList><Other/></QueueMessagesList>", "found <Other> below /QueueMessagesList"),
            (LIST.replace("id-1", "<b>id-1</b>"), "expected MessageId"),
            (
                LIST.replace("<DequeueCount>2</DequeueCount>", ""),
                "expected MessageId, PopReceipt and DequeueCount",
            ),
            (LIST.replace(">2<", ">-2<"), "expected MessageId"),
            (LIST.replace(">2<", f">{'9' * 5000}<"), "expected MessageId"),
            (LIST.replace("id-1", ""), "expected MessageId"),
            (
                f"<QueueMessagesList>{'<QueueMessage>' * 100_000}",
                "100,001 tags of XML; expected at most 5,000",
            ),
        ],
    )
    def test_that_are_something_else_are_refused_with_the_finding(self, document: str, finding: str) -> None:
        with pytest.raises(ValueError, match=finding):
            parse_messages(document.encode())

    def test_that_are_too_large_are_refused_unread(self) -> None:
        with pytest.raises(ValueError, match="at most 4,194,304"):
            parse_messages(b" " * (MAX_XML + 1))

    @given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
    def test_never_raise_anything_else(self, document: bytes) -> None:
        for each in (document, LIST.encode().replace(b"UEhNPg==", document)):
            with suppress(ValueError):
                parse_messages(each)


class TestTextsOfMessages:
    def test_are_read_with_and_without_fields_of_other_versions(self) -> None:
        assert decode_run(text({"taskId": TASK_ID, "runId": 3})) == RunMessage(TASK_ID, 3)
        assert decode_run(text({"taskId": TASK_ID, "runId": 0, "hintId": "x"})) == RunMessage(TASK_ID, 0)

    def test_are_read_as_they_are_written(self) -> None:
        message = RunMessage(TASK_ID, 1, "signed")
        assert decode_run(message.encoded()) == message

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            "not base64!",
            text([TASK_ID, 0]),
            text({"taskId": TASK_ID}),
            text({"taskId": TASK_ID, "runId": "0"}),
            text({"taskId": TASK_ID, "runId": -1}),
            text({"taskId": "../../ping", "runId": 0}),
            base64.b64encode(b"\xff\xfe").decode(),
            base64.b64encode(b"[" * 100_000).decode(),
        ],
    )
    def test_that_are_something_else_are_refused(self, wrong: str) -> None:
        with pytest.raises(ValueError, match="taskId"):
            decode_run(wrong)

    @given(st.text(max_size=100))
    def test_never_raise_anything_else(self, given_text: str) -> None:
        for each in (given_text, text(given_text), base64.b64encode(given_text.encode()).decode()):
            with suppress(ValueError):
                decode_run(each)


@pytest.mark.parametrize(
    "url",
    [
        "/q?sig=secret",
        "http://[::1/q?sig=secret",
        "http://a:99999/q?sig=secret",
        f"http://{'a' * 300}/?sig=secret",
    ],
)
async def test_a_signed_url_that_is_not_valid_is_a_failed_call_without_its_signature(url: str) -> None:
    polling = StoragePolling()
    with pytest.raises(ConnectionFailed, match="the signed URL is not valid") as raised:
        await polling.poll(PollQueue(signed_poll_url=url, signed_delete_url=url), 1)
    await polling.close()
    assert "secret" not in "".join(traceback.format_exception(raised.value))
