"""Reading the settings of a worker: from arguments, from the environment, and from a file in YAML or TOML.

An argument takes precedence over the variable `TASKQUEUE_<NAME>` (in upper case), the variable over the file,
and the file over the default. An empty variable counts as unset. The deployment's URL and the credentials are
not settings: they come from the `TASKCLUSTER_…` variables.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import msgspec.inspect

from taskqueue_client._arguments import check_kind
from taskqueue_client.credentials import Credentials, check_environment, from_environment
from taskqueue_client.errors import InvalidArgument

from .config import RULES, WorkerConfig, check_names, closest_to, converted
from .worker_log import log

T = TypeVar("T")

_PREFIX = "TASKQUEUE_"

_OTHER_VARIABLES = ("TASKQUEUE_LOCAL_", "TASKQUEUE_RUN", "TASKQUEUE_REQUIRE_")
"""Variables that are not settings of workers: of the local queue, of commands, of the tests."""

_WORKER_TABLE = "worker"

_NAMES = tuple(each.name for each in fields(WorkerConfig))
_VARIABLES = {name: _PREFIX + name.upper() for name in _NAMES}


class _Setting(NamedTuple):
    """A value, and where it was found."""

    value: Any
    source: str


def load_deployment() -> tuple[str, Credentials | None]:
    """Return the root URL and the worker's own credentials, from the environment.

    `TASKCLUSTER_PROXY_URL` is refused: the proxy signs all calls with its own credentials, also those that
    need the credentials of a run. The worker would claim runs that it cannot reclaim or report.

    Raises:
        InvalidArgument: A variable is not set or malformed, or `TASKCLUSTER_PROXY_URL` is set.
    """
    root_url, credentials = from_environment()
    if os.environ.get("TASKCLUSTER_PROXY_URL"):
        finding = (
            "a worker cannot use this proxy, which replaces the credentials of its runs: unset the variable"
        )
        raise InvalidArgument("TASKCLUSTER_PROXY_URL", None, "", finding)
    return root_url, credentials


def load_config(
    arguments: Mapping[str, Any],
    *,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> WorkerConfig:
    """Return the settings from arguments, environment and file.

    Args:
        arguments: Values by the names of `WorkerConfig`; None counts as not given.
        file: A file whose name ends in `.yml`, `.yaml` or `.toml`, with the names of `WorkerConfig` as keys.
        environ: The environment; default: the process's.

    Raises:
        InvalidArgument: A name is unknown, a value is missing or not allowed, or the file cannot be read;
            names the argument, the variable, or the key and its file.
    """
    check_kind("arguments", arguments, Mapping, "a dict of settings")
    check_kind("file", file, str | os.PathLike | None)
    check_environment(environ)
    check_names(arguments, _NAMES)
    environ = os.environ if environ is None else environ
    _check_variables(environ)
    settings = {
        **({} if file is None else _in_file(Path(file))),
        **_in_environment(environ),
        **{name: _Setting(value, name) for name, value in arguments.items() if value is not None},
    }
    for name in _NAMES[:3]:
        if name not in settings:
            allowed = f"a value as an argument, as {_VARIABLES[name]} or in a file"
            raise InvalidArgument(name, None, allowed, "not set")
    try:
        return WorkerConfig(**{name: setting.value for name, setting in settings.items()})
    except InvalidArgument as error:
        raise InvalidArgument(settings[error.argument].source, error.given, error.allowed) from None


def load_custom_settings(kind: type[T] | None, file: str | os.PathLike[str] | None) -> T | None:
    """Return a worker's own settings, the table `[worker.custom]` of a file; without one, their defaults.

    `kind` is a dataclass, struct or `TypedDict`; if it is None, the worker has none, and None is returned.

    Raises:
        InvalidArgument: A key is unknown or missing, a value is not allowed, or `kind` is of another kind.
    """
    info = None if kind is None else _type_info(kind)
    tables: Any = {} if file is None else _read(Path(file)).get(_WORKER_TABLE, {})
    _check_worker_table(tables, f"{_WORKER_TABLE} in {file}")
    custom: Any = cast("dict[str, Any]", tables).get("custom", {})
    try:
        _check_custom(info, custom)
        return None if kind is None else msgspec.convert(custom, kind, dec_hook=converted)
    except msgspec.ValidationError as error:
        source = f"{_WORKER_TABLE}.custom " + ("(no config_file)" if file is None else f"in {file}")
        raise InvalidArgument(source, custom, "", str(error)) from None


def _check_worker_table(tables: object, source: str) -> None:
    """Refuse anything but a table with `custom` as its only key. Values may be secrets, and are not shown."""
    if not isinstance(tables, dict):
        raise InvalidArgument(source, tables, "a table with the key custom", "not a table")
    unknown = [key for key in cast("dict[str, object]", tables) if key != "custom"]
    if unknown:
        raise InvalidArgument(
            source,
            tables,  # pyright: ignore[reportUnknownArgumentType] # any type
            "",
            f"unknown key {unknown[0]!r}; known keys: custom; the other settings are outside of this table",
        )


def _type_info(kind: type[Any]) -> msgspec.inspect.Type:
    """Return what a `settings_type` is. A class that is not a dataclass, by mistake, would have no keys."""
    with suppress(TypeError):  # not a type
        info = msgspec.inspect.type_info(kind)
        if hasattr(info, "fields"):
            return info
    raise InvalidArgument("settings_type", kind, "a dataclass, struct or TypedDict")


def _check_custom(info: msgspec.inspect.Type | None, custom: Any) -> None:
    """Refuse keys that the type does not have, also in nested objects."""
    if info is None and custom != {}:
        found = "not a table"
        if isinstance(custom, dict):
            found = f"unknown key {next(iter(cast('dict[str, Any]', custom)))!r}"
        raise msgspec.ValidationError(f"{found}; no key is known: the worker's class has no settings_type")
    if isinstance(custom, dict):
        _check_object(info, cast("dict[str, Any]", custom), "")


def _check_object(kind: Any, given: dict[str, Any], place: str) -> None:
    types = {each.encode_name: each.type for each in getattr(kind, "fields", ())}
    if (tag := getattr(kind, "tag_field", None)) is not None:
        types[tag] = None
    unknown = [key for key in given if key not in types]
    if unknown:
        where = f" - at `${place}`" if place else ""
        raise msgspec.ValidationError(
            f"unknown key {unknown[0]!r}; known keys: {', '.join(types) or 'none'}{where}"
        )
    for key, value in given.items():
        _check_nested(types[key], value, f"{place}.{key}")


def _check_nested(kind: Any, given: Any, place: str) -> None:
    """Refuse unknown keys and choices in a value, unless it may have several types: msgspec decides then."""
    none = msgspec.inspect.NoneType
    kinds = [each for each in getattr(kind, "types", [kind]) if not isinstance(each, none)]
    if len(kinds) != 1:
        return
    if isinstance(given, (str, int)):
        if choices := _choices_instead(kinds[0], given):
            allowed = ", ".join(map(repr, choices))
            raise msgspec.ValidationError(
                f"{given!r} is not valid; expected one of {allowed} - at `${place}`"
            )
    elif isinstance(given, list):
        for number, each in enumerate(cast("list[object]", given)):
            _check_nested(getattr(kinds[0], "item_type", None), each, f"{place}[{number}]")
    elif isinstance(given, dict) and isinstance(kinds[0], msgspec.inspect.DictType):
        for key, each in cast("dict[str, Any]", given).items():
            _check_nested(kinds[0].value_type, each, f"{place}.{key}")
    elif isinstance(given, dict) and hasattr(kinds[0], "fields"):
        _check_object(kinds[0], cast("dict[str, Any]", given), place)


def _choices_instead(kind: Any, given: Any) -> list[Any]:
    """Return the allowed values if an enumeration lacks the given one; msgspec's error does not name them."""
    if isinstance(kind, msgspec.inspect.LiteralType) and given not in kind.values:
        return list(kind.values)
    if isinstance(kind, msgspec.inspect.EnumType):
        try:
            kind.cls(given)
        except ValueError:
            return [each.value for each in kind.cls]
    return []


