"""Hashids: one number as a short text that does not look like a number.

The algorithm is that of hashids.org, version 1.0, for a single number, with the salt and the minimum
length that the Queue uses in its continuation tokens.
"""

from __future__ import annotations

_SALT = "salt"
_MIN_LENGTH = 10
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ1234567890"
_SEPARATORS = "cfhistuCFHISTU"
_SEPARATOR_SHARE = 3.5  # letters of the alphabet for each separator
_GUARD_SHARE = 12  # letters of the alphabet for each guard


def encode(number: int) -> str:
    """The token of a number >= 0."""
    lottery = _LETTERS[number % 100 % len(_LETTERS)]
    letters = _shuffle(_LETTERS, lottery + _SALT + _LETTERS)
    token = lottery + _digits(number, letters)
    if len(token) < _MIN_LENGTH:
        token = _GUARDS[(number % 100 + ord(token[0])) % len(_GUARDS)] + token
    if len(token) < _MIN_LENGTH:
        token += _GUARDS[(number % 100 + ord(token[2])) % len(_GUARDS)]
    return _pad(token, letters)


def decode(token: str) -> int | None:
    """The number of a token; None for a text that `encode` does not make."""
    parts = _split_at_guards(token)
    core = parts[1] if len(parts) in (2, 3) else parts[0]
    if not core:
        return None
    letters = _shuffle(_LETTERS, core[0] + _SALT + _LETTERS)
    if not set(core[1:]) <= set(letters):
        return None
    number = 0
    for char in core[1:]:
        number = number * len(letters) + letters.index(char)
    return number if encode(number) == token else None


def _digits(number: int, letters: str) -> str:
    digits = letters[number % len(letters)]
    while number := number // len(letters):
        digits = letters[number % len(letters)] + digits
    return digits


def _pad(token: str, letters: str) -> str:
    half = len(letters) // 2
    while len(token) < _MIN_LENGTH:
        letters = _shuffle(letters, letters)
        token = letters[half:] + token + letters[:half]
        excess = len(token) - _MIN_LENGTH
        if excess > 0:
            token = token[excess // 2 : excess // 2 + _MIN_LENGTH]
    return token


def _split_at_guards(token: str) -> list[str]:
    return "".join(" " if char in _GUARDS else char for char in token).split(" ")


def _shuffle(text: str, salt: str) -> str:
    """The algorithm's own shuffle: the same text and salt always give the same order."""
    chars = list(text)
    total = 0
    for step, position in enumerate(range(len(chars) - 1, 0, -1)):
        index = step % len(salt)
        total += ord(salt[index])
        other = (ord(salt[index]) + index + total) % position
        chars[position], chars[other] = chars[other], chars[position]
    return "".join(chars)


def _alphabets() -> tuple[str, str]:
    """The letters that digits are written in, and the guards that surround a short token."""
    separators = _shuffle(_SEPARATORS, _SALT)
    letters = "".join(char for char in _ALPHABET if char not in separators)
    wanted = -int(-len(letters) // _SEPARATOR_SHARE)
    if wanted > len(separators):
        letters = letters[wanted - len(separators) :]
    letters = _shuffle(letters, _SALT)
    guards = -(-len(letters) // _GUARD_SHARE)
    return letters[guards:], letters[:guards]


_LETTERS, _GUARDS = _alphabets()
