"""Workflows with the fake client. The conformance suite covers the real server, kills and outages."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest

from windlass import Fail, JobCanceled, JobFailed, Retry, StepFailed, WaitTimeout, Windlass, Workflow
from windlass.testing import fake

wl = Windlass()
executions: Counter[str] = Counter()


@dataclass
class Order:
    id: int
    pages: list[str]


@dataclass
class Payment:
    amount: int


@pytest.fixture(autouse=True)
def _reset() -> None:
    executions.clear()


def charge(order: Order) -> Payment:
    executions["charge"] += 1
    return Payment(10 * order.id)


async def refund(payment: Payment) -> None:
    executions[f"refund {payment.amount}"] += 1


@wl.job(queue="pages")
def render(page: str) -> str:
    if page == "bad":
        raise Fail("cannot render", code="bad_page")
    return page.upper()


@wl.workflow(queue="orders", max_attempts=3)
async def order(ctx: Workflow, order: Order) -> list[str]:
    payment = await ctx.step(charge, order, undo=refund)
    assert payment == Payment(10 * order.id)
    pages = await ctx.gather(ctx.spawn(render, page) for page in order.pages)
    if not (await ctx.approval("ship", timeout="2d")).approved:
        raise Fail("rejected", code="rejected")
    await ctx.sleep("3d")
    await ctx.publish("shipped", {"id": order.id})
    return pages


async def test_a_workflow_runs_in_virtual_time() -> None:
    with fake(wl) as jobs:
        handle = await order.push(Order(7, ["a", "b"]))
        await jobs.drain()
        assert (await handle.job()).state == "waiting"
        assert jobs.published == []
        before = jobs.now
        await handle.approve("ship")
        assert await handle.wait() == ["A", "B"]
        assert jobs.now - before >= timedelta(days=3)
        assert jobs.published == [("shipped", {"id": 7})]
        assert list(jobs.jobs[0].journal) == ["charge", "render", "ship", "sleep", "publish"]
    assert executions == {"charge": 1}


async def test_a_failed_workflow_undoes_its_steps() -> None:
    with fake(wl) as jobs:
        rejected = await order.push(Order(1, []))
        await jobs.drain()
        await rejected.approve("ship", approve=False)
        with pytest.raises(JobFailed, match="rejected"):
            await rejected.wait()
        late = await order.push(Order(2, []))
        await jobs.drain()
        await jobs.advance("2d")
        assert (await late.job()).state == "failed"
        broken = await order.push(Order(3, ["a", "bad"]))
        with pytest.raises(JobFailed, match="bad_page: cannot render"):
            await broken.wait()
    assert executions == {"charge": 3, "refund 10": 1, "refund 20": 1, "refund 30": 1}


async def test_a_wait_for_a_workflow_that_needs_an_event_says_so() -> None:
    with fake(wl):
        handle = await order.push(Order(1, []))
        with pytest.raises(RuntimeError, match=r"the workflow order waits for \{'all': \['ship'\]\}"):
            await handle.wait()


async def test_undo_steps_run_in_reverse_order_and_only_after_the_last_attempt() -> None:
    app, seen = Windlass(), list[str]()

    @app.workflow(max_attempts=2)
    async def trip(ctx: Workflow) -> None:
        for name in ("flight", "hotel"):
            await ctx.step(partial(seen.append, name), name=name, undo=lambda _, name=name: seen.append(f"undo {name}"))
        raise LookupError("no car")

    with fake(app), pytest.raises(JobFailed, match="LookupError: no car"):
        await (await trip.push()).wait()
    assert seen == ["flight", "hotel", "undo hotel", "undo flight"]


async def test_a_step_is_repeated_by_its_own_policy_or_by_the_job() -> None:
    app, delays = Windlass(), list[float]()

    def fails(name: str, times: int) -> str:
        executions[name] += 1
        if executions[name] <= times:
            raise ConnectionError(name)
        return name

    @app.workflow(max_attempts=2)
    async def flaky(ctx: Workflow) -> list[str]:
        assert ctx.attempt <= 2
        own = await ctx.step(fails, "own", 2, retry=Retry(initial="10m", attempts=3, jitter=0))
        delays.append(executions["own"])
        by_job = await ctx.step(fails, "by job", 1, name="by job")
        try:
            await ctx.step(fails, "never", 99, name="never", retry=Retry(initial=1, attempts=2))
        except StepFailed as failed:
            return [own, by_job, failed.code, str(failed), failed.key]
        return []

    with fake(app) as jobs:
        before = jobs.now
        result = await (await flaky.push()).wait()
        assert result == ["own", "by job", "ConnectionError", "never", "never"]
        assert jobs.now - before >= timedelta(minutes=30)
        assert jobs.jobs[0].journal["fails"]["attempt"] == 3
    assert executions == {"own": 3, "by job": 2, "never": 2}


async def test_events_have_types_and_conditions() -> None:
    app = Windlass()

    @app.workflow
    async def listen(ctx: Workflow) -> list[object]:
        paid = await ctx.wait_for_event("paid", Payment, match={"currency": "EUR"})
        number, _ = await ctx.first(ctx.sleep("1h"), ctx.wait_for_event("stop"))
        try:
            await ctx.wait_for_event("never", timeout="1m")
        except TimeoutError as timeout:
            return [paid.amount, number, timeout.code if isinstance(timeout, WaitTimeout) else ""]
        return []

    with fake(app) as jobs:
        handle = await listen.push()
        await handle.send_event("paid", {"amount": 1, "currency": "USD"})
        await handle.send_event("paid", {"amount": 2, "currency": "EUR"})
        await handle.send_event("stop")
        await jobs.drain()
        await jobs.advance("1m")
        assert await handle.wait() == [2, 1, "timeout"]


def test_a_synchronous_workflow_waits_in_its_thread() -> None:
    app = Windlass()

    @app.workflow
    def squares(ctx: Workflow) -> list[int]:
        one = ctx.wait(ctx.step(executions.update, ["one"]))
        assert one is None
        ctx.wait(ctx.sleep("1d"))
        with ctx.scope("parts"):
            return ctx.wait(ctx.gather(ctx.step(pow, n, 2) for n in range(3)))

    with fake(app, inline=True) as jobs:
        assert squares.push_sync().wait_sync() == [0, 1, 4]
        assert list(jobs.jobs[0].journal) == ["update", "sleep", "parts/pow", "parts/pow#2", "parts/pow#3"]
    assert executions == {"one": 1}


async def test_branches_have_scopes_of_their_own_and_fail_together() -> None:
    app = Windlass()

    async def one(ctx: Workflow, n: int) -> int:
        await ctx.sleep(timedelta(hours=n))
        return await ctx.step(pow, n, 2)

    async def fails(ctx: Workflow) -> int:
        await ctx.step(executions.update, ["fails"])
        raise Fail("broken", code="broken")

    @app.workflow
    async def parallel(ctx: Workflow) -> list[object]:
        squares = await ctx.gather(one(ctx, n) for n in range(1, 4))
        text, number = await ctx.gather(ctx.step(str, 7), one(ctx, 4))
        results = await ctx.gather([fails(ctx), one(ctx, 5)], return_exceptions=True)
        errors = [result.code for result in results if isinstance(result, Fail)]
        try:
            await ctx.gather(ctx.wait_for_event("never"), fails(ctx))
        except Fail as failed:
            return [squares, text, number, errors, failed.code]
        return []

    with fake(app) as jobs:
        assert await (await parallel.push()).wait() == [[1, 4, 9], "7", 16, ["broken"], "broken"]
        assert "gather/2/pow" in jobs.jobs[0].journal
        assert "gather#2/1/sleep" in jobs.jobs[0].journal
    assert executions["fails"] == 2


async def test_drift_ends_the_attempt_of_a_strict_workflow_without_undo() -> None:
    app = Windlass()
    seen: list[int] = []

    @app.workflow(strict=True, max_attempts=2)
    async def strict(ctx: Workflow) -> None:
        await ctx.step(seen.append, ctx.epoch, undo=lambda _: seen.append(0))
        raise RuntimeError("again")

    with fake(app), pytest.raises(JobFailed, match="workflow_drift"):
        await (await strict.push()).wait()
    assert seen == [1]


async def test_a_workflow_continues_as_a_new_job() -> None:
    app = Windlass()

    @app.workflow
    async def count(ctx: Workflow, n: int) -> int:
        await ctx.step(executions.update, ["round"])
        if n < 3:
            ctx.continue_as(n=n + 1)
        return n

    with fake(app) as jobs:
        assert await (await count.push(n=1)).wait() == 3
        assert [job.request["payload"] for job in jobs.jobs] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert executions["round"] == 3


async def test_waits_belong_to_branches() -> None:
    app = Windlass()

    @app.workflow(max_attempts=1)
    async def wrong(ctx: Workflow) -> None:
        steps = await asyncio.gather(ctx.step(str, 1), ctx.step(str, 2))
        assert list(steps) == ["1", "2"]
        await asyncio.create_task(_sleep(ctx))

    async def _sleep(ctx: Workflow) -> None:
        await ctx.sleep(1)

    with fake(app), pytest.raises(JobFailed, match=r"make parallel branches with ctx\.gather"):
        await (await wrong.push()).wait()


async def test_names_and_results_are_checked() -> None:
    app = Windlass()

    @app.workflow(max_attempts=1)
    async def wrong(ctx: Workflow, name: str) -> None:
        await ctx.step(object, name=name)

    with fake(app):
        with pytest.raises(JobFailed, match="cannot be a name in the journal"):
            await (await wrong.push(name="a/b")).wait()
        with pytest.raises(JobFailed, match="result_not_json"):
            await (await wrong.push(name="a")).wait()


async def test_a_suspended_handler_runs_no_more_operations() -> None:
    app = Windlass()

    @app.workflow
    async def careless(ctx: Workflow) -> int:
        try:
            await ctx.sleep("1h")
        finally:
            await ctx.step(executions.update, ["cleanup"])
        return 1

    with fake(app):
        assert await (await careless.push()).wait() == 1
    assert executions == {"cleanup": 1}


async def test_a_canceled_workflow_undoes_its_steps_if_it_is_asked_to() -> None:
    with fake(wl) as jobs:
        handle = await order.push(Order(4, ["a"]))
        await jobs.drain()
        await handle.cancel(compensate=True)
        with pytest.raises(JobCanceled):
            await handle.wait()
        at_once = await order.push(Order(5, ["a"]))
        await jobs.drain()
        await at_once.cancel()
        assert (await at_once.job()).state == "canceled"
        assert "ship" in jobs.jobs[0].journal
    assert executions == {"charge": 2, "refund 40": 1}
