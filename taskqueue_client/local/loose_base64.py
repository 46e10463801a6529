"""Base64 as the service reads it: nothing is an error."""

from __future__ import annotations

import re
from base64 import b64decode

_STANDARD = str.maketrans("-_", "+/")
_OTHER = re.compile(r"[^A-Za-z0-9+/]+")
_GROUP = 4


def decode(text: str) -> bytes:
    """Return the bytes of standard or URL-safe base64, padded or not.

    The text ends at the first `=`. Characters before it that are not base64 are ignored, and so is a last one
    that is too little for a byte.
    """
    digits = _OTHER.sub("", text.partition("=")[0].translate(_STANDARD))
    if len(digits) % _GROUP == 1:
        digits = digits[:-1]
    return b64decode(digits + "=" * (-len(digits) % _GROUP))
