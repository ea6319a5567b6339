"""Fixtures for pytest. They are available wherever the package is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import Server


@pytest.fixture(scope="session")
def windlass_server() -> Iterator[Server]:
    """A real server on a temporary SQLite database, shared by the session. Needs `WINDLASS_BIN` or `windlass`."""
    from . import Server

    with Server() as server:
        yield server
