"""HTTP/1.1 over asyncio with a pool of connections, and the event loop of blocking methods. Used by `client`.

The standard library has no asyncio client. This one supports what the server sends: bodies with a length, chunked
bodies and kept connections. A connection that idled for `IDLE_S` is not used again, because the server closes idle ones
after 60 s.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .errors import Unreachable

IDLE_S = 20.0
CONNECT_S = 5.0
MAX_CONNECTIONS = 100
#: Long polls have connections of their own: many callers that wait must not delay the pushes that they wait for.
MAX_LONG_POLLS = 1_000
MAX_HEAD_BYTES = 64 << 10


T = TypeVar("T")


@dataclass(frozen=True)
class Address:
    """The parsed address of a server."""

    url: str
    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None

    @staticmethod
    def parse(url: str, ca: str | None) -> Address:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"invalid server URL {url!r}: it must start with http:// or https://")
        tls = None
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            if ca:
                tls.load_verify_locations(ca)
        return Address(url, parts.hostname, parts.port or (443 if tls else 80), parts.path.rstrip("/"), tls)

    def unreachable(self, error: BaseException | str, *, sent: bool) -> Unreachable:
        reason = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        if not sent:
            return Unreachable(f"cannot reach {self.url}: {reason}; is `windlass serve` running?", sent=False)
        return Unreachable(f"no response from {self.url}: {reason}", sent=True)


@dataclass
class Response:
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes


class Pool:
    """Connections of one event loop."""

    def __init__(self, address: Address):
        self._address = address
        self._idle: list[_Connection] = []
        self._permits = asyncio.Semaphore(MAX_CONNECTIONS)
        self._long_polls = asyncio.Semaphore(MAX_LONG_POLLS)

    async def request(
        self, method: str, target: str, headers: dict[str, str], body: bytes, timeout: float, *, long_poll: bool = False
    ) -> Response:
        async with self._long_polls if long_poll else self._permits:
            connection = self._take() or await self._connect()
            try:
                response = await connection.exchange(method, target, headers, body, timeout)
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                connection.abort()
                reason = f"timed out after {timeout:g} s" if connection.timed_out else error
                raise self._address.unreachable(reason, sent=True) from error
            except BaseException:
                connection.abort()
                raise
            if connection.reusable:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.abort()
            return response

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open() and time.monotonic() - connection.idle_since < IDLE_S:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        address = self._address
        try:
            opening = asyncio.open_connection(address.host, address.port, ssl=address.tls, limit=MAX_HEAD_BYTES)
            reader, writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:
            raise address.unreachable(error, sent=False) from error
        return _Connection(address, reader, writer)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()


class _Connection:
    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._host = f"[{address.host}]" if ":" in address.host else address.host
        self._host += f":{address.port}"
        self.reusable = False
        self.timed_out = False
        self.idle_since = 0.0

    def is_open(self) -> bool:
        return not self._reader.at_eof() and not self._writer.transport.is_closing()

    def abort(self) -> None:
        self._writer.transport.abort()

    def _on_timeout(self) -> None:
        self.timed_out = True
        self.abort()

    async def exchange(self, method: str, route: str, headers: dict[str, str], body: bytes, timeout: float) -> Response:
        lines = [f"{method} {route} HTTP/1.1", f"host: {self._host}", f"content-length: {len(body)}"]
        lines.extend(f"{name}: {value}" for name, value in headers.items())
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        # A timer is cheaper than asyncio.wait_for, which starts a task on Python before 3.12.
        timer = asyncio.get_running_loop().call_later(timeout, self._on_timeout)
        try:
            self._writer.write(head + body)
            await self._writer.drain()
            return await self._read()
        finally:
            timer.cancel()

    async def _read(self) -> Response:
        while True:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            version, status_text, *_ = head[0].split(" ", 2)
            status = int(status_text)
            if status >= 200:
                break
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        self.reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await self._read_chunks()
        elif "content-length" in headers:
            body = await self._reader.readexactly(int(headers["content-length"]))
        elif status in (204, 304):
            body = b""
        else:
            self.reusable = False
            body = await self._reader.read()
        return Response(status, headers, body)

    async def _read_chunks(self) -> bytes:
        parts: list[bytes] = []
        while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass
        return b"".join(parts)


class _Background:
    """The event loop of one process in a daemon thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None


_background = _Background()
# A forked child must not touch the loop of its parent; the reference keeps its sockets from being finalized.
_inherited: list[_Background] = []


def _after_fork() -> None:
    global _background
    _inherited.append(_background)
    _background = _Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def background_loop() -> asyncio.AbstractEventLoop:
    """Returns an event loop that runs in a thread of its own. Heartbeats and blocking methods use it."""
    with _background.lock:
        if _background.loop is None:
            _background.loop = asyncio.new_event_loop()
            threading.Thread(target=_background.loop.run_forever, name="windlass", daemon=True).start()
        return _background.loop


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the background loop and waits for its result."""
    future = asyncio.run_coroutine_threadsafe(coroutine, background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
