"""The failures of connections, in the same words for each transport: what failed, where and why.

The errors of urllib3 and aiohttp name classes and objects of these libraries, and often only the proxy
or only the server.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from socket import gaierror

from taskqueue_client._protocol.api_responses import ResponseRefused, TransportFailed
from taskqueue_client._protocol.wire import Origin

from .network import WANTS_USER, NetworkSettings, Proxy, proxy_refused

_CUT = "the connection was closed before the response was complete"

UNTRUSTED = "certificate verify failed"

_LONGEST = 200  # letters of a text that a server has sent

_TUNNEL = "Tunnel connection failed: "
"""The beginning of the text of `http.client`'s error for a refusal of CONNECT; status and phrase follow."""

_BEFORE_SENDING = (ConnectionRefusedError, gaierror, ssl.SSLCertVerificationError)
"""The errors of connections that are never opened."""


class TooLate(TimeoutError):
    """An attempt has taken too long; the text says what was late."""


class TooSlow(OSError):
    """Fewer bytes are transferred than the minimum rate allows."""


def connection_failed(cause: BaseException, url: str, proxy: Proxy | None) -> TransportFailed:
    """Return the failure of a request because of an error of the operating system, TLS or `http.client`."""
    if text := _response_failure(cause):
        text += f" ({through(proxy).strip()})" if proxy else ""
    else:
        text = f"the connection to {_place(cause, url, proxy)} failed: {reason(cause)}"
    is_unsent = isinstance(cause, _BEFORE_SENDING)
    return TransportFailed(text, timed_out=isinstance(cause, TimeoutError), is_unsent=is_unsent)


def _response_failure(cause: BaseException) -> str:
    """Return what is wrong with the response; empty if the connection failed, and not the response."""
    if isinstance(cause, (RemoteDisconnected, IncompleteRead)):
        return _CUT
    if isinstance(cause, HTTPException):
        first, *_ = f"the response is not HTTP: {cause}".splitlines()
        return first[:_LONGEST].rstrip(": ")
    if isinstance(cause, (TooLate, TooSlow)):
        return str(cause)
    return TransportFailed.LATE if isinstance(cause, TimeoutError) and cause.errno is None else ""


def not_connected_in_time(url: str, proxy: Proxy | None) -> TransportFailed:
    """Return the failure of a request for which no connection was opened in time."""
    text = f"could not connect to {_address(url)} in time{through(proxy)}"
    return TransportFailed(text, timed_out=True, is_unsent=True)


def tunnel_refused(url: str, proxy: Proxy | None, response: str) -> TransportFailed:
    """Return the failure of a request after the response of a proxy to CONNECT, such as `403 Forbidden`."""
    who = "the proxy" if proxy is None else f"the proxy {proxy.url}"
    return TransportFailed(f"{who} did not connect to {_address(url)}: {response}", is_unsent=True)


def through(proxy: Proxy | None) -> str:
    """Return ` through the proxy`, with its URL, or nothing without a proxy."""
    return "" if proxy is None else f" through the proxy {proxy.url}"


def _place(cause: BaseException, url: str, proxy: Proxy | None) -> str:
    """Return the address to name in an error: that of the proxy if it is known to have failed."""
    if proxy is None:
        return _address(url)
    is_refused = isinstance(cause, ConnectionRefusedError)
    is_unresolved = isinstance(cause, gaierror) and not proxy.is_socks  # with SOCKS, the server may be meant
    if is_refused or is_unresolved or proxy.forwards(url):
        return f"the proxy {proxy.url}"
    return _address(url) + through(proxy)


def _address(url: str) -> str:
    return ":".join(Origin.of(url))


def reason(cause: BaseException) -> str:
    """Return why a connection failed, for an error of the operating system or of TLS."""
    if isinstance(cause, ssl.SSLError):
        return _reason_of_tls(cause)
    if isinstance(cause, gaierror):
        return str(cause.strerror or cause)
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)  # without the address that asyncio adds
    return str(cause) or type(cause).__name__


def _reason_of_tls(cause: ssl.SSLError) -> str:
    said = str(cause.args[-1]) if cause.args else "TLS"  # an error raised by Python code has only this text
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"{UNTRUSTED}: {getattr(cause, 'verify_message', said).rstrip('.')}"
    name: str | None = getattr(cause, "reason", None)
    return f"TLS: {name.replace('_', ' ').lower()}" if name else said


# urllib3, of API calls and of transfers of artifacts


def failure_of_urllib3(
    error: BaseException, url: str, network: NetworkSettings | None
) -> TransportFailed | ResponseRefused:
    """Return the failure for an error of requests or urllib3; `network` is None for an injected session."""
    chain = list(_chain(error))
    text = str(chain[-1])
    proxy = None if network is None else network.proxy(url, socks=True)
    # a SOCKS proxy has refused the user and password; the class is of PySocks, which may be missing
    is_socks_refusal = any(type(each).__name__ == "SOCKS5AuthError" for each in chain)
    if text.startswith(f"{_TUNNEL}{WANTS_USER}") or is_socks_refusal:
        return proxy_refused(url, network)
    if text.startswith(_TUNNEL):
        return tunnel_refused(url, proxy, text.removeprefix(_TUNNEL).strip())
    if any(map(_is_late_connection, chain)):
        return not_connected_in_time(url, proxy)
    return connection_failed(chain[-1], url, proxy)


def _is_late_connection(error: BaseException) -> bool:
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError  # noqa: PLC0415 - asynchronous clients do without

    is_failure = isinstance(error, NewConnectionError)  # a subclass of ConnectTimeoutError
    return isinstance(error, ConnectTimeoutError) and not is_failure


def first_cause(error: BaseException) -> BaseException:
    """Return the innermost error that an error of requests or urllib3 wraps."""
    return list(_chain(error))[-1]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes: requests, urllib3 and PySocks wrap errors, some several times."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = None if isinstance(found, HTTPException) else next(_wrapped(found), None)


def _wrapped(error: BaseException) -> Iterator[BaseException]:
    from urllib3.exceptions import NewConnectionError  # noqa: PLC0415 - asynchronous clients do without

    named = (getattr(error, name, None) for name in ("reason", "socket_err", "__cause__"))
    hidden = error.__context__ if isinstance(error, NewConnectionError) else None  # the error of PySocks
    return (each for each in (*named, *error.args, hidden) if isinstance(each, BaseException))
