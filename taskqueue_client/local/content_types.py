"""Content types as the service reads them: one with a malformed parameter is none."""

from __future__ import annotations

import re

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[\x0b\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\x0b\x20-\xff])*"'
_CONTENT_TYPE = re.compile(rf"\s*({_WORD}/{_WORD})\s*(?:; *{_WORD} *= *(?:{_QUOTED}|{_WORD}) *)*")


def media_type(content_type: str | None) -> str | None:
    """Return a content type without its parameters, in lower case; None for text that is not one."""
    found = _CONTENT_TYPE.fullmatch(content_type or "")
    return found and found[1].lower()
