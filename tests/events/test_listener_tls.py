"""TLS to the broker, whose certificate is checked; in these tests, a wire adds TLS to a broker without it."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from taskqueue_client import events
from taskqueue_client.events import AsyncListener, BrokerRefused, PulseSettings, State
from tests.certificates import Authority, make_authority
from tests.events.conftest import States
from tests.events.messages_published import Publisher, task_ids
from tests.events.proxy import Proxy


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority whose server has a name, and no address."""
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def encrypting(settings: PulseSettings, authority: Authority) -> AsyncIterator[Proxy]:
    """A wire to the broker that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server)
    proxy = Proxy(settings.host, settings.effective_port, context)
    await proxy.open()
    yield proxy
    await proxy.shut()


@pytest.fixture
def encrypted(settings: PulseSettings, encrypting: Proxy) -> PulseSettings:
    """The broker behind that wire; the certificate is not trusted yet."""
    return replace(settings, host="localhost", port=encrypting.port, tls=True)


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


async def test_a_listener_reconnects_when_its_file_of_authorities_is_back(
    encrypted: PulseSettings, encrypting: Proxy, authority: Authority, tmp_path: Path, states: States
) -> None:
    trusted, elsewhere = tmp_path / "ca.pem", tmp_path / "elsewhere"
    shutil.copy(authority.certificate, trusted)
    listener = AsyncListener(
        replace(encrypted, ca_file=str(trusted)),
        [events.task_completed()],
        on_state=states,
        wait_initial=0.01,
        wait_max=0.01,
    )
    async with listener:
        shutil.move(trusted, elsewhere)
        encrypting.cut()
        await states.until(
            lambda _: any(isinstance(each.reason, FileNotFoundError) for each in states.changes)
        )
        shutil.move(elsewhere, trusted)
        await states.until(lambda names: names.count(State.LISTENING) == 2)
