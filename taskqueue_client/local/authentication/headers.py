"""Reading what a caller presents: the Hawk header, the bewit of a signed URL, and `ext` in both."""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, urlsafe_b64decode
from dataclasses import dataclass
from typing import Any, NoReturn

from taskqueue_client.local.json_types import is_object

LONGEST_HEADER = 4096
LONGEST_URL = 4096

_SCHEME = re.compile(r"(\w+)(?:\s+(.*))?", re.ASCII | re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"\\]*)"\s*(?:,\s*|\Z)', re.ASCII)
_VALUE = re.compile(r"[ \w!#$%&'()*+,\-./:;<=>?@\[\]^`{|}~]+", re.ASCII)
_KNOWN = {"id", "ts", "nonce", "hash", "ext", "mac", "app", "dlg"}
_NEEDED = {"id", "ts", "nonce", "mac"}
_BEWIT = re.compile(r"(/.*)([?&])bewit=([^&]*)(?:&(.*))?", re.DOTALL)
_BEWIT_PARTS = 4


class AuthenticationError(Exception):
    """Credentials that are not accepted; the message is for the caller."""


def reject(reason: str) -> NoReturn:
    """Credentials are not accepted."""
    raise AuthenticationError(reason)


def bad_request(reason: str) -> NoReturn:
    """Credentials can't be read."""
    reject(f"Bad Request: {reason}")


def unauthorized(reason: str) -> NoReturn:
    """Credentials can be read, and are wrong."""
    reject(f"Unauthorized: {reason}")


def parse_header(header: str) -> dict[str, str]:
    """The attributes of an `Authorization: Hawk …` header.

    Raises:
        AuthenticationError: It is of another scheme, too long, malformed or incomplete.
    """
    if len(header) > LONGEST_HEADER:
        bad_request("Header length too long")
    scheme = _SCHEME.fullmatch(header)
    if scheme is None:
        bad_request("Invalid header syntax")
    if scheme[1].lower() != "hawk":
        unauthorized("Unauthorized")
    if not scheme[2]:
        bad_request("Invalid header syntax")
    attributes = _attributes(scheme[2])
    if not attributes.keys() >= _NEEDED:
        bad_request("Missing attributes")
    return attributes


def _attributes(text: str) -> dict[str, str]:
    attributes: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _ATTRIBUTE.match(text, position)
        if found is None:
            bad_request("Bad header format")
        name, value = found.groups()
        _check_attribute(name, value, attributes)
        attributes[name] = value
        position = found.end()
    return attributes


def _check_attribute(name: str, value: str, attributes: dict[str, str]) -> None:
    if name not in _KNOWN:
        bad_request(f"Unknown attribute: {name}")
    if not _VALUE.fullmatch(value):
        bad_request(f"Bad attribute value: {name}")
    if name in attributes:
        bad_request(f"Duplicate attribute: {name}")


@dataclass(frozen=True, slots=True)
class Bewit:
    """The signature of a signed URL, and the path and query that it was made for."""

    client_id: str
    expires: str
    mac: str
    ext: str
    resource: str


def has_bewit(resource: str) -> bool:
    """Whether a path and query carries a bewit."""
    return resource.startswith("/") and re.search(r"[?&]bewit=", resource) is not None


def parse_bewit(resource: str) -> Bewit:
    """The bewit in a path and query, wherever in the query it stands.

    Raises:
        AuthenticationError: The URL is too long, or the bewit empty or malformed.
    """
    if len(resource) > LONGEST_URL:
        bad_request("Resource path exceeds max length")
    found = _BEWIT.fullmatch(resource)
    if found is None or not found[3]:
        unauthorized("Empty bewit")
    parts = _decode_bewit(found[3]).split("\\")
    if len(parts) != _BEWIT_PARTS:
        bad_request("Invalid bewit structure")
    client_id, expires, mac, ext = parts
    if not (client_id and expires and mac):
        bad_request("Missing bewit attributes")
    rest = found[2] + found[4] if found[4] else ""
    return Bewit(client_id, expires, mac, ext, found[1] + rest)


def _decode_bewit(text: str) -> str:
    """The base64url without padding; bytes are taken as Latin-1, as the service does."""
    if not re.fullmatch(r"[\w-]*", text, re.ASCII):
        bad_request("Invalid bewit encoding")
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("latin-1")
    except binascii.Error:
        bad_request("Invalid bewit encoding")


def parse_ext(ext: str) -> dict[str, Any]:
    """The JSON object in an `ext`, from standard or URL-safe base64.

    Raises:
        AuthenticationError: It can't be decoded.
    """
    try:
        text = ext.replace("-", "+").replace("_", "/").rstrip("=")
        value = json.loads(b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, RecursionError):
        reject("Failed to parse ext")
    return value if is_object(value) else {}
