"""Reading request bodies: content type, size limit, JSON, and the checks against the endpoint's schema."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import msgspec
from aiohttp import HttpVersion11, web

from taskqueue_client.local.javascript_values import is_list, is_object
from taskqueue_client.local.refusal import refuse
from taskqueue_client.local.request_schemas import REQUEST_SCHEMAS

from .schema_check import Check, compile_schema

LARGEST_BODY = 10 * 1024 * 1024
"""The service's limit, in bytes; counted after decompression."""

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK = 1024  # bytes of a gzip body unpacked at once: zlib copies the bytes after the end of a member

brotli: Any = import_module("brotli") if find_spec("brotli") else None
"""Brotli bodies are read and written where the package is installed."""

if not hasattr(getattr(brotli, "Decompressor", None), "can_accept_more_data"):
    brotli = None  # before 1.2, it has no `output_buffer_limit`: a kilobyte could become gigabytes

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[\x0b\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\x0b\x20-\xff])*"'
_CONTENT_TYPE = re.compile(rf"\s*({_WORD}/{_WORD})\s*(?:; *{_WORD} *= *(?:{_QUOTED}|{_WORD}) *)*")
_PARAMETER = re.compile(rf"; *({_WORD}) *= *({_QUOTED}|{_WORD})")
_PUNCTUATION = re.compile(r":[0-9]{4}$|[^a-z0-9]")
_EXACT = 2**53  # whole numbers up to this one are exact as doubles
_PLAIN = 1e21  # below, JavaScript writes whole numbers without an exponent
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # the second form can come from UTF-7
_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 16


def media_type(content_type: str | None) -> str | None:
    """Return a content type without its parameters, in lower case; None for text that is not one."""
    found = _CONTENT_TYPE.fullmatch(content_type or "")
    return found and found[1].lower()


def has_json(request: web.BaseRequest) -> bool:
    """Return whether a request announces a JSON body."""
    has_body = "Content-Length" in request.headers or "Transfer-Encoding" in request.headers
    return has_body and media_type(request.headers.get("Content-Type")) == "application/json"


async def read_body(request: web.BaseRequest) -> bytes:
    """Return the whole body, decompressed."""
    encoding = _encoding(request)
    if (request.content_length or 0) > LARGEST_BODY:
        _too_large()
    say_continue(request)
    body = bytearray()
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > LARGEST_BODY:
                _too_large()
    except ConnectionError:  # for the request log only: the client has disconnected
        refuse("InputError", "request aborted")
    return _decompress(bytes(body), encoding)


def say_continue(request: web.BaseRequest) -> None:
    """Tell a client to send its body, if it waits for that (`Expect: 100-continue`)."""
    is_waiting = request.headers.get("Expect", "").lower() == "100-continue"
    if is_waiting and request.version >= HttpVersion11 and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _too_large() -> NoReturn:
    refuse("InputTooLarge", f"Request body is larger than {LARGEST_BODY} bytes")


def _encoding(request: web.BaseRequest) -> str:
    encoding = request.headers.get("Content-Encoding", "").lower() or "identity"
    if encoding not in _UNPACK:
        known = ", ".join(_UNPACK)
        refuse("MalformedPayload", f"Content-Encoding {encoding!r} is not supported; use one of: {known}")
    return encoding


def _decompress(body: bytes, encoding: str) -> bytes:
    """Return the decompressed body; decompression stops soon after `LARGEST_BODY`."""
    try:
        unpacked = _UNPACK[encoding](body)
    except (zlib.error, EOFError, ValueError) as error:
        refuse("MalformedPayload", f"The payload is not {encoding}: {error}")
    if len(unpacked) > LARGEST_BODY:
        _too_large()
    return unpacked


def _gunzip(body: bytes) -> bytes:
    """Return the content of all gzip members; bytes after the last member are ignored."""
    unpacked, start = bytearray(), 0
    while start == 0 or (body.startswith(_GZIP_MAGIC, start) and len(unpacked) <= LARGEST_BODY):
        start = _gunzip_member(body, start, unpacked)
    return bytes(unpacked)


def _gunzip_member(body: bytes, start: int, unpacked: bytearray) -> int:
    """Append a member's content, or more than `LARGEST_BODY`; return where the next member starts."""
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while not member.eof and len(unpacked) <= LARGEST_BODY:
        block = body[start : start + _BLOCK]
        if not block:
            raise EOFError("the compressed data ends too early")
        unpacked += member.decompress(block, LARGEST_BODY + 1 - len(unpacked))
        start += len(block) - len(member.unused_data)
    return start


