"""Workflows with workers and a real server. The conformance suite has more."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from workflow_app import STEPS, counted

from windlass import ApiError, JobCanceled, JobFailed, Windlass, Workflow
from windlass.client import Call
from windlass.testing import Server

HERE = Path(__file__).parent
WORKFLOWS, KILLS, CONCURRENCY = 30, 3, 8


def test_a_killed_worker_repeats_at_most_one_step_per_workflow(windlass_server: Server, tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    executed.touch()
    environment = {**os.environ, "WINDLASS_URL": windlass_server.url, "EXECUTED": str(executed)}
    arguments = ["workflow_app:wl", "--concurrency", str(CONCURRENCY), "--lease", "2s"]
    wl = Windlass(windlass_server.url)
    handles = wl.many_sync(counted.request() for _ in range(WORKFLOWS))
    for kill in range(1, KILLS + 1):
        with subprocess.Popen([sys.executable, "-m", "windlass.cli", *arguments], env=environment, cwd=HERE) as worker:
            while len(executed.read_text().splitlines()) < kill * 80 and worker.poll() is None:
                pass
            worker.kill()
    worker = subprocess.Popen([sys.executable, "-m", "windlass.cli", *arguments], env=environment, cwd=HERE)
    try:
        assert {handle.wait_sync(60) for handle in handles} == {sum(range(STEPS))}
    finally:
        worker.terminate()
        worker.wait()
    counts = Counter(executed.read_text().splitlines())
    assert len(counts) == WORKFLOWS * STEPS
    repeated = sum(counts.values()) - len(counts)
    assert repeated <= KILLS * CONCURRENCY
    assert max(counts.values()) <= 1 + KILLS


async def test_concurrent_steps_share_requests(wl: Windlass, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []
    once = wl.client.once

    async def counting(call: Call, *args: Any, **options: Any) -> Any:
        if call.path.endswith("/journal"):
            requests.append(call.body.count(b'"job_id"'))
        return await once(call, *args, **options)

    monkeypatch.setattr(wl.client, "once", counting)

    @wl.workflow(queue=queue)
    async def wide(ctx: Workflow) -> int:
        return sum(await ctx.gather(ctx.step(int, n) for n in range(500)))

    handle = await wide.push()
    await wl.worker().run_until_empty()
    assert await handle.wait(30) == sum(range(500))
    assert sum(requests) == 500
    assert len(requests) < 100


async def test_a_rejected_operation_fails_its_workflow_only(wl: Windlass, queue: str) -> None:
    @wl.workflow(queue=queue, max_attempts=1)
    async def publish(ctx: Workflow, topic: str) -> str:
        await ctx.publish(topic, {})
        return topic

    handles = await publish.many({"topic": topic} for topic in ["a", "x" * 1_000, "b", "c"])
    await wl.worker().run_until_empty()
    assert [await handles[n].wait(30) for n in (0, 2, 3)] == ["a", "b", "c"]
    with pytest.raises(JobFailed) as failed:
        await handles[1].wait(30)
    assert failed.value.code == "invalid_field"


def test_a_synchronous_workflow_and_blocking_callers(wl: Windlass, queue: str) -> None:
    threads: set[int] = set()

    def double(n: int) -> int:
        threads.add(threading.get_ident())
        return 2 * n

    @wl.workflow(queue=queue)
    def order(ctx: Workflow, n: int) -> list[Any]:
        threads.add(threading.get_ident())
        doubled = ctx.wait(ctx.step(double, n))
        paid = ctx.wait(ctx.wait_for_event("paid"))
        approved = ctx.wait(ctx.approval("ship")).approved
        return [doubled, paid, approved, *ctx.wait(ctx.gather(ctx.step(double, n) for n in range(3)))]

    handle = order.push_sync(n=4)
    handle.send_event_sync("paid", {"amount": 30})
    wl.client.run(wl.worker().run_until_empty())
    assert handle.job_sync().state == "waiting"
    handle.approve_sync("ship", approve=False, note="no")
    wl.client.run(wl.worker().run_until_empty())
    assert handle.wait_sync(30) == [8, {"amount": 30}, False, 0, 2, 4]
    assert len(threads) >= 2


async def test_a_canceled_workflow_runs_no_further_step(wl: Windlass, queue: str) -> None:
    seen: list[str] = []

    def cancel_own_job(job: str) -> None:
        wl.handle(job).cancel_sync()

    @wl.workflow(queue=queue)
    async def order(ctx: Workflow) -> None:
        try:
            await ctx.step(cancel_own_job, ctx.id, undo=lambda _: seen.append("undo"))
        except Exception:
            seen.append("caught")
        await ctx.step(seen.append, "next")

    handle = await order.push()
    await wl.worker().run_until_empty()
    with pytest.raises(JobCanceled):
        await handle.wait(30)
    assert seen == []


async def test_a_retried_push_of_a_run_starts_one_run(wl: Windlass, queue: str) -> None:
    @wl.job(queue=queue)
    async def one() -> int:
        return 1

    run = await wl.start_run({"a": one.request()}, id=queue, name="figures")
    with pytest.raises(ApiError, match="name_taken"):
        await wl.start_run({"a": one.request()}, id=queue)
    await run.add({"b": one.request()})
    assert sorted(run.nodes) == ["a", "b"]
    with pytest.raises(TimeoutError, match="has not ended in time"):
        await run.wait(0)
    await wl.worker().run_until_empty()
    view = await run.wait(30)
    assert (view.id, view.name, view.state, view.counts["succeeded"]) == (queue, "figures", "succeeded", 2)
    canceled = await wl.start_run({"a": one.request()})
    await canceled.cancel()
    assert (await canceled.view()).state == "canceled"
