"""Conversion between Python values and JSON: plain JSON, dataclasses, TypedDict, pydantic models and common scalars."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID

from .errors import DecodeError

Decoder = Callable[[Any, str], Any]

_NoneType = type(None)
_TEXTS: dict[Any, Callable[[str], Any]] = {
    datetime: lambda text: datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text), date:
    date.fromisoformat, time: time.fromisoformat, UUID: UUID, Decimal: Decimal, bytes: lambda text: b64decode(text,
    validate=True),
}  # fmt: skip


def encode(value: Any) -> Any:
    """Converts a value to what `json.dumps` accepts. Raises TypeError for a value without a JSON form."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, enum.Enum):
        return encode(value.value)
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {_key(key): encode(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {part.name: encode(getattr(value, part.name)) for part in dataclasses.fields(value)}
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__qualname__} has no JSON form; use a dataclass, a pydantic model or plain JSON")


def _key(key: Any) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, (str, int, UUID)) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"{type(key).__qualname__} cannot be a member name in JSON")


def reference(value: Any, member: str) -> Any:
    """Returns the value of an object that has this one member, or None."""
    members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return members.get(member) if len(members) == 1 else None


def decoder(annotation: Any) -> Decoder | None:
    """Returns a function that converts JSON to a type, or None if every JSON value is accepted as it is."""
    try:
        return _decoder(annotation)
    except TypeError:  # An annotation that cannot be hashed.
        return _build(annotation)


@lru_cache(maxsize=1_000)
def _decoder(annotation: Any) -> Decoder | None:
    return _build(annotation)


def _build(annotation: Any) -> Decoder | None:
    if annotation is Any or annotation is object or isinstance(annotation, str):
        return None
    origin, arguments = get_origin(annotation), get_args(annotation)
    if sys.version_info >= (3, 12) and isinstance(annotation, getattr(typing, "TypeAliasType", ())):
        return decoder(annotation.__value__)
    if (origin is not None and getattr(origin, "__name__", "") == "Annotated") or hasattr(annotation, "__metadata__"):
        return decoder(arguments[0])
    if origin is Union or origin is types.UnionType:
        return _union(arguments)
    if origin is Literal:
        return _one_of(arguments, annotation)
    target: Any = origin or annotation
    if annotation is None or target is _NoneType:
        return _one_of((None,), "null")
    if is_typeddict(target):
        return _typed_dict(target)
    if not isinstance(target, type):
        return None
    if hasattr(target, "model_validate"):
        return _pydantic(annotation)
    if dataclasses.is_dataclass(target):
        return _dataclass(target)
    if issubclass(target, enum.Enum):
        return _parsed(target, target.__name__)
    if target in _TEXTS:
        return _parsed(_TEXTS[target], f"a text with a {cast('Any', target).__name__}")
    if target is timedelta:
        return lambda value, path: timedelta(seconds=_check(value, path, (int, float), "a number of seconds"))
    if target is float:
        return lambda value, path: float(_check(value, path, (int, float), "a number"))
    if target in (str, bool, int):
        return lambda value, path: _check(value, path, (target,), target.__name__)
    if issubclass(target, tuple):
        return _tuple(arguments)
    if target in (list, set, frozenset) or _is_abstract(target, Sequence):
        return _list(arguments, target if target in (set, frozenset) else list)
    if target is dict or _is_abstract(target, Mapping):
        return _dict(arguments)
    return None


def _is_abstract(target: Any, base: Any) -> bool:
    return target.__module__ in ("collections.abc", "typing") and issubclass(target, base)


def _check(value: Any, path: str, accepted: tuple[type, ...], expected: str) -> Any:
    if (isinstance(value, bool) and bool not in accepted) or not isinstance(value, accepted):
        raise DecodeError(path, expected, value)
    return value


def _run(decode: Decoder | None, value: Any, path: str) -> Any:
    return value if decode is None else decode(value, path)


def _union(arguments: tuple[Any, ...]) -> Decoder | None:
    decoders = [decoder(argument) for argument in arguments]
    if None in decoders:
        return None
    expected = " or ".join(getattr(argument, "__name__", str(argument)) for argument in arguments)

    def decode(value: Any, path: str) -> Any:
        errors: list[DecodeError] = []
        for option in decoders:
            try:
                return _run(option, value, path)
            except DecodeError as error:
                errors.append(error)
        # With one alternative to null, its own error says more than the list of types.
        raise errors[0] if len(errors) == 2 and _NoneType in arguments else DecodeError(path, expected, value)

    return decode


