"""Connections to storage services: kept apart from those to the Queue, and bare of its credentials.

Proxies and the CA bundle are those of the environment. No cookies, no `.netrc`, no retries: a request
that fails is somebody else's to repeat, with a fresh body.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from base64 import b64encode
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi

from taskqueue_client._http import Address

from .errors import StorageFailed

_MOST_IDLE = 16
"""Connections to one place that are kept for later: as many artifacts go up at once by default."""

_URL = re.compile(r"https?://[\x21-\x7e]+")


class Timeouts(NamedTuple):
    """Seconds to wait for a connection, and for the other side to take or give anything."""

    connect: float
    read: float


@dataclass(frozen=True, slots=True)
class Place:
    """A URL, taken apart for a request.

    Attributes:
        target: The path and the query, exactly as they were signed.
    """

    address: Address
    target: str = field(repr=False)

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, method: str, url: str) -> Place:
        """The parts of a URL.

        Raises:
            StorageFailed: It is none that a request can be sent to.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise StorageFailed(method, "", "the URL cannot be read") from None
        if not _URL.fullmatch(url) or not parts.hostname:
            raise StorageFailed(method, "", "the URL is no http or https URL")
        address = Address(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))
        return cls(address, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


class Connections:
    """The idle connections, and how to make more. May be used from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: defaultdict[Address, list[HTTPConnection]] = defaultdict(list)

    def take(self, address: Address, timeouts: Timeouts) -> HTTPConnection:
        """A connection that nobody else uses.

        Raises:
            OSError: There is no way to connect.
        """
        connection = self._idle_one(address) or self._new(address, timeouts)
        connection.sock.settimeout(timeouts.read)
        return connection

    def give_back(self, address: Address, connection: HTTPConnection) -> None:
        """Keep a connection whose last answer was read to its end."""
        with self._lock:
            idle = self._idle[address]
            if len(idle) < _MOST_IDLE:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _idle_one(self, address: Address) -> HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle[address]:
                    return None
                connection = self._idle[address].pop()
            if not _has_ended(connection):
                return connection
            connection.close()

    def _new(self, address: Address, timeouts: Timeouts) -> HTTPConnection:
        proxy = proxy_for(address)
        host, port = (address.host, address.port) if proxy is None else (proxy.hostname, proxy.port)
        if address.scheme == "http":
            connection = HTTPConnection(host or "", port, timeout=timeouts.connect)
        else:
            connection = HTTPSConnection(host or "", port, timeout=timeouts.connect, context=self.tls)
        if proxy is not None and address.scheme == "https":
            connection.set_tunnel(address.host, address.port, proxy_headers(proxy))
        connection.connect()
        return connection

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The authorities of `REQUESTS_CA_BUNDLE` or `CURL_CA_BUNDLE`; else the system's and certifi's."""
        bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        if bundle:
            if Path(bundle).is_dir():
                return ssl.create_default_context(capath=bundle)
            return ssl.create_default_context(cafile=bundle)
        context = ssl.create_default_context()
        context.load_verify_locations(certifi.where())
        return context


@lru_cache(maxsize=64)
def proxy_for(address: Address) -> SplitResult | None:
    """The environment's proxy for an address; looked up once."""
    if proxy_bypass(address.host):
        return None
    proxies = getproxies()
    url = proxies.get(address.scheme) or proxies.get("all")
    if not url:
        return None
    return urlsplit(url if "://" in url else f"http://{url}")


def proxy_headers(proxy: SplitResult) -> dict[str, str]:
    """What a proxy wants to know of us."""
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + b64encode(user.encode()).decode()}


def _has_ended(connection: HTTPConnection) -> bool:
    """Whether the other side has hung up (or sent what nobody asked for)."""
    connection.sock.settimeout(0)
    try:
        socket.socket.recv(connection.sock, 1, socket.MSG_PEEK)  # what TLS has to say counts, too
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
