"""Tests of code that uses Windlass: a fake client that records and runs jobs, and a throw-away real server.

with fake(wl) as jobs:
    sign_up("ada@example.com")
    jobs.assert_pushed(welcome, user_id=7)
    jobs.drain_sync()
    assert jobs.results(welcome) == ["sent"]
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote
from uuid import uuid4

from ..app import Windlass
from ..client import Call, Client
from ..codec import encode
from ..context import Context
from ..duration import Duration, seconds
from ..errors import ApiError
from ..execute import Executor
from ..job import Job
from ..workflow import Workflow

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Fake", "FakeJob", "Server", "fake"]

T = TypeVar("T")
#: How often a job may run, so that a handler that always snoozes does not run forever.
MAX_RUNS = 1_000
START_S = 60.0


@dataclass
class FakeJob:
    """A job that was pushed to a fake client."""

    id: str
    #: The members of `POST /jobs`.
    request: dict[str, Any]
    state: str = "queued"
    attempt: int = 0
    epoch: int = 0
    result: Any = None
    error: dict[str, Any] | None = None
    #: What the handler reported, in order.
    reports: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    #: The artifacts that the handler stored, by name.
    artifacts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    #: The facts that the handler set.
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    #: The journal of a workflow, by key.
    journal: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    #: The signal events that no wait has got: name and data.
    events: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    #: What a waiting workflow waits for.
    wake: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    created_at: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat()[:26] + "Z")

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.state in ("succeeded", "failed", "canceled")

    def view(self) -> dict[str, Any]:
        """The job as `GET /jobs/{id}` returns it."""
        report = {key: value for part in self.reports for key, value in part.items()}
        unset = dict.fromkeys(("affinity", "subject", "process", "run", "started_at", "finished_at", "payload"))
        return {
            **unset, "priority": 0, "max_attempts": 3, "timeout_s": None, "run_at": self.created_at, **self.request,
            "id": self.id, "state": self.state, "attempt": self.attempt, "epoch": self.epoch, "result": self.result,
            "error": self.error, "created_at": self.created_at,
            "progress": report.get("progress"), "phase": report.get("phase"),
        }  # fmt: skip


class Fake(Client):
    """A client without a server. It records jobs, and runs them when the test drains them or waits for one."""

    def __init__(self, app: Windlass, *, inline: bool = False) -> None:
        super().__init__("http://fake.invalid", "")
        self._app, self._inline = app, inline
        #: The jobs that were pushed, in order.
        self.jobs: list[FakeJob] = []
        #: The events that workflows have published: topic and data.
        self.published: list[tuple[str, Any]] = []
        #: The virtual time. It passes in `drain` and `advance` only.
        self.now = datetime.now(timezone.utc)
        self._answers: dict[str, Any] = {}

    def pushed(self, job: Job[..., Any]) -> list[Any]:
        """Returns the payloads of the jobs of a kind."""
        return [known.request["payload"] for known in self.jobs if known.request["kind"] == job.kind]

    def results(self, job: Job[..., Any]) -> list[Any]:
        """Returns the results of the jobs of a kind that have succeeded."""
        return [j.result for j in self.jobs if j.request["kind"] == job.kind and j.state == "succeeded"]

    def assert_pushed(self, job: Job[..., Any], *payload: Any, **arguments: Any) -> None:
        """Fails unless a job of this kind was pushed with these arguments; others are not compared."""
        if not self._matches(job, payload, arguments):
            shown = [*payload, *(f"{name}={value!r}" for name, value in arguments.items())]
            raise AssertionError(f"{job.kind} was not pushed with {shown}; pushed were {self.pushed(job)}")

    def assert_not_pushed(self, job: Job[..., Any], *payload: Any, **arguments: Any) -> None:
        """Fails if a job of this kind was pushed with these arguments."""
        if found := self._matches(job, payload, arguments):
            raise AssertionError(f"{job.kind} was pushed: {found}")

    def _matches(self, job: Job[..., Any], payload: tuple[Any, ...], arguments: dict[str, Any]) -> list[Any]:
        expected: dict[str, Any] = encode(arguments)
        return [
            given
            for given in self.pushed(job)
            if (not payload or given == encode(payload[0]))
            and all(name in given and given[name] == value for name, value in expected.items())
        ]

    async def drain(self) -> None:
        """Runs the jobs that have not ended, and those that they push. Delays, retries and sleeps do not wait.

        Workflows that wait for events and approvals stay; `advance` lets their timeouts pass.
        """
        while True:
            if job := next((job for job in self.jobs if job.state == "queued"), None):
                await self._run_job(job)
            elif sleeps := [entry["due"] for _, entry in self._open() if entry["op"] == "sleep"]:
                self._pass(min(sleeps))
            else:
                return

    async def advance(self, duration: Duration) -> None:
        """Lets virtual time pass, and runs what becomes due."""
        self._pass(self.now + timedelta(seconds=seconds(duration)))
        await self.drain()

    def drain_sync(self) -> None:
        """Like `drain`, for blocking code. Synchronous handlers run in the calling thread."""
        self.run(self.drain())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the calling thread, so that handlers see its database transaction."""
        with _suspended_loop():
            return asyncio.run(coroutine)

    async def once(self, call: Call, timeout: float | None = None, pool: Any = None) -> Any:  # noqa: ARG002
        """Answers a call as the server would."""
        route, _, query = call.path.partition("?")
        match call.method, route.strip("/").split("/"):
            case "POST", ["jobs"]:
                job = await self._push(json.loads(call.body), call.headers["idempotency-key"])
                return {**job.view(), "state": "queued"}
            case "POST", ["jobs", "batch"]:
                bodies, key = json.loads(call.body)["jobs"], call.headers["idempotency-key"]
                return {"ids": [(await self._push(body, f"{key}/{n}")).id for n, body in enumerate(bodies)]}
            case "GET", ["jobs", job_id]:
                job = self._find(job_id)
                if query and not job.has_ended:
                    await self._run_job(job)
                    await (self.drain() if job.state == "waiting" else asyncio.sleep(0))
                    if job.state == "waiting":
                        raise RuntimeError(f"the workflow {job.request['kind']} waits for {job.wake}; see Fake.advance")
                return job.view()
            case "POST", ["jobs", job_id, "events", name]:
                self._send_event(self._find(job_id), unquote(name), json.loads(call.body))
            case "POST", ["jobs", job_id, "approvals", key]:
                answer = json.loads(call.body)
                approval = {
                    "approved": answer["approve"], "by": "test", "at": self.now.isoformat(), "note": answer["note"],
                }  # fmt: skip
                job = self._find(job_id)
                self._resolve(job, job.journal[unquote(key)], result=approval)
            case "GET", ["jobs", job_id, "artifacts", name]:
                return json.loads(self._find(job_id).artifacts[name])
            case "POST", ["jobs", job_id, "cancel"]:
                job = self._find(job_id)
                if call.body and job.journal and not job.has_ended:
                    job.journal["$cancel"] = {"key": "$cancel", "op": "event", "status": "resolved", "seq": 0}
                job.state = job.state if job.has_ended else "queued" if "$cancel" in job.journal else "canceled"
                return {"id": job_id, "state": job.state}
            case "GET", ["jobs", job_id, "signal"]:
                view = self._find(job_id).view()
                members = {"kind": view["state"], "phase": view["phase"] or "unknown", "progress": view["progress"]}
                return {**members, "summary": "", "eta_seconds": None}
            case "PUT", ["jobs", job_id, "signal"]:
                self._find(job_id).reports.append(json.loads(call.body))
            case "PUT", ["jobs", job_id, "artifacts", name]:
                self._find(job_id).artifacts[name] = call.body
            case _:
                raise NotImplementedError(f"the fake client has no answer to {call.method} {call.path}")
        return None

    def _find(self, job_id: str) -> FakeJob:
        for job in self.jobs:
            if job.id == job_id:
                return job
        raise ApiError(404, "not_found", "there is no such job")

    async def _push(self, body: dict[str, Any], key: str) -> FakeJob:
        if key in self._answers:
            return cast("FakeJob", self._answers[key])
        unique = body.get("unique_key") or (body.get("unique_by") and [body["kind"], body["payload"]])
        for job in self.jobs:
            is_same = (job.request["queue"], job.request["unique"]) == (body["queue"], unique)
            if unique and not job.has_ended and is_same:
                return job
        job = self._answers[key] = FakeJob(str(uuid4()), {**body, "unique": unique})
        self.jobs.append(job)
        if self._inline:
            await self._run_job(job)
        return job

    async def _run_job(self, job: FakeJob) -> None:
        handler = self._app.find(job.request["kind"])
        is_workflow = handler is not None and handler.is_workflow
        # A synchronous workflow waits for the event loop, so it has a thread of its own.
        executor = Executor(self._app, asyncio.to_thread if is_workflow else _call_in_place)
        try:
            while job.state == "queued":
                if job.epoch >= MAX_RUNS:
                    raise RuntimeError(f"job {job.request['kind']} has run {MAX_RUNS} times and has not ended")
                job.state, job.attempt, job.epoch = "working", job.attempt + 1, job.epoch + 1
                claimed = {**job.view(), "journal": {"entries": list(job.journal.values()), "next_cursor": None}}
                ctx = Workflow(self._app, claimed, self._record) if is_workflow else Context(self._app, claimed)
                if isinstance(ctx, Workflow):
                    ctx.in_place_s, ctx.run_blocking = 0.0, _call_in_place
                ctx.start(asyncio.get_running_loop())
                outcome = await executor.execute(ctx)
                await ctx.flush()
                self._settle(job, json.loads(outcome.body))
        finally:
            await executor.close()

    def _settle(self, job: FakeJob, outcome: dict[str, Any]) -> None:
        if job.state != "working":
            return  # Canceled meanwhile.
        match outcome["outcome"]:
            case "finish":
                job.state, job.result, job.facts = "succeeded", outcome.get("result"), outcome.get("facts", {})
            case "fail":
                job.error = outcome["error"]
                is_last = job.attempt >= job.view()["max_attempts"]
                job.state = "failed" if is_last or not outcome["error"]["retryable"] else "queued"
            case "cancel":
                job.state = "canceled"
            case "suspend":
                job.state, job.attempt, job.wake = "waiting", job.attempt - 1, outcome["wake"]
                self._wake(job)
            case "continue_as":
                successor = FakeJob(str(uuid4()), {**job.request, "payload": outcome["payload"]})
                self.jobs.append(successor)
                job.state, job.result = "succeeded", {"continued_as": successor.id}
            case _:
                job.state, job.attempt = "queued", job.attempt - 1
        for parent, entry in self._open():
            self._resolve_children(parent, entry)

    def _resolve_children(self, parent: FakeJob, entry: dict[str, Any]) -> None:
        children = [self._find(child) for child in entry.get("children", ())]
        if children and all(child.has_ended for child in children):
            self._resolve(parent, entry, result=[{**child.view(), "job_id": child.id} for child in children])

    def _open(self) -> list[tuple[FakeJob, dict[str, Any]]]:
        live = [job for job in self.jobs if not job.has_ended]
        return [(job, entry) for job in live for entry in job.journal.values() if entry["status"] == "open"]

    def _pass(self, until: datetime) -> None:
        self.now = max(self.now, until)
        due = [(entry["due"], job, entry) for job, entry in self._open() if "due" in entry and entry["due"] <= until]
        for _, job, entry in sorted(due, key=lambda part: part[0]):
            timeout = {"code": "timeout", "message": f"no {entry['op']} arrived in time"}
            self._resolve(job, entry, **({"result": None} if entry["op"] == "sleep" else {"error": timeout}))

    def _send_event(self, job: FakeJob, name: str, data: Any) -> None:
        entries = [entry for entry in job.journal.values() if entry["status"] == "open"]
        if waits := [entry for entry in entries if _matches(entry.get("event"), name, data)]:
            self._resolve(job, waits[0], result=data)
        else:
            job.events.append((name, data))

    def _resolve(self, job: FakeJob, entry: dict[str, Any], **outcome: Any) -> None:
        seq = 1 + sum(entry["status"] == "resolved" for entry in job.journal.values())
        entry.update(status="resolved", seq=seq, **outcome)
        self._wake(job)

    def _wake(self, job: FakeJob) -> None:
        ((condition, keys),) = job.wake.items() or [("all", list[str]())]
        resolved = [job.journal[key]["status"] == "resolved" for key in keys]
        if job.state == "waiting" and (any(resolved) if condition == "any" else all(resolved)):
            job.state = "queued"

    async def _record(self, ctx: Workflow, operation: dict[str, Any]) -> dict[str, Any]:
        """Records an operation as the server would."""
        job, key, op = self._find(ctx.id), operation["key"], operation["op"]
        new = {"key": key, "op": op, "status": "open", "attempt": 0, "hash": operation["hash"]}
        entry = job.journal.setdefault(key, new)
        if (entry["op"], entry["hash"]) != (op, operation["hash"]) and (ctx.strict or entry["op"] != op):
            raise ApiError(409, "workflow_drift", f"{key}: the step was recorded with another input or operation")
        if entry["status"] == "resolved" or (entry is not new and op != "step"):
            return {**entry, "existing": entry["status"] == "resolved"}
        if "for_s" in operation or "timeout_s" in operation:
            entry["due"] = self.now + timedelta(seconds=operation.get("for_s") or operation.get("timeout_s", 0))
        match op:
            case "step":
                entry["attempt"] = operation["attempt"]
                if not operation.get("error", {}).get("retryable"):
                    self._resolve(job, entry, **{k: operation[k] for k in ("result", "error") if k in operation})
            case "publish":
                self.published.append((operation["topic"], operation["data"]))
                self._resolve(job, entry, result="")
            case "sleep":
                entry["due"] = entry.get("due") or datetime.fromisoformat(operation["until"])
            case "event":
                entry["event"] = operation
                kept = next((event for event in job.events if _matches(operation, *event)), None)
                if kept and operation["since"] == "start":
                    job.events.remove(kept)
                    self._resolve(job, entry, result=kept[1])
            case "child":
                entry["children"] = [(await self._push(body, str(uuid4()))).id for body in operation["jobs"]]
                self._resolve_children(job, entry)  # With `inline`, they have ended.
            case _:
                pass
        return entry


