"""The HTTP API: requests with retries.

A `Call` describes a request. `Client.send` executes a call and repeats it while the server is away; `once` executes it
a single time, for the worker, which has its own rules for repetitions.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from urllib.parse import quote

from ._http import Address, Pool, Response, run_blocking
from .errors import ApiError, Unreachable

DEFAULT_URL = "http://127.0.0.1:7717"
#: The longest long poll of the server.
MAX_WAIT_S = 60.0

T = TypeVar("T")


class Backoff:
    """Exponential backoff with a random factor, so that many clients do not reconnect at the same time."""

    def __init__(self, minimum: float = 0.1, maximum: float = 5.0):
        self._minimum, self._maximum, self._wait = minimum, maximum, minimum

    def next(self) -> float:
        """Returns the next delay in seconds."""
        wait = self._wait
        self._wait = min(wait * 2, self._maximum)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311

    def reset(self) -> None:
        """Starts again with the shortest delay."""
        self._wait = self._minimum


@dataclass(frozen=True)
class Call:
    """One request to a path below `/api/v1`."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Seconds for which the server may hold the request open (long poll).
    hold: float = 0.0
    content_type: str = "application/json"


def encode_json(value: Any) -> bytes:
    """Encodes JSON in UTF-8. Raises ValueError for NaN, infinities and lone surrogates."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def path(*segments: str) -> str:
    """Joins the segments of a path. Segments are percent-encoded, so that any name is safe."""
    return "/" + "/".join(quote(segment, safe="") for segment in segments)


class Client:
    """A connection to one server, for any number of event loops, threads and forked processes.

    `url` defaults to the variable WINDLASS_URL, `token` to WINDLASS_TOKEN, and `ca`, a file with additional certificate
    authorities, to WINDLASS_CA. `timeout` bounds each call with its repetitions [default: 30 s].
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0, ca: str | None = None
    ) -> None:
        url = url or os.environ.get("WINDLASS_URL") or DEFAULT_URL
        self.address = Address.parse(url, ca or os.environ.get("WINDLASS_CA"))
        self.timeout = timeout
        token = token or os.environ.get("WINDLASS_TOKEN") or ""
        if not (token.isprintable() and token.isascii()):
            raise ValueError("the token contains characters that are not valid in a header")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = weakref.WeakKeyDictionary()

    async def close(self) -> None:
        """Closes the idle connections of the running event loop."""
        if pool := self._pools.get(asyncio.get_running_loop()):
            pool.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine that uses this client for blocking code."""
        return run_blocking(coroutine)

    async def send(self, call: Call) -> Any:
        """Executes a call and returns the JSON of the answer. Repeats the call while the server is away."""
        backoff, deadline = Backoff(), 0.0
        while True:
            try:
                return await self.once(call)
            except (Unreachable, ApiError) as error:
                wait = backoff.next()
                if isinstance(error, ApiError):
                    if error.is_refusal:
                        raise
                    wait = max(wait, error.retry_after or 0.0)
                # The time counts from the first failure, because a long poll may have waited for a while.
                deadline = deadline or time.monotonic() + self.timeout
                if time.monotonic() + wait > deadline:
                    raise
            await asyncio.sleep(wait)

    async def once(self, call: Call, timeout: float | None = None, pool: Pool | None = None) -> Any:
        """Executes a call a single time."""
        loop = asyncio.get_running_loop()
        pool = pool or self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = Pool(self.address)
        response = await pool.request(*self._request(call, timeout or self.timeout), long_poll=call.hold > 0)
        return self._read(response)

    def _request(self, call: Call, timeout: float) -> tuple[str, str, dict[str, str], bytes, float]:
        for name, value in call.headers.items():
            if not (value.isprintable() and value.isascii()):
                raise ValueError(f"{name}: {value!r} contains characters that are not valid in a header")
        headers = {**self._headers, **call.headers}
        if call.body:
            headers["content-type"] = call.content_type
        return call.method, f"{self.address.path}/api/v1{call.path}", headers, call.body, timeout + call.hold

    def _read(self, response: Response) -> Any:
        if response.status >= 400 or not 200 <= response.status < 300:
            raise _problem(response)
        if not response.body:
            return None
        try:
            return json.loads(response.body)
        except ValueError as error:
            raise self.address.unreachable(error, sent=True) from error


def _problem(response: Response) -> ApiError:
    try:
        document: Any = json.loads(response.body)
    except ValueError:
        document = None
    after = response.headers.get("retry-after", "")
    retry_after = float(after) if after.isdigit() else None
    if isinstance(document, dict) and "code" in document:
        problem = cast("dict[str, Any]", document)
        code, detail = str(problem["code"]), str(problem.get("detail", ""))
        return ApiError(response.status, code, detail, problem.get("field"), retry_after)
    detail = f"unexpected response {response.status}; is this the address of a Windlass server?"
    return ApiError(response.status, "", detail, None, retry_after)


# The calls of producers. Each is idempotent, so that it can be repeated.


def enqueue(job: bytes, key: str) -> Call:
    """Enqueues one job."""
    return Call("POST", "/jobs", job, {"idempotency-key": key})


def enqueue_batch(jobs: Sequence[bytes], key: str) -> Call:
    """Enqueues jobs, all or none."""
    return Call("POST", "/jobs/batch", b'{"jobs":[' + b",".join(jobs) + b"]}", {"idempotency-key": key})


def get_job(job: str, wait: float = 0.0) -> Call:
    """Returns a job when it has ended, or after `wait` seconds."""
    query = f"?wait={int(wait * 1000)}ms" if wait > 0 else ""
    return Call("GET", path("jobs", job) + query, hold=wait)


def cancel_job(job: str, *, compensate: bool = False) -> Call:
    """Cancels a job."""
    return Call("POST", path("jobs", job, "cancel"), b'{"compensate":true}' if compensate else b"")


def get_signal(job: str) -> Call:
    """Returns the signal of a job."""
    return Call("GET", path("jobs", job, "signal"))


def put_artifact(job: str, name: str, data: bytes, content_type: str, epoch: int | None = None) -> Call:
    """Stores an artifact of a job."""
    headers = {} if epoch is None else {"x-windlass-epoch": str(epoch)}
    return Call("PUT", path("jobs", job, "artifacts", name), data, headers, content_type=content_type)
