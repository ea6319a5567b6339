"""Dependency injection: values that handlers receive beside their arguments."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Literal, TypeVar, overload

T = TypeVar("T")
#: `worker`: one value, shared by all jobs of a worker. `job`: one value per job.
Scope = Literal["worker", "job"]
Provider = Callable[[], Any]


class Dependency:
    """The default value of a parameter that is injected. Made by `Depends`."""

    def __init__(self, provider: Provider, scope: Scope):
        self.provider = provider
        self.scope: Scope = scope


@overload
def Depends(provider: Callable[[], AsyncIterator[T]], *, scope: Scope = "worker") -> T: ...
@overload
def Depends(provider: Callable[[], Iterator[T]], *, scope: Scope = "worker") -> T: ...
@overload
def Depends(provider: Callable[[], Awaitable[T]], *, scope: Scope = "worker") -> T: ...
@overload
def Depends(provider: Callable[[], T], *, scope: Scope = "worker") -> T: ...
def Depends(provider: Provider, *, scope: Scope = "worker") -> Any:
    """Declares a parameter that is injected, by its default value.

    async def report(month: str, pool: Pool = Depends(connect)) -> None: ...

    The provider is a function, a coroutine function, or a generator function of either kind that yields the value once.
    The code after the `yield` runs when the worker stops, or with `scope="job"` when the job ends.
    """
    return Dependency(provider, scope)


class Dependencies:
    """The values of one scope, closed in reverse order."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._values: dict[Provider, asyncio.Future[Any]] = {}

    async def get(self, provider: Provider) -> Any:
        """Returns the provider's value. Concurrent callers share one call of the provider."""
        if provider not in self._values:
            self._values[provider] = asyncio.get_running_loop().create_future()
            try:
                self._values[provider].set_result(await self._open(provider))
            except BaseException as error:
                failed = self._values.pop(provider)
                stopped = RuntimeError("the provider was stopped")
                failed.set_exception(error if isinstance(error, Exception) else stopped)
                failed.exception()  # Without waiters, the error is not reported as unretrieved.
                raise
        return await asyncio.shield(self._values[provider])

    async def _open(self, provider: Provider) -> Any:
        if inspect.isasyncgenfunction(provider):
            return await self._stack.enter_async_context(asynccontextmanager(provider)())
        if inspect.isgeneratorfunction(provider):
            return self._stack.enter_context(contextmanager(provider)())
        value = provider()
        return await value if inspect.isawaitable(value) else value

    async def close(self) -> None:
        """Ends the generators."""
        self._values.clear()
        await self._stack.aclose()
