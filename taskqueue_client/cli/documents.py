"""Files in YAML or JSON, read with care for whoever wrote them."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import yaml

from .failures import Failure


def read_document(path: Path) -> dict[str, Any]:
    """The object in a file: JSON if its name ends in `.json`, else YAML.

    Raises:
        Failure: The file cannot be read, is broken (with line and column), or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place(path, error.object[: error.start].decode())
        message = f"{place}: is not UTF-8: byte {error.object[error.start]:#04x}"
        raise Failure(message) from error
    document = _read_json(path, text) if path.suffix == ".json" else _read_yaml(path, text)
    if not isinstance(document, dict):
        message = f"{path}: must be an object with keys and values"
        raise Failure(message)
    return cast("dict[str, Any]", document)


def _read_json(path: Path, text: str) -> object:
    try:
        return json.loads(
            text,
            object_pairs_hook=lambda pairs: _without_twins(path, pairs),
            parse_float=_finite,
            parse_constant=_finite,
        )
    except json.JSONDecodeError as error:
        message = f"{path}, line {error.lineno}, column {error.colno}: {error.msg}"
        raise Failure(message) from error
    except ValueError as error:  # of a number
        message = f"{path}: {error}"
        raise Failure(message) from error


def _finite(text: str) -> float:
    """A number that JSON can hold, though Python reads and writes others.

    Raises:
        ValueError: It is infinite, or none.
    """
    number = float(text)
    if not math.isfinite(number):
        message = f"{text} is no number in JSON"
        raise ValueError(message)
    return number


def _without_twins(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twin = next(key for key in keys if keys.count(key) > 1)
        message = f"{path}: the key {twin!r} is there twice in one object"
        raise Failure(message)
    return members


def _read_yaml(path: Path, text: str) -> object:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        message = f"{path}{where}: {error.problem or error.context}"
        raise Failure(message) from error
    except yaml.reader.ReaderError as error:
        message = f"{_place(path, text[: error.position])}: {error.reason}: #x{error.character:04x}"
        raise Failure(message) from error


def _place(path: Path, before: str) -> str:
    """Where in a file something is, by the text before it."""
    lines = before.split("\n")
    return f"{path}, line {len(lines)}, column {len(lines[-1]) + 1}"


class _Loader(yaml.SafeLoader):
    """Leaves dates alone, which are text in JSON, and refuses the same key twice and what is no number."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        try:
            value: object = super().construct_object(node, deep)  # pyright: ignore[reportUnknownMemberType] # its node has no type
            return _finite(str(value)) if isinstance(value, float) else value
        except (ValueError, LookupError, AttributeError) as error:  # PyYAML's, at `0x_` or `!!bool maybe`
            if not isinstance(node, yaml.ScalarNode):
                raise
            kind = str(node.tag).rpartition(":")[2]
            problem = f"cannot be read as {kind} in JSON"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is there twice", key.start_mark
                    )
                keys.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