def _one_of(values: tuple[Any, ...], expected: Any) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        for candidate in values:
            if value == candidate and type(value) is type(candidate):
                return candidate
        raise DecodeError(path, str(expected), value)

    return decode


def _parsed(parse: Callable[[Any], Any], expected: str) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        try:
            return parse(value)
        except (ValueError, ArithmeticError, AttributeError, TypeError):
            raise DecodeError(path, expected, value) from None

    return decode


def _list(arguments: tuple[Any, ...], target: Callable[[list[Any]], Any]) -> Decoder:
    item = decoder(arguments[0]) if arguments else None

    def decode(value: Any, path: str) -> Any:
        values: list[Any] = _check(value, path, (list,), "a list")
        if item is not None:
            values = [item(part, f"{path}[{index}]") for index, part in enumerate(values)]
        return target(values)

    return decode


def _tuple(arguments: tuple[Any, ...]) -> Decoder:
    if not arguments or arguments[-1] is Ellipsis:
        return _list(arguments[:1], tuple)
    items = [decoder(argument) for argument in arguments]

    def decode(value: Any, path: str) -> Any:
        values: list[Any] = _check(value, path, (list,), "a list")
        if len(values) != len(items):
            raise DecodeError(path, f"a list of {len(items)}", value)
        return tuple(
            _run(item, part, f"{path}[{index}]") for index, (item, part) in enumerate(zip(items, values, strict=True))
        )

    return decode


def _dict(arguments: tuple[Any, ...]) -> Decoder:
    key, item = (decoder(arguments[0]), decoder(arguments[1])) if len(arguments) == 2 else (None, None)
    if arguments and arguments[0] is int:
        key = _parsed(int, "a whole number as the name")
    if arguments and arguments[0] is str:
        key = None

    def decode(value: Any, path: str) -> Any:
        members: dict[str, Any] = _check(value, path, (dict,), "an object")
        if key is None and item is None:
            return members
        return {_run(key, name, path): _run(item, part, _join(path, name)) for name, part in members.items()}

    return decode


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fields(
    target: Any, resolve: Callable[[], dict[str, Decoder | None]], required: set[str], build: Callable[[dict[str,
    Any]], Any],
) -> Decoder:  # fmt: skip
    """Decodes an object by its members. Unknown members are ignored, so that producers can be deployed first.

    The decoders of the members are resolved at the first use, because a type can contain itself.
    """
    resolve = cache(resolve)

    def decode(value: Any, path: str) -> Any:
        members: dict[str, Any] = _check(value, path, (dict,), f"an object ({target.__name__})")
        for name in required:
            if name not in members:
                raise DecodeError(_join(path, name), "a value", None)
        found = {n: _run(d, members[n], _join(path, n)) for n, d in resolve().items() if n in members}
        return build(found)

    return decode


def _dataclass(target: Any) -> Decoder:
    parts = [part for part in dataclasses.fields(target) if part.init]
    missing = dataclasses.MISSING
    required = {part.name for part in parts if part.default is missing and part.default_factory is missing}

    def resolve() -> dict[str, Decoder | None]:
        hints = get_type_hints(target, include_extras=True)
        return {part.name: decoder(hints[part.name]) for part in parts}

    return _fields(target, resolve, required, lambda found: target(**found))


def _typed_dict(target: Any) -> Decoder:
    def resolve() -> dict[str, Decoder | None]:
        return {name: decoder(_unwrap(hint)) for name, hint in get_type_hints(target).items()}

    return _fields(target, resolve, set(target.__required_keys__), lambda found: found)


def _unwrap(hint: Any) -> Any:
    """Removes Required, NotRequired and ReadOnly of a TypedDict."""
    while getattr(get_origin(hint), "_name", None) in ("Required", "NotRequired", "ReadOnly"):
        hint = get_args(hint)[0]
    return hint


def _pydantic(target: Any) -> Decoder:
    def decode(value: Any, path: str) -> Any:
        try:
            return target.model_validate(value)
        except ValueError as error:
            raise DecodeError(path, f"{target.__name__} ({error})", value) from None

    return decode
