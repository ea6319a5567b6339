"""What type checkers know of jobs. mypy and pyright check this file; running it checks the same values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import assert_type

from windlass import Context, Depends, Handle, Job, JobRequest, Windlass
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
