"""The worker: claims jobs, runs their handlers and settles the outcomes.

One event loop owns the state. Handlers are tasks, or functions in threads. Claims are made ahead of the free slots, as
many as the handlers finish in a quarter of a second, so that short jobs do not wait for the network and long jobs do
not wait here while another worker is free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from . import client as api
from .context import Context
from .duration import Duration, seconds, whole_seconds
from .errors import ApiError, Unreachable, WorkerRejected
from .execute import Executor, Outcome
from .session import Attempt, Session
from .workflow import Workflow

if TYPE_CHECKING:
    from typing_extensions import Self

    from .app import Windlass

log = logging.getLogger("windlass")

#: How long the server may hold a claim open when there is no work, in seconds.
CLAIM_WAIT_S = 20.0
MAX_CLAIM = 2_000
#: Jobs are claimed ahead for this time.
PREFETCH_S = 0.25
MAX_PREFETCH = 1_000
#: A claimed job that could not start for this time returns to its queue, and nothing is claimed ahead.
MAX_WAITING_S = 2.0
#: Unsettled outcomes beyond which no job is claimed, so that memory stays bounded during an outage.
MAX_UNSETTLED = 10_000
#: Jobs that are started in one turn of the event loop.
START_BATCH = 64
MAX_KINDS = 100


class WorkerOptions(TypedDict, total=False):
    """Options of a worker. All are optional."""

    #: The queues to claim from [default: those of the registered jobs].
    queues: list[str]
    #: Maximum number of jobs that run at the same time [default: 16].
    concurrency: int
    #: Maximum number of jobs that are claimed ahead [default: what the handlers finish in a quarter of a second].
    prefetch: int
    #: Time without a heartbeat after which the jobs are given to other workers [default: 30 s].
    lease: Duration
    #: How long running handlers may continue when the worker stops [default: 30 s].
    drain: Duration
    #: How long handlers may continue after they were cancelled because the worker stops [default: 5 s].
    grace: Duration
    #: The name shown to people [default: host and process id].
    name: str
    #: Affinities that the worker can load [default: all].
    affinities: list[str]


@dataclass
class Statistics:
    """Counters of a worker. Outcomes count once the server has applied them."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    snoozed: int = 0
    released: int = 0
    #: Workflows that wait.
    suspended: int = 0
    #: Attempts that lost their claim before the outcome was applied.
    lost: int = 0
    #: Handlers that still ran when the worker had stopped, because they ignored their cancellation.
    abandoned: int = 0


_COUNTERS = {
    "finish": "succeeded", "fail": "failed", "cancel": "canceled", "snooze": "snoozed", "release": "released",
    "suspend": "suspended", "continue_as": "succeeded",
}  # fmt: skip


