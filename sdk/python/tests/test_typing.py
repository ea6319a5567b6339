"""What type checkers know of jobs. mypy and pyright check this file; running it checks the same values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import assert_type

from windlass import Approval, Context, Depends, Handle, Job, JobRequest, Windlass, Workflow
from windlass.testing import fake

wl = Windlass()


@dataclass
class Sent:
    to: int


class Mailer:
    def send(self, user_id: int) -> Sent:
        return Sent(user_id)


def mailer() -> Iterator[Mailer]:
    yield Mailer()


@wl.job(queue="mail")
async def welcome(ctx: Context, user_id: int, mailer: Mailer = Depends(mailer)) -> Sent:
    ctx.progress(0.5)
    return mailer.send(user_id)


@wl.job
def double(n: int) -> int:
    return 2 * n


async def test_handles_have_the_type_of_the_result() -> None:
    with fake(wl):
        handle = assert_type(await welcome.push(user_id=7), Handle[Sent])
        assert assert_type(await handle.wait(), Sent) == Sent(7)
        assert assert_type(await (await double.push(4)).wait(), int) == 8
        assert assert_type(double.options(priority=1).request(n=1), JobRequest[int]).kind == "double"


def test_arguments_are_those_of_the_handler() -> None:
    request = double.request
    for call in (lambda: request("4"), lambda: request(), lambda: request(m=4)):  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert callable(call)
    assert isinstance(double, Job)


def send(user_id: int, text: str) -> Sent:
    return Sent(user_id + len(text))


async def fetch(url: str) -> int:
    return len(url)


def forget(sent: Sent) -> None:
    assert sent.to


@wl.workflow(queue="orders")
async def order(ctx: Workflow, user_id: int) -> Sent:
    sent = assert_type(await ctx.step(send, user_id, "Hi", undo=forget), Sent)
    assert_type(await ctx.step(fetch, "http://a"), int)
    assert_type(await ctx.spawn(double, 4), int)
    assert_type(await ctx.spawn(double.options(priority=1), n=4), int)
    assert_type(await ctx.gather(ctx.spawn(double, n) for n in range(2)), list[int])
    assert_type(await ctx.gather([ctx.step(fetch, "a")], return_exceptions=True), list[int | Exception])
    assert_type(await ctx.gather(ctx.step(send, 1, "Hi"), ctx.spawn(double, 4)), tuple[Sent, int])
    assert_type(await ctx.gather(ctx.step(fetch, "a"), ctx.step(fetch, "b"), ctx.step(fetch, "c")), tuple[int, ...])
    assert_type((await ctx.approval("ship", timeout="1h")), Approval)
    assert_type(await ctx.wait_for_event("paid", Sent), Sent)
    return sent


@wl.workflow
def blocking_order(ctx: Workflow, user_id: int) -> Sent:
    return assert_type(ctx.wait(ctx.step(send, user_id, "Hi")), Sent)


async def test_workflows_have_the_types_of_their_functions() -> None:
    with fake(wl) as jobs:
        handle = assert_type(await order.push(user_id=7), Handle[Sent])
        await jobs.drain()
        await handle.approve("ship")
        await handle.send_event("paid", Sent(1))
        assert await handle.wait() == Sent(9)
        assert assert_type(await (await blocking_order.push(7)).wait(), Sent) == Sent(9)


def test_steps_have_the_arguments_of_their_functions() -> None:
    def wrong(ctx: Workflow) -> object:
        return [
            ctx.step(send, "7", "Hi"),  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportArgumentType, reportCallIssue]
            ctx.step(fetch),  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
            ctx.spawn(double, "4"),  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
        ]

    assert callable(wrong)
