"""The network settings of all connections, and dropping connections in forked children.

Proxies, trusted certificates and the user agent are read from the environment in one place: API calls and
storage, synchronous and asynchronous, use the same settings.
"""

from __future__ import annotations

import os
import re
import ssl
from base64 import b64encode
from functools import cached_property
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies
from weakref import WeakSet

import msgspec

from taskqueue_client._protocol.api_responses import ProxyRefused
from taskqueue_client._version import __version__
from taskqueue_client.errors import InvalidArgument

if TYPE_CHECKING:
    import urllib3

USER_AGENT = f"taskqueue_client/{__version__}"

HTTP_PROXIES = ("http", "https")
SOCKS_PROXIES = ("socks4", "socks4a", "socks5", "socks5h")


class Proxy(msgspec.Struct, frozen=True):
    """A proxy server.

    Attributes:
        url: The URL without a user and password.
        userinfo: `user:password`, decoded; empty if the URL had none.
    """

    url: str
    userinfo: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.url!r})"  # without the password

    @property
    def is_socks(self) -> bool:
        return self.url.startswith(SOCKS_PROXIES)

    def forwards(self, url: str) -> bool:
        """Return whether requests for a URL are sent to the proxy itself, and not through a tunnel."""
        return url.startswith("http:") and not self.is_socks

    @property
    def headers(self) -> dict[str, str]:
        if not self.userinfo:
            return {}
        return {"Proxy-Authorization": f"Basic {b64encode(self.userinfo.encode()).decode()}"}


class NetworkSettings:
    """Proxies and trusted certificate authorities, as the environment names them.

    Each value is read when it is first needed, and kept. May be used from many threads.
    """

    def __init__(self) -> None:
        self._proxies: dict[str, Proxy | None] = {}

    def proxy(self, url: str, *, socks: bool = False) -> Proxy | None:
        """Return the proxy for a URL, which may be a SOCKS proxy if `socks`, or None for a direct connection.

        `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` are read by the functions of requests.
        """
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if origin not in self._proxies:
            self._proxies[origin] = _environment_proxy(origin)
        proxy = self._proxies[origin]
        if proxy is not None and not socks and proxy.is_socks:
            raise InvalidArgument(proxy_variable(origin), proxy.url, f"{_HTTP}; SOCKS is not supported here")
        return proxy

    def forwarding_proxy(self, url: str) -> str:
        """Return the URL of the proxy that responds to requests for a URL, or passes them on; else empty."""
        proxy = self.proxy(url, socks=True)
        return proxy.url if proxy is not None and proxy.forwards(url) else ""

    def has_socks(self) -> bool:
        """Return whether a proxy of the environment is a SOCKS proxy, which aiohttp cannot use."""
        return any(url.startswith(SOCKS_PROXIES) for url in getproxies().values())

    def check(self, url: str, *, socks: bool = False) -> None:
        """Read the settings for requests to a URL, so that a mistake in the environment is found early."""
        self.proxy(url, socks=socks)
        self.tls_for(url)

    def tls_for(self, url: str) -> ssl.SSLContext | None:
        """Return the TLS context for requests to a URL; None if neither it nor its proxy uses HTTPS."""
        proxy = self.proxy(url, socks=True)
        uses_tls = url.startswith("https:") or (proxy is not None and proxy.url.startswith("https:"))
        return self.tls if uses_tls else None

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The TLS context for HTTPS, made at the first access.

        Trusts the certificates of `REQUESTS_CA_BUNDLE`, else `CURL_CA_BUNDLE`; else those that OpenSSL finds
        by `SSL_CERT_FILE` and `SSL_CERT_DIR`; else those of the system and of certifi.
        """
        context = _tls_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    def pool_manager(self, url: str, **options: Any) -> urllib3.PoolManager:
        """Return a urllib3 pool manager for requests to a URL, through its proxy if it has one."""
        from .sync_connections import IdleConnections  # noqa: PLC0415 - asynchronous clients do without

        manager = self._manager(url, options)
        kinds: dict[str, Any] = dict(manager.pool_classes_by_scheme)
        manager.pool_classes_by_scheme = {
            scheme: type(kind.__name__, (kind,), {"QueueCls": IdleConnections})
            for scheme, kind in kinds.items()
        }
        return manager

    def _manager(self, url: str, options: dict[str, Any]) -> urllib3.PoolManager:
        import urllib3  # noqa: PLC0415 - as above

        if url.startswith("https:"):
            options["ssl_context"] = self.tls
        proxy = self.proxy(url, socks=True)
        if proxy is None:
            return urllib3.PoolManager(**options)
        if proxy.is_socks:
            from urllib3.contrib.socks import SOCKSProxyManager  # noqa: PLC0415 - needs PySocks

            user, _, password = proxy.userinfo.partition(":")
            return SOCKSProxyManager(proxy.url, user or None, password or None, **options)
        if proxy.url.startswith("https:"):
            options["ssl_context"] = options["proxy_ssl_context"] = self.tls  # urllib3 < 2.8 uses the first
        return urllib3.ProxyManager(proxy.url, proxy_headers=proxy.headers, **options)


_HTTP = "an http:// or https:// URL with a host without spaces, in UTF-8"
_SOCKS = "a socks4://, socks4a://, socks5:// or socks5h:// URL"
_NO_PORT = re.compile(r":(?!\d+(/|$)).*", re.DOTALL)
"""In a URL without a host, what could be a port may be a password: `http://user:password`."""


def _named_proxy(url: str) -> str | None:
    """Return the proxy for a URL as the environment names it."""
    if not getproxies():
        return None
    from requests.utils import get_environ_proxies, select_proxy  # noqa: PLC0415 - costs 50 ms

    return select_proxy(url, get_environ_proxies(url))


def _environment_proxy(origin: str) -> Proxy | None:
    named = _named_proxy(origin)
    if not named:
        return None
    url = named if "://" in named else f"http://{named}"
    parts = _proxy_parts(url)
    if parts is None:
        scheme, _, rest = url.partition("://")
        host = rest.rpartition("@")[2]  # without a user and password
        shown = f"{scheme}://{_NO_PORT.sub(':…', host)}"
        socks = f"; or {_SOCKS}" if find_spec("socks") else "; SOCKS needs PySocks (requests[socks])"
        raise InvalidArgument(proxy_variable(origin), shown, _HTTP + socks)
    userinfo, _, host = parts.netloc.rpartition("@")
    return Proxy(f"{parts.scheme}://{host}", unquote(userinfo))


def bypassing_proxies(url: str) -> dict[str, str]:
    """Return the variables that make clients bypass the proxy for a URL; empty if the URL has no proxy."""
    if not _named_proxy(url):
        return {}
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")  # as requests reads them
    hosts = ",".join(filter(None, [others, urlsplit(url).hostname]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def proxy_variable(url: str) -> str:
    """Return the variable that names the proxy for a URL, for an error message."""
    scheme = url.partition(":")[0]
    return f"{scheme if getproxies().get(scheme) else 'all'}_PROXY".upper()


WANTS_USER = HTTPStatus.PROXY_AUTHENTICATION_REQUIRED
"""The status with which a proxy asks for a user and password, or refuses them."""


def proxy_refused(url: str, network: NetworkSettings | None) -> ProxyRefused:
    """Return the error about a proxy's 407 to a request; `network` is None for an injected session."""
    proxy = None if network is None else network.proxy(url, socks=True)
    if proxy is None:
        return ProxyRefused("a proxy wants a user and password, or refuses those that it got")
    if proxy.userinfo:
        said = f"refuses the user and password in {proxy_variable(url)}: correct them"
    else:
        said = f"wants a user and password: add them to the URL in {proxy_variable(url)}"
    return ProxyRefused(f"the proxy {proxy.url} {said}")


