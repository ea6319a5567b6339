"""Workflows: handlers that record their steps in the journal of their job, so that a repeated run continues there.

A step that the journal has returns its recorded result. When every branch of a workflow waits for the journal, the
attempt ends with the outcome `suspend`: no worker holds the job until it has to continue. Used by `execute`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, TypedDict, TypeVar, cast, overload
from urllib.parse import quote

from . import client as api
from .codec import Decoder, decoder, encode, reference
from .context import Context
from .duration import Duration, seconds

# isort: off
from .errors import (
    Aborted, ApiError, Cancel, ContinueAs, Fail, HandlerExit, Retry, Snooze, StepFailed, Suspended, Unreachable,
    WaitTimeout, error_json,
)  # fmt: skip

# isort: on
from .job import Job, JobRequest, result_decoder
from .views import timestamp

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    from .app import Windlass

    Ts = TypeVarTuple("Ts")

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
#: An entry of a journal.
Entry = dict[str, Any]
#: Reads the result of an operation from its entry, or raises its error.
Reader = Callable[[Entry], R]
#: The function of a step or of its undo step.
Function = Callable[..., Any]
Args = tuple[Any, ...]
#: Records an operation of a workflow and returns its entry.
Recorder = Callable[["Workflow", Entry], Awaitable[Entry]]

MAX_RESULT_BYTES = 1 << 20
MAX_WAKE_KEYS = 1_000
#: The delay up to which a step is repeated without suspending the workflow, in seconds.
IN_PLACE_S = 5.0
PAGE_ENTRIES = 500


class _Scope:
    """Counts the names of one scope, to make keys of them."""

    def __init__(self, prefix: str = ""):
        self._prefix, self._names = prefix, Counter[str]()

    def key(self, name: str) -> str:
        if not name or set(name) & {"#", "/"}:
            raise ValueError(f"{name!r} cannot be a name in the journal: it must not be empty or contain # or /")
        self._names[name] += 1
        number = self._names[name]
        return self._prefix + (name if number == 1 else f"{name}#{number}")


_scope: ContextVar[_Scope] = ContextVar("windlass_scope")


@dataclass(frozen=True)
class Approval:
    """The answer to an approval."""

    #: None if no answer came in time.
    approved: bool | None
    #: Who answered.
    by: str | None = None
    #: When.
    at: datetime | None = None
    #: The note of the answer.
    note: str | None = None


class EventOptions(TypedDict, total=False):
    """Options of `Workflow.wait_for_event`. All are optional."""

    #: Members of the data that must have these values.
    match: Mapping[str, Any]
    #: How long to wait [default: without a limit].
    timeout: Duration
    #: With `now`, events that were sent before do not count [default: start].
    since: Literal["start", "now"]


class Operation(Generic[R]):
    """Something that a workflow waits for: `await` it, or pass it to `Workflow.gather` or `Workflow.first`."""

    def __init__(self, workflow: Workflow, key: str, op: str, digested: Any, members: Entry, read: Reader[R]):
        self._workflow, self._op, self._digested, self._members, self._read = workflow, op, digested, members, read
        #: The key in the journal.
        self.key = key
        #: The entry in the journal, once it is recorded.
        self.entry: Entry = {}

    def __await__(self) -> Generator[Any, Any, R]:
        yield from self._workflow.suspend_for([self]).__await__()
        return self.result()

    async def start(self) -> None:
        """Records the operation, unless the journal has it."""
        self.entry = await self._workflow.record(self._op, self.key, self._digested, self._members)

    def result(self) -> R:
        """Returns the result of the resolved operation, or raises its error."""
        return self._read(self.entry)


class Child(Generic[R]):
    """A child job. It starts when it is awaited; the children of one `Workflow.gather` start together."""

    def __init__(self, workflow: Workflow, request: JobRequest[R]):
        self._workflow = workflow
        #: The request that starts the job.
        self.request = request

    def __await__(self) -> Generator[Any, Any, R]:
        operation = self._workflow.children(self.request.kind, [self])
        yield from operation.__await__()
        return self.read(operation.result()[0])

    def read(self, outcome: Entry) -> R:
        """Returns the result of the job, or raises StepFailed."""
        if outcome["state"] != "succeeded":
            error = outcome.get("error") or {"code": "canceled", "message": "the job was canceled"}
            raise StepFailed(self.request.kind, error, outcome["job_id"])
        decode, value = self.request.decode, outcome.get("result")
        return cast("R", value if decode is None else decode(value, self.request.kind))


class Workflow(Context):
    """The context of a workflow. Each operation is recorded in the journal of the job.

    An operation has a key: its name, with `#2` for the second one of that name. Every run of the workflow must create
    the operations in the same order, so only steps may read clocks, random numbers and the network. `gather` makes
    parallel branches. A synchronous workflow passes each operation to `wait`.
    """

    def __init__(self, app: Windlass, claimed: dict[str, Any], recorder: Recorder):
        super().__init__(app, claimed)
        self._recorder = recorder
        self._page: dict[str, Any] = claimed.get("journal") or {"entries": [], "next_cursor": None}
        self._entries: dict[str, Entry] = {}
        self._undo: list[tuple[int, str, Function, Any]] = []
        # Branches that do not wait for the journal, and steps that are executed.
        self._active = 1
        self._branches = set[Any]()
        self._gathers: list[tuple[list[asyncio.Task[Any]], Any]] = []
        self._blocked: dict[asyncio.Future[None], tuple[str, list[str]]] = {}
        # The job was canceled, and this run undoes its steps.
        self._is_compensating = False
        #: What the suspended workflow waits for.
        self.wake: dict[str, list[str]] | None = None
        #: The delay up to which a step is repeated without suspending the workflow, in seconds.
        self.in_place_s = IN_PLACE_S
        #: Runs the function of a step in a thread.
        self.run_blocking: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread

    # ---- operations

    @overload
    def step(
        self, fn: Callable[[Unpack[Ts]], Coroutine[Any, Any, R]], /, *args: Unpack[Ts], name: str | None = None,
        undo: Callable[[R], Any] | None = None, retry: Retry | None = None,
    ) -> Coroutine[Any, Any, R]: ...  # fmt: skip
    @overload
    def step(
        self, fn: Callable[[Unpack[Ts]], R], /, *args: Unpack[Ts], name: str | None = None,
        undo: Callable[[R], Any] | None = None, retry: Retry | None = None,
    ) -> Coroutine[Any, Any, R]: ...  # fmt: skip
    def step(  # type: ignore[misc]
        self, fn: Callable[..., Any], /, *args: Any, name: str | None = None, undo: Callable[[Any], Any] | None = None,
        retry: Retry | None = None,
    ) -> Coroutine[Any, Any, Any]:  # fmt: skip
        """Runs a function and records its result: a coroutine function, or a function that runs in a thread.

        `name` is that of the function by default. After an exception, the job is retried and repeats the step, or
        `retry` repeats it without ending the attempt. After the last attempt, and after `Fail`, StepFailed is raised.
        `undo` receives the result if the workflow fails: undo steps run in reverse order.
        """
        target = getattr(fn, "func", fn)
        key = self._key(name or getattr(target, "kind", getattr(target, "__name__", "step")).strip("<>"))
        return self._step(key, fn, args, undo, retry)

    def sleep(self, duration: Duration | datetime, *, name: str = "sleep") -> Operation[None]:
        """Waits for a time, or until a time with a time zone."""
        key = self._key(name)
        members: Entry = (
            {"until": duration.isoformat()} if isinstance(duration, datetime) else {"for_s": seconds(duration)}
        )
        return Operation(self, key, "sleep", members.get("for_s"), members, _value(key, None))

    @overload
    def wait_for_event(self, name: str, data: type[R], **options: Unpack[EventOptions]) -> Operation[R]: ...
    @overload
    def wait_for_event(self, name: str, data: None = None, **options: Unpack[EventOptions]) -> Operation[Any]: ...
    def wait_for_event(self, name: str, data: Any = None, **options: Unpack[EventOptions]) -> Operation[Any]:
        """Waits for a signal event and returns its data, converted to the type `data`. `Handle.send_event` sends one.

        Raises WaitTimeout after `timeout`.
        """
        key, expected = self._key(name), encode(options.get("match", {}))
        members = {"name": name, "match": expected, "since": options.get("since", "start")}
        members |= _timeout(options.get("timeout"))
        read = _value(key, decoder(data or Any), WaitTimeout)
        return Operation(self, key, "event", [name, expected], members, read)

    def approval(
        self, name: str, title: str | None = None, *, detail: str | None = None, right: str | None = None,
        timeout: Duration | None = None,
    ) -> Operation[Approval]:  # fmt: skip
        """Waits until a person approves or rejects, on the dashboard or with `Handle.approve`.

        `title` is `name` by default. `right` is what the person needs [default: operate].
        """
        given = {"title": title or name, "detail": detail, "right": right}
        members = {member: value for member, value in given.items() if value is not None}
        return Operation(self, self._key(name), "approval", members, {**members, **_timeout(timeout)}, _approval)

    @overload
    def spawn(self, job: Job[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...
    @overload
    def spawn(self, job: JobRequest[R], /) -> Child[R]: ...
    def spawn(self, job: Any, /, *args: Any, **kwargs: Any) -> Child[Any]:
        """Returns a child job with its arguments. `spawn(render.options(priority=1), page)` sets options.

        `await` starts it and returns its result. `gather` starts any number of children with one operation. A child
        that fails raises StepFailed.
        """
        request: JobRequest[Any] = job.request(*args, **kwargs) if hasattr(job, "request") else job
        return Child(self, request)

    async def publish(self, topic: str, data: Any, *, name: str = "publish") -> None:
        """Publishes an event on a topic, once."""
        value = encode(data)
        await self.record("publish", self._key(name), [topic, value], {"topic": topic, "data": value})

    def continue_as(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Ends the job, and continues as a new one with these arguments and an empty journal."""
        job = cast("Job[..., Any]", self.app.find(self.kind))
        raise ContinueAs(job.signature.bind(args, kwargs)[0])

    @contextmanager
    def scope(self, name: str) -> Generator[None]:
        """Gives operations a scope of their own: the key of `charge` in the scope `item` is `item/charge`."""
        token = _scope.set(_Scope(self._key(name) + "/"))
        try:
            yield
        finally:
            _scope.reset(token)

    @overload
    async def gather(self, a: Awaitable[A], b: Awaitable[B], /, *, name: str | None = None) -> tuple[A, B]: ...
    @overload
    async def gather(self, *items: Awaitable[R], name: str | None = None) -> tuple[R, ...]: ...
    @overload
    async def gather(self, items: Iterable[Awaitable[R]], /, *, name: str | None = None) -> list[R]: ...
    @overload
    async def gather(
        self, items: Iterable[Awaitable[R]], /, *, name: str | None = None, return_exceptions: Literal[True]
    ) -> list[R | Exception]: ...
    async def gather(self, *items: Any, name: str | None = None, return_exceptions: bool = False) -> Any:
        """Runs branches in parallel, given one by one or as an iterable, and returns their results in order.

        Each coroutine has a scope of its own. When a branch fails, the others continue until they end or wait; then the
        error is raised. With `return_exceptions`, errors take the places of results.
        """
        self._check_branch()
        is_iterable = len(items) == 1 and not isinstance(items[0], Awaitable)
        items = tuple(cast("Iterable[Any]", items[0])) if is_iterable else items
        children: list[Child[Any]] = [item for item in items if isinstance(item, Child)]
        base = self._key(name or (children[0].request.kind if children else "gather"))
        waits: list[Operation[Any]] = [item for item in items if isinstance(item, Operation)]
        outcomes: Operation[list[Entry]] | None = None
        if children:
            waits.append(outcomes := self.children(base, children, is_key=True))
        branches: list[Coroutine[Any, Any, Any]] = [self.suspend_for(waits)] if waits else []
        for number, item in enumerate(items):
            if not isinstance(item, (Child, Operation)):
                branches.append(_branch(_Scope(f"{base}/{number}/"), item))
        tolerated: Any = Exception if return_exceptions else ()
        tasks = await self._run_branches(branches, tolerated)
        ended = iter(tasks[1:] if waits else tasks)
        of_child = iter(outcomes.result() if outcomes else ())
        results: list[Any] = []
        for item in items:
            try:
                if isinstance(item, Child):
                    results.append(item.read(next(of_child)))
                else:
                    results.append(item.result() if isinstance(item, Operation) else next(ended).result())
            except tolerated as error:
                results.append(error)
        return results if is_iterable else tuple(results)

    async def first(self, *operations: Operation[Any]) -> tuple[int, Any]:
        """Waits until one of the operations is resolved, and returns its position and its result.

        The journal records which one was first, so that every run takes the same way.
        """
        await self.suspend_for(operations, enough=1)
        number = min(range(len(operations)), key=lambda number: operations[number].entry.get("seq") or float("inf"))
        return number, operations[number].result()

    def wait(self, operation: Awaitable[R]) -> R:
        """Awaits an operation in a synchronous workflow: `ctx.wait(ctx.sleep("1h"))`."""

        async def run() -> R:
            self._branches.add(asyncio.current_task())
            return await operation

        try:
            return asyncio.run_coroutine_threadsafe(run(), cast("asyncio.AbstractEventLoop", self._loop)).result()
        except CancelledError:
            raise asyncio.CancelledError from None

    # ---- the rest is called by operations and by the worker

    @asynccontextmanager
    async def opened(self, *, strict: bool) -> AsyncGenerator[None]:
        """Reads the journal, and runs the undo steps when the workflow fails. `strict` refuses drift."""
        self.strict = strict
        page, entries = self._page, list[Entry](self._page["entries"])
        try:
            while cursor := page["next_cursor"]:
                query = f"/journal?limit={PAGE_ENTRIES}&cursor={quote(cursor, safe='')}"
                page = await self.app.client.send(api.Call("GET", api.path("jobs", self.id) + query))
                entries.extend(page["items"])
        except Unreachable as error:
            raise Snooze(1) from error
        self._entries = {entry["key"]: entry for entry in entries}
        token = _scope.set(_Scope())
        self._branches.add(asyncio.current_task())
        self._is_compensating = "$cancel" in self._entries  # Recorded by the server.
        try:
            yield
            self._check_canceled()
        except (Exception, Aborted) as error:
            may_retry = isinstance(error, Retry) or not isinstance(error, (HandlerExit, Aborted))
            has_failed = isinstance(error, Fail) or (may_retry and self.is_last_attempt)
            if not self.cancelled and (has_failed or isinstance(error.__cause__, Cancel)):
                self._is_compensating = False
                await self._run_undo()
            raise
        finally:
            _scope.reset(token)

    def children(self, name: str, children: list[Child[Any]], *, is_key: bool = False) -> Operation[list[Entry]]:
        """Returns the operation that starts the children and waits for all of them."""
        key = name if is_key else self._key(name)
        jobs = [child.request.to_json() for child in children]
        digested = [[job["kind"], job["payload"]] for job in jobs]
        return Operation(self, key, "child", digested, {"jobs": jobs}, _value(key, None))

    async def record(self, op: str, key: str, digested: Any, members: Entry) -> Entry:
        """Returns the entry of an operation, and records it unless the journal has it."""
        if self.wake is not None:
            raise Suspended
        try:
            text = api.encode_json([op, key, encode(digested)])
        except (TypeError, ValueError):
            text = api.encode_json([op, key])
        digest = sha256(text).hexdigest()[:32]
        entry = self._entries.get(key)
        is_met = entry is not None and (entry["op"], entry.get("hash", digest)) == (op, digest)
        if entry is not None and is_met and (op != "step" or entry["status"] == "resolved"):
            return entry
        self._check_canceled()
        operation = {"op": op, "key": key, "hash": digest, **members}
        try:
            entry = await self._recorder(self, operation)
        except ApiError as error:
            if error.code == "workflow_drift":
                raise Aborted from Retry(error.detail, code=error.code)
            if error.status == 403:  # The rights of the worker can be changed.
                raise
            raise Fail(error.detail, code=error.code) from error
        if not entry.get("existing"):
            entry = {**{name: members[name] for name in ("result", "error") if name in members}, **entry}
        self._entries[key] = entry
        return entry

    async def suspend_for(self, operations: Iterable[Operation[Any]], enough: int | None = None) -> None:
        """Returns when all of the operations are resolved, or `enough` of them."""
        operations = list(operations)
        self._check_branch()
        await asyncio.gather(*(operation.start() for operation in operations))
        keys = [operation.key for operation in operations if operation.entry["status"] != "resolved"]
        if keys and len(operations) - len(keys) < (enough or len(operations)):
            self._check_canceled()
            blocked = asyncio.get_running_loop().create_future()
            self._blocked[blocked] = ("all" if enough is None else "any", keys)
            self._leave()
            try:
                await blocked
            finally:
                self._active += 1
                del self._blocked[blocked]
        for operation in operations:
            for outcome in operation.entry.get("result") or () if operation.entry["op"] == "child" else ():
                if outcome.pop("truncated", False):
                    outcome["result"] = (await self._read(outcome["job_id"]))["result"]

    def _key(self, name: str) -> str:
        if self.wake is not None:
            raise Suspended  # The handler continues after its suspension, for example in `finally`.
        return _scope.get().key(name)

    def _check_branch(self) -> None:
        if asyncio.current_task() not in self._branches:
            raise RuntimeError("a workflow waits in its own task only; make parallel branches with ctx.gather")

    def _check_canceled(self) -> None:
        if self._is_compensating:  # What follows is not recorded: undo what is.
            raise Aborted from Cancel()

    def _leave(self) -> None:
        self._active -= 1
        if not self._active:
            asyncio.get_running_loop().call_soon(self._suspend)

    def _suspend(self) -> None:
        """Ends the attempt if every branch waits for the journal."""
        if self._active or self.wake is not None:
            return
        for tasks, tolerated in self._gathers:
            if _error(tasks, tolerated) is not None:
                for task in tasks:
                    task.cancel()
                return
        waits = list(self._blocked.values())
        keys = [key for _, keys in waits for key in keys]
        condition = waits[0][0] if len(waits) == 1 else "any"
        # After all of the first keys, the workflow waits for the next ones. The server refuses too many of `any`.
        self.wake = {condition: keys[:MAX_WAKE_KEYS] if condition == "all" else keys}
        for blocked in self._blocked:
            blocked.set_exception(Suspended())

    async def _run_branches(self, branches: list[Coroutine[Any, Any, Any]], tolerated: Any) -> list[asyncio.Task[Any]]:
        tasks = [asyncio.ensure_future(branch) for branch in branches]
        running = len(tasks)

        def on_end(task: asyncio.Task[Any]) -> None:
            nonlocal running
            running -= 1
            self._branches.discard(task)
            if running:  # Otherwise the branch that gathers continues.
                self._leave()

        for task in tasks:
            self._branches.add(task)
            task.add_done_callback(on_end)
        if tasks:
            self._active += len(tasks) - 1
            self._gathers.append((tasks, tolerated))
            try:
                await asyncio.wait(tasks)
            finally:
                self._gathers.remove((tasks, tolerated))
                for task in tasks:
                    task.cancel()
        if (error := _error(tasks, tolerated)) is not None:
            raise error
        return tasks

    async def _step(self, key: str, fn: Function, args: Args, undo: Function | None, retry: Retry | None) -> Any:
        if self._entries.get(key, {"status": "open"})["status"] == "open":
            entry = await self._run_step(key, fn, args, retry)
        else:
            entry = await self.record("step", key, args, {"result": None})
        if error := entry.get("error"):
            raise StepFailed(key, error)
        value = entry.get("result")
        if stored := reference(value, "$artifact"):
            value = await self._read(stored["job_id"], "artifacts", stored["name"])
        decode = result_decoder(fn)
        value = value if decode is None else decode(value, key)
        if undo is not None:
            self._undo.append((entry["seq"], key, undo, value))
        return value

    async def _run_step(self, key: str, fn: Function, args: Args, retry: Retry | None) -> Entry:
        self._check_canceled()
        attempt: int = self._entries.get(key, {"attempt": 0})["attempt"]
        while True:
            delay = retry.delay(attempt) if retry and attempt else 0.0
            if delay > self.in_place_s:
                name = f"{key}/retry/{attempt}"
                await Operation(self, name, "sleep", None, {"for_s": delay}, _value(name, None))
            attempt += 1
            is_last = attempt >= retry.attempts if retry else self.is_last_attempt
            self._active += 1
            try:
                if delay <= self.in_place_s:
                    await asyncio.sleep(delay)
                entry, error = await self._attempt(key, fn, args, attempt, is_last=is_last)
            finally:
                self._leave()
            if entry["status"] == "resolved":
                return entry
            if retry is None:
                raise Aborted from error

    async def _attempt(
        self, key: str, fn: Function, args: Args, attempt: int, *, is_last: bool
    ) -> tuple[Entry, Exception | None]:
        started_at, failure, members = time.monotonic(), None, dict[str, Any]()
        try:
            if inspect.iscoroutinefunction(fn):
                result = await fn(*args)
            else:
                result = await self.run_blocking(lambda: fn(*args))
                result = await result if inspect.isawaitable(result) else result
            members["result"] = await self._storable(key, attempt, result)
        except Exception as error:
            if self.cancelled or (isinstance(error, HandlerExit) and not isinstance(error, (Fail, Retry))):
                raise
            failure = error
            members["error"] = error_json(error, retryable=not (is_last or isinstance(error, Fail)))
        members |= {"attempt": attempt, "duration_ms": int((time.monotonic() - started_at) * 1_000)}
        return await self.record("step", key, args, members), failure

    async def _storable(self, key: str, attempt: int, result: Any) -> Any:
        """Returns the result as JSON. A large one becomes an artifact."""
        try:
            value = encode(result)
            body = api.encode_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise Fail(str(error), code="result_not_json") from error
        if len(body) <= MAX_RESULT_BYTES:
            return value
        name = f"step-{sha256(key.encode()).hexdigest()[:16]}-{attempt}"
        await self.app.client.send(api.put_artifact(self.id, name, body, "application/json", self.epoch))
        return {"$artifact": {"job_id": self.id, "name": name}}

    async def _run_undo(self) -> None:
        for _, key, undo, value in sorted(self._undo, key=lambda done: done[0], reverse=True):
            try:
                await self._step(f"undo/{key}", undo, (value,), None, None)
            except StepFailed as error:
                self.log(f"undo of {key} failed: {error.code}: {error}")


async def _branch(scope: _Scope, item: Awaitable[R]) -> R:
    _scope.set(scope)
    return await item


def _error(tasks: list[asyncio.Task[Any]], tolerated: Any) -> BaseException | None:
    """The first error of the tasks that have ended."""
    errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    return next((error for error in errors if error is not None and not isinstance(error, tolerated)), None)


def _value(key: str, decode: Decoder | None, failure: type[StepFailed] = StepFailed) -> Callable[[Entry], Any]:
    def read(entry: Entry) -> Any:
        if error := entry.get("error"):
            raise failure(key, error)
        return entry.get("result") if decode is None else decode(entry.get("result"), key)

    return read


def _approval(entry: Entry) -> Approval:
    answer: Entry | None = entry.get("result")
    at = timestamp(answer["at"]) if answer else None
    return Approval(answer["approved"], answer["by"], at, answer.get("note")) if answer else Approval(None)


def _timeout(timeout: Duration | None) -> Entry:
    return {} if timeout is None else {"timeout_s": seconds(timeout)}
