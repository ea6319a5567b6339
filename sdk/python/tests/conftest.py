"""Fixtures of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from windlass import Windlass

if TYPE_CHECKING:
    from windlass.testing import Server

pytest_plugins = ["pytester"]


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return f"queue-{uuid4().hex[:12]}"


@pytest.fixture
def wl(windlass_server: Server) -> Iterator[Windlass]:
    """An application that is connected with a real server."""
    app = Windlass(windlass_server.url)
    yield app
    app.client.run(app.close())
