"""Measures Celery on Redis like `windlass_bench.py`: enqueue16 N, bulk N, drain N. REDIS_URL names the server.

Tasks are acknowledged after they ran, because Celery loses the tasks of a worker that dies otherwise. Celery has no
call for many tasks: `bulk` is one producer. `drain` starts two worker processes with prefetch and without results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import redis
from celery import Celery

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
QUEUE = "bench"
PRODUCERS = 16
PADDING = "x" * 122
LIMIT_S = 600

app = Celery("celery_bench", broker=URL)
app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=100,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
store: Any = redis.Redis.from_url(URL)
has_started = False


@app.task
def noop(id: int, t: int, to: str, pad: str) -> None:  # noqa: A002, ARG001
    global has_started
    if not has_started:
        has_started = True
        store.set("bench:first", time.time(), nx=True)


def arguments(number: int) -> dict[str, Any]:
    now = time.time_ns() // 1000
    return {"id": 1_000_000_000 + number, "t": now, "to": "someone@example.com", "pad": PADDING}


def report(metric: str, number: int, seconds: float) -> None:
    line = {"peer": "celery-redis", "cfg": os.environ.get("CFG", ""), "metric": metric, "n": number}
    print(json.dumps({**line, "secs": seconds, "value": number / seconds, "unit": "jobs/s"}), flush=True)


def enqueue(metric: str, number: int, producers: int) -> None:
    def produce(first: int) -> None:
        for n in range(first, number, producers):
            noop.delay(**arguments(n))

    threads = [threading.Thread(target=produce, args=(first,)) for first in range(producers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report(metric, number, time.perf_counter() - started)


def drain(number: int) -> None:
    store.delete("bench:first")
    command = [sys.executable, "-m", "celery", "-A", "celery_bench", "worker", "--concurrency", "2"]
    command += ["--loglevel", "error", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT_S
    try:
        while store.llen(QUEUE) or store.hlen("unacked"):
            if worker.poll() is not None or time.monotonic() > deadline:
                sys.exit("the worker did not drain the queue")
            time.sleep(0.01)
        seconds = time.time() - float(store.get("bench:first"))
    finally:
        worker.terminate()
        worker.wait()
    report("drain", number, seconds)


def main() -> None:
    command, number = sys.argv[1], int(sys.argv[2])
    if command == "enqueue16":
        enqueue(command, number, PRODUCERS)
    elif command == "bulk":
        enqueue(command, number, 1)
    elif command == "drain":
        drain(number)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
