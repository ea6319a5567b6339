"""The application: registered handlers, middleware, lifespan, and the methods that enqueue jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload
from uuid import uuid4

from . import client as api
from . import runs
from .context import Context
from .job import Handle, Job, JobOptions, JobRequest
from .runs import Node, Run, RunOptions

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .worker import Worker, WorkerOptions
    from .workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Context, covariant=True)

#: Runs the next middleware, and at the end the handler.
CallNext = Callable[[Context], Awaitable[Any]]
#: Wraps the execution of every job: `async def middleware(ctx, call_next): return await call_next(ctx)`.
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
#: A context manager that is open while a worker runs.
Lifespan = Callable[["Windlass"], AbstractAsyncContextManager[Any]]

#: Limits of one batch; the server accepts 10,000 jobs and 16 MiB.
BATCH_JOBS = 5_000
BATCH_BYTES = 8 << 20


class Decorator(Protocol[C]):
    """The decorator that `Windlass.job` and `Windlass.workflow` return. It keeps the types of the handler."""

    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], Awaitable[R]]) -> Job[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], R]) -> Job[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]]) -> Job[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Job[P, R]: ...


class Windlass:
    """An application: the handlers of its jobs, and a client that enqueues them.

    Without arguments, the address of the server is WINDLASS_URL [default: http://127.0.0.1:7717] and the token is
    WINDLASS_TOKEN. `lifespan` is opened before a worker registers and closed after it has stopped. `timeout` bounds a
    request with its repetitions, in seconds.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        timeout: float = 30.0,
        ca: str | None = None,
    ):
        #: The HTTP client.
        self.client = api.Client(url, token, timeout=timeout, ca=ca)
        #: The registered handlers by kind.
        self.jobs: dict[str, Job[Any, Any]] = {}
        #: Runs jobs of kinds without a handler of their own.
        self.fallback: Job[Any, Any] | None = None
        self.middlewares: list[Middleware] = []
        self._lifespan = lifespan

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the idle connections."""
        await self.client.close()

    @overload
    def job(self, fn: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def job(self, fn: Callable[Concatenate[Context, P], R], /) -> Job[P, R]: ...
    @overload
    def job(self, fn: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def job(self, fn: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def job(self, /, *, name: str | None = None, **options: Unpack[JobOptions]) -> Decorator[Context]: ...
    def job(
        self, fn: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Unpack[JobOptions]
    ) -> Any:
        """Registers a handler: a coroutine function, or a synchronous function that runs in a thread.

        The kind of the jobs is `name` [default: the name of the function]. The arguments of the function are the
        members of the payload. A parameter of type `Context` receives the context. A positional-only argument is the
        whole payload.
        """

        def register(fn: Callable[..., Any]) -> Job[Any, Any]:
            kind = name or fn.__name__
            if kind in self.jobs:
                raise ValueError(f"two handlers for the kind {kind!r}: {self.jobs[kind].fn!r} and {fn!r}")
            job = self.jobs[kind] = Job[Any, Any](self, fn, kind, options)
            return job

        return register if fn is None else register(fn)

    @overload
    def workflow(self, fn: Callable[Concatenate[Workflow, P], Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def workflow(self, fn: Callable[Concatenate[Workflow, P], R], /) -> Job[P, R]: ...
    @overload
    def workflow(
        self, /, *, name: str | None = None, strict: bool = False, **options: Unpack[JobOptions]
    ) -> Decorator[Workflow]: ...
    def workflow(
        self, fn: Callable[..., Any] | None = None, /, *, name: str | None = None, strict: bool = False, **options:
        Unpack[JobOptions],
    ) -> Any:  # fmt: skip
        """Registers a workflow: a handler with a `Workflow` as its context. See `job`.

        With `strict`, an attempt that meets a recorded step with another input or operation fails with the code
        `workflow_drift` [default: the signal of the job has a warning].
        """

        def register(fn: Callable[..., Any]) -> Job[Any, Any]:
            job: Job[Any, Any] = self.job(name=name, **options)(fn)
            job.is_workflow, job.strict = True, strict
            return job

        return register if fn is None else register(fn)

    def any_kind(self, fn: Callable[[Context], Any]) -> Callable[[Context], Any]:
        """Registers a handler for kinds without a handler of their own. It reads `ctx.kind` and `ctx.payload`."""
        self.fallback = Job(self, fn, "", JobOptions())
        return fn

    def middleware(self, fn: Middleware) -> Middleware:
        """Adds a middleware. The first one that was added is the outermost."""
        self.middlewares.append(fn)
        return fn

    def request(self, kind: str, payload: Any = None, **options: Unpack[JobOptions]) -> JobRequest[Any]:
        """Returns a request for a job that another program handles."""
        return JobRequest(kind, payload, options, payload if isinstance(payload, dict) else {})  # pyright: ignore[reportUnknownArgumentType]

    async def push(self, request: JobRequest[R]) -> Handle[R]:
        """Enqueues a job. The job is durable when this returns. A repetition after a lost answer adds no job."""
        key = request.options.get("idempotency_key") or uuid4().hex
        accepted = await self.client.send(api.enqueue(api.encode_json(request.to_json()), key))
        return Handle(self.client, accepted["id"], request.decode)

    async def many(self, requests: Iterable[JobRequest[R]], *, idempotency_key: str | None = None) -> list[Handle[R]]:
        """Enqueues any number of jobs. Up to 5,000 jobs and 8 MiB are one transaction: all are enqueued or none."""
        jobs, ids = list(requests), list[str]()
        for call in _batches(jobs, idempotency_key or uuid4().hex):
            ids.extend((await self.client.send(call))["ids"])
        return [Handle(self.client, job_id, job.decode) for job_id, job in zip(ids, jobs, strict=True)]

    def push_sync(self, request: JobRequest[R]) -> Handle[R]:
        """Like `push`, for blocking code."""
        return self.client.run(self.push(request))

    def many_sync(self, requests: Iterable[JobRequest[R]], *, idempotency_key: str | None = None) -> list[Handle[R]]:
        """Like `many`, for blocking code."""
        return self.client.run(self.many(requests, idempotency_key=idempotency_key))

    async def start_run(self, nodes: Mapping[str, Node | JobRequest[Any]], **options: Unpack[RunOptions]) -> Run:
        """Starts a run: jobs with dependencies, by the names of their nodes. All are enqueued or none."""
        return await runs.start(self.client, nodes, options)

    def handle(self, job_id: str) -> Handle[Any]:
        """Returns the handle of a job by its id."""
        return Handle(self.client, job_id)

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Returns a worker for the registered handlers: `async with wl.worker(): …` or `await wl.worker().run()`."""
        from .worker import Worker

        return Worker(self, options)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Opens the lifespan of the application."""
        if self._lifespan is None:
            yield
            return
        async with self._lifespan(self):
            yield

    def chain(self, execute: CallNext) -> CallNext:
        """Wraps the execution of a handler in the middlewares."""
        for middleware in reversed(self.middlewares):
            execute = _wrapped(middleware, execute)
        return execute

    def find(self, kind: str) -> Job[Any, Any] | None:
        """Returns the handler of a kind."""
        return self.jobs.get(kind, self.fallback)


def _wrapped(middleware: Middleware, call_next: CallNext) -> CallNext:
    async def execute(ctx: Context) -> Any:
        return await middleware(ctx, call_next)

    return execute


def _batches(requests: Sequence[JobRequest[Any]], key: str) -> Iterator[api.Call]:
    batch: list[bytes] = []
    size = number = 0
    for request in requests:
        job = api.encode_json(request.to_json())
        if batch and (len(batch) >= BATCH_JOBS or size + len(job) > BATCH_BYTES):
            yield api.enqueue_batch(batch, f"{key}-{number}")
            batch, size, number = [], 0, number + 1
        batch.append(job)
        size += len(job)
    if batch:
        yield api.enqueue_batch(batch, f"{key}-{number}")
