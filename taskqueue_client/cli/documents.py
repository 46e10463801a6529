"""YAML and JSON files, with the line and column of each error."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Generator, Hashable, Iterable
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from .failures import Failure

_YAML = frozenset({".yml", ".yaml"})


def read_document(path: Path) -> dict[str, Any]:
    """Read the object in a file; `-` is standard input.

    The file is JSON if its name ends in `.json`, and YAML if its name ends in `.yml` or `.yaml`. Otherwise,
    the content decides.
    """
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise Failure(f"{shown(path)}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        place = _place(path, error.object[: error.start].decode())
        raise Failure(f"{place}: not UTF-8: byte {error.object[error.start]:#04x}") from error
    with refusing_depth(path):
        is_json = path.suffix == ".json" or (path.suffix not in _YAML and _json_error(text) is None)
        document = _read_json(path, text) if is_json else _read_yaml(path, text)
    if not isinstance(document, dict):
        raise Failure(f"{shown(path)}: the file must contain an object with keys and values")
    return cast("dict[str, Any]", document)


@contextmanager
def refusing_depth(path: Path) -> Generator[None]:
    """Raise a Failure with the name of the file if its content is nested too deeply for the block.

    Reading, planning and printing have different limits. Which limit is reached first depends on the version
    of Python.
    """
    try:
        yield
    except RecursionError as error:
        raise Failure(f"{shown(path)}: lists and objects are nested too deeply") from error


def _json_error(text: str) -> ValueError | None:
    """Return why a text is not JSON; None if it is. JSON is not read as YAML, in which `1e3` is a string."""
    try:
        json.loads(text)
    except ValueError as error:
        return error
    return None


def shown(path: Path) -> str:
    """Return the name of a file for messages."""
    return "standard input" if str(path) == "-" else str(path)


def _read_json(path: Path, text: str) -> object:
    parts = _JsonParts(path, text)
    try:
        return json.loads(
            text,
            object_pairs_hook=parts.object,
            parse_int=parts.integer,
            parse_float=parts.number,
            parse_constant=parts.number,
        )
    except json.JSONDecodeError as error:
        raise Failure(f"{shown(path)}, line {error.lineno}, column {error.colno}: {error.msg}") from error


class _JsonParts:
    """Decodes parts of a JSON document; errors say where a duplicate key, NaN or a too long number is."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text
        self._ended = 0  # how many objects have ended

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object. Objects come in the order in which they end."""
        self._ended += 1
        members = dict(pairs)
        if len(members) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twin = next(key for key in counts if counts[key] > 1)
            raise Failure(
                f"{self._place('}', self._ended)}: duplicate key {twin!r} in the object that ends here"
            )
        return members

    def integer(self, text: str) -> int:
        """Return a whole number."""
        try:
            return int(text)
        except ValueError as error:
            most = sys.get_int_max_str_digits()
            problem = f"{len(text):,} digits; at most {most:,} are allowed in a whole number"
            raise Failure(f"{self._place(text)}: {problem}") from error

    def number(self, text: str) -> float:
        """Return a number with a fraction or exponent."""
        try:
            return _finite(text)
        except ValueError as error:
            raise Failure(f"{self._place(text)}: {error}") from error

    def _place(self, token: str, count: int = 1) -> str:
        """Return the place where a token occurs outside of strings for the first time, or the `count`-th."""
        pattern = rf'"(?:[^"\\]|\\.)*"|{re.escape(token)}'
        found = (each.start() for each in re.finditer(pattern, self._text) if each[0] == token)
        return _place(self._path, self._text[: next(islice(found, count - 1, None))])


def _finite(text: str) -> float:
    """Return a number that JSON can express."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number in JSON")
    return number


def _read_yaml(path: Path, text: str) -> object:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark and path.suffix not in _YAML and _is_tab_in_json(text, mark.index):
            return _read_json(path, text)  # raises an error that says what is wrong
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or ""
        problem = f"{error.context}, {problem}" if problem.startswith("but ") else problem
        raise Failure(f"{shown(path)}{where}: {problem}") from error
    except yaml.reader.ReaderError as error:
        raise Failure(
            f"{_place(path, text[: error.position])}: {error.reason}: #x{error.character:04x}"
        ) from error


