"""The models have each field and value that the contract's schemas allow in responses."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from inspect import isclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from urllib.parse import urljoin

import msgspec
import pytest

from tests.protocol.calls_contract import (
    BY_ID,
    ENTRIES,
    REGISTRY,
    call_with,
    function_of,
    label,
    needs_contract,
    schema_id,
)

WITH_OUTPUT = [entry for entry in ENTRIES if "output" in entry and entry["name"] != "task"]


@needs_contract
@pytest.mark.parametrize("entry", WITH_OUTPUT, ids=label)
def test_no_key_and_no_enumerated_value_of_a_response_is_missing(entry: dict[str, Any]) -> None:
    returned = call_with(function_of(entry), BY_ID).returns
    schema = {"$ref": schema_id(entry["output"])}
    assert list(_differences("", schema, returned)) == []


def _differences(base: str, schema: Any, given: Any) -> Iterator[str]:
    """Return the keys that the type lacks, and those that it requires although the schema does not."""
    kinds = [each for each in get_args(given) if each is not NoneType]
    if "$ref" in schema:
        target = urljoin(base, schema["$ref"])
        found = REGISTRY.resolver().lookup(target).contents
        yield from _differences(target.partition("#")[0], found, given)
    elif get_origin(given) is UnionType:
        yield from _differences(base, schema, kinds[0])
    elif "items" in schema:
        yield from _differences(base, schema["items"], kinds[0])
    elif isclass(given) and issubclass(given, Enum):
        lacking = set(schema.get("enum", ())) - {str(member) for member in given}
        yield from (f"{given.__name__} lacks {value}" for value in lacking)
    elif isclass(given) and issubclass(given, msgspec.Struct):
        for variant in schema.get("oneOf", [schema]):
            yield from _variant_differences(base, variant, given)


def _variant_differences(base: str, schema: Any, given: type[msgspec.Struct]) -> Iterator[str]:
    if "$ref" in schema:
        yield from _differences(base, schema, given)
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(given)}
    demanded = {name for name, field in fields.items() if field.required}
    yield from (f"{given.__name__} demands {name}" for name in demanded - set(schema["required"]))
    for name, each in schema["properties"].items():
        if name in fields:
            yield from _differences(base, each, fields[name].type)
        else:
            yield f"{given.__name__} lacks {name}"
