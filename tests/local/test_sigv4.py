"""Signed URLs: AWS's own example, and the refusal of each request that was changed."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue_client.local.storage.buckets import BadSignatureError, UrlSigner

SIGNER = UrlSigner("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
URL = "http://127.0.0.1:8000/storage/bucket/a%20key"
HEADERS = {"Host": "127.0.0.1:8000", "Content-Type": "text/plain", "Content-Length": "3"}
NOW = 1_800_000_000.7


def signed() -> str:
    enforced = {"Content-Type": "text/plain", "Content-Length": "3"}
    return SIGNER.sign("PUT", URL, now=NOW, seconds=60, headers=enforced)


def test_the_signature_is_that_of_the_example_in_the_s3_reference() -> None:
    query = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request",
        "X-Amz-Date": "20130524T000000Z",
        "X-Amz-Expires": "86400",
        "X-Amz-SignedHeaders": "host",
    }
    host = "examplebucket.s3.amazonaws.com"
    signature = SIGNER.signature("GET", f"https://{host}/test.txt", query, {"host": host})
    assert signature == "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"


def test_a_signed_url_shows_its_terms_and_not_the_secret() -> None:
    assert "X-Amz-Expires=60&" in signed()
    assert signed().endswith("X-Amz-SignedHeaders=content-length%3Bcontent-type%3Bhost")
    assert SIGNER.secret not in signed() + repr(SIGNER)


@pytest.mark.parametrize("later", [0, 60])
def test_a_url_allows_its_request_until_its_time_is_over(later: int) -> None:
    SIGNER.check("PUT", signed(), now=NOW + later, headers=HEADERS)


def test_a_url_whose_time_is_over_says_so() -> None:
    with pytest.raises(BadSignatureError, match="Request has expired") as caught:
        SIGNER.check("PUT", signed(), now=NOW + 61, headers=HEADERS)
    assert caught.value.code == "AccessDenied"


@pytest.mark.parametrize(
    ("method", "change", "headers"),
    [
        ("GET", ("", ""), HEADERS),
        ("PUT", ("a%20key", "another"), HEADERS),
        ("PUT", ("Expires=60", "Expires=6000"), HEADERS),
        ("PUT", ("Signature=", "Signature=0"), HEADERS),
        ("PUT", ("content-length%3B", ""), HEADERS),
        ("PUT", ("%3Bhost", ""), HEADERS),
        ("PUT", ("", ""), HEADERS | {"Content-Type": "text/html"}),
        ("PUT", ("", ""), HEADERS | {"Content-Length": "4"}),
        ("PUT", ("", ""), HEADERS | {"Host": "elsewhere"}),
        ("PUT", ("", ""), {"Host": HEADERS["Host"]}),
    ],
)
def test_a_url_allows_no_other_request(method: str, change: tuple[str, str], headers: dict[str, str]) -> None:
    with pytest.raises(BadSignatureError) as caught:
        SIGNER.check(method, signed().replace(*change), now=NOW, headers=headers)
    assert caught.value.code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "query", ["", "?X-Amz-Signature=0", "?X-Amz-Signature=0&X-Amz-Date=today&X-Amz-Expires=soon"]
)
def test_a_url_without_the_parts_of_a_signature_is_refused(query: str) -> None:
    with pytest.raises(BadSignatureError) as caught:
        SIGNER.check("PUT", URL + query, now=NOW, headers=HEADERS)
    assert caught.value.code == "AccessDenied"


@given(st.text(min_size=1), st.text())
def test_any_additional_query_parameter_makes_a_signature_invalid(name: str, value: str) -> None:
    with pytest.raises(BadSignatureError):
        SIGNER.check("PUT", f"{signed()}&{quote(name)}={quote(value)}", now=NOW, headers=HEADERS)