def _inflate(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    return _complete(unpacker.decompress(body, LARGEST_BODY + 1), is_end=unpacker.eof)


def _unbrotli(body: bytes) -> bytes:
    unpacker = brotli.Decompressor()
    try:
        unpacked = unpacker.process(body, output_buffer_limit=LARGEST_BODY + 1)
    except brotli.error as error:
        raise ValueError(str(error)) from None
    return _complete(unpacked, is_end=unpacker.is_finished())


def _complete(unpacked: bytes, *, is_end: bool) -> bytes:
    """Return `unpacked`; raise an EOFError if it is neither complete nor more than `LARGEST_BODY`."""
    if not is_end and len(unpacked) <= LARGEST_BODY:
        raise EOFError("the compressed data ends too early")
    return unpacked


_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": _gunzip,
    "deflate": _inflate,
    **({} if brotli is None else {"br": _unbrotli}),
}


def read_text(body: bytes, content_type: str | None) -> str:
    """Return the text of a JSON body; bytes outside of its charset become replacement characters."""
    charset = _charset(content_type or "")
    codec = _codecs().get(_PUNCTUATION.sub("", charset.lower()))
    if codec is None:
        refuse("MalformedPayload", f"The charset {charset!r} of the payload is not supported; use utf-8")
    return body.decode(codec, "replace").removeprefix("\ufeff")


@cache
def _codecs() -> dict[str, str]:
    """Return Python's codecs by the names of iconv-lite, the service's library, which ignores punctuation."""
    dos = {f"{prefix}{page}": f"cp{page}" for page in _DOS_PAGES for prefix in ("", "cp", "ibm", "csibm")}
    windows = {f"{prefix}{page}": f"cp{page}" for page in _WINDOWS_PAGES for prefix in _WINDOWS_PREFIXES}
    iso = {f"{prefix}{_ISO_PAGES + part}": f"iso8859_{part}" for part in _ISO_PARTS for prefix in ("", "cp")}
    parts = {f"iso8859{part}": f"iso8859_{part}" for part in _ISO_PARTS}
    others = {name: codec for codec, names in _OTHER_NAMES.items() for name in names.split()}
    return {**dos, **windows, **iso, **parts, **others}


_DOS_PAGES = (437, 737, 775, 850, 852, *range(855, 859), *range(860, 867), 869, 1125)
_WINDOWS_PAGES = (874, *range(1250, 1259))
_WINDOWS_PREFIXES = ("", "cp", "win", "windows")
_ISO_PAGES = 28590  # the code page of part 1 of ISO 8859 is 28591, and so on
_ISO_PARTS = (*range(1, 12), *range(13, 17))

_OTHER_NAMES = {
    "ascii": "ascii ascii8bit ansix34 ansix341968 ansix341986 cp367 csascii ibm367 iso646irv iso646us isoir6"
    " us usascii",
    "big5hkscs": "big5 big5hkscs cnbig5 csbig5 xxbig5",
    "cp437": "cspc8codepage437",
    "cp775": "cspc775baltic",
    "cp850": "cspc850multilingual",
    "cp852": "cspcp852",
    "cp862": "cspc862latinhebrew",
    "cp869": "cpgr",
    "cp932": "932 cp932 csshiftjis ms31j ms932 mskanji shiftjis sjis windows31j windows932 xsjis",
    "cp949": "949 cp949 cseuckr csksc56011987 euckr isoir149 korean ksc5601 ksc56011987 ksc56011989 ms949"
    " windows949",
    "cp950": "950 cp950 ms950 windows950",
    "cp1250": "msee",
    "cp1251": "mscyrl",
    "cp1252": "msansi",
    "cp1253": "msgreek",
    "cp1254": "msturk",
    "cp1255": "mshebr",
    "cp1256": "msarab",
    "cp1257": "winbaltrim",
    "euc_jp": "eucjp",
    # the library reads all of these with tables that contain the characters of GBK
    "gb18030": "936 chinese cp936 csgb2312 csiso58gb231280 euccn gb18030 gb2312 gb231280 gb23121980 gbk"
    " isoir58 ms936 windows936 xgbk",
    "hp_roman8": "cshproman8 hproman8 ibm1051 r8 roman8 xroman8",
    "iso8859_1": "cp819 csisolatin1 ibm819 isoir100 l1 latin1",
    "iso8859_2": "csisolatin2 isoir101 l2 latin2",
    "iso8859_3": "csisolatin3 isoir109 l3 latin3",
    "iso8859_4": "csisolatin4 isoir110 l4 latin4",
    "iso8859_5": "csisolatincyrillic cyrillic isoir144",
    "iso8859_6": "arabic arabic8 asmo708 csisolatinarabic ecma114 isoir127",
    "iso8859_7": "csisolatingreek ecma118 elot928 greek greek8 isoir126",
    "iso8859_8": "csisolatinhebrew hebrew hebrew8 isoir138",
    "iso8859_9": "csisolatin5 isoir148 l5 latin5 turkish turkish8",
    "iso8859_10": "csisolatin6 isoir157 l6 latin6",
    "iso8859_11": "thai thai8",
    "iso8859_13": "isoir179 l7 latin7",
    "iso8859_14": "celtic celtic8 isoceltic isoir199 l8 latin8",
    "iso8859_15": "isoir203 l9 latin9",
    "iso8859_16": "isoir226 l10 latin10",
    "koi8_r": "20866 cp20866 cskoi8r ibm878 koi8r",
    "koi8_t": "koi8t",
    "koi8_u": "21866 cp21866 ibm1168 koi8u",
    "kz1048": "rk1048 strk10482002",
    "latin_1": "binary",
    "mac_croatian": "maccroatian",
    "mac_cyrillic": "10007 maccyrillic macukraine",
    "mac_greek": "10006 macgreek",
    "mac_iceland": "10079 maciceland",
    "mac_latin2": "10029 maccenteuro",
    "mac_roman": "10000 csmacintosh mac macintosh macroman",
    "mac_romanian": "macromania",
    "mac_turkish": "10081 macturkish",
    "ptcp154": "pt154",
    "tis_620": "isoir166 tis620 tis6200 tis62025291 tis62025330",
    "utf_7": "unicode11utf7 utf7",
    "utf_8": "unicode11utf8 utf8",
    "utf_16": "utf16",
    "utf_16_be": "utf16be",
    "utf_16_le": "ucs2 utf16le",
    "utf_32": "ucs4 utf32",
    "utf_32_be": "ucs4be utf32be",
    "utf_32_le": "ucs4le utf32le",
}
"""By codec of Python: the other names of the charset in iconv-lite."""


