"""TLS to the broker, with the certificate checked; here a wire speaks it for a broker that does not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from taskqueue_client import events
from taskqueue_client.events import AsyncListener, BrokerRefused, PulseSettings
from tests.certificates import Authority, make_authority
from tests.events.messages_published import Publisher, task_ids
from tests.events.proxy import Proxy


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority whose server has a name, and no address."""
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def encrypted(settings: PulseSettings, authority: Authority) -> AsyncIterator[PulseSettings]:
    """The broker behind a wire that speaks TLS; the certificate is not trusted yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    proxy = Proxy(settings.host, settings.effective_port, context)
    await proxy.open()
    yield replace(settings, host="localhost", port=proxy.port, tls=True)
    await proxy.shut()


async def test_messages_are_received_over_tls(
    encrypted: PulseSettings, authority: Authority, publisher: Publisher, pool: str
) -> None:
    sent = task_ids(3)
    trusting = replace(encrypted, ca_file=str(authority.certificate))
    async with AsyncListener(trusting, [events.task_completed(task_queue_id=pool)]) as listener:
        await publisher.complete(sent, pool)
        for _ in sent:
            await anext(listener)
    assert listener.counts.acknowledged == 3


async def test_an_untrusted_certificate_is_refused(encrypted: PulseSettings) -> None:
    with pytest.raises(BrokerRefused, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        async with AsyncListener(encrypted, [events.task_completed()]):
            pytest.fail("it listens")


async def test_a_certificate_for_another_name_is_refused(
    encrypted: PulseSettings, authority: Authority
) -> None:
    elsewhere = replace(encrypted, ca_file=str(authority.certificate), host="127.0.0.1")
    with pytest.raises(BrokerRefused, match="certificate"):
        async with AsyncListener(elsewhere, [events.task_completed()]):
            pytest.fail("it listens")


async def test_a_missing_file_of_authorities_raises_an_error(encrypted: PulseSettings) -> None:
    with pytest.raises(FileNotFoundError):
        async with AsyncListener(replace(encrypted, ca_file="/nowhere/ca.pem"), [events.task_completed()]):
            pytest.fail("it listens")
