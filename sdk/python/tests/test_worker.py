"""Workers against a real server. The conformance suite covers outages, cancellations and leases."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from windlass import ApiError, Context, Handle, JobCanceled, JobFailed, Unreachable, Windlass, WorkerRejected
from windlass.testing import Server


async def test_coroutines_and_functions_run_in_one_worker(wl: Windlass, queue: str) -> None:
    threads: set[int] = set()
    both = threading.Barrier(2)

    @wl.job(queue=queue)
    async def add(a: int, b: int) -> int:
        threads.add(threading.get_ident())
        return a + b

    @wl.job(queue=queue)
    def wait_for_each_other(ctx: Context) -> str:
        threads.add(threading.get_ident())
        both.wait(30)  # Two handlers run at the same time, or this fails.
        return ctx.queue

    async with wl.worker(concurrency=4) as worker:
        sums = await add.many([{"a": n, "b": 1} for n in range(20)])
        pair = [await wait_for_each_other.push() for _ in range(2)]
        assert [await handle.wait(30) for handle in sums] == list(range(1, 21))
        assert [await handle.wait(30) for handle in pair] == [queue, queue]
        statistics = await worker.stop()
    assert (statistics.claimed, statistics.succeeded) == (22, 22)
    assert threading.get_ident() in threads
    assert len(threads) == 3


async def test_the_lifespan_is_open_while_handlers_run(windlass_server: Server, queue: str) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Windlass) -> AsyncGenerator[None]:
        assert "note" in app.jobs
        events.append("open")
        yield
        events.append("close")

    wl = Windlass(windlass_server.url, lifespan=lifespan)

    @wl.job(queue=queue)
    async def note() -> None:
        events.append("job")

    await note.push()
    await wl.worker().run_until_empty()
    assert events == ["open", "job", "close"]


async def test_a_canceled_function_sees_it(wl: Windlass, queue: str) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    seen: list[bool] = []

    @wl.job(queue=queue)
    def long(ctx: Context) -> None:
        loop.call_soon_threadsafe(started.set)
        seen.append(ctx.pause("60s"))
        seen.append(ctx.cancelled)

    async with wl.worker():
        handle = await long.push()
        await started.wait()
        await handle.cancel()
        with pytest.raises(JobCanceled):
            await handle.wait(30)
    assert seen == [True, True]


async def test_an_error_has_its_traceback_as_log(wl: Windlass, queue: str) -> None:
    @wl.job(queue=queue, max_attempts=1)
    async def broken() -> None:
        raise LookupError("no such user")

    handle = await broken.push()
    await wl.worker().run_until_empty()
    with pytest.raises(JobFailed, match="LookupError: no such user") as failed:
        await handle.wait(30)
    assert failed.value.code == "LookupError"
    assert [artifact["name"] for artifact in failed.value.job.raw["artifacts"]] == ["log"]


async def test_a_result_without_a_json_form_fails_the_job(wl: Windlass, queue: str) -> None:
    @wl.job(queue=queue)
    async def broken() -> object:
        return object()

    handle = await broken.push()
    await wl.worker().run_until_empty()
    with pytest.raises(JobFailed, match="result_not_json"):
        await handle.wait(30)


async def test_a_worker_of_any_kind_reads_the_context(wl: Windlass, queue: str) -> None:
    @wl.any_kind
    async def handle(ctx: Context) -> object:
        return [ctx.kind, ctx.payload, ctx.attempt, ctx.is_last_attempt]

    pushed = await wl.push(wl.request("unknown", {"a": 1}, queue=queue, max_attempts=1))
    await wl.worker(queues=[queue]).run_until_empty()
    assert await pushed.wait(30) == ["unknown", {"a": 1}, 1, True]


def test_blocking_code_in_many_threads_shares_connections(wl: Windlass, queue: str) -> None:
    @wl.job(queue=queue)
    async def double(n: int) -> int:
        return 2 * n

    with ThreadPoolExecutor(8) as threads:
        handles = list(threads.map(lambda n: double.push_sync(n=n), range(40)))
    asyncio.run(_until_empty(wl))
    assert [handle.wait_sync("30s") for handle in handles] == [2 * n for n in range(40)]
    assert handles[0].job_sync().has_ended


async def _until_empty(wl: Windlass) -> None:
    await wl.worker().run_until_empty()


async def test_a_batch_with_an_idempotency_key_is_enqueued_once(wl: Windlass, queue: str) -> None:
    requests = [wl.request("k", n, queue=queue) for n in range(3)]
    first = await wl.many(requests, idempotency_key=f"{queue}-import")
    second = await wl.many(requests, idempotency_key=f"{queue}-import")
    assert [handle.id for handle in first] == [handle.id for handle in second]


async def test_waiting_has_a_bound(wl: Windlass, queue: str) -> None:
    handle = await wl.push(wl.request("k", queue=queue))
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="has not ended"):
        await handle.wait("300ms")
    assert time.monotonic() - started < 30
    await handle.cancel()
    assert (await handle.job()).state == "canceled"


async def test_many_callers_that_wait_do_not_delay_a_push(wl: Windlass, queue: str) -> None:
    children: list[Handle[int]] = []

    @wl.job(queue=f"{queue}-child")
    async def child() -> int:
        return 1

    @wl.job(queue=queue)
    async def parent() -> int:
        children.append(await child.push())
        return 1

    handles = await parent.many({} for _ in range(150))
    waits = [asyncio.create_task(handle.wait(50)) for handle in handles]
    started = time.monotonic()
    async with wl.worker(queues=[queue]):
        await asyncio.gather(*waits)
    # While the waits occupied the connections, the first push would have waited for the end of a long poll.
    assert time.monotonic() - started < 40
    assert len(children) == 150


async def test_a_rejected_request_is_not_repeated(wl: Windlass, queue: str) -> None:
    with pytest.raises(ApiError) as error:
        await wl.push(wl.request("k", queue=queue, priority=100_000))
    assert (error.value.status, error.value.code, error.value.field) == (422, "invalid_field", "priority")


async def test_an_unreachable_server_is_named() -> None:
    wl = Windlass("http://127.0.0.1:9", timeout=0.05)
    with pytest.raises(Unreachable, match=r"cannot reach http://127.0.0.1:9: .*is `windlass serve` running"):
        await wl.push(wl.request("k"))


async def test_a_rejected_worker_ends_with_the_reason(queue: str) -> None:
    with Server() as server:
        create = ["token", "create", "--name", "ada", "--role", "admin", "--database", server.database]
        subprocess.run([os.environ.get("WINDLASS_BIN", "windlass"), *create], check=True, capture_output=True)
        wl = Windlass(server.url, token="windlass_wrong")

        @wl.job(queue=queue)
        async def never() -> None: ...

        with pytest.raises(WorkerRejected, match="token"):
            await wl.worker().run()


def test_a_worker_needs_handlers_and_queues(wl: Windlass) -> None:
    with pytest.raises(ValueError, match="at least one queue"):
        wl.worker()
    with pytest.raises(ValueError, match="at least one handler"):
        wl.worker(queues=["a"])