def _charset(content_type: str) -> str:
    """Return the charset of a Content-Type: the last one that it names, or else UTF-8."""
    given = {name.lower(): value for name, value in _PARAMETER.findall(content_type)}
    return given.get("charset", "").strip('"') or "utf-8"


def parse(text: str) -> Any:
    """Return the JSON value in a text."""
    try:
        return _parsed(text)
    except RecursionError:
        words = "nested deeper than Python can handle; the local queue is written in Python"
        refuse("MalformedPayload", f"Failed to parse JSON: {words}")
    except (msgspec.DecodeError, ValueError) as error:
        refuse("MalformedPayload", f"Failed to parse JSON: {_explained(text, str(error))}")


def _explained(text: str, error: str) -> str:
    """Return why a text is not JSON; msgspec reports some texts with lone surrogates as truncated."""
    is_truncated = "truncated" in error
    if _SURROGATE.search(text) and (is_truncated or "surrogate" in error):
        return "a string contains a lone surrogate"
    return "Unexpected end of JSON input" if is_truncated else error


def _parsed(text: str) -> Any:
    value = _DECODER.decode(text)
    if "\\u0000" in text and _holds_nul(value):
        refuse("MalformedPayload", "Failed to parse JSON: a string holds the character NUL")
    may_be_long = _LONG_NUMBER in text.encode(errors="replace").translate(_AS_ZEROS)
    return _with_doubles(value) if may_be_long else value


def _holds_nul(value: object) -> bool:
    """Return whether a text in a JSON value, keys too, has the character U+0000."""
    if is_object(value):
        return any(map(_holds_nul, value)) or any(map(_holds_nul, value.values()))
    if is_list(value):
        return any(map(_holds_nul, value))
    return isinstance(value, str) and "\0" in value


def _number(digits: str) -> float:
    """Return a number as JavaScript writes it: rounded to a double, and 1.0 is 1."""
    value = float(digits)
    return int(Decimal(repr(value))) if value.is_integer() and abs(value) < _PLAIN else value


_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=_number)


def _with_doubles(value: Any) -> Any:
    """Return the value with large integers rounded to doubles, as in JavaScript."""
    if is_object(value):
        return {key: _with_doubles(each) for key, each in value.items()}
    if is_list(value):
        return [_with_doubles(each) for each in value]
    return _number(str(value)) if isinstance(value, int) and abs(value) > _EXACT else value


_CHECKS: dict[str, Check] = {}


def check_body(schema: str, body: Any, root_url: Callable[[], str]) -> None:
    """Add the defaults of the schema to the body; refuse a body that violates it, and list all violations."""
    check = _CHECKS.get(schema) or _CHECKS.setdefault(schema, compile_schema(REQUEST_SCHEMAS[schema]))
    errors: list[str] = []
    check(body, "data", errors)
    if errors:
        about = f"\nSchema Validation Failed!\nRejecting Schema: {root_url()}/schemas/{schema}.json#\nErrors:"
        refuse("InputValidationError", "\n  * ".join([about, *errors]))
