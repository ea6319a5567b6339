"""A registration of a worker: its heartbeats, and the outcomes that the server has not confirmed. Used by `worker`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from . import client as api
from ._http import Pool, background_loop
from .context import Context
from .errors import ApiError, Unreachable
from .execute import Outcome

if TYPE_CHECKING:
    from .workflow import Workflow

log = logging.getLogger("windlass")

#: Limits of one settle request, within those of the server.
MAX_OUTCOMES = 4_000
MAX_SETTLE_BYTES = 8 << 20
#: A second settle request is sent while one is in flight if at least this many outcomes wait.
LARGE_SETTLE = 500
#: Pause after a heartbeat that returned early. The server repeats a cancellation until it has the outcome.
REPEAT_PAUSE_S = 0.25
DEREGISTER_ATTEMPTS = 3
#: Operations of workflows that happen while this many requests are in flight share the next one.
JOURNAL_REQUESTS = 2
MAX_OPERATIONS = 1_000


class Attempt:
    """A claimed attempt of a job."""

    __slots__ = ("canceled", "claimed_at", "ctx", "has_outcome", "is_async", "session", "task")

    def __init__(self, session: Session, ctx: Context, claimed_at: float):
        self.session, self.ctx, self.claimed_at = session, ctx, claimed_at
        self.task: asyncio.Task[None] | None = None
        #: The handler is a coroutine, which is cancelled through its task.
        self.is_async = False
        #: The server has taken the job from this worker: it was canceled, or timed out.
        self.canceled = False
        #: The outcome is decided; a cancellation of the task would lose it.
        self.has_outcome = False

    def cancel(self) -> None:
        """Cancels the handler."""
        self.ctx.mark_cancelled()
        if self.task is not None and self.is_async and not self.has_outcome:
            self.task.cancel()


class Session:
    """One registration. It ends when the worker stops, when its lease is lost, or when a claim got no answer."""

    def __init__(
        self,
        client: api.Client,
        registered: dict[str, Any],
        on_drain: Callable[[], None],
        on_rejected: Callable[[ApiError], None],
        on_settled: Callable[[str, bool], None],
    ):
        self.id: str = registered["id"]
        self.lease_s: float = registered["lease_s"]
        self.heartbeat_s: float = registered["heartbeat_s"]
        #: The lease has expired: the jobs belong to other workers.
        self.is_lost = False
        #: Claims nothing more and is closed when its jobs have ended.
        self.is_retiring = False
        #: Attempts that wait or run, by job and epoch.
        self.attempts: dict[tuple[str, int], Attempt] = {}
        #: What the worker has loaded, for the heartbeat.
        self.affinity: str | None = None
        self._client = client
        self._on_drain, self._on_rejected, self._on_settled = on_drain, on_rejected, on_settled
        self._unsent: deque[Outcome] = deque()
        # Parts of batches that were rejected or not answered, to be sent separately.
        self._parts: deque[list[Outcome]] = deque()
        # The jobs of unsettled outcomes.
        self._unsettled: Counter[str] = Counter()
        # Jobs that the server has canceled. The value is the number of the last heartbeat that was sent before the
        # server confirmed our outcome: it may still name the job, which may be claimed again by now.
        self._canceled: dict[str, int | None] = {}
        self._in_flight: set[asyncio.Task[None]] = set()
        self._settled = asyncio.Event()
        self._settled.set()
        # Operations of journals that are not recorded: the write as JSON, and the future of its answer.
        self._operations: deque[tuple[bytes, asyncio.Future[Any]]] = deque()
        self._writers: set[asyncio.Task[None]] = set()
        self._backoff = api.Backoff()
        self._closed = False
        self._pool = Pool(client.address)
        self._loop = asyncio.get_running_loop()
        # The number of the last heartbeat that was sent.
        self._heartbeat = 0
        # A handler that blocks this event loop must not lose the lease, so heartbeats run on another one.
        self._heartbeats = asyncio.run_coroutine_threadsafe(self._send_heartbeats(), background_loop())

    @property
    def unsettled(self) -> int:
        """The number of outcomes that the server has not confirmed."""
        return self._unsettled.total() if hasattr(Counter, "total") else sum(self._unsettled.values())

    async def claim(self, maximum: int, wait: float, affinity: str | None) -> list[dict[str, Any]]:
        """Claims jobs."""
        body: dict[str, Any] = {"max": maximum, "wait_s": wait}
        if affinity is not None:
            body["affinity"] = affinity
        call = api.Call("POST", api.path("workers", self.id, "claim"), api.encode_json(body), hold=wait)
        jobs: list[dict[str, Any]] = (await self._client.once(call, pool=self._pool))["jobs"]
        return jobs

    # ---- outcomes

    def settle(self, outcome: Outcome) -> None:
        """Sends an outcome until the server has answered. Outcomes that become known meanwhile share a request."""
        if self.is_lost or self._closed:
            return
        self._unsent.append(outcome)
        self._unsettled[outcome.job] += 1
        self._settled.clear()
        if not self._in_flight:
            # The request starts in the next turn of the loop, with what has ended until then.
            self._send()
        elif len(self._in_flight) == 1 and len(self._unsent) >= LARGE_SETTLE and not self._parts:
            self._send()

    def _send(self) -> None:
        task = asyncio.get_running_loop().create_task(self._settle())
        self._in_flight.add(task)
        task.add_done_callback(self._on_sent)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("settling failed", exc_info=error)
        if self.is_lost or self._closed:
            self._settled.set()
        elif self._parts or self._unsent:
            if not self._in_flight:
                self._send()
        elif not self._in_flight:
            self._settled.set()

    async def _settle(self) -> None:
        batch = self._next_batch()
        if not batch:
            return
        try:
            body = b'{"outcomes":[' + b",".join(outcome.body for outcome in batch) + b"]}"
            view = await self._client.once(
                api.Call("POST", api.path("workers", self.id, "settle"), body), pool=self._pool
            )
        except ApiError as error:
            if error.is_worker_gone:
                self.lose()
            elif error.is_refusal and error.status in (400, 413, 422):
                self._on_refused(batch, error)
            else:
                if error.is_refusal:
                    self._on_rejected(error)
                await self._repeat(batch, error)
        except Unreachable as error:
            await self._repeat(batch, error)
        else:
            self._backoff.reset()
            for outcome, result in zip(batch, view["results"], strict=True):
                self._on_result(outcome, result["status"])

    def _next_batch(self) -> list[Outcome]:
        if self._parts:
            return self._parts.popleft()
        batch: list[Outcome] = []
        size = 0
        while self._unsent and len(batch) < MAX_OUTCOMES:
            size += len(self._unsent[0].body) + 1
            if batch and size > MAX_SETTLE_BYTES:
                break
            batch.append(self._unsent.popleft())
        return batch

    async def _repeat(self, batch: list[Outcome], error: Exception) -> None:
        """Keeps a batch that got no answer, in two halves: a nearly full disk may accept a small commit only."""
        wait = self._backoff.next()
        log.warning("worker %s: settling %d outcomes failed, again in %.1f s: %s", self.id, len(batch), wait, error)
        half = (len(batch) + 1) // 2
        self._parts.extendleft(part for part in (batch[half:], batch[:half]) if part)
        await asyncio.sleep(wait)

    def _on_refused(self, batch: list[Outcome], error: ApiError) -> None:
        """Halves a rejected batch until the invalid outcome is alone. Its attempt then fails."""
        if len(batch) > 1:
            half = len(batch) // 2
            self._parts.extendleft((batch[half:], batch[:half]))
            return
        outcome = batch[0]
        if outcome.kind == "refused":
            log.error("job %s: the outcome was rejected and is lost: %s", outcome.job, error)
            self._forget(outcome)
            return
        log.warning("job %s: the outcome was rejected, its attempt fails: %s", outcome.job, error)
        message = {
            "code": "outcome_refused",
            "message": f"The worker's outcome was rejected: {error}",
            "retryable": False,
        }
        body = {"job_id": outcome.job, "epoch": outcome.epoch, "outcome": "fail", "error": message}
        self._parts.appendleft([Outcome(outcome.job, outcome.epoch, "refused", api.encode_json(body))])

    def _on_result(self, outcome: Outcome, status: str) -> None:
        self._forget(outcome)
        if outcome.kind == "cancel":
            self._canceled[outcome.job] = self._heartbeat
        elif status in ("already_ended", "claim_lost"):
            # The job was canceled or timed out meanwhile. Confirm that the handler has stopped, which releases what
            # the job holds.
            body = {"job_id": outcome.job, "epoch": outcome.epoch, "outcome": "cancel"}
            self.settle(Outcome(outcome.job, outcome.epoch, "cancel", api.encode_json(body)))
        if outcome.kind != "cancel" or status == "applied":
            self._on_settled("fail" if outcome.kind == "refused" else outcome.kind, status == "applied")

    def _forget(self, outcome: Outcome) -> None:
        self._unsettled[outcome.job] -= 1
        if self._unsettled[outcome.job] <= 0:
            del self._unsettled[outcome.job]

    # ---- journals

    async def record(self, ctx: Workflow, operation: dict[str, Any]) -> dict[str, Any]:
        """Records an operation in the journal of a job and returns its entry. Raises ApiError for a rejected one."""
        body = {"job_id": ctx.id, "epoch": ctx.epoch, "strict": ctx.strict, "ops": [operation]}
        answer = self._loop.create_future()
        self._operations.append((api.encode_json(body), answer))
        if self.is_lost or self._closed:
            self._discard()
        elif len(self._writers) < JOURNAL_REQUESTS:
            # The request starts in the next turn of the loop, with the operations of other branches and jobs.
            task = self._loop.create_task(self._write_journal())
            self._writers.add(task)
            task.add_done_callback(self._writers.discard)
        result = await answer
        if result["status"] != "applied":
            ctx.mark_cancelled()  # Another attempt owns the job.
            raise asyncio.CancelledError
        entry: dict[str, Any] = result["entries"][0]
        return entry

    async def _write_journal(self) -> None:
        while self._operations:
            batch, size = list[tuple[bytes, asyncio.Future[Any]]](), 0
            while self._operations and len(batch) < MAX_OPERATIONS:
                size += len(self._operations[0][0]) + 1
                if batch and size > MAX_SETTLE_BYTES:
                    break
                batch.append(self._operations.popleft())
            await self._write_batch(batch)

    async def _write_batch(self, batch: list[tuple[bytes, asyncio.Future[Any]]]) -> None:
        body = b'{"writes":[' + b",".join(write for write, _ in batch) + b"]}"
        call, backoff = api.Call("POST", api.path("workers", self.id, "journal"), body), api.Backoff()
        results: list[Any] = []
        while not results and not self.is_lost and not self._closed:
            try:
                results = (await self._client.once(call, pool=self._pool))["results"]
            except (ApiError, Unreachable) as error:
                status = error.status if isinstance(error, ApiError) else 0
                if isinstance(error, ApiError) and error.is_worker_gone:
                    self.lose()
                elif status not in (400, 403, 409, 413, 422):
                    if isinstance(error, ApiError) and error.is_refusal:
                        self._on_rejected(error)
                    log.warning("worker %s: recording %d operations failed: %s", self.id, len(batch), error)
                    await asyncio.sleep(backoff.next())
                elif len(batch) == 1:
                    results = [error]
                else:  # A rejected operation rejects its whole request.
                    for part in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                        await self._write_batch(part)
                    return
        for (_, answer), result in zip_longest(batch, results):
            if answer.done():
                continue  # The attempt was cancelled meanwhile.
            if isinstance(result, ApiError):
                answer.set_exception(result)
            elif result is None:
                answer.cancel()
            else:
                answer.set_result(result)

    # ---- heartbeats

    def _on_heartbeat(self, number: int, view: dict[str, Any]) -> None:
        """Handles the answer to a heartbeat."""
        for job in view["cancel"]:
            self._on_canceled(job)
        self._canceled = {job: seen for job, seen in self._canceled.items() if seen is None or seen >= number}
        if view["drain"]:
            self._on_drain()

    def _on_canceled(self, job: str) -> None:
        if job in self._canceled or job in self._unsettled:
            return
        # After a timeout, a newer attempt of the job may be here; the cancellation concerns the oldest.
        attempts = [attempt for (other, _), attempt in self.attempts.items() if other == job]
        if not attempts:
            return
        attempt = min(attempts, key=lambda attempt: attempt.ctx.epoch)
        self._canceled[job] = None
        attempt.canceled = True
        attempt.cancel()
        if attempt.task is None:  # It waits to be started.
            del self.attempts[attempt.ctx.id, attempt.ctx.epoch]
            self.settle(Outcome.of(attempt.ctx, "cancel"))

    async def _send_heartbeats(self) -> None:
        """Keeps one request open at all times. It returns early with cancellations and drains. Runs on another loop."""
        backoff, pool = api.Backoff(maximum=min(5.0, self.heartbeat_s)), Pool(self._client.address)
        try:
            while pause := await self._send_heartbeat(backoff, pool):
                await asyncio.sleep(max(pause, 0.0))
        except RuntimeError:
            return  # The event loop of the worker is closed.
        finally:
            pool.close()

    async def _send_heartbeat(self, backoff: api.Backoff, pool: Pool) -> float | None:
        """Sends one heartbeat. Returns the pause before the next one, or None when the lease has expired."""
        self._heartbeat = number = self._heartbeat + 1
        body: dict[str, Any] = {"wait_s": self.heartbeat_s}
        if self.affinity is not None:
            body["affinity"] = self.affinity
        route = api.path("workers", self.id, "heartbeat")
        sent_at = time.monotonic()
        try:
            call = api.Call("POST", route, api.encode_json(body), hold=self.heartbeat_s)
            # A lost heartbeat must be noticed early enough to send another one.
            view = await self._client.once(call, self.lease_s / 4, pool)
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and error.is_worker_gone:
                self._loop.call_soon_threadsafe(self.lose)
                return None
            if isinstance(error, ApiError) and error.is_refusal:
                self._loop.call_soon_threadsafe(self._on_rejected, error)
            log.warning("worker %s: a heartbeat failed: %s", self.id, error)
            return backoff.next()
        backoff.reset()
        self._loop.call_soon_threadsafe(self._on_heartbeat, number, view)
        return REPEAT_PAUSE_S if time.monotonic() - sent_at < self.heartbeat_s / 2 else -1.0

    # ---- the end

    def lose(self) -> None:
        """Gives up all jobs, because the lease has expired."""
        if self.is_lost or self._closed:
            return
        self.is_lost = True
        lost = len(self.attempts) + self.unsettled
        log.warning("worker %s: the lease has expired; %d jobs are lost; registering again", self.id, lost)
        for _ in range(lost):
            self._on_settled("lost", False)
        self._discard()
        for attempt in list(self.attempts.values()):
            attempt.cancel()
        self._heartbeats.cancel()
        self._on_settled("session", False)

    def _discard(self) -> None:
        self._unsent.clear()
        self._parts.clear()
        self._unsettled.clear()
        self._settled.set()
        for _, answer in self._operations:
            answer.cancel()
        self._operations.clear()

    async def close(self, timeout: float) -> None:
        """Sends the remaining outcomes, and deregisters. Jobs that are still claimed return to their queue."""
        try:
            await asyncio.wait_for(self._settled.wait(), timeout)
        except asyncio.TimeoutError:
            log.error("worker %s: %d outcomes were not confirmed in time", self.id, self.unsettled)
        self._closed = True
        self._discard()
        for task in list(self._in_flight):
            task.cancel()
        self._heartbeats.cancel()
        if not self.is_lost:
            await self._deregister()
        self._pool.close()

    async def _deregister(self) -> None:
        backoff = api.Backoff()
        for _ in range(DEREGISTER_ATTEMPTS):
            try:
                await self._client.once(api.Call("DELETE", api.path("workers", self.id)), timeout=5.0)
                return
            except ApiError as error:
                if error.is_worker_gone or error.is_refusal:
                    return
            except Unreachable:
                pass
            await asyncio.sleep(backoff.next())
        log.warning("worker %s: cannot deregister; its jobs return when the lease expires", self.id)
