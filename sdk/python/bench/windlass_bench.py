"""Measures the SDK against a running server: a push of jobs, and their drain with a handler that does nothing.

    windlass_bench.py enqueue16 N     one push for each job, 16 coroutines
    windlass_bench.py bulk N          `many` with 1,000 jobs in each call
    windlass_bench.py drain N         runs the N jobs that are queued, from the first handler to the last outcome
    windlass_bench.py latency N RATE  from just before the push to the handler, at RATE jobs per second

WINDLASS_URL names the server. Each command prints a JSON line in the format of the peers' programs.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from windlass import Windlass, Worker
from windlass.duration import Duration

QUEUE = "bench"
PRODUCERS = 16
BULK = 1_000
PADDING = "x" * 122
DRAIN_LIMIT: Duration = "10m"

wl = Windlass()
first = 0.0
latencies: list[float] = []


@wl.job(queue=QUEUE)
async def noop(id: int, t: int, to: str, pad: str) -> None:  # noqa: A002, ARG001
    global first
    first = first or time.perf_counter()
    latencies.append((time.time_ns() // 1000 - t) / 1000)


def arguments(number: int) -> dict[str, Any]:
    now = time.time_ns() // 1000
    return {"id": 1_000_000_000 + number, "t": now, "to": "someone@example.com", "pad": PADDING}


def report(metric: str, number: int, value: float, unit: str, **members: Any) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = {"peer": "windlass-python", "cfg": os.environ.get("CFG", ""), "metric": metric, "n": number, "value": value}
    print(json.dumps({**line, "unit": unit, "rss_kb": memory, **members}), flush=True)


async def enqueue16(number: int) -> None:
    numbers = iter(range(number))

    async def produce() -> None:
        for n in numbers:
            await noop.push(**arguments(n))

    await noop.push(**arguments(-1))  # The queue and its lane exist, and a connection is open.
    started = time.perf_counter()
    await asyncio.gather(*(produce() for _ in range(PRODUCERS)))
    seconds = time.perf_counter() - started
    report("enqueue16", number, number / seconds, "jobs/s", secs=seconds)


async def bulk(number: int) -> None:
    started = time.perf_counter()
    for begin in range(0, number, BULK):
        await noop.many(arguments(n) for n in range(begin, min(begin + BULK, number)))
    seconds = time.perf_counter() - started
    report("bulk", number, number / seconds, "jobs/s", secs=seconds, chunk=BULK)


async def drain(number: int) -> None:
    concurrency = int(os.environ.get("CONC", "100"))
    statistics = await wl.worker(concurrency=concurrency, name="bench").run_until_empty()
    seconds = time.perf_counter() - first
    assert statistics.succeeded >= number, statistics
    report("drain", number, number / seconds, "jobs/s", secs=seconds)


async def latency(number: int, rate: float) -> None:
    async with running():
        begin = time.perf_counter()
        tasks: list[asyncio.Task[Any]] = []
        for n in range(number):
            await asyncio.sleep(max(begin + n / rate - time.perf_counter(), 0))
            tasks.append(asyncio.create_task(noop.push(**arguments(n))))
        for handle in await asyncio.gather(*tasks):
            await handle.wait(DRAIN_LIMIT)
    latencies.sort()
    report("latency", number, latencies[number // 2], "ms", p99=latencies[int((number - 1) * 0.99)])


@asynccontextmanager
async def running() -> AsyncGenerator[Worker]:
    async with wl.worker(concurrency=100, name="bench") as worker:
        await asyncio.sleep(0.5)
        yield worker


async def main() -> None:
    command, numbers = sys.argv[1], [float(argument) for argument in sys.argv[2:]]
    number = int(numbers[0])
    if command == "enqueue16":
        await enqueue16(number)
    elif command == "bulk":
        await bulk(number)
    elif command == "drain":
        await drain(number)
    elif command == "latency":
        await latency(number, numbers[1])
    else:
        sys.exit(__doc__)
    await wl.close()


if __name__ == "__main__":
    asyncio.run(main())
