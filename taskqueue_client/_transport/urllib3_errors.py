"""The failures of requests over urllib3, of API calls and of transfers of artifacts."""

from __future__ import annotations

from collections.abc import Iterator

from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from taskqueue_client._protocol.api_responses import ResponseRefused, TransportFailed

from .connection_errors import connection_failed, not_connected_in_time, tunnel_refused
from .network import WANTS_USER, NetworkSettings, proxy_refused

_TUNNEL = "Tunnel connection failed: "
"""The beginning of the text of `http.client`'s error for a refusal of CONNECT; status and phrase follow."""


def request_failure(
    error: BaseException, url: str, network: NetworkSettings | None
) -> TransportFailed | ResponseRefused:
    """Return the failure that an error stands for; `network` is None for an injected session."""
    chain = list(_chain(error))
    text = str(chain[-1])
    proxy = None if network is None else network.proxy(url, socks=True)
    if text.startswith(f"{_TUNNEL}{WANTS_USER}") or any(map(_is_socks_refusal, chain)):
        return proxy_refused(url, network)
    if text.startswith(_TUNNEL):
        return tunnel_refused(url, proxy, text.removeprefix(_TUNNEL).strip())
    if any(map(_is_late_connection, chain)):
        return not_connected_in_time(url, proxy)
    return connection_failed(chain[-1], url, proxy)


def _is_socks_refusal(error: BaseException) -> bool:
    """Return whether a SOCKS proxy has refused the user and password; the class is of PySocks."""
    return type(error).__name__ == "SOCKS5AuthError"


def _is_late_connection(error: BaseException) -> bool:
    return isinstance(error, ConnectTimeoutError) and not isinstance(
        error, NewConnectionError
    )  # its subclass


def first_cause(error: BaseException) -> BaseException:
    """Return the error that errors of requests and urllib3 are about."""
    return list(_chain(error))[-1]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return an error and its causes, down to the first one: requests, urllib3 and PySocks wrap errors."""
    while True:
        yield error
        inner = [
            getattr(error, "reason", None),
            getattr(error, "socket_err", None),
            error.__cause__,
            *error.args,
        ]
        if isinstance(error, NewConnectionError):
            inner.append(error.__context__)  # PySocks's error is not its cause
        found = next((each for each in inner if isinstance(each, BaseException)), None)
        if found is None:
            return
        error = found
