"""The context that a handler receives: its job, methods to report progress, and its cancellation."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

from . import client as api
from .codec import encode, reference
from .duration import Duration, seconds
from .errors import ApiError, Fail, Unreachable
from .views import timestamp

if TYPE_CHECKING:
    from .app import Windlass

job_log = logging.getLogger("windlass.job")
log = logging.getLogger("windlass")

#: Minimum interval between two signals of one job, in seconds.
SIGNAL_INTERVAL_S = 0.1
#: How long an outcome waits for the last signal and for the log.
FLUSH_S = 5.0
MAX_LOG_BYTES = 1 << 20
MAX_FACTS = 256
MAX_FACT_BYTES = 16 << 10


class Context:
    """One attempt of a job. All methods may be called from any thread.

    `progress`, `phase`, `summary`, `log` and `fact` return at once. Reports that arrive faster than they can be sent
    are merged, and the latest values win.
    """

    def __init__(self, app: Windlass, claimed: dict[str, Any]):
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._pending: dict[str, Any] = {}
        self._sending: asyncio.Task[None] | None = None
        self._refused = False
        self._lines: list[str] = []
        self._log_bytes = 0
        self._facts: dict[str, Any] = {}
        self._cancelled = False
        self._stopped: threading.Event | None = None
        #: The application.
        self.app = app
        #: The id of the job.
        self.id: str = claimed["id"]
        #: The kind of the job.
        self.kind: str = claimed["kind"]
        #: The queue of the job.
        self.queue: str = claimed["queue"]
        #: The payload as plain JSON.
        self.payload: Any = claimed["payload"]
        #: The number of this attempt, from 1.
        self.attempt: int = claimed["attempt"]
        #: The maximum number of attempts.
        self.max_attempts: int = claimed["max_attempts"]
        #: The fencing token of this attempt.
        self.epoch: int = claimed["epoch"]
        self._claim = {"x-windlass-claim": f"{claimed.get('worker', '')}/{self.id}"}
        #: What the worker must have loaded.
        self.affinity: str | None = claimed["affinity"]
        #: The subject that the job works on.
        self.subject: str | None = claimed["subject"]
        #: The group of jobs that the job belongs to.
        self.run: str | None = claimed["run"]
        #: The results of the nodes of the run that the job needs, by name. A large one is a reference; see `input`.
        self.inputs: dict[str, Any] = claimed.get("inputs") or {}
        #: When the job was enqueued.
        self.created_at: datetime = timestamp(claimed["created_at"])

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt fails the job."""
        return self.attempt >= self.max_attempts

    @property
    def cancelled(self) -> bool:
        """True once the job was canceled, timed out or lost its lease, or the worker must stop.

        A coroutine is cancelled at its `await`. A synchronous handler checks this property and returns.
        """
        return self._cancelled

    def pause(self, duration: Duration) -> bool:
        """Blocks a synchronous handler for a time. Returns True at once when it is cancelled."""
        with self._lock:
            self._stopped = self._stopped or threading.Event()
            if self._cancelled:
                return True
        return self._stopped.wait(seconds(duration))

    def progress(self, progress: float, summary: str | None = None) -> None:
        """Reports the progress, from 0 to 1, and a sentence for people."""
        self._report(progress=min(max(float(progress), 0.0), 1.0))
        if summary is not None:
            self.summary(summary)

    def phase(self, phase: str) -> None:
        """Reports the phase: a built-in one or one that the queue declares."""
        self._report(phase=phase)

    def summary(self, summary: str) -> None:
        """Reports a sentence for people."""
        self._report(summary=summary)

    def eta(self, remaining: Duration) -> None:
        """Reports the remaining time."""
        self._report(eta_s=seconds(remaining))

    def details(self, details: Any) -> None:
        """Reports additional data for user interfaces, any JSON."""
        self._report(payload=encode(details))

    def log(self, text: str) -> None:
        """Writes a line. The lines of an attempt are stored as an artifact; more than 1 MiB drops the first ones."""
        job_log.info("%s", text, extra={"job_id": self.id, "job_kind": self.kind})
        with self._lock:
            self._lines.append(text)
            self._log_bytes += len(text) + 1
            while self._log_bytes > MAX_LOG_BYTES and len(self._lines) > 1:
                half = len(self._lines) // 2
                self._log_bytes -= sum(len(line) + 1 for line in self._lines[:half])
                del self._lines[:half]

    def fact(self, name: str, value: Any) -> None:
        """Sets a fact of the job's subject if the job succeeds. Raises Fail for a fact that can never be set."""
        encoded = encode(value)
        if self.subject is None:
            raise Fail(f"fact {name!r}: the job has no subject", code="invalid_fact")
        if len(api.encode_json(encoded)) > MAX_FACT_BYTES:
            raise Fail(f"fact {name!r} has more than {MAX_FACT_BYTES} bytes of JSON", code="invalid_fact")
        with self._lock:
            self._facts[name] = encoded
            if len(self._facts) > MAX_FACTS:
                raise Fail(f"a job can set at most {MAX_FACTS} facts", code="invalid_fact")

    async def artifact(self, name: str, data: bytes | str, content_type: str | None = None) -> None:
        """Stores a named blob with the job."""
        body = data.encode() if isinstance(data, str) else data
        default = "text/plain; charset=utf-8" if isinstance(data, str) else "application/octet-stream"
        await self.app.client.send(api.put_artifact(self.id, name, body, content_type or default, self.epoch))

    def artifact_sync(self, name: str, data: bytes | str, content_type: str | None = None) -> None:
        """Like `artifact`, for synchronous handlers."""
        self.app.client.run(self.artifact(name, data, content_type))

    async def input(self, node: str) -> Any:
        """Returns the result of a node that the job needs, also a large one."""
        value = self.inputs[node]
        if large := reference(value, "$result"):
            value = (await self._read(large["job_id"]))["result"]
        return value

    async def _read(self, *segments: str) -> Any:
        """Reads a job or an artifact that the claim of this job opens."""
        return await self.app.client.send(api.Call("GET", api.path("jobs", *segments), headers=self._claim))

    # The rest is called by the worker.

    def mark_cancelled(self) -> None:
        """Marks the attempt as cancelled."""
        with self._lock:
            self._cancelled = True
            if self._stopped is not None:
                self._stopped.set()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sends reports from now on."""
        self._loop = loop

    def take_facts(self) -> dict[str, Any]:
        """Returns the facts to send with the outcome."""
        return self._facts

    def _report(self, **changes: Any) -> None:
        with self._lock:
            is_first = not self._pending
            self._pending.update(changes)
        if is_first and self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_sending)

    def _start_sending(self) -> None:
        if self._sending is None and self._pending:
            self._order = asyncio.Lock()
            self._sending = asyncio.get_running_loop().create_task(self._send_reports())

    async def _send_reports(self) -> None:
        backoff = api.Backoff(SIGNAL_INTERVAL_S)
        try:
            while self._pending:
                if await self._send_report():
                    backoff.reset()
                await asyncio.sleep(max(backoff.next(), SIGNAL_INTERVAL_S))
        finally:
            self._sending = None

    async def _send_report(self) -> bool:
        """Sends the pending report. Returns whether the server answered; otherwise the report stays pending."""
        async with self._order:
            with self._lock:
                report, self._pending = self._pending, {}
            if not report:
                return True
            body = api.encode_json({"epoch": self.epoch, **report})
            try:
                await self.app.client.once(api.Call("PUT", api.path("jobs", self.id, "signal"), body))
            except ApiError as error:
                # A lost claim is reported by the cancellation. A handler often repeats a mistake: log it once.
                if error.status not in (404, 409) and not self._refused:
                    self._refused = True
                    log.warning("job %s: a report was rejected: %s", self.id, error)
            except Unreachable as error:
                log.debug("job %s: a report was not sent: %s", self.id, error)
                with self._lock:
                    self._pending = {**report, **self._pending}
                return False
            return True

    async def flush(self) -> None:
        """Sends the last report and the log before the outcome makes them stale."""
        if not self._pending and self._sending is None and not self._lines:
            return
        try:
            await asyncio.wait_for(self._flush(), FLUSH_S)
        except (asyncio.TimeoutError, ApiError, Unreachable) as error:
            log.debug("job %s: the last report or the log was not sent: %s", self.id, error)

    async def _flush(self) -> None:
        if self._pending or self._sending is not None:
            self._start_sending()
            await self._send_report()
        if self._lines:
            text = "\n".join(self._lines) + "\n"
            name = "log" if self.epoch == 1 else f"log-{self.epoch}"
            await self.artifact(name, text.encode(errors="replace"), "text/plain; charset=utf-8")
