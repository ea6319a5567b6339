"""The command `windlass-worker`, and what happens when its process is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from windlass import Windlass, cli
from windlass.client import Call
from windlass.testing import Server

HERE = Path(__file__).parent


@contextmanager
def worker(server: Server, queue: str, *arguments: str, folder: Path = HERE) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the command. At the end it must not run any more."""
    environment = {**os.environ, "WINDLASS_URL": server.url, "TEST_QUEUE": queue, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "windlass.cli", "app:wl", *arguments]
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, cwd=folder, env=environment, stderr=log) as process:
        try:
            # Before it is registered, a signal would end the process outright.
            while b"registered as" not in (text := os.pread(log.fileno(), 1 << 20, 0)):
                assert process.poll() is None, text.decode()
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


async def jobs_of(wl: Windlass, queue: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await wl.client.send(Call("GET", f"/jobs?queue={queue}&limit=500{cursor}"))
        items += page["items"]
        if not page["next_cursor"]:
            return items
        cursor = f"&cursor={page['next_cursor']}"


async def succeeded(wl: Windlass, queue: str) -> int:
    counts: dict[str, int] = (await wl.client.send(Call("GET", f"/queues/{queue}")))["counts"]
    return counts["succeeded"]


async def test_no_job_is_lost_when_workers_are_killed(queue: str) -> None:
    with Server() as server:
        wl = Windlass(server.url)
        requests = [wl.request("nap", {"n": n}, queue=queue, max_attempts=20) for n in range(1_000)]
        handles = await wl.many(requests)
        for _ in range(3):
            done = await succeeded(wl, queue)
            with worker(server, queue, "--concurrency", "4", "--lease", "1s") as killed:
                while await succeeded(wl, queue) < min(done + 50, 1_000):
                    assert killed.poll() is None
        with worker(server, queue, "--concurrency", "32") as last:
            results = await asyncio.gather(*(handle.wait(90) for handle in handles))
            last.terminate()
            assert last.wait(30) == 0
        jobs = await jobs_of(wl, queue)
        assert Counter(job["state"] for job in jobs) == {"succeeded": 1_000}
        assert sorted(results) == list(range(1_000))
        assert any(job["attempt"] > 1 for job in jobs), "no worker was killed in the middle of a job"
        verify = [os.environ.get("WINDLASS_BIN", "windlass"), "verify", "--database", server.database]
        checked = subprocess.run(verify, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("kind", ["hold", "ignore_cancellation"])
async def test_sigterm_releases_what_is_not_done_in_time(
    wl: Windlass, windlass_server: Server, queue: str, kind: str
) -> None:
    handle = await wl.push(wl.request(kind, {}, queue=queue))
    with worker(windlass_server, queue, "--drain", "0s", "--grace", "200ms", "--queue", queue) as process:
        while (await handle.job()).phase != "fetch":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    job = await handle.job()
    assert (job.state, job.attempt) == ("queued", 0)
    await handle.cancel()


async def test_reload_restarts_the_worker(wl: Windlass, windlass_server: Server, queue: str, tmp_path: Path) -> None:
    source = (HERE / "app.py").read_text()
    (tmp_path / "app.py").write_text(source.replace("return n", 'return "old"'))
    with worker(windlass_server, queue, "--reload", folder=tmp_path) as process:
        assert await (await wl.push(wl.request("nap", {"n": 1}, queue=queue))).wait(60) == "old"
        (tmp_path / "app.py").write_text(source.replace("return n", 'return "changed"'))
        deadline = time.monotonic() + 60
        while await (await wl.push(wl.request("nap", {"n": 1}, queue=queue))).wait(60) == "old":
            assert time.monotonic() < deadline
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0


async def test_until_empty_ends_by_itself(wl: Windlass, windlass_server: Server, queue: str) -> None:
    handle = await wl.push(wl.request("nap", {"n": 7}, queue=queue))
    with worker(windlass_server, queue, "--until-empty", "--name", "batch") as process:
        assert await asyncio.to_thread(process.wait, 60) == 0
    assert await handle.wait(0) == 7


@pytest.mark.parametrize(
    ("target", "message"),
    [("missing:wl", "No module named"), ("json:dumps", "json:dumps is not a Windlass"), ("json", "json has 0")],
)
def test_an_application_that_cannot_be_loaded_is_named(
    target: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main([target]) == 2
    assert message in caplog.text


def test_the_only_application_of_a_module_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    assert "nap" in cli.load("app").jobs
