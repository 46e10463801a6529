"""The order in which the service's database lists ids and artifact names: glibc's `en_US.utf8`.

Letters and digits decide first, whatever their case; then case, small letters first; then the other
characters, each of which comes before any letter or digit. Only printable ASCII can occur.
"""

from __future__ import annotations

_PRINTABLE = [chr(code) for code in range(0x20, 0x7F)]
_WEIGHTY = {char for char in _PRINTABLE if char.isalnum() or char == "$"}
_LETTERS = str.maketrans({c: c.lower() if c in _WEIGHTY else None for c in _PRINTABLE})
_CASE = str.maketrans({c: str(int(c.isupper())) if c in _WEIGHTY else None for c in _PRINTABLE})
_PUNCTUATION = str.maketrans(dict.fromkeys(_WEIGHTY, "\x7f"))


def sort_key(text: str) -> str:
    """A text whose plain order is the collation's order of `text`."""
    return "\0".join([text.translate(_LETTERS), text.translate(_CASE), text.translate(_PUNCTUATION)])
