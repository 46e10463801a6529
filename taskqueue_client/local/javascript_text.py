"""Text as the service's JavaScript reads it: base64 in which nothing is an error, and content types."""

from __future__ import annotations

import re
from base64 import b64decode

_STANDARD = str.maketrans("-_", "+/")
_OTHER = re.compile(r"[^A-Za-z0-9+/]+")
_GROUP = 4

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[\x0b\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\x0b\x20-\xff])*"'
_CONTENT_TYPE = re.compile(rf"\s*({_WORD}/{_WORD})\s*(?:; *{_WORD} *= *(?:{_QUOTED}|{_WORD}) *)*")


def decode_base64(text: str) -> bytes:
    """Return the bytes of standard or URL-safe base64, padded or not.

    The text ends at the first `=`. Characters before it that are not base64 are ignored, and so is a last one
    that is too little for a byte.
    """
    digits = _OTHER.sub("", text.partition("=")[0].translate(_STANDARD))
    if len(digits) % _GROUP == 1:
        digits = digits[:-1]
    return b64decode(digits + "=" * (-len(digits) % _GROUP))


def media_type(content_type: str | None) -> str | None:
    """Return a content type without its parameters, in lower case; None for text that is not one."""
    found = _CONTENT_TYPE.fullmatch(content_type or "")
    return found and found[1].lower()