def _matches(operation: Mapping[str, Any] | None, name: str, data: Any) -> bool:
    if operation is None or operation["name"] != name:
        return False
    members = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    return all(key in members and members[key] == value for key, value in operation["match"].items())


@contextmanager
def fake(app: Windlass, *, inline: bool = False) -> Generator[Fake]:
    """Replaces the client of an application by a fake. With `inline`, each push runs its job before it returns."""
    original, replaced = app.client, Fake(app, inline=inline)
    app.client = replaced
    try:
        yield replaced
    finally:
        app.client = original


async def _call_in_place(fn: Callable[[], Any]) -> Any:
    with _suspended_loop():
        return fn()


@contextmanager
def _suspended_loop() -> Generator[None]:
    """Lets blocking code run in the thread of an event loop as if there was none: it may start its own."""
    loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
    task = asyncio.current_task() if loop else None
    if task:
        asyncio.tasks._leave_task(loop, task)  # type: ignore[arg-type] # pyright: ignore
    asyncio._set_running_loop(None)  # pyright: ignore[reportPrivateUsage]
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)  # pyright: ignore[reportPrivateUsage]
        if task:
            asyncio.tasks._enter_task(loop, task)  # type: ignore[arg-type] # pyright: ignore


class Server:
    """A throw-away server on a temporary SQLite database: `with Server() as server: Windlass(server.url)`.

    The binary is `WINDLASS_BIN` [default: `windlass` on the PATH]. `arguments` are passed on to `windlass serve`.
    """

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        #: The address of the server.
        self.url = ""
        #: The address of its database.
        self.database = ""

    def start(self) -> None:
        """Starts the server. Returns when it accepts requests."""
        binary = os.environ.get("WINDLASS_BIN") or shutil.which("windlass")
        if not binary:
            raise FileNotFoundError("set WINDLASS_BIN to the path of the program windlass, or add it to the PATH")
        self._folder = tempfile.TemporaryDirectory(prefix="windlass-")
        folder, log = Path(self._folder.name), Path(self._folder.name, "server.log")
        self.database = f"sqlite:{folder / 'windlass.db'}"
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder), "--database", self.database]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        with log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603
                [*command, *self._arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )
        deadline = time.monotonic() + START_S
        while not (found := re.search(r"serves on (http\S+)", log.read_text(errors="replace"))):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server did not start: {' '.join(command)}")
            time.sleep(0.02)
        self.url = found[1]

    def stop(self) -> None:
        """Kills the server and removes its database."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._folder.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
