"""Workers behind a proxy that rejects requests or loses answers. The conformance suite covers a server that is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from windlass import Windlass
from windlass import worker as worker_module
from windlass._http import Address, Pool
from windlass.client import Call
from windlass.testing import Server

Fault = Literal["none", "reject", "lose"]


@asynccontextmanager
async def proxy(server: Server, fault: Callable[[str], Fault]) -> AsyncGenerator[str]:
    """Passes requests on to the server. `fault` decides for each path: a 503 before it, or no answer after it."""
    pool = Pool(Address.parse(server.url, None))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split(" ", 2)
                fields = [line.split(": ", 1) for line in head.split("\r\n")[1:-2]]
                headers = {name: value for name, value in fields if name not in ("host", "content-length")}
                body = await reader.readexactly(int(dict(fields)["content-length"]))
                chosen = fault(target)
                status, answer = 503, b'{"code": "unavailable", "detail": "not now"}'
                if chosen != "reject":
                    response = await pool.request(method, target, headers, body, 90.0, long_poll=True)
                    status, answer = response.status, response.body
                if chosen == "lose":
                    return
                writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(answer)}\r\n\r\n".encode() + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        listener.close()
        pool.close()


async def test_a_worker_claims_no_more_while_outcomes_are_not_accepted(
    windlass_server: Server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "MAX_UNSETTLED", 20)
    rejected = calls = 0

    def fault(path: str) -> Fault:
        nonlocal rejected
        if path.endswith("/settle") and rejected < 5:
            rejected += 1
            return "reject"
        return "none"

    async with proxy(windlass_server, fault) as url:
        wl = Windlass(url)
        limits: list[int] = []

        @wl.job(queue=queue)
        async def count() -> None:
            nonlocal calls
            calls += 1
            if rejected < 5:
                limits.append(calls)

        handles = await count.many({} for _ in range(200))
        async with wl.worker(concurrency=4, prefetch=4) as worker:
            await asyncio.gather(*(handle.wait(60) for handle in handles))
            statistics = await worker.stop()
    assert rejected == 5
    assert max(limits) <= 20 + 4 + 4
    assert (statistics.succeeded, statistics.lost, calls) == (200, 0, 200)


async def test_jobs_of_a_claim_that_got_no_answer_run_without_another_attempt(
    windlass_server: Server, queue: str
) -> None:
    lost: Counter[str] = Counter()

    def fault(path: str) -> Fault:
        if path.endswith("/claim") and not lost[path]:
            lost[path] += 1
            return "lose" if len(lost) == 1 else "none"
        return "none"

    async with proxy(windlass_server, fault) as url:
        wl = Windlass(url)

        @wl.job(queue=queue, max_attempts=1)
        async def echo(n: int) -> int:
            return n

        handles = [await echo.push(n=n) for n in range(3)]
        async with wl.worker(concurrency=4):
            assert [await handle.wait(60) for handle in handles] == [0, 1, 2]
            jobs = [await handle.job() for handle in handles]
    assert len(lost) == 2, "the worker has not registered again"
    assert [job.attempt for job in jobs] == [1, 1, 1]


async def test_an_outcome_with_a_lost_answer_is_sent_again(windlass_server: Server, queue: str) -> None:
    requests: Counter[str] = Counter()

    def fault(path: str) -> Fault:
        requests[path.rpartition("/")[2]] += 1
        return "lose" if path.endswith("/settle") and requests["settle"] == 1 else "none"

    async with proxy(windlass_server, fault) as url:
        wl = Windlass(url)
        calls: list[int] = []

        @wl.job(queue=queue)
        async def note(n: int) -> int:
            calls.append(n)
            return n

        handle = await note.push(n=7)
        async with wl.worker(concurrency=1):
            assert await handle.wait(60) == 7
    assert calls == [7]
    assert requests["settle"] > 1
    assert (await Windlass(windlass_server.url).handle(handle.id).job()).state == "succeeded"


async def test_a_push_with_a_lost_answer_adds_one_job(windlass_server: Server, queue: str) -> None:
    requests: Counter[str] = Counter()

    def fault(path: str) -> Fault:
        requests[path] += 1
        return "lose" if requests[path] == 1 else "none"

    async with proxy(windlass_server, fault) as url:
        wl = Windlass(url)
        await wl.push(wl.request("k", {"n": 1}, queue=queue))
        await wl.many([wl.request("k", {"n": n}, queue=queue) for n in range(5)])
    counts = await Windlass(windlass_server.url).client.send(Call("GET", f"/queues/{queue}"))
    assert counts["counts"]["queued"] == 6
    assert min(requests["/api/v1/jobs"], requests["/api/v1/jobs/batch"]) == 2