class Worker:
    """Runs the handlers of an application. Made by `Windlass.worker`."""

    def __init__(self, app: Windlass, options: WorkerOptions):
        self._app = app
        self._client = app.client
        registered = {job.default_options.get("queue", "default") for job in app.jobs.values()}
        queues = options.get("queues") or sorted(registered)
        if not queues:
            raise ValueError("a worker needs at least one queue: register a job, or name the queues")
        if not app.jobs and app.fallback is None:
            raise ValueError("a worker needs at least one handler: register a job with @wl.job")
        self.concurrency = options.get("concurrency", 16)
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1; it is {self.concurrency}")
        self._fixed_prefetch = options.get("prefetch")
        self._drain_s = seconds(options.get("drain", 30))
        self._grace_s = seconds(options.get("grace", 5))
        self._registration: dict[str, Any] = {
            "name": options.get("name") or f"{socket.gethostname()}-{os.getpid()}",
            "queues": queues,
            "lease_s": whole_seconds(options.get("lease", 30)),
        }
        if app.fallback is None and len(app.jobs) <= MAX_KINDS:
            self._registration["kinds"] = sorted(app.jobs)
        if "affinities" in options:
            self._registration["affinities"] = options["affinities"]
        #: Counters since the worker was made.
        self.statistics = Statistics()
        self._executor = Executor(app, self._run_blocking)
        self._waiting: deque[Attempt] = deque()
        self._running = 0
        self._session: Session | None = None
        self._sessions: set[Session] = set()
        self._affinity: str | None = None
        self._average_s = 1.0
        self._last_end = 0.0
        self._is_stopping = False
        self._burst = False
        self._rejection: ApiError | None = None
        self._main: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._stop_requested, self._hurry = asyncio.Event(), asyncio.Event()
        self._changed, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()

    # ---- start and stop

    async def run(self) -> Statistics:
        """Runs until `request_stop` or a drain that the server requests. Raises WorkerRejected if it is rejected."""
        await self.start()
        return await self.wait()

    async def run_until_empty(self) -> Statistics:
        """Runs until no job is ready in the queues. Jobs that are scheduled for later stay."""
        self._burst = True
        return await self.run()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Opens the lifespan, registers, and runs in the background. Returns when the worker is registered."""
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(self.concurrency, thread_name_prefix="windlass-job")
        self._resources = AsyncExitStack()
        await self._resources.enter_async_context(self._app.lifespan())
        self._resources.push_async_callback(self._executor.close)
        registered = self._loop.create_task(self._register())
        self._main = self._loop.create_task(self._work(registered))
        try:
            await asyncio.wait({registered, self._main}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._stop_for_cancellation()
            raise
        if self._main.done():
            await self._main

    async def wait(self) -> Statistics:
        """Waits until the worker has stopped."""
        if self._main is None:
            raise RuntimeError("the worker was not started")
        try:
            await asyncio.shield(self._main)
        except asyncio.CancelledError:
            await self._stop_for_cancellation()
            raise
        if self._rejection is not None:
            raise WorkerRejected(str(self._rejection)) from self._rejection
        return self.statistics

    async def _stop_for_cancellation(self) -> None:
        """Stops in order before a cancellation of the caller's task takes effect."""
        self.request_stop()
        if self._main is not None:
            await self._main

    async def stop(self) -> Statistics:
        """Stops gracefully: claims nothing more, waits for the handlers, settles and deregisters."""
        self.request_stop()
        return await self.wait()

    def request_stop(self) -> None:
        """Begins to stop. A second call cancels the handlers instead of waiting for them."""
        if self._stop_requested.is_set():
            self._hurry.set()
        self._stop_requested.set()

    async def _work(self, registered: asyncio.Task[None]) -> None:
        try:
            stopped = self._loop.create_task(self._stop_requested.wait())
            claims = self._loop.create_task(self._claim_jobs(registered))
            await asyncio.wait({stopped, claims}, return_when=asyncio.FIRST_COMPLETED)
            for task in (stopped, claims, registered):
                task.cancel()
            # The end of the connection returns jobs that the server is assigning to the claim.
            await asyncio.wait({stopped, claims})
            if not claims.cancelled() and (error := claims.exception()) is not None:
                raise error
        finally:
            await self._shut_down()

    async def _shut_down(self) -> None:
        self._is_stopping = True
        while self._waiting:
            self._release(self._waiting.popleft())
        await self._wait_until_idle(self._drain_s, self._hurry)
        attempts = [attempt for session in self._sessions for attempt in session.attempts.values()]
        if attempts:
            log.info("cancelling %d handlers", len(attempts))
            for attempt in attempts:
                attempt.cancel()
            await self._wait_until_idle(self._grace_s, None)
        for session in list(self._sessions):
            for attempt in list(session.attempts.values()):
                log.warning("job %s: the handler did not stop in time", attempt.ctx.id)
                self.statistics.abandoned += 1
                self._end(attempt, Outcome.of(attempt.ctx, "cancel" if attempt.canceled else "release"))
        closing = [session.close(session.lease_s) for session in self._sessions]
        self._sessions.clear()
        await asyncio.gather(*closing, *self._closing)
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._resources.aclose()

    async def _wait_until_idle(self, timeout: float, or_event: asyncio.Event | None) -> None:
        waits = [self._loop.create_task(event.wait()) for event in (self._idle, or_event) if event is not None]
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    # ---- claims

    async def _register(self) -> None:
        backoff = api.Backoff()
        call = api.Call("POST", "/workers", api.encode_json(self._registration))
        while True:
            try:
                registered = await self._client.once(call)
                break
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError) and error.is_refusal:
                    self._on_rejected(error)
                    return
                wait = max(backoff.next(), getattr(error, "retry_after", None) or 0.0)
                log.warning("cannot register, again in %.1f s: %s", wait, error)
            await asyncio.sleep(wait)
        session = Session(self._client, registered, self._stop_requested.set, self._on_rejected, self._on_settled)
        self._session = session
        self._sessions.add(session)
        log.info("registered as %s (%s)", registered["id"], self._registration["name"])

    async def _claim_jobs(self, registered: asyncio.Task[None]) -> None:
        await registered
        backoff = api.Backoff()
        while not self._stop_requested.is_set():
            session = self._session
            if session is None or session.is_lost or session.is_retiring:
                await self._register()
                continue
            wanted = self._wanted(session)
            if not wanted:
                if self._waiting:
                    self._release_overdue()
                self._changed.clear()
                await self._wait_for_change()
                continue
            try:
                wait = 0.0 if self._burst else CLAIM_WAIT_S
                jobs = await session.claim(wanted, wait, self._affinity)
            except (ApiError, Unreachable) as error:
                await self._on_claim_error(session, error, backoff)
            else:
                backoff.reset()
                for job in jobs:
                    self._accept(session, job)
                self._start_waiting()
                if self._burst and not jobs and not self._running and not session.unsettled:
                    self._stop_requested.set()
                elif self._burst and not jobs:
                    self._changed.clear()
                    await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), MAX_WAITING_S / 2)

    async def _on_claim_error(self, session: Session, error: ApiError | Unreachable, backoff: api.Backoff) -> None:
        if isinstance(error, ApiError) and error.is_worker_gone:
            session.lose()
            return
        if isinstance(error, ApiError) and error.is_refusal:
            self._on_rejected(error)
            return
        if (isinstance(error, ApiError) and error.is_unapplied) or (isinstance(error, Unreachable) and not error.sent):
            wait = max(backoff.next(), getattr(error, "retry_after", None) or 0.0)
            log.warning("worker %s: cannot claim, again in %.1f s: %s", session.id, wait, error)
            await asyncio.sleep(wait)
            return
        # The server may have assigned jobs that never arrived here. A new registration continues, and the end of this
        # one returns them to their queue.
        log.warning("worker %s: no answer to a claim, registering again: %s", session.id, error)
        session.is_retiring = True
        self._close_if_done(session)
        await asyncio.sleep(backoff.next())

    def _wanted(self, session: Session) -> int:
        prefetch = self._prefetch()
        wanted = self.concurrency + prefetch - self._running - len(self._waiting)
        minimum = max(1, prefetch // 2) if self._waiting else 1
        if wanted < minimum or session.unsettled >= MAX_UNSETTLED:
            return 0
        return min(wanted, MAX_CLAIM)

    def _prefetch(self) -> int:
        if self._fixed_prefetch is not None:
            return self._fixed_prefetch
        if self._running and self._loop.time() - self._last_end > MAX_WAITING_S / 2:
            return 0
        return min(int(self.concurrency * PREFETCH_S / self._average_s), MAX_PREFETCH)

    def _accept(self, session: Session, claimed: dict[str, Any]) -> None:
        self.statistics.claimed += 1
        job = self._app.find(claimed["kind"])
        is_workflow = job is not None and job.is_workflow
        ctx = Workflow(self._app, claimed, session.record) if is_workflow else Context(self._app, claimed)
        attempt = Attempt(session, ctx, self._loop.time())
        session.attempts[attempt.ctx.id, attempt.ctx.epoch] = attempt
        if claimed["affinity"] is not None:
            self._affinity = session.affinity = claimed["affinity"]
        self._waiting.append(attempt)

    def _release(self, attempt: Attempt) -> None:
        if attempt.session.attempts.pop((attempt.ctx.id, attempt.ctx.epoch), None) is not None:
            attempt.session.settle(Outcome.of(attempt.ctx, "release"))

    def _release_overdue(self) -> None:
        """Returns jobs that were claimed ahead when all slots are busy for long: another worker may be free."""
        now = self._loop.time()
        while self._waiting and now - self._waiting[0].claimed_at > MAX_WAITING_S:
            self._release(self._waiting.popleft())

    # ---- handlers

    def _start_waiting(self) -> None:
        for _ in range(START_BATCH):
            if not self._waiting or self._running >= self.concurrency or self._is_stopping:
                return
            attempt = self._waiting.popleft()
            if attempt.canceled or attempt.session.is_lost:
                attempt.session.attempts.pop((attempt.ctx.id, attempt.ctx.epoch), None)
                continue
            self._running += 1
            self._idle.clear()
            attempt.task = self._loop.create_task(self._run(attempt))
        if self._waiting:
            self._loop.call_soon(self._start_waiting)

    async def _run(self, attempt: Attempt) -> None:
        ctx = attempt.ctx
        ctx.start(self._loop)
        job = self._app.find(ctx.kind)
        attempt.is_async = job is not None and job.is_async
        started_at = self._loop.time()
        outcome = await self._executor.execute(ctx)
        attempt.has_outcome = True
        if outcome.kind not in ("cancel", "release"):
            await ctx.flush()
        self._last_end = self._loop.time()
        self._average_s += 0.1 * (max(self._last_end - started_at, 1e-5) - self._average_s)
        self._end(attempt, outcome)

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        ctx, session = attempt.ctx, attempt.session
        if session.attempts.pop((ctx.id, ctx.epoch), None) is not None:
            if attempt.canceled:
                outcome = Outcome.of(ctx, "cancel")
            session.settle(outcome)
        if attempt.task is None or attempt.task is asyncio.current_task():
            self._running -= 1
            self._start_waiting()
        if not self._running:
            self._idle.set()
        self._changed.set()
        self._close_if_done(session)

    async def _run_blocking(self, fn: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._threads, copy_context().run, fn)

    # ---- events of the sessions

    def _on_settled(self, kind: str, is_applied: bool) -> None:
        if kind != "session":
            counter = _COUNTERS[kind] if is_applied else "lost"
            setattr(self.statistics, counter, getattr(self.statistics, counter) + 1)
        self._changed.set()
        for session in self._sessions:
            if session.is_retiring or session.is_lost:
                self._loop.call_soon(self._close_if_done, session)

    def _on_rejected(self, error: ApiError) -> None:
        if self._rejection is None:
            self._rejection = error
            log.error("the server rejects this worker: %s", error)
        self._stop_requested.set()

    def _close_if_done(self, session: Session) -> None:
        is_ended = session.is_lost or (session.is_retiring and not session.unsettled)
        if is_ended and not session.attempts and session in self._sessions:
            self._sessions.discard(session)
            task = self._loop.create_task(session.close(session.lease_s))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
