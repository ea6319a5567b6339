#!/usr/bin/env python3
"""Measures the SDK beside Celery on Redis and procrastinate on PostgreSQL, interleaved in one run.

    compare.py [--jobs 10000] [--rounds 3]

Needs `celery[redis]`, `procrastinate[psycopg]` and this package in the Python that runs it, `redis-server` on the PATH,
WINDLASS_BIN (a release build) and WINDLASS_TEST_POSTGRES (`scripts/postgres start`). Every commit is durable: Windlass
and PostgreSQL with their defaults, Redis with a file that is synced before each answer. Prints the medians of
the rounds. Figures of a busy machine are worthless: the load is printed with them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
START_S = 60
METRICS = ("enqueue16", "drain", "bulk", "drain")


def start(stack: ExitStack, command: list[str], folder: str, log: Path) -> subprocess.Popen[bytes]:
    """Starts a server that ends with the stack."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def start_windlass(stack: ExitStack, database: str, folder: str) -> str:
    """Starts a Windlass server and returns its address."""
    log = Path(folder, f"{database.partition(':')[0]}.log")
    command = [os.environ["WINDLASS_BIN"], "serve", "--listen", "127.0.0.1:0", "--database", database]
    process = start(stack, command, folder, log)
    deadline = time.monotonic() + START_S
    while not (found := re.search(r"serves on (http\S+)", log.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(log.read_text())
        time.sleep(0.02)
    return found[1]


def start_redis(stack: ExitStack, folder: str) -> str:
    """Starts a Redis server and returns its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    durable = ["--appendonly", "yes", "--appendfsync", "always"]
    start(stack, ["redis-server", *options, *durable], folder, Path(folder, "redis.log"))
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return f"redis://127.0.0.1:{port}/0"
        time.sleep(0.02)
    sys.exit("redis-server did not start")


def create_database(stack: ExitStack, name: str) -> str:
    """Creates an empty PostgreSQL database and returns its address."""
    server = os.environ["WINDLASS_TEST_POSTGRES"]
    psql = [str(next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/psql"), reverse=True)), "psql")), "-qc"]
    subprocess.run([*psql, f"create database {name}", server], check=True)
    stack.callback(subprocess.run, [*psql, f"drop database {name} with (force)", server], check=True)
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def measure(program: str, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Runs one step of a program and returns what it measured."""
    command = [sys.executable, program, *arguments]
    done = subprocess.run(command, cwd=HERE, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return found


def main() -> None:
    """Runs the rounds and prints a table."""
    parser = argparse.ArgumentParser(description="Measure the Python SDK beside Celery and procrastinate.")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of each step [default: 10000]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds [default: 3]")
    options = parser.parse_args()
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        suffix = f"{os.getpid()}"
        postgres = create_database(stack, f"bench_procrastinate_{suffix}")
        peers = {
            "Windlass, SQLite": ("windlass_bench.py", "WINDLASS_URL", start_windlass(stack, "sqlite:bench.db", folder)),
            "Windlass, PostgreSQL": (
                "windlass_bench.py",
                "WINDLASS_URL",
                start_windlass(stack, create_database(stack, f"bench_windlass_{suffix}"), folder),
            ),
            "Celery, Redis": ("celery_bench.py", "REDIS_URL", start_redis(stack, folder)),
            "procrastinate, PostgreSQL": ("procrastinate_bench.py", "DATABASE_URL", postgres),
        }
        measure("procrastinate_bench.py", {"DATABASE_URL": postgres}, "setup")
        for number in range(options.rounds):
            for name, (program, variable, address) in peers.items():
                for metric in METRICS:
                    measured = measure(program, {variable: address}, metric, str(options.jobs))
                    figures[name, metric].append(measured["value"])
                    load = os.getloadavg()[0]
                    print(f"{number + 1} {name} {metric} {measured['value']:.0f} load {load:.1f}", file=sys.stderr)
        print(f"| {options.jobs} jobs, jobs/s | push, 16 producers | many | drain |\n|---|---|---|---|")
        for name in peers:
            medians = [statistics.median(figures[name, metric]) for metric in ("enqueue16", "bulk", "drain")]
            print(f"| {name} | " + " | ".join(f"{median:,.0f}" for median in medians) + " |")


if __name__ == "__main__":
    main()
