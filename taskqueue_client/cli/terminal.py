"""Text of tasks on a terminal: colors pass, and everything else that controls the terminal is removed."""

from __future__ import annotations

import re

_LONGEST = 256
"""Bytes of the parameters of a control sequence; a longer one is not a sequence, but text."""

_PARAMETERS = rb"[0-?]{0,%d}[ -/]{0,%d}" % (_LONGEST, _LONGEST)
_STRING = rb"\x1b[\]PX^_][^\x07\x18\x1a\x1b\n]*"

_CONTROL = re.compile(
    rb"(?P<color>\x1b\[[0-9;:]{0,%d}m)" % _LONGEST
    + rb"|\x1b\[" + _PARAMETERS + rb"[@-~]"  # the cursor, erasing, modes
    + rb"|" + _STRING + rb"(?:\x07|\x1b\\|(?=[\x18\x1a\x1b\n]|\Z))"  # the title, the clipboard, links
    + rb"|\x1b[ -/]{0,%d}[0-~]" % _LONGEST  # a reset, character sets
    + rb"|\xc2(?:[\x80-\x9f]|(?![\xa0-\xbf]))"  # the same as one character, and what could become one
    + rb"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"  # all but tab, line feed and carriage return
)  # fmt: skip
"""Control functions by ECMA-48, section 5, in UTF-8."""

_BEGUN = re.compile(
    rb"(?:\x1b\[" + _PARAMETERS
    + rb"|" + _STRING + rb"\x1b?"
    + rb"|\x1b[ -/]{0,%d}" % _LONGEST
    + rb"|\xc2)\Z"
)  # fmt: skip
"""The beginning of a control function that the next block may continue."""


class TerminalFilter:
    """Removes what controls the terminal from a text, except for colors. A task's log may contain anything.

    Colors and other attributes of characters (SGR, `ESC [ … m`), tabs, line feeds and carriage returns
    pass. Removed are sequences that move the cursor, erase, set the title, write to the clipboard (OSC 52),
    make links or reset the terminal, and single control characters. A string such as a title ends with its
    line at the latest, so that one without an end does not hide the rest of the log.
    """

    def __init__(self) -> None:
        self._begun = b""

    def filtered(self, block: bytes) -> bytes:
        """Return what may be written of the next block. The block may end within a sequence."""
        text = self._begun + block
        begun = _BEGUN.search(text)
        self._begun = b"" if begun is None else _shortened(begun[0])
        return _CONTROL.sub(_color, text if begun is None else text[: begun.start()])


def _color(found: re.Match[bytes]) -> bytes:
    return found["color"] or b""


def _shortened(begun: bytes) -> bytes:
    """Return a beginning without the text of a string, which may be long."""
    if begun[1:2] not in {b"]", b"P", b"X", b"^", b"_"}:
        return begun
    return begun[:2] + (b"\x1b" if begun.endswith(b"\x1b") else b"")
