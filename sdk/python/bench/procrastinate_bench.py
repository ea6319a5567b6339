"""Measures procrastinate on PostgreSQL like `windlass_bench.py`: setup, enqueue16 N, bulk N, drain N.

DATABASE_URL names the database.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

import procrastinate

PRODUCERS = 16
BULK = 1_000
CONCURRENCY = 20
PADDING = "x" * 122

logging.disable(logging.CRITICAL)
connector = procrastinate.PsycopgConnector(conninfo=os.environ.get("DATABASE_URL", ""), min_size=4, max_size=24)
app = procrastinate.App(connector=connector)
first = 0.0


@app.task(name="noop")
async def noop(id: int, t: int, to: str, pad: str) -> None:  # noqa: A002, ARG001
    global first
    first = first or time.perf_counter()


def arguments(number: int) -> dict[str, Any]:
    now = time.time_ns() // 1000
    return {"id": 1_000_000_000 + number, "t": now, "to": "someone@example.com", "pad": PADDING}


def report(metric: str, number: int, seconds: float) -> None:
    line = {"peer": "procrastinate", "cfg": os.environ.get("CFG", ""), "metric": metric, "n": number}
    print(json.dumps({**line, "secs": seconds, "value": number / seconds, "unit": "jobs/s"}), flush=True)


async def enqueue16(number: int) -> None:
    numbers = iter(range(number))

    async def produce() -> None:
        for n in numbers:
            await noop.defer_async(**arguments(n))

    started = time.perf_counter()
    await asyncio.gather(*(produce() for _ in range(PRODUCERS)))
    report("enqueue16", number, time.perf_counter() - started)


async def bulk(number: int) -> None:
    started = time.perf_counter()
    for begin in range(0, number, BULK):
        await noop.batch_defer_async(*(arguments(n) for n in range(begin, min(begin + BULK, number))))
    report("bulk", number, time.perf_counter() - started)


async def main() -> None:
    command = sys.argv[1]
    async with app.open_async():
        if command == "setup":
            await app.schema_manager.apply_schema_async()
        elif command == "enqueue16":
            await enqueue16(int(sys.argv[2]))
        elif command == "bulk":
            await bulk(int(sys.argv[2]))
        elif command == "drain":
            # Without `wait` it returns when every job is finished.
            await app.run_worker_async(
                wait=False, listen_notify=False, install_signal_handlers=False, concurrency=CONCURRENCY
            )
            report("drain", int(sys.argv[2]), time.perf_counter() - first)
        else:
            sys.exit(__doc__)


if __name__ == "__main__":
    asyncio.run(main())
