"""Celery: the calls of an application that was written for Celery."""

# Celery has no type annotations.
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, exceptions, signals, states
from celery.exceptions import Ignore
from celery.result import AsyncResult

from windlass import Windlass
from windlass.contrib.celery import install


@pytest.fixture
def app(wl: Windlass, queue: str) -> Celery:
    """An application that is connected with a real server."""
    app = Celery("shop", set_as_current=False)
    app.conf.task_default_queue = queue
    install(app, wl)
    return app


async def results(wl: Windlass, queue: str, *pending: Any) -> list[Any]:
    """Runs a worker until the tasks have ended. Returns their results, or their exceptions."""

    def get(result: Any) -> Any:
        try:
            return result.get(timeout=30)
        except Exception as error:
            return error

    async with wl.worker(queues=[queue], concurrency=4):
        return [await asyncio.to_thread(get, result) for result in pending]


async def test_calls_return_results(app: Celery, wl: Windlass, queue: str) -> None:
    @app.task(name="shop.add")
    def add(a: int, b: int = 1) -> int:
        return a + b

    soon = datetime.now(timezone.utc) + timedelta(seconds=1)
    sent = [
        add.delay(1, 2),
        add.apply_async(args=(1,), kwargs={"b": 5}, priority=3),
        add.apply_async((3,), eta=soon),
        add.s(4).delay(),
        app.send_task("shop.add", (7,)),
    ]
    assert sent[0].state == states.PENDING
    assert await results(wl, queue, *sent) == [3, 6, 4, 5, 8]
    assert (sent[0].state, sent[0].ready(), sent[0].successful()) == (states.SUCCESS, True, True)
    assert AsyncResult(sent[0].id, app=app).result == 3
    assert app.AsyncResult("unknown").state == states.PENDING


async def test_retries_follow_the_policy_of_the_task(app: Celery, wl: Windlass, queue: str) -> None:
    @app.task(bind=True, max_retries=2, default_retry_delay=0, name="shop.flaky")
    def flaky(self: Any) -> int:
        if self.request.retries < 2:
            raise self.retry(exc=LookupError("away"))
        return int(self.request.retries)

    @app.task(autoretry_for=(ConnectionError,), max_retries=1, default_retry_delay=0, name="shop.unreachable")
    def unreachable() -> None:
        raise ConnectionError("away")

    @app.task(name="shop.broken")
    def broken() -> None:
        raise LookupError("no such user")

    retried, exhausted, failed = await results(wl, queue, flaky.delay(), unreachable.delay(), broken.delay())
    assert retried == 2
    assert isinstance(exhausted, ConnectionError)
    assert isinstance(failed, LookupError)
    assert str(failed) == "no such user"


async def test_states_and_signals_are_those_of_celery(app: Celery, wl: Windlass, queue: str) -> None:
    finished: list[str] = []

    @app.task(bind=True, name="shop.import_file")
    def import_file(self: Any) -> str:
        self.update_state(state="PROGRESS", meta={"done": 3})
        return str(self.request.id)

    @app.task(name="shop.ignored")
    def ignored() -> None:
        raise Ignore

    def note(sender: Any, **_: Any) -> None:
        finished.append(sender.request.id)

    signals.task_success.connect(note, sender=import_file)
    sent = import_file.delay()
    assert await results(wl, queue, sent, ignored.delay()) == [sent.id, None]
    assert finished == [sent.id]


async def test_a_custom_state_is_visible_while_the_task_runs(app: Celery, wl: Windlass, queue: str) -> None:
    loop, released = asyncio.get_running_loop(), asyncio.Event()

    @app.task(bind=True, name="shop.import_slowly")
    def import_file(self: Any) -> None:
        self.update_state(state="PROGRESS", meta={"done": 3})
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(60)

    sent = await asyncio.to_thread(import_file.delay)
    async with wl.worker(queues=[queue]):
        while (await asyncio.to_thread(lambda: (sent.state, sent.info))) != ("PROGRESS", {"done": 3}):
            assert not await asyncio.to_thread(sent.ready)
        released.set()
        assert await asyncio.to_thread(sent.get, 30) is None


async def test_a_revoked_task_does_not_run(app: Celery, wl: Windlass, queue: str) -> None:
    @app.task(name="shop.revoked")
    def never() -> None:
        raise AssertionError

    sent = never.apply_async(countdown=3600)
    sent.revoke()
    (error,) = await results(wl, queue, sent)
    assert isinstance(error, exceptions.TaskRevokedError)
    assert sent.state == states.REVOKED


async def test_an_expired_task_does_not_run(app: Celery, wl: Windlass, queue: str) -> None:
    @app.task(name="shop.expired")
    def never() -> None:
        raise AssertionError

    (error,) = await results(wl, queue, never.apply_async(expires=datetime.now(timezone.utc) - timedelta(seconds=1)))
    assert isinstance(error, exceptions.TaskRevokedError)


def test_eager_mode_stays(app: Celery) -> None:
    @app.task(name="shop.add_eagerly")
    def add(a: int, b: int) -> int:
        return a + b

    app.conf.task_always_eager = True
    assert add.delay(1, 2).get() == 3
    assert add.apply((1, 2)).get() == 3


def test_what_is_not_supported_is_named(app: Celery) -> None:
    @app.task(name="shop.add_alone")
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(NotImplementedError, match="link"):
        add.apply_async((1, 2), link=add.s(1))
    with pytest.raises(NotImplementedError, match="chain"):
        (add.s(1, 2) | add.s(3)).delay()
