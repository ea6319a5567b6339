"""FastAPI: the routes of a real application, with a worker in its process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from windlass import ApiError, Windlass
from windlass.contrib.fastapi import setup


def test_a_worker_runs_beside_the_application(wl: Windlass, queue: str) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[dict[str, int]]:
        events.append("open")
        yield {"factor": 2}
        events.append("close")

    @wl.job(queue=queue)
    async def multiply(a: int, b: int) -> int:
        events.append("job")
        return a * b

    app = FastAPI(lifespan=lifespan)
    setup(app, wl, worker=True, concurrency=4)

    @app.post("/double/{n}")
    async def double(n: int, request: Request) -> int:
        return await (await multiply.push(a=n, b=request.state.factor)).wait("30s")

    with TestClient(app) as client:
        assert client.post("/double/21").json() == 42
    assert events == ["open", "job", "close"]


def test_an_outage_is_503_also_at_the_start_and_a_mistake_is_raised(wl: Windlass, queue: str) -> None:
    away = Windlass("http://127.0.0.1:9", timeout=0.05)
    away.job(queue=queue)(lambda: None)
    app = FastAPI()
    setup(app, away, worker=True)

    @app.post("/away")
    async def push_to_no_server() -> None:
        await away.push(away.request("k", queue=queue))

    @app.post("/mistake")
    async def push_an_invalid_job() -> None:
        await wl.push(wl.request("k", queue=queue, priority=100_000))

    with TestClient(app) as client:
        answer = client.post("/away")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        with pytest.raises(ApiError, match="priority"):
            client.post("/mistake")