def _check_variables(environ: Mapping[str, str]) -> None:
    """Refuse variables that look like a misspelled setting; warn of other unknown ones with `TASKQUEUE_`.

    These may have another purpose: Kubernetes sets `TASKQUEUE_SERVICE_HOST` for a service `taskqueue`.
    """
    settings = [name.upper() for name in _NAMES]
    for variable in sorted(set(environ).difference(_VARIABLES.values())):
        if not variable.startswith(_PREFIX) or variable.startswith(_OTHER_VARIABLES):
            continue
        if closest := closest_to(variable.removeprefix(_PREFIX), settings):
            finding = f"unknown variable; the closest known one is {_PREFIX}{closest}"
            raise InvalidArgument(variable, environ[variable], "", finding)
        log.warning("%s: ignored, because no setting has this name", variable)


def _in_environment(environ: Mapping[str, str]) -> dict[str, _Setting]:
    return {
        name: _Setting(setting_of_text(name, environ[variable]), variable)
        for name, variable in _VARIABLES.items()
        if environ.get(variable)
    }


def setting_of_text(name: str, text: str) -> Any:
    """Return the value that a text stands for; the text itself if it is not allowed."""
    if name == "task_queue_id":
        listed = text.replace(",", " ").split()
        return listed if len(listed) > 1 else text
    if name == "pass_environment":
        return text.replace(",", " ").split()
    return RULES[name].of_text(text) if name in RULES else text


