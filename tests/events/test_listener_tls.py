"""TLS to the broker, with the certificate checked; here a wire speaks it for a broker that does not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from taskqueue_client import events
from taskqueue_client.events import AsyncListener, BrokerRefused, PulseSettings
from tests.events.messages_published import Publisher, task_ids
from tests.events.proxy import Proxy


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file with a key and a certificate for localhost, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path_factory.mktemp("tls") / "localhost.pem"
    file.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
async def encrypted(settings: PulseSettings, certificate: Path) -> AsyncIterator[PulseSettings]:
    """The broker behind a wire that speaks TLS; the certificate is not trusted yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    proxy = Proxy(settings.host, settings.effective_port, context)
    await proxy.open()
    yield replace(settings, host="localhost", port=proxy.port, tls=True)
    await proxy.shut()


async def test_messages_are_received_over_tls(
    encrypted: PulseSettings, certificate: Path, publisher: Publisher, pool: str
) -> None:
    sent = task_ids(3)
    trusting = replace(encrypted, ca_file=str(certificate))
    async with AsyncListener(trusting, [events.task_completed(task_queue_id=pool)]) as listener:
        await publisher.complete(sent, pool)
        for _ in sent:
            await anext(listener)
    assert listener.counts.acknowledged == 3


async def test_an_untrusted_certificate_is_refused(encrypted: PulseSettings) -> None:
    with pytest.raises(BrokerRefused, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        async with AsyncListener(encrypted, [events.task_completed()]):
            pytest.fail("it listens")


async def test_a_certificate_for_another_name_is_refused(encrypted: PulseSettings, certificate: Path) -> None:
    elsewhere = replace(encrypted, ca_file=str(certificate), host="127.0.0.1")
    with pytest.raises(BrokerRefused, match="certificate"):
        async with AsyncListener(elsewhere, [events.task_completed()]):
            pytest.fail("it listens")


async def test_a_missing_file_of_authorities_raises_an_error(encrypted: PulseSettings) -> None:
    with pytest.raises(FileNotFoundError):
        async with AsyncListener(replace(encrypted, ca_file="/nowhere/ca.pem"), [events.task_completed()]):
            pytest.fail("it listens")