def _proxy_parts(url: str) -> SplitResult | None:
    """Return the parts of a proxy's URL; None if it cannot be used."""
    schemes = HTTP_PROXIES + SOCKS_PROXIES if find_spec("socks") else HTTP_PROXIES
    try:
        parts = urlsplit(url)
        parts.netloc.encode()
        has_host = re.fullmatch(r"\S+", parts.hostname or "")
        usable = has_host and parts.scheme in schemes and parts.port != 0
    except ValueError:  # the port is not a number, a bracket is not closed, or bytes are not UTF-8
        return None
    return parts if usable else None


def _tls_context() -> ssl.SSLContext:
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if path := os.environ.get(variable):
            return _context_of(variable, path)
    if path := os.environ.get("SSL_CERT_FILE"):
        _context_of("SSL_CERT_FILE", path)  # OpenSSL ignores a file that it cannot read
    context = ssl.create_default_context()
    if not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")):
        import certifi  # noqa: PLC0415 - not needed where a variable names the certificates

        context.load_verify_locations(certifi.where())
    return context


def _context_of(variable: str, path: str) -> ssl.SSLContext:
    try:
        if Path(path).is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        allowed = f"a file or folder of PEM certificates ({error})"
        raise InvalidArgument(variable, path, allowed) from error


class Forked(Protocol):
    """An owner of connections or threads.

    Two processes that share a connection get each other's responses. A child would wait for ever for threads
    of the parent, and for locks that were locked.
    """

    def forget(self) -> None:
        """Drop the parent's connections and threads, in a child that was forked just now."""
        ...


_owners: WeakSet[Forked] = WeakSet()


def forget_in_children(owner: Forked) -> None:
    """Call the owner's `forget` in every child that is forked while the owner lives."""
    _owners.add(owner)


def _forget() -> None:
    for owner in list(_owners):
        owner.forget()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forget)
