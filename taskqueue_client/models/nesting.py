"""JSON that is nested deeper than Python can read: cut off below a level, without reading it."""

from __future__ import annotations

import re

DEEPEST = 500
"""Levels of lists and objects that are kept. Python has 1,000 for these and for the calls around them."""

CUT_OFF = f"<cut off by taskqueue_client: nested more than {DEEPEST} levels deep>"
"""The text that stands where a list or an object was cut off."""

_MARK = f'"{CUT_OFF}"'.encode()
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def cut(document: bytes) -> bytes:
    """A JSON document without the lists and objects at a level below the deepest.

    Args:
        document: The text; one that is not JSON is not JSON afterwards.
    """
    kept: list[bytes] = []
    level = start = 0
    for token in _TOKEN.finditer(document):
        match token[0]:
            case b"[" | b"{":
                level += 1
                if level == DEEPEST + 1:
                    kept += document[start : token.start()], _MARK
            case b"]" | b"}":
                if level == DEEPEST + 1:
                    start = token.end()
                level -= 1
            case _:
                pass  # brackets within a text are not levels
    return b"".join([*kept, document[start:]])
