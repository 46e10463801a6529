"""Values that servers are known to mishandle, in addresses, headers, JSON, bodies, or at any place."""

from __future__ import annotations

from typing import Any

PIECES = (
    *(
        b"",
        b"\x00",
        b"\xff",
        b"\r\n",
        b"\r\n\r\n",
        b":",
        b"%",
        b"%00",
        b"/",
        b"?",
        b"\xed\xa0\x80",
        b"9" * 400,
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Content-Encoding: gzip\r\n", b"Content-Encoding: br\r\n", b"Expect: 100-continue\r\n"),
    *(b"Upgrade: h2c\r\n", b"Connection: Upgrade\r\n", b"Host:\r\n", b"Range: bytes=9-1\r\n"),
    *(b"5\r\n{}{}{\r\n", b"0\r\n\r\n", b"\x1f\x8b\x08", b"GET http://[::1/ HTTP/1.1\r\n"),
    *(b"GET http://h/x HTTP/1.0\r\n", b"OPTIONS * HTTP/1.1\r\n", b"CONNECT x:1 HTTP/1.1\r\n"),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET //h/api HTTP/1.1\r\n", b"GET ?x HTTP/1.1\r\n"),
    *(b"GET /\xff%zz?\xff HTTP/1.1\r\n", b"HTTP/1.0", b"a" * 20_000),
)
"""Bytes that are inserted anywhere into requests."""

SEGMENTS = (
    *("", "%", "%00", "%ff", "..", "%2F", "a" * 5000, "1" * 400, "-1", "0x1", "01", "%0a", "*", ";", "+"),
    *("2147483647", "2147483648", "%F0%9F%92%A9", "%ED%A0%80", "p%2Fw%2Fx", "public%2F..%2Fx", "~", "%7f"),
)
"""Parts of a path."""

QUERIES = (
    *("limit=0", "limit=3", "limit=1", "limit=x", "limit=1&limit=2", "limit=" + "9" * 400, "a=%ff", "&=&"),
    *("continuationToken=x", "continuationToken=%00", "quarantined=true", "quarantined=maybe"),
    *("bewit=x", "bewit"),
)

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 33, 2**31, 2**53 + 1, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "a", "x" * 300, "x" * 40_000, "\x00", "\ud800", "é", "p/w", "https://x.example/y", "*", "a**"),
    *("2026-11-21T08:59:12Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-02-30"),
    *([], {}, [[]], ["a", "a"], {"": ""}, {"a": {"b": [None]}}, {"__proto__": 1}, "<x>"),
)
"""Parts of a JSON document."""

BODIES = (
    *(b"", b"{", b"[]", b"null", b'"', b"\xff", b"{}{}", b"[" * 5000, b'{"a":' * 3000),
    *(b"[" * 900 + b"]" * 900, b'{"a":1,"a":2}', b'{"a":1e999}', b'{"\\ud800":1}', b"\xef\xbb\xbf{}"),
    b"\x1f\x8b\x08\x00",
)

HEADERS = {
    "Accept-Encoding": ("br;q=x, gzip;;q=2, ,", "gzip", "identity;q=0", "*;q=0", "\udcff"),
    "Authorization": (
        "Hawk",
        'Hawk id="',
        "Basic eDp5",
        'Hawk id="local", ts="1", nonce="1", mac="x"',
        "\udcff",
    ),
    "Content-Encoding": ("gzip", "br", "deflate", "identity", "x", "gzip, gzip"),
    "Content-Length": ("-1", "+1", "1e3", "9" * 400),
    "Content-Type": (
        "application/json; charset=utf-16",
        "text/plain",
        "application/json;charset=x",
        "\udcff",
    ),
    "Cookie": ("a=b; c", "\udcff"),
    "Expect": ("100-continue", "x"),
    "Host": ("", "evil.example", "[::1]:x", "localhost:99999999", "127.0.0.1:", "\udcff", "a" * 9000),
    "If-None-Match": ("*", 'W/"1-x"', "\udcff"),
    "Range": ("bytes=5-1", "bytes=-0", "bytes=0-,1-", "x"),
    "Transfer-Encoding": ("chunked", "gzip", "x"),
    "x-forwarded-port": ("-1", "x", "²", "9" * 400),
    "x-forwarded-proto": ("https", "x"),
    "x-taskcluster-trace-id": ("\udcff", "a" * 9000, "é"),
}