def _is_tab_in_json(text: str, place: int) -> bool:
    """Return whether there is a tab at this place, after correct JSON: JSON allows the tab, YAML does not."""
    end: int = getattr(_json_error(text), "pos", len(text))  # too many digits: no `pos`
    return text[place : place + 1] == "\t" and end > place


def _place(path: Path, before: str) -> str:
    lines = before.split("\n")
    return f"{shown(path)}, line {len(lines)}, column {len(lines[-1]) + 1}"


_TEXT = "tag:yaml.org,2002:str"
_MAPPINGS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:set"})

_MOST_REPEATED = 10_000_000
"""Values that the aliases of a document may stand for. Each is checked and sent as often as it is repeated: a
few lines of aliases of aliases would keep a program busy for years."""


class _Loader(yaml.SafeLoader):
    """Reads dates and keys as text, as JSON does, and refuses duplicate keys, infinity and NaN."""

    def construct_document(self, node: yaml.Node) -> Any:
        sizes: dict[yaml.Node, int] = {}
        repeated = _size(node, sizes) - len(sizes)
        if repeated > _MOST_REPEATED:
            problem = f"aliases stand for {repeated:,} values; at most {_MOST_REPEATED:,} are allowed"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_document(node)  # pyright: ignore[reportUnknownMemberType] # its node has no type

    def scan_flow_scalar_non_spaces(self, double: Any, start_mark: Any) -> Any:
        try:
            return super().scan_flow_scalar_non_spaces(double, start_mark)  # pyright: ignore[reportUnknownMemberType] # its arguments have no types
        except (ValueError, OverflowError) as error:  # Python's for `\U00110000`
            problem = "the escape sequence is not a character of Unicode"
            raise yaml.MarkedYAMLError(None, None, problem, self.get_mark()) from error

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        if node.tag in _MAPPINGS and not isinstance(node, yaml.MappingNode):
            problem = "expected a mapping, as the tag says"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        try:
            value: object = super().construct_object(node, deep)  # pyright: ignore[reportUnknownMemberType] # its node has no type
            return _finite(str(value)) if isinstance(value, float) else value
        except (ValueError, LookupError, AttributeError) as error:  # PyYAML's for `0x_` or `!!bool maybe`
            if not isinstance(node, yaml.ScalarNode):
                raise
            kind = str(node.tag).rpartition(":")[2]
            problem = f"cannot be read as {kind} in JSON"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key, _ in node.value:  # before `<<` adds the keys of another mapping, which these may replace
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    problem = f"duplicate key {key.value!r}"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                keys.add(key.value)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        self.flatten_mapping(node)
        node.value = [(self._as_text(key), value) for key, value in node.value]
        return super().construct_mapping(node, deep)

    def _as_text(self, key: yaml.Node) -> yaml.Node:
        """Return a key as text; refuse a key that is another value in YAML, such as `on`, which is `true`."""
        if not isinstance(key, yaml.ScalarNode) or key.tag == _TEXT:
            return key
        value: object = self.construct_object(key)
        if isinstance(value, bool) or str(value) != key.value:
            problem = f"key {key.value!r} is {msgspec.json.encode(value).decode()} in YAML; put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return yaml.ScalarNode(_TEXT, key.value, key.start_mark, key.end_mark)


_UNFINISHED = 0  # the size of a node whose parts are being counted


def _size(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """Return how many values a node stands for, itself included; store the number of each node in it.

    An alias counts as often as it is used.
    """
    if node not in sizes:
        sizes[node] = _UNFINISHED
        sizes[node] = 1 + sum(_size(each, sizes) for each in _parts(node))
    if sizes[node] == _UNFINISHED:
        raise yaml.constructor.ConstructorError(None, None, "contains itself, by an alias", node.start_mark)
    return sizes[node]


def _parts(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
