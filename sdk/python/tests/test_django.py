"""Django: the API of `django.tasks`, with the backend and the command of this package."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import django
import pytest
from django.conf import settings
from django.core.management import call_command

from windlass.testing import Server

QUEUE = f"django-{uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def tasks(windlass_server: Server) -> Any:
    """The module with the tasks of a Django project."""
    backend = {
        "BACKEND": "windlass.contrib.django.WindlassBackend",
        "QUEUES": ["default", QUEUE],
        "OPTIONS": {"url": windlass_server.url, "max_attempts": 1},
    }
    settings.configure(INSTALLED_APPS=["windlass.contrib.django"], TASKS={"default": backend}, USE_TZ=True)
    django.setup()
    import shop_tasks

    return shop_tasks


def work() -> None:
    """Runs the tasks that are ready."""
    with pytest.raises(SystemExit) as end:
        call_command("windlass_worker", "--queue", QUEUE, "--until-empty")
    assert end.value.code == 0


def test_a_task_is_enqueued_and_returns_its_result(tasks: Any) -> None:
    result = tasks.add.using(queue_name=QUEUE, priority=5).enqueue(1, b=2)
    assert (result.status, result.args, result.kwargs) == ("READY", [1], {"b": 2})
    work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 1)
    assert (result.task.queue_name, result.task.priority) == (QUEUE, 5)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert tasks.add.get_result(result.id).return_value == 3


def test_a_coroutine_receives_its_context(tasks: Any) -> None:
    result = tasks.greet.using(queue_name=QUEUE).enqueue("Ada")
    work()
    result.refresh()
    assert result.return_value == "Hello Ada, attempt 1"


def test_a_failure_names_the_exception(tasks: Any) -> None:
    result = tasks.broken.using(queue_name=QUEUE).enqueue()
    work()
    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[0].exception_class is LookupError
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_task_waits_for_its_time(tasks: Any) -> None:
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    result = tasks.add.using(queue_name=QUEUE, run_after=later).enqueue(1, 2)
    work()
    result.refresh()
    assert result.status == "READY"


async def test_coroutines_enqueue_without_blocking(tasks: Any) -> None:
    result = await tasks.add.using(queue_name=QUEUE).aenqueue(3, 4)
    assert (await tasks.add.aget_result(result.id)).status == "READY"


def test_signals_are_sent(tasks: Any) -> None:
    from windlass.contrib.django import signals

    seen: list[tuple[str, str]] = []

    def note(signal: Any, task_result: Any, **_: Any) -> None:
        names = {id(getattr(signals, name)): name for name in ("task_enqueued", "task_started", "task_finished")}
        seen.append((names[id(signal)], str(task_result.status)))

    work()
    for name in ("task_enqueued", "task_started", "task_finished"):
        getattr(signals, name).connect(note)
    try:
        tasks.add.using(queue_name=QUEUE).enqueue(1, 1)
        work()
    finally:
        for name in ("task_enqueued", "task_started", "task_finished"):
            getattr(signals, name).disconnect(note)
    assert seen == [("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_finished", "SUCCESSFUL")]


def test_a_result_that_does_not_exist_is_named(tasks: Any) -> None:
    from windlass.contrib.django import exceptions

    with pytest.raises(exceptions.TaskResultDoesNotExist):
        tasks.add.get_result(str(uuid4()))
