"""Jobs: the decorated handler, its options, the request to enqueue it, and the handle of an enqueued job."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, cast, get_type_hints
from uuid import uuid4

from . import client as api
from .codec import Decoder, decoder, encode, reference
from .dependencies import Dependency
from .duration import Duration, seconds, whole_seconds
from .errors import DecodeError, Fail, JobCanceled, JobFailed, Retry
from .views import JobView, SignalView

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .app import Windlass
    from .context import Context

P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(TypedDict, total=False):
    """Options of a job. All are optional.

    `unique`, `affinity`, `concurrency_key` and `subject` are templates: `unique="user:{user_id}"` takes the argument
    `user_id`.
    """

    #: The queue [default: default].
    queue: str
    #: Jobs with a higher priority run first, from -32768 to 32767 [default: 0].
    priority: int
    #: Starts the job after this time.
    delay: Duration
    #: Starts the job at this time, with a time zone.
    run_at: datetime
    #: While an unfinished job with this key exists in the queue, a push returns that job. True: the kind and payload.
    unique: str | Literal[True]
    #: Reserves the unique key for this time, instead of until the job ends.
    unique_for: Duration
    #: What a worker must have loaded to run the job, for example a model.
    affinity: str
    #: At most `per_key` jobs (a setting of the queue) with the same key run at a time.
    concurrency_key: str
    #: The subject that the job works on. At most one job per subject and process runs at a time.
    subject: str
    #: The process that the job counts for. Requires `subject`.
    process: str
    #: The group of jobs that the job belongs to.
    run: str
    #: Maximum number of attempts, from 1 to 1000 [default: 3].
    max_attempts: int
    #: The delay between attempts [default: the queue's policy].
    retry: Retry
    #: Stops an attempt after this time, which counts as a failure [default: the queue's].
    timeout: Duration
    #: Labels, at most 32.
    tags: list[str]
    #: Receives every state change: an object with `url` and `secret`.
    webhook: Mapping[str, Any]
    #: Pushes with the same key and content return the same job for one day [default: a random key per push].
    idempotency_key: str


_TEMPLATES = {
    "unique": "unique_key", "affinity": "affinity", "concurrency_key": "concurrency_key", "subject": "subject",
}  # fmt: skip
_SECONDS = {"unique_for": "unique_for_s", "timeout": "timeout_s"}
_PLAIN = ("priority", "process", "run", "max_attempts", "tags", "webhook")


@dataclass(frozen=True)
class JobRequest(Generic[R]):
    """A job that is not yet enqueued. `Windlass.many` takes any number of them."""

    kind: str
    payload: Any
    options: JobOptions = field(default_factory=JobOptions)
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    decode: Decoder | None = None

    def to_json(self) -> dict[str, Any]:
        """The body of `POST /jobs`."""
        options = cast("dict[str, Any]", self.options)
        body: dict[str, Any] = {"queue": options.get("queue", "default"), "kind": self.kind, "payload": self.payload}
        if options.get("unique") is True:
            options = {name: value for name, value in options.items() if name != "unique"}
            body["unique_by"] = ["kind", "payload"]
        for name, member in _TEMPLATES.items():
            if name in options:
                body[member] = options[name].format_map(self.arguments)
        for name, member in _SECONDS.items():
            if name in options:
                body[member] = whole_seconds(options[name])
        for name in _PLAIN:
            if name in options:
                body[name] = options[name]
        if "retry" in options:
            body["retry"] = options["retry"].policy
        run_at: datetime | None = options.get("run_at")
        if "delay" in options:
            run_at = datetime.now(timezone.utc) + timedelta(seconds=seconds(options["delay"]))
        if run_at is not None:
            if run_at.tzinfo is None:
                raise ValueError(f"run_at needs a time zone; it is {run_at}")
            body["run_at"] = run_at.isoformat()
        return body


class Handle(Generic[R]):
    """An enqueued job."""

    def __init__(self, client: api.Client, job_id: str, decode: Decoder | None = None):
        self._client, self._decode = client, decode
        #: The id of the job.
        self.id = job_id

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    async def job(self) -> JobView:
        """Returns the job."""
        return JobView.of(await self._client.send(api.get_job(self.id)))

    async def wait(self, timeout: Duration | None = None) -> R:
        """Waits for the end of the job and returns its result.

        Raises JobFailed, JobCanceled, or TimeoutError after `timeout`; the job continues then.
        """
        limit = None if timeout is None else seconds(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        job_id = self.id
        while True:
            left = api.MAX_WAIT_S if deadline is None else deadline - time.monotonic()
            job = JobView.of(await self._client.send(api.get_job(job_id, min(max(left, 0.0), api.MAX_WAIT_S))))
            if successor := reference(job.result, "continued_as"):
                job_id = successor
                continue
            if job.state == "failed":
                raise JobFailed(job)
            if job.state == "canceled":
                raise JobCanceled(job)
            if job.state == "succeeded":
                return cast("R", job.result if self._decode is None else self._decode(job.result, ""))
            if left <= 0:
                raise TimeoutError(f"job {self.id} has not ended after {limit:g} s")

    async def cancel(self, *, compensate: bool = False) -> None:
        """Cancels the job. A worker that runs it is notified within a second.

        With `compensate`, a workflow runs once more to undo its steps, and then ends as canceled.
        """
        await self._client.send(api.cancel_job(self.id, compensate=compensate))

    async def signal(self) -> SignalView | None:
        """Returns the current status for people, or None if it has expired."""
        raw = await self._client.send(api.get_signal(self.id))
        return SignalView.of(raw) if raw else None

    async def send_event(self, name: str, data: Any = None, *, idempotency_key: str | None = None) -> None:
        """Sends a signal event to a workflow. It is kept until the workflow waits for it."""
        headers = {"idempotency-key": idempotency_key or uuid4().hex}
        body = api.encode_json(encode(data))
        await self._client.send(api.Call("POST", api.path("jobs", self.id, "events", name), body, headers))

    async def approve(self, key: str, *, approve: bool = True, note: str | None = None) -> None:
        """Answers an approval of a workflow by its key in the journal. With `approve=False`, it is rejected."""
        body = api.encode_json({"approve": approve, "note": note})
        await self._client.send(api.Call("POST", api.path("jobs", self.id, "approvals", key), body))

    def job_sync(self) -> JobView:
        """Like `job`, for blocking code."""
        return self._client.run(self.job())

    def wait_sync(self, timeout: Duration | None = None) -> R:
        """Like `wait`, for blocking code."""
        return self._client.run(self.wait(timeout))

    def cancel_sync(self, *, compensate: bool = False) -> None:
        """Like `cancel`, for blocking code."""
        self._client.run(self.cancel(compensate=compensate))

    def send_event_sync(self, name: str, data: Any = None, *, idempotency_key: str | None = None) -> None:
        """Like `send_event`, for blocking code."""
        self._client.run(self.send_event(name, data, idempotency_key=idempotency_key))

    def approve_sync(self, key: str, *, approve: bool = True, note: str | None = None) -> None:
        """Like `approve`, for blocking code."""
        self._client.run(self.approve(key, approve=approve, note=note))

    def signal_sync(self) -> SignalView | None:
        """Like `signal`, for blocking code."""
        return self._client.run(self.signal())


@dataclass(frozen=True)
class _Parameter:
    name: str
    decode: Decoder | None
    required: bool


class Signature:
    """The parameters of a handler: the context, injected values, and the arguments that make up the payload.

    Arguments are the members of a JSON object. A positional-only argument is the whole payload instead.
    """

    def __init__(self, fn: Callable[..., Any]):
        from .context import Context

        signature = inspect.signature(fn)
        hints = _hints(fn)
        self.context: str | None = None
        self.context_is_positional = False
        self.injected: dict[str, Dependency] = {}
        self.whole: _Parameter | None = None
        self.arguments: list[_Parameter] = []
        self.extra = False
        kept: list[inspect.Parameter] = []
        for index, parameter in enumerate(signature.parameters.values()):
            hint = hints.get(parameter.name, Any)
            positional_only = parameter.kind is parameter.POSITIONAL_ONLY
            if (isinstance(hint, type) and issubclass(hint, Context)) or (
                index == 0 and parameter.name == "ctx" and hint is Any
            ):
                self.context, self.context_is_positional = parameter.name, positional_only
                continue
            if isinstance(parameter.default, Dependency):
                self.injected[parameter.name] = parameter.default
                continue
            kept.append(parameter)
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise TypeError(f"{fn.__qualname__}: a handler cannot have *{parameter.name}; use a list")
            if parameter.kind is parameter.VAR_KEYWORD:
                self.extra = True
                continue
            argument = _Parameter(parameter.name, decoder(hint), parameter.default is parameter.empty)
            if positional_only:
                if self.whole is not None:
                    raise TypeError(f"{fn.__qualname__}: only one argument can be positional-only: the whole payload")
                self.whole = argument
            else:
                self.arguments.append(argument)
        if self.whole is not None and self.arguments:
            raise TypeError(f"{fn.__qualname__}: a positional-only argument is the whole payload; use no other one")
        self._call = signature.replace(parameters=kept)
        self.result = decoder(hints.get("return", Any))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Returns the payload of a call, and its arguments by name."""
        bound = self._call.bind(*args, **kwargs)
        arguments = dict(bound.arguments)
        if self.whole is not None:
            return encode(arguments.get(self.whole.name)), arguments
        for name, parameter in self._call.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments.update(arguments.pop(name, {}))
        return {name: encode(value) for name, value in arguments.items()}, arguments

    def decode(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of the handler for a payload. Raises Fail if the payload does not match."""
        try:
            if self.whole is not None:
                return [payload if self.whole.decode is None else self.whole.decode(payload, "")], {}
            if not self.arguments and not self.extra:
                return [], {}
            if not isinstance(payload, dict):
                raise DecodeError("payload", "an object with the arguments", payload)
            members = cast("dict[str, Any]", payload)
            kwargs: dict[str, Any] = dict(members) if self.extra else {}
            for argument in self.arguments:
                if argument.name in members:
                    value = members[argument.name]
                    kwargs[argument.name] = value if argument.decode is None else argument.decode(value, argument.name)
                elif argument.required:
                    raise DecodeError(argument.name, "a value", None)
            return [], kwargs
        except DecodeError as error:
            raise Fail(str(error), code="invalid_payload") from None


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except NameError:
        # A name that exists for type checkers only. Such arguments are passed on as plain JSON.
        names = {**getattr(fn, "__globals__", {})}
        hints: dict[str, Any] = {}
        for name, hint in getattr(fn, "__annotations__", {}).items():
            try:
                hints[name] = eval(hint, names) if isinstance(hint, str) else hint  # noqa: S307
            except (NameError, AttributeError):
                continue
        return hints


@lru_cache(maxsize=1_000)
def result_decoder(fn: Callable[..., Any]) -> Decoder | None:
    """Returns the decoder for the declared result of a function, or None if every JSON value is accepted as it is."""
    fn = getattr(fn, "func", fn)
    return decoder(_hints(getattr(fn, "fn", fn)).get("return", Any))


class Job(Generic[P, R]):
    """A registered handler. Made by the decorator `Windlass.job`."""

    def __init__(self, app: Windlass, fn: Callable[..., Any], kind: str, options: JobOptions):
        self._app = app
        #: The decorated function.
        self.fn = fn
        #: The kind of the jobs.
        self.kind = kind
        #: The options of the decorator.
        self.default_options = options
        self.signature = Signature(fn)
        #: The handler uses the journal of its job. Set by `Windlass.workflow`.
        self.is_workflow = False
        #: A workflow that refuses drift.
        self.strict = False
        self.is_async = inspect.iscoroutinefunction(fn)
        self.__doc__ = fn.__doc__

    def __repr__(self) -> str:
        return f"Job({self.kind!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the decorated function directly."""
        return self.fn(*args, **kwargs)

    def options(self, **changes: Unpack[JobOptions]) -> Job[P, R]:
        """Returns the same job with other options: `welcome.options(delay="1h").push(user_id=7)`."""
        changed: Job[P, R] = Job.__new__(type(self))
        changed.__dict__.update(self.__dict__)
        changed.default_options = cast("JobOptions", {**self.default_options, **changes})
        return changed

    def request(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """Returns the request for `Windlass.many` instead of pushing it."""
        payload, arguments = self.signature.bind(args, kwargs)
        return JobRequest(self.kind, payload, self.default_options, arguments, self.signature.result)

    async def push(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueues a job with these arguments. The job is durable when this returns."""
        return await self._app.push(self.request(*args, **kwargs))

    def push_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `push`, for blocking code."""
        return self._app.push_sync(self.request(*args, **kwargs))

    async def many(self, items: Iterable[Any]) -> list[Handle[R]]:
        """Enqueues a job for each item: its arguments as a dict, or the whole payload. See `Windlass.many`."""
        return await self._app.many([self._item(item) for item in items])

    def many_sync(self, items: Iterable[Any]) -> list[Handle[R]]:
        """Like `many`, for blocking code."""
        return self._app.many_sync([self._item(item) for item in items])

    def _item(self, item: Any) -> JobRequest[R]:
        is_whole = self.signature.whole is not None
        payload, arguments = self.signature.bind((item,), {}) if is_whole else self.signature.bind((), item)
        return JobRequest(self.kind, payload, self.default_options, arguments, self.signature.result)

    async def call(self, ctx: Context, injected: Mapping[str, Any], run_blocking: Blocking) -> Any:
        """Runs the handler for a claimed job. `run_blocking` runs a synchronous one in a thread."""
        args, kwargs = self.signature.decode(ctx.payload)
        kwargs.update(injected)
        if self.signature.context is not None:
            if self.signature.context_is_positional:
                args.insert(0, ctx)
            else:
                kwargs[self.signature.context] = ctx
        if self.is_async:
            return await self.fn(*args, **kwargs)
        result = await run_blocking(lambda: self.fn(*args, **kwargs))
        return await result if inspect.isawaitable(result) else result


#: Runs a function in a thread.
Blocking = Callable[[Callable[[], Any]], Awaitable[Any]]
