"""FastAPI: closes connections with the application, runs a worker beside it, and reports outages as 503.

app = FastAPI()
setup(app, wl, worker=True)

@app.post("/users")
async def sign_up(user: User):
    await welcome.push(user_id=user.id)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from ..app import Windlass
from ..errors import ApiError, Unreachable

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..worker import Worker, WorkerOptions

log = logging.getLogger("windlass")

RETRY_AFTER_S = 5


def setup(app: FastAPI, wl: Windlass, *, worker: bool = False, **options: Unpack[WorkerOptions]) -> None:
    """Connects an application with Windlass. With `worker`, each process of the application also runs handlers.

    A request that fails because the server is away or over its limits gets 503 with `Retry-After`.
    """
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(inner(application))
            await stack.enter_async_context(wl)
            if worker:
                await stack.enter_async_context(_beside(wl.worker(**options)))
            yield state

    app.router.lifespan_context = lifespan
    app.add_exception_handler(Unreachable, _unavailable)
    app.add_exception_handler(ApiError, _unavailable)


@asynccontextmanager
async def _beside(worker: Worker) -> AsyncGenerator[None]:
    """Runs a worker in the background: an application starts while the server of the jobs is away."""
    task = asyncio.get_running_loop().create_task(worker.run())
    task.add_done_callback(_log_failure)
    try:
        yield
    finally:
        worker.request_stop()
        await asyncio.wait({task})


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the worker has ended: %s", error, exc_info=error)


async def _unavailable(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ApiError) and not error.is_unapplied and error.status < 500:
        raise error  # A mistake in this application.
    after = getattr(error, "retry_after", None) or RETRY_AFTER_S
    headers = {"Retry-After": f"{after:.0f}"}
    return JSONResponse({"detail": "jobs cannot be enqueued at the moment"}, 503, headers)
