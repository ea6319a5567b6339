"""Conversion of arguments and results."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel

from windlass.client import encode_json
from windlass.codec import decoder, encode
from windlass.errors import DecodeError


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    number: int = 1


@dataclass
class Customer:
    name: str
    address: Address
    tags: list[str] = field(default_factory=list[str])
    parent: Customer | None = None


class Order(BaseModel):
    id: int
    total: Decimal


class Point(TypedDict, total=False):
    x: int


NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (float, 1.5),
        (bool, True),
        (str, "größe"),
        (Any, {"a": [1]}),
        (int | None, None),
        (int | str, "x"),
        (list[int], [1, 2]),
        (set[str], {"a"}),
        (tuple[int, str], (1, "x")),
        (tuple[int, ...], (1, 2, 3)),
        (dict[str, list[date]], {"a": [date(2026, 1, 2)]}),
        (dict[int, str], {1: "a"}),
        (Mapping[str, int], {"a": 1}),
        (Sequence[int], [1]),
        (Literal["a", 1], "a"),
        (Colour, Colour.RED),
        (datetime, NOW),
        (timedelta, timedelta(seconds=90)),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (bytes, b"\x00\xff"),
        (Annotated[int, "positive"], 3),
        (Customer, Customer("Ada", Address("Main", 2), ["x"], Customer("Eva", Address("Side")))),
        (list[Order], [Order(id=1, total=Decimal("9.99"))]),
        (Point, {"x": 1}),
    ],
    ids=str,
)
def test_a_value_survives_the_way_to_the_handler(annotation: Any, value: Any) -> None:
    decode = decoder(annotation)
    encoded = encode(value)
    encode_json(encoded)
    assert (encoded if decode is None else decode(encoded, "x")) == value


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "7", "x: expected int, got '7'"),
        (int, True, "x: expected int, got True"),
        (str, None, "x: expected str, got None"),
        (list[int], [1, "a"], r"x\[1\]: expected int, got 'a'"),
        (dict[str, int], {"a": None}, "x.a: expected int, got None"),
        (Address, {"number": 1}, "x.street: expected a value"),
        (Address, 7, r"x: expected an object \(Address\), got 7"),
        (Address | None, {}, "x.street: expected a value"),
        (int | str, [], r"x: expected int or str, got \[\]"),
        (Literal["a"], "b", "x: expected"),
        (Colour, "blue", "x: expected Colour, got 'blue'"),
        (datetime, "yesterday", "x: expected a text with a datetime"),
        (tuple[int, int], [1], "x: expected a list of 2"),
        (Order, {"id": "many", "total": "1"}, "x: expected Order"),
        (dict[int, str], {"a": "b"}, "x: expected a whole number"),
    ],
)
def test_a_value_of_another_type_is_rejected(annotation: Any, value: Any, message: str) -> None:
    decode = decoder(annotation)
    assert decode is not None
    with pytest.raises(DecodeError, match=message):
        decode(value, "x")


def test_members_that_a_dataclass_does_not_know_are_ignored() -> None:
    decode = decoder(Address)
    assert decode is not None
    assert decode({"street": "Main", "added_later": 1}, "x") == Address("Main")


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, Address])
def test_a_value_without_a_json_form_is_rejected(value: object) -> None:
    with pytest.raises(TypeError):
        encode(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_json_that_no_server_accepts_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode_json(encode(value))
