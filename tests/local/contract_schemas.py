"""The contract's own JSON schemas, to check our responses and request schemas."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from jsonschema import Draft6Validator, FormatChecker
from referencing import Registry
from referencing.jsonschema import DRAFT6

from taskqueue_client.local.http.schema_check import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FOLDERS = {"queue": "schemas", "object": "object/schemas"}


def violations(contract: Path, name: str, value: object) -> list[str]:
    """The problems of a value under the schema `<service>/v1/<name>`."""
    validator = cast("Any", _validator(contract, name))
    return [str(error.message) for error in validator.iter_errors(value)]


@cache
def _validator(contract: Path, name: str) -> Draft6Validator:
    schema = {"$ref": f"/schemas/{name}.json"}
    return Draft6Validator(schema, registry=_registry(contract), format_checker=_format_checker())


@cache
def _registry(contract: Path) -> Any:
    registry = cast("Any", Registry)()
    for service, folder in _FOLDERS.items():
        for file in (contract / "data" / folder).glob("*.json"):
            schema = json.loads(file.read_text())
            del schema["$schema"]  # a dialect of draft 6 that the library does not know
            registry = registry.with_resource(
                f"/schemas/{service}/v1/{file.name}", DRAFT6.create_resource(schema)
            )
    return registry


def _format_checker() -> FormatChecker:
    """Return a checker of formats that is as loose as the service's."""
    checker = FormatChecker(formats=())
    for name, check in FORMATS.items():
        checker.checkers = {**checker.checkers, name: (_for_text(check), ())}
    return checker


def _for_text(check: Callable[[str], object]) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or bool(check(value))
