"""The tasks of the Django project in `test_django`. Imported after Django is configured."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import asyncio
from typing import Any

from windlass.contrib.django import task

events: list[str] = []


@task()
def add(a: int, b: int) -> int:
    return a + b


@task(takes_context=True)
async def greet(context: Any, name: str) -> str:
    await asyncio.sleep(0)
    return f"Hello {name}, attempt {context.attempt}"


@task()
def broken() -> None:
    raise LookupError("no such user")
