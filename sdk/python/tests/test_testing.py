"""The fake client and the fixture."""

from __future__ import annotations

import asyncio
import threading

import pytest

from windlass import ApiError, Cancel, Context, Fail, JobCanceled, JobFailed, Retry, Snooze, Windlass
from windlass.testing import fake

wl = Windlass()
calls: list[object] = []


@wl.job(queue="mail")
async def welcome(ctx: Context, user_id: int) -> str:
    ctx.progress(0.5, "half")
    await asyncio.sleep(0)
    await ctx.artifact("mail.txt", "Hello")
    return f"sent to {user_id}"


@wl.job(queue="mail")
def flaky(ctx: Context, times: int) -> int:
    calls.append(threading.current_thread())
    if ctx.attempt < times:
        raise Retry("again", code="again")
    return ctx.attempt


@wl.job(queue="mail", unique="{name}")
def decide(ctx: Context, name: str) -> None:
    if name == "fail":
        raise Fail("never", code="never")
    if name == "cancel":
        raise Cancel
    if ctx.epoch == 1:
        raise Snooze("1h")
    flaky.push_sync(times=1)


async def test_jobs_are_recorded_and_run_on_demand() -> None:
    with fake(wl) as jobs:
        handle = await welcome.push(user_id=7)
        jobs.assert_pushed(welcome, user_id=7)
        jobs.assert_not_pushed(welcome, user_id=8)
        jobs.assert_not_pushed(flaky)
        with pytest.raises(AssertionError, match=r"welcome was not pushed with \['user_id=8'\]; pushed were"):
            jobs.assert_pushed(welcome, user_id=8)
        assert (await handle.job()).state == "queued"
        assert await handle.wait(1) == "sent to 7"
        assert jobs.results(welcome) == ["sent to 7"]
        assert jobs.jobs[0].artifacts == {"mail.txt": b"Hello"}
        assert (await handle.job()).progress == 0.5


async def test_outcomes_are_those_of_the_server() -> None:
    with fake(wl) as jobs:
        assert await (await flaky.push(times=3)).wait() == 3
        with pytest.raises(JobFailed, match="again"):
            await (await flaky.push(times=9)).wait()
        with pytest.raises(JobFailed) as failed:
            await (await decide.push(name="fail")).wait()
        assert failed.value.code == "never"
        with pytest.raises(JobCanceled):
            await (await decide.push(name="cancel")).wait()
        await decide.push(name="snooze")
        assert (await decide.push(name="snooze")).id == jobs.jobs[-1].id
        await jobs.drain()
        assert jobs.jobs[-1].attempt == 1
        jobs.assert_pushed(flaky, times=1)
        handle = await welcome.push(user_id=1)
        await handle.cancel()
        await jobs.drain()
        assert (await handle.job()).state == "canceled"
        with pytest.raises(ApiError, match="not_found"):
            await wl.handle("missing").job()


def test_blocking_handlers_run_in_the_thread_of_the_test() -> None:
    calls.clear()
    with fake(wl, inline=True) as jobs:
        assert flaky.push_sync(times=2).wait_sync() == 2
        assert [handle.wait_sync() for handle in welcome.many_sync([{"user_id": 1}, {"user_id": 2}])] == [
            "sent to 1",
            "sent to 2",
        ]
        jobs.drain_sync()
    assert set(calls) == {threading.current_thread()}


async def test_blocking_calls_work_in_a_coroutine() -> None:
    with fake(wl, inline=True):
        assert flaky.push_sync(times=1).wait_sync() == 1
        assert await (await welcome.push(user_id=1)).wait() == "sent to 1"


def test_the_fixture_starts_a_real_server(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from windlass import Windlass

        def test_a_job_runs(windlass_server):
            wl = Windlass(windlass_server.url)

            @wl.job
            def double(n: int) -> int:
                return 2 * n

            handle = double.push_sync(n=21)

            async def work():
                await wl.worker().run_until_empty()

            import asyncio
            asyncio.run(work())
            assert handle.wait_sync(10) == 42
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
