"""A registration of a worker: its heartbeats, and the outcomes that the server has not confirmed. Used by `worker`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from . import client as api
from ._http import Pool, background_loop
from .context import Context
from .errors import ApiError, Fail, Unreachable, error_json
from .execute import Outcome

if TYPE_CHECKING:
    from .workflow import Workflow

log = logging.getLogger("windlass")

#: Limits of one request, within those of the server.
MAX_OUTCOMES, MAX_OPERATIONS = 4_000, 1_000
MAX_BATCH_BYTES = 8 << 20
#: A second settle request is sent while one is in flight if at least this many outcomes wait.
LARGE_SETTLE = 500
#: Pause after a heartbeat that returned early. The server repeats a cancellation until it has the outcome.
REPEAT_PAUSE_S = 0.25
DEREGISTER_ATTEMPTS = 3


@dataclass(eq=False)
class Attempt:
    """A claimed attempt of a job."""

    session: Session
    ctx: Context
    claimed_at: float
    task: asyncio.Task[None] | None = None
    #: The handler is a coroutine, which is cancelled through its task.
    is_async: bool = False
    #: The server has taken the job from this worker: it was canceled, or timed out.
    canceled: bool = False
    #: The outcome is decided; a cancellation of the task would lose it.
    has_outcome: bool = False

    def cancel(self) -> None:
        """Cancels the handler."""
        self.ctx.mark_cancelled()
        if self.task is not None and self.is_async and not self.has_outcome:
            self.task.cancel()


@dataclass(frozen=True)
class _Write:
    """An operation of a journal that is not recorded: the write as JSON, and the future of its answer."""

    body: bytes
    answer: asyncio.Future[dict[str, Any]]


I = TypeVar("I", Outcome, _Write)  # noqa: E741


class _Batches(Generic[I]):
    """Sends items in shared requests until each is answered. Items that become known meanwhile share the next one."""

    def __init__(
        self, session: Session, route: str, member: str, maximum: int, large: int, refusals: tuple[int, ...],
        on_result: Callable[[I, Any], None], on_refused: Callable[[I, ApiError], None],
    ):  # fmt: skip
        self._session, self._route, self._member, self._refusals = session, route, member.encode(), refusals
        self._maximum, self._large = maximum, large
        self._on_result: Callable[[I, Any], None] = on_result
        self._on_refused: Callable[[I, ApiError], None] = on_refused
        self.unsent: deque[I] = deque()
        # Parts of batches that were rejected or not answered, to be sent separately.
        self.parts: deque[list[I]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._backoff = api.Backoff()
        #: Set while every item is answered.
        self.done = asyncio.Event()
        self.done.set()

    def add(self, item: I) -> None:
        self.unsent.append(item)
        self.done.clear()
        # The request starts in the next turn of the loop, with what becomes known until then. A second one is sent
        # while one is in flight if enough items wait.
        if not self._in_flight or (len(self._in_flight) == 1 and len(self.unsent) >= self._large and not self.parts):
            self._send()

    def clear(self) -> None:
        self.unsent.clear()
        self.parts.clear()
        self.done.set()

    def cancel(self) -> None:
        for task in list(self._in_flight):
            task.cancel()

    def _send(self) -> None:
        task = asyncio.get_running_loop().create_task(self._request())
        self._in_flight.add(task)
        task.add_done_callback(self._on_sent)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request failed", exc_info=error)
        if self._session.is_lost or self._session.is_closed:
            self.done.set()
        elif not self._in_flight and (self.parts or self.unsent):
            self._send()
        elif not self._in_flight:
            self.done.set()

    async def _request(self) -> None:
        batch, session = self._next(), self._session
        if not batch:
            return
        try:
            body = b'{"' + self._member + b'":[' + b",".join(item.body for item in batch) + b"]}"
            view = await session.once(api.Call("POST", api.path("workers", session.id, self._route), body))
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and error.is_worker_gone:
                session.lose()
            elif isinstance(error, ApiError) and error.is_refusal and error.status in self._refusals:
                # A rejected batch is halved until the invalid item is alone.
                if len(batch) == 1:
                    self._on_refused(batch[0], error)
                else:
                    self._halve(batch)
            else:
                if isinstance(error, ApiError) and error.is_refusal:
                    session.on_rejected(error)
                # In two halves: a nearly full disk may accept a small commit only.
                wait = self._backoff.next()
                message = "worker %s: %s of %d items failed, again in %.1f s: %s"
                log.warning(message, session.id, self._route, len(batch), wait, error)
                self._halve(batch)
                await asyncio.sleep(wait)
        else:
            self._backoff.reset()
            for item, result in zip(batch, view["results"], strict=True):
                self._on_result(item, result)

    def _next(self) -> list[I]:
        if self.parts:
            return self.parts.popleft()
        batch: list[I] = []
        size = 0
        while self.unsent and len(batch) < self._maximum:
            size += len(self.unsent[0].body) + 1
            if batch and size > MAX_BATCH_BYTES:
                break
            batch.append(self.unsent.popleft())
        return batch

    def _halve(self, batch: list[I]) -> None:
        half = (len(batch) + 1) // 2
        self.parts.extendleft(part for part in (batch[half:], batch[:half]) if part)


class Session:
    """One registration. It ends when the worker stops, when its lease is lost, or when a claim got no answer."""

    def __init__(
        self, client: api.Client, registered: dict[str, Any], on_drain: Callable[[], None], on_rejected:
        Callable[[ApiError], None], on_settled: Callable[[str, bool], None],
    ):  # fmt: skip
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
        self._on_drain, self.on_rejected, self._on_settled = on_drain, on_rejected, on_settled
        # The jobs of unsettled outcomes.
        self._unsettled: Counter[str] = Counter()
        # Jobs that the server has canceled. The value is the number of the last heartbeat that was sent before the
        # server confirmed our outcome: it may still name the job, which may be claimed again by now.
        self._canceled: dict[str, int | None] = {}
        self._outcomes = _Batches[Outcome](
            self, "settle", "outcomes", MAX_OUTCOMES, LARGE_SETTLE, (400, 413, 422), self._on_result, self._on_refused
        )
        self._operations = _Batches[_Write](
            self, "journal", "writes", MAX_OPERATIONS, 1, (400, 403, 409, 413, 422), self._on_recorded,
            self._on_unrecorded,
        )  # fmt: skip
        # The answers to operations that are not recorded.
        self._pending = set[asyncio.Future[dict[str, Any]]]()
        #: Sends nothing more.
        self.is_closed = False
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
        return [{**job, "worker": self.id} for job in (await self.once(call))["jobs"]]

    async def once(self, call: api.Call) -> Any:
        """Executes a call a single time, over the connections of this session."""
        return await self._client.once(call, pool=self._pool)

    # ---- outcomes

    def settle(self, outcome: Outcome) -> None:
        """Sends an outcome until the server has answered. Outcomes that become known meanwhile share a request."""
        if self.is_lost or self.is_closed:
            return
        self._unsettled[outcome.job] += 1
        self._outcomes.add(outcome)

    def _on_refused(self, outcome: Outcome, error: ApiError) -> None:
        """Fails the attempt of an outcome that the server rejects."""
        if outcome.kind == "refused":
            log.error("job %s: the outcome was rejected and is lost: %s", outcome.job, error)
            self._forget(outcome)
            return
        log.warning("job %s: the outcome was rejected, its attempt fails: %s", outcome.job, error)
        failure = Fail(f"The worker's outcome was rejected: {error}", code="outcome_refused")
        message = error_json(failure, retryable=False)
        body = {"job_id": outcome.job, "epoch": outcome.epoch, "outcome": "fail", "error": message}
        self._outcomes.parts.appendleft([Outcome(outcome.job, outcome.epoch, "refused", api.encode_json(body))])

    def _on_result(self, outcome: Outcome, result: dict[str, str]) -> None:
        status = result["status"]
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
        write = _Write(api.encode_json(body), self._loop.create_future())
        if self.is_lost or self.is_closed:
            write.answer.cancel()
        else:
            self._pending.add(write.answer)
            write.answer.add_done_callback(self._pending.discard)
            self._operations.add(write)
        result = await write.answer
        if result["status"] != "applied":
            ctx.mark_cancelled()  # Another attempt owns the job.
            raise asyncio.CancelledError
        return cast("dict[str, Any]", result["entries"][0])

    def _on_recorded(self, write: _Write, result: dict[str, Any]) -> None:
        if not write.answer.done():  # Otherwise the attempt was cancelled meanwhile.
            write.answer.set_result(result)

    def _on_unrecorded(self, write: _Write, error: ApiError) -> None:
        if not write.answer.done():
            write.answer.set_exception(error)

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
                self._loop.call_soon_threadsafe(self.on_rejected, error)
            log.warning("worker %s: a heartbeat failed: %s", self.id, error)
            return backoff.next()
        backoff.reset()
        self._loop.call_soon_threadsafe(self._on_heartbeat, number, view)
        return REPEAT_PAUSE_S if time.monotonic() - sent_at < self.heartbeat_s / 2 else -1.0

    # ---- the end

    def lose(self) -> None:
        """Gives up all jobs, because the lease has expired."""
        if self.is_lost or self.is_closed:
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
        self._outcomes.clear()
        self._operations.clear()
        self._unsettled.clear()
        for answer in list(self._pending):
            answer.cancel()

    async def close(self, timeout: float) -> None:
        """Sends the remaining outcomes, and deregisters. Jobs that are still claimed return to their queue."""
        try:
            await asyncio.wait_for(self._outcomes.done.wait(), timeout)
        except asyncio.TimeoutError:
            log.error("worker %s: %d outcomes were not confirmed in time", self.id, self.unsettled)
        self.is_closed = True
        self._discard()
        self._outcomes.cancel()
        self._operations.cancel()
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
