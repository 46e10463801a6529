"""A private certificate authority, which no store of this machine knows, and a certificate for a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority(NamedTuple):
    """Files of a private certificate authority.

    Attributes:
        certificate: What a client has to trust.
        server: Key and certificate of `localhost`, signed by the authority.
    """

    certificate: Path
    server: Path


def make_authority(
    folder: Path, *addresses: str, host: str = "localhost", age: timedelta = timedelta(days=1)
) -> Authority:
    """Make an authority in a folder, with a server that has these IP addresses beside its name.

    The certificate of the server is valid for two days, of which `age` is over.
    """
    key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer, subject = _name("A private authority"), _name(host)
    ips = [x509.IPAddress(ip_address(each)) for each in addresses]
    names = x509.SubjectAlternativeName([x509.DNSName(host), *ips])
    ca = (
        _builder(issuer, issuer, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    server = (
        _builder(subject, issuer, server_key, age)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = Authority(folder / "ca.pem", folder / "server.pem")
    made.certificate.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    private = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    made.server.write_bytes(private + server.public_bytes(serialization.Encoding.PEM))
    return made


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    age: timedelta = timedelta(days=1),
) -> x509.CertificateBuilder:
    begin = datetime.now(UTC) - age
    return x509.CertificateBuilder(
        issuer,
        subject,
        key.public_key(),
        x509.random_serial_number(),
        begin,
        begin + timedelta(days=2),
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
