"""Proxies and trusted certificates of the environment, read in one place."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import certifi
import pytest
import requests
from requests.utils import select_proxy

from taskqueue_client._transport.network import NetworkSettings, Proxy, bypassing_proxies
from taskqueue_client.errors import InvalidArgument

PROXY = "http://proxy.test:3128"

ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {"HTTP_PROXY": PROXY},
    {"https_proxy": PROXY},
    {"ALL_PROXY": PROXY},
    {"HTTPS_PROXY": PROXY, "ALL_PROXY": "http://other.test:1"},
    {"HTTPS_PROXY": ""},
    *(
        {"ALL_PROXY": PROXY, "NO_PROXY": exceptions}
        for exceptions in (
            "tc.example.com",
            ".example.com",
            "example.com",
            "ample.com",
            "tc.example.com:8443",
            "10.0.0.0/8",
            "10.1.2.3",
            "localhost:8080, 10.1.0.0/16",
            "::1",
            "*",
        )
    ),
]
URLS = [
    "http://tc.example.com",
    "https://tc.example.com",
    "https://tc.example.com:8443",
    "http://10.1.2.3/x",
    "http://localhost:8080",
    "http://localhost",
    "https://[::1]:8443",
]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "environ", ENVIRONMENTS, ids=lambda environ: " ".join(map("=".join, environ.items()))
)
def test_the_proxy_for_a_url_is_the_one_that_requests_takes(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], url: str
) -> None:
    monkeypatch.setattr(os, "environ", environ)
    with requests.Session() as session:
        settings: Any = session.merge_environment_settings(url, {}, None, None, None)
    expected = select_proxy(url, settings["proxies"])
    proxy = NetworkSettings().proxy(url)
    assert (proxy and proxy.url) == expected


def test_requests_is_not_imported_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setitem(sys.modules, "requests.utils", None)
    assert NetworkSettings().proxy("https://tc.example.com") is None


def test_a_proxys_password_is_in_its_headers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HTTP_PROXY": "me:hid%20den@proxy.test:3128"})
    proxy = NetworkSettings().proxy("http://tc.example.com")
    assert proxy == Proxy(PROXY, "me:hid den")
    assert proxy is not None
    assert proxy.headers == {"Proxy-Authorization": "Basic bWU6aGlkIGRlbg=="}
    assert "hid" not in repr(proxy)


@pytest.mark.parametrize("has_pysocks", [True, False])
def test_a_socks_proxy_needs_pysocks_and_a_transport_that_can_use_it(
    monkeypatch: pytest.MonkeyPatch, *, has_pysocks: bool
) -> None:
    pysocks = ModuleType("socks")
    pysocks.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "socks", pysocks if has_pysocks else None)
    monkeypatch.setattr(os, "environ", {"ALL_PROXY": "socks5h://me:hidden@proxy.test:1080"})
    with pytest.raises(InvalidArgument, match=r"socks5h://proxy\.test:1080") as refused:
        NetworkSettings().proxy("http://tc.example.com")
    assert refused.value.argument == "ALL_PROXY"
    if has_pysocks:
        proxy = NetworkSettings().proxy("http://tc.example.com", socks=True)
        assert proxy == Proxy("socks5h://proxy.test:1080", "me:hidden")
    else:
        with pytest.raises(InvalidArgument, match="SOCKS needs PySocks"):
            NetworkSettings().proxy("http://tc.example.com", socks=True)


@pytest.mark.parametrize(
    "url",
    [
        " ",
        "http://a proxy.test",
        "http://\N{NO-BREAK SPACE}proxy.test",
        "http://proxy.test\udcff:3128",
        "http://me:hidden\udcff@proxy.test",
        "http://me:hidden",
        "me:4hidden/",
    ],
)
def test_a_proxy_that_no_request_could_reach_is_refused_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """White space around a value, and bytes that are not UTF-8, as an environment may have them."""
    monkeypatch.setattr(os, "environ", {"HTTP_PROXY": url})
    with pytest.raises(InvalidArgument, match=r"HTTP_PROXY.*host without spaces, in UTF-8") as refused:
        NetworkSettings().check("http://tc.example.com")
    assert "hidden" not in str(refused.value)


def test_a_proxys_password_may_have_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HTTP_PROXY": "http://me:a b@proxy.test:3128"})
    assert NetworkSettings().proxy("http://tc.example.com") == Proxy(PROXY, "me:a b")


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_ca_bundle_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setattr(os, "environ", {variable: str(tmp_path / "missing.pem")})
    with pytest.raises(InvalidArgument, match=r"missing\.pem") as refused:
        _ = NetworkSettings().tls
    assert refused.value.argument == variable


def test_certifi_is_trusted_where_the_systems_store_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr("ssl.SSLContext.load_default_certs", _load_nothing)
    trusted = len(NetworkSettings().tls.get_ca_certs())
    assert trusted == Path(certifi.where()).read_text("utf-8").count("BEGIN CERTIFICATE")


@pytest.mark.parametrize(
    ("variables", "hosts"),
    [
        ({}, None),
        ({"HTTP_PROXY": PROXY}, "127.0.0.1"),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "a.test,b.test"}, "a.test,b.test,127.0.0.1"),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "a.test", "no_proxy": "b.test"}, "b.test,127.0.0.1"),
        ({"HTTP_PROXY": PROXY, "NO_PROXY": "127.0.0.1"}, None),
    ],
)
def test_a_host_is_added_to_those_that_no_proxy_is_for(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], hosts: str | None
) -> None:
    monkeypatch.setattr(os, "environ", variables)
    expected = {"NO_PROXY": hosts, "no_proxy": hosts} if hosts else {}
    assert bypassing_proxies("http://127.0.0.1:5000") == expected


def test_the_tls_context_is_made_once() -> None:
    settings = NetworkSettings()
    assert settings.tls is settings.tls


def test_a_pool_manager_goes_through_the_proxy_of_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {"HTTP_PROXY": "http://me:hidden@proxy.test:3128", "NO_PROXY": "localhost"}
    )
    settings = NetworkSettings()
    through: Any = settings.pool_manager("http://tc.example.com", maxsize=2)
    assert through.proxy.url == PROXY
    assert "Proxy-Authorization" in through.proxy_headers
    assert settings.pool_manager("http://localhost").proxy is None


def _load_nothing(*_: object) -> None: ...