def _in_file(file: Path) -> dict[str, _Setting]:
    found: dict[str, _Setting] = {}
    for key, given in _read(file).items():
        source = f"{key} in {file}"
        if key == _WORKER_TABLE:
            _check_worker_table(given, source)
            continue
        if key not in _NAMES:
            known = ", ".join((*_NAMES, f"{_WORKER_TABLE}.custom"))
            raise InvalidArgument(source, given, "", f"unknown key; known keys: {known}")
        if given is not None:
            found[key] = _Setting(given, source)
    return found


def _read(file: Path) -> dict[str, Any]:
    """Return the file's keys and values."""
    try:
        document = _decoded(file)
    except (OSError, ValueError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidArgument("config_file", str(file), "", f"cannot read {str(file)!r}: {cause}") from error
    if not isinstance(document, dict):
        found = "is empty" if document is None else f"contains a {type(document).__name__}"
        raise InvalidArgument(
            "config_file", str(file), "lines such as `concurrency: 4`", f"{str(file)!r} {found}"
        )
    return cast("dict[str, Any]", document)


def _decoded(file: Path) -> Any:
    if file.suffix == ".toml":
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # editors on Windows write a BOM
    if file.suffix in {".yml", ".yaml"}:
        content = file.read_bytes()
        try:
            _check_yaml(content)
        except ImportError as error:
            missing = 'settings in YAML need PyYAML: pip install "taskqueue_client[cli]"'
            raise ImportError(missing) from error
        return msgspec.yaml.decode(content)
    raise ValueError("its name must end in .yml, .yaml or .toml")


def _check_yaml(content: bytes) -> None:
    """Raise a ValueError for text that is not YAML, and for duplicate keys: YAML takes the last one."""
    import yaml  # noqa: PLC0415 - optional

    try:
        nodes: list[yaml.Node | None] = [yaml.compose(content, yaml.SafeLoader)]
    except yaml.YAMLError as error:
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
            problem = ", ".join(filter(None, [error.context, error.problem]))
            raise ValueError(f"{_place(mark)}: {problem}") from error
        raise ValueError(error) from error
    for node in nodes:  # which grows, by each node once: aliases may repeat a node without end
        parts: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in keys:
                    raise ValueError(f"{_place(key.start_mark)}: duplicate key {key.value!r}")
                keys.add(key.value)
            parts = [value for _, value in node.value]
        nodes += [part for part in parts if part not in nodes]


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
