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
from .errors import Cancel, Fail, Retry, Snooze

if TYPE_CHECKING:
    from .app import Windlass
    from .job import Blocking

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
    def fail(ctx: Context, code: str, message: str, *, retryable: bool) -> Outcome:
        """Encodes a failure. The code and the message are made acceptable to the server."""
        code = _cut("".join(c if c.isprintable() else " " for c in code), 128)
        error = {"code": code or "error", "message": _cut(message, 16 << 10), "retryable": retryable}
        return Outcome.of(ctx, "fail", error=error)


def _cut(text: str, size: int) -> str:
    return text.encode(errors="replace")[:size].decode(errors="ignore")


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
        try:
            result = await self._call(ctx)
        except Fail as error:
            return Outcome.fail(ctx, error.code, str(error), retryable=False)
        except Snooze as error:
            return Outcome.of(ctx, "snooze", delay_s=seconds(error.delay))
        except Cancel:
            return Outcome.of(ctx, "cancel")
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if ctx.cancelled:
                # Cancelled by the server, or because the worker stops.
                return Outcome.of(ctx, "release")
            if isinstance(error, Retry):
                return Outcome.fail(ctx, error.code, str(error), retryable=True)
            ctx.log("".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip())
            return Outcome.fail(ctx, type(error).__qualname__, str(error), retryable=True)
        return _finish(ctx, result)

    async def _call_handler(self, ctx: Context) -> Any:
        job = self._app.find(ctx.kind)
        if job is None:
            raise Retry(f"no handler for the kind {ctx.kind!r}", code="no_handler")
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
    try:
        encoded = encode(result)
        members: dict[str, Any] = {} if encoded is None else {"result": encoded}
        if facts := ctx.take_facts():
            members["facts"] = facts
        outcome = Outcome.of(ctx, "finish", **members)
    except (TypeError, ValueError, RecursionError) as error:
        return Outcome.fail(ctx, "result_not_json", str(error), retryable=False)
    if len(outcome.body) > MAX_RESULT_BYTES and len(api.encode_json(encoded)) > MAX_RESULT_BYTES:
        message = f"The result has more than {MAX_RESULT_BYTES} bytes of JSON. Store it as an artifact."
        return Outcome.fail(ctx, "result_too_large", message, retryable=False)
    return outcome
