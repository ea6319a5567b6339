"""Runs the handler for one attempt and converts its result or exception to an outcome. Used by workers and tests."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import client as api
from .codec import encode
from .context import Context
from .dependencies import Dependencies
from .duration import seconds
from .errors import Aborted, Cancel, ContinueAs, Fail, Retry, Snooze, Suspended, error_json
from .workflow import Workflow

if TYPE_CHECKING:
    from .app import Windlass
    from .job import Blocking, Job

MAX_RESULT_BYTES = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attempt, encoded as JSON."""

    job: str
    epoch: int
    kind: str
    body: bytes

    @staticmethod
    def of(ctx: Context, kind: str, **members: Any) -> Outcome:
        """Encodes an outcome. Raises TypeError or ValueError for members without a JSON form."""
        document = {"job_id": ctx.id, "epoch": ctx.epoch, "outcome": kind, **members}
        return Outcome(ctx.id, ctx.epoch, kind, api.encode_json(document))

    @staticmethod
    def fail(ctx: Context, error: BaseException, *, retryable: bool) -> Outcome:
        """Encodes a failure."""
        return Outcome.of(ctx, "fail", error=error_json(error, retryable=retryable))


class Executor:
    """Calls the handlers of an application, with its middlewares and the values that they depend on."""

    def __init__(self, app: Windlass, run_blocking: Blocking) -> None:
        self._app, self._run_blocking = app, run_blocking
        self._shared = Dependencies()
        self._call = app.chain(self._call_handler)

    async def close(self) -> None:
        """Closes the values that handlers share."""
        await self._shared.close()

    async def execute(self, ctx: Context) -> Outcome:
        """Runs the handler of a job and returns the outcome."""
        result, error = None, None
        try:
            result = await self._call(ctx)
        except Aborted as aborted:
            error = aborted.__cause__
        except (Exception, SystemExit, asyncio.CancelledError, Suspended) as raised:
            error = raised
        if isinstance(ctx, Workflow) and ctx.wake is not None:
            return Outcome.of(ctx, "suspend", wake=ctx.wake)
        try:
            return _finish(ctx, result) if error is None else self._fail(ctx, error)
        except (TypeError, ValueError, RecursionError) as invalid:
            return Outcome.fail(ctx, Fail(str(invalid), code="result_not_json"), retryable=False)

    def _fail(self, ctx: Context, error: BaseException) -> Outcome:
        match error:
            case Fail():
                return Outcome.fail(ctx, error, retryable=False)
            case Snooze():
                return Outcome.of(ctx, "snooze", delay_s=seconds(error.delay))
            case Cancel():
                return Outcome.of(ctx, "cancel")
            case ContinueAs():
                return Outcome.of(ctx, "continue_as", payload=error.payload)
            case _ if ctx.cancelled:
                # Cancelled by the server, or because the worker stops.
                return Outcome.of(ctx, "release")
            case _:
                if not isinstance(error, Retry):
                    ctx.log("".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip())
                return Outcome.fail(ctx, error, retryable=True)

    async def _call_handler(self, ctx: Context) -> Any:
        job = self._app.find(ctx.kind)
        if job is None:
            raise Retry(f"no handler for the kind {ctx.kind!r}", code="no_handler")
        if isinstance(ctx, Workflow):
            async with ctx.opened(strict=job.strict):
                return await self._call_job(job, ctx)
        return await self._call_job(job, ctx)

    async def _call_job(self, job: Job[Any, Any], ctx: Context) -> Any:
        if not job.signature.injected:
            return await job.call(ctx, {}, self._run_blocking)
        own = Dependencies()
        try:
            values: dict[str, Any] = {}
            for name, dependency in job.signature.injected.items():
                scope = self._shared if dependency.scope == "worker" else own
                values[name] = await scope.get(dependency.provider)
            return await job.call(ctx, values, self._run_blocking)
        finally:
            await own.close()


def _finish(ctx: Context, result: Any) -> Outcome:
    encoded = encode(result)
    members: dict[str, Any] = {} if encoded is None else {"result": encoded}
    if facts := ctx.take_facts():
        members["facts"] = facts
    outcome = Outcome.of(ctx, "finish", **members)
    if len(outcome.body) > MAX_RESULT_BYTES and len(api.encode_json(encoded)) > MAX_RESULT_BYTES:
        message = f"The result has more than {MAX_RESULT_BYTES} bytes of JSON. Store it as an artifact."
        return Outcome.fail(ctx, Fail(message, code="result_too_large"), retryable=False)
    return outcome
