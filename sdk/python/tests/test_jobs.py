"""Definitions of jobs, and what is sent to the server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from windlass import Context, Depends, Retry, Windlass
from windlass.duration import seconds
from windlass.testing import fake


@dataclass
class Sent:
    to: str


def test_the_arguments_are_the_members_of_the_payload() -> None:
    wl = Windlass()

    @wl.job(queue="mail", retry=Retry(initial=5, maximum="1h"), unique="user:{user_id}", timeout="2m", tags=["a"])
    async def welcome(ctx: Context, user_id: int, greeting: str = "Hello") -> Sent:
        return Sent(f"{greeting} {user_id} {ctx.id}")

    assert welcome.request(user_id=7).to_json() == {
        "queue": "mail",
        "kind": "welcome",
        "payload": {"user_id": 7},
        "unique_key": "user:7",
        "timeout_s": 120,
        "tags": ["a"],
        "retry": {"initial_s": 5, "maximum_s": 3600, "exponent": 2.0, "jitter": 0.1},
    }
    with pytest.raises(TypeError, match="user_id"):
        welcome.request(greeting="Hi")  # type: ignore[call-arg]


def test_a_positional_only_argument_is_the_whole_payload() -> None:
    wl = Windlass()

    @wl.job
    def resize(payload: list[int], /) -> int:
        return sum(payload)

    assert resize.request([1, 2]).to_json()["payload"] == [1, 2]


def test_options_of_one_push_replace_those_of_the_job() -> None:
    wl = Windlass()

    @wl.job(name="report.monthly", queue="reports", unique=True, priority=1)
    def report(month: str) -> None: ...

    body = report.options(priority=9, run_at=datetime(2026, 1, 1, tzinfo=timezone.utc)).request(month="1").to_json()
    assert body["kind"] == "report.monthly"
    assert body["priority"] == 9
    assert body["unique_by"] == ["kind", "payload"]
    assert body["run_at"] == "2026-01-01T00:00:00+00:00"
    assert report.request(month="1").to_json()["priority"] == 1
    with pytest.raises(ValueError, match="time zone"):
        report.options(run_at=datetime(2026, 1, 1)).request(month="1").to_json()


def test_a_delay_becomes_a_time() -> None:
    wl = Windlass()
    body = wl.request("k", 1, delay=timedelta(hours=1)).to_json()
    assert datetime.fromisoformat(body["run_at"]) > datetime.now(timezone.utc) + timedelta(minutes=59)


@pytest.mark.parametrize(
    ("duration", "expected"),
    [(5, 5), (0.5, 0.5), ("90s", 90), ("1h30m", 5400), ("250ms", 0.25), ("2w", 1209600), (timedelta(days=1), 86400)],
)
def test_durations(duration: Any, expected: float) -> None:
    assert seconds(duration) == expected


@pytest.mark.parametrize("duration", [-1, "", "5", "5 s", "1h junk", float("nan")])
def test_invalid_durations(duration: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        seconds(duration)


def test_two_handlers_of_one_kind_are_rejected() -> None:
    wl = Windlass()
    wl.job(name="a")(lambda: None)
    with pytest.raises(ValueError, match="two handlers for the kind 'a'"):
        wl.job(name="a")(lambda: None)


def test_handlers_with_unclear_arguments_are_rejected() -> None:
    wl = Windlass()
    with pytest.raises(TypeError, match="use a list"):
        wl.job(name="a")(lambda *items: items)
    with pytest.raises(TypeError, match="use no other one"):

        @wl.job
        def mixed(payload: int, /, other: int) -> None: ...


def test_a_key_with_a_line_break_is_rejected() -> None:
    wl = Windlass("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="idempotency-key"):
        wl.push_sync(wl.request("k", 1, idempotency_key="a\r\nx: y"))
    with pytest.raises(ValueError, match="token"):
        Windlass(token="a\nb")
    with pytest.raises(ValueError, match="invalid server URL"):
        Windlass("ftp://example.com")


async def test_an_argument_that_does_not_match_fails_the_job_for_good() -> None:
    wl = Windlass()

    @wl.job
    async def count(n: int) -> int:
        return n

    with fake(wl) as jobs:
        await wl.push(wl.request("count", {"n": "many"}))
        await jobs.drain()
        assert jobs.jobs[0].error == {
            "code": "invalid_payload",
            "message": "n: expected int, got 'many'",
            "retryable": False,
        }


async def test_dependencies_are_shared_and_closed() -> None:
    wl = Windlass()
    events: list[str] = []

    async def connect() -> Any:
        events.append("open")
        yield "connection"
        events.append("close")

    def per_job() -> Any:
        events.append("begin")
        yield "transaction"
        events.append("end")

    @wl.job
    async def use(n: int, db: str = Depends(connect), tx: str = Depends(per_job, scope="job")) -> str:
        return f"{n} {db} {tx}"

    with fake(wl) as jobs:
        await use.push(n=1)
        await jobs.drain()
        assert jobs.results(use) == ["1 connection transaction"]
    assert events == ["open", "begin", "end", "close"]


async def test_middlewares_wrap_handlers_in_order() -> None:
    wl = Windlass()
    events: list[str] = []

    @wl.middleware
    async def outer(ctx: Context, call_next: Any) -> Any:
        events.append("outer")
        return await call_next(ctx)

    @wl.middleware
    async def inner(ctx: Context, call_next: Any) -> Any:
        events.append("inner")
        return f"<{await call_next(ctx)}>"

    @wl.job
    def greet(name: str) -> str:
        return name

    with fake(wl, inline=True):
        assert await (await greet.push(name="Ada")).wait() == "<Ada>"
    assert events == ["outer", "inner"]
