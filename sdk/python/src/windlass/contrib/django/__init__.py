"""Django: a backend for `django.tasks` of Django 6, or for the package django-tasks with an older Django.

    INSTALLED_APPS = [..., "windlass.contrib.django"]
    TASKS = {"default": {"BACKEND": "windlass.contrib.django.WindlassBackend", "QUEUES": ["default", "mail"]}}

`OPTIONS` has `url` and `token` [default: WINDLASS_URL and WINDLASS_TOKEN], and the options of every job, for example
`max_attempts`. `manage.py windlass_worker` runs the tasks of all queues.
"""

# Django has no type annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportMissingImports=false
# pyright: reportUntypedBaseClass=false, reportGeneralTypeIssues=false, reportMissingModuleSource=false

from __future__ import annotations

from typing import Any

from django.db import close_old_connections
from django.utils.module_loading import import_string

from ... import Context, HandlerExit, JobView, Retry, Windlass
from ...client import Call, path
from ...errors import ApiError
from ...job import JobRequest

try:
    from django.tasks import base, exceptions, signals, task, task_backends
    from django.tasks.backends.base import BaseTaskBackend
except ImportError:
    from django_tasks import base, exceptions, signals, task, task_backends
    from django_tasks.backends.base import BaseTaskBackend

__all__ = ["WindlassBackend", "exceptions", "signals", "task", "task_backends"]

Status = base.TaskResultStatus
_ENDED = {"succeeded": Status.SUCCESSFUL, "failed": Status.FAILED, "canceled": Status.FAILED}
_STATES = {**_ENDED, "working": Status.RUNNING, "loading": Status.RUNNING}


class WindlassBackend(BaseTaskBackend):
    """Enqueues tasks as jobs. The kind of a job is the path of its task."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        #: The application that runs the tasks.
        self.app = Windlass(options.pop("url", None), options.pop("token", None))
        self.app.any_kind(self._execute)
        self._options: Any = options

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueues a task. Call it in `transaction.on_commit` if the task reads what the transaction writes."""
        handle = self.app.push_sync(self._request(task, args, kwargs))
        return self._enqueued(handle.job_sync())

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Like `enqueue`, for coroutines."""
        handle = await self.app.push(self._request(task, args, kwargs))
        return self._enqueued(await handle.job())

    def get_result(self, result_id: str) -> Any:
        """Returns the result of a task."""
        try:
            job = self.app.handle(result_id).job_sync()
            history = self.app.client.run(self.app.client.send(Call("GET", path("jobs", result_id, "history"))))
        except ApiError as error:
            raise exceptions.TaskResultDoesNotExist(result_id) from error
        workers = [item["worker"] or "" for item in history["items"] if item["event"] == "started"]
        return self._result(job, workers)

    def _request(self, task: Any, args: Any, kwargs: Any) -> JobRequest[Any]:
        self.validate_task(task)
        options = {**self._options, "queue": task.queue_name, "priority": task.priority}
        if task.run_after is not None:
            options["run_at"] = task.run_after
        return self.app.request(task.module_path, {"args": list(args), "kwargs": kwargs}, **options)

    def _enqueued(self, job: JobView) -> Any:
        result = self._result(job, [])
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _result(self, job: JobView, workers: list[str]) -> Any:
        task = _task(job.kind).using(queue_name=job.queue, priority=job.raw["priority"], backend=self.alias)
        errors: list[Any] = []
        if job.error:
            errors.append(base.TaskError(exception_class_path=job.error.code, traceback=job.error.message))
        result = base.TaskResult(
            task=task,
            id=job.id,
            status=_STATES.get(job.state, Status.READY),
            enqueued_at=job.created_at,
            started_at=job.started_at,
            last_attempted_at=job.started_at,
            finished_at=job.finished_at,
            args=job.payload["args"],
            kwargs=job.payload["kwargs"],
            backend=self.alias,
            errors=errors,
            worker_ids=workers,
        )
        object.__setattr__(result, "_return_value", job.result)
        return result

    def _execute(self, ctx: Context) -> Any:
        try:
            task = _task(ctx.kind)
        except (ImportError, TypeError) as error:
            raise Retry(str(error), code="not_registered") from error
        result = self._result(self.app.handle(ctx.id).job_sync(), [""] * ctx.attempt)
        close_old_connections()
        signals.task_started.send(sender=type(self), task_result=result)
        status = Status.FAILED
        try:
            context = [base.TaskContext(task_result=result)] if task.takes_context else []
            returned = task.call(*context, *ctx.payload["args"], **ctx.payload["kwargs"])
            status = Status.SUCCESSFUL
            object.__setattr__(result, "_return_value", returned)
        except HandlerExit:
            raise
        except Exception as error:
            raise Retry(str(error), code=f"{type(error).__module__}.{type(error).__qualname__}") from error
        finally:
            object.__setattr__(result, "status", status)
            signals.task_finished.send(sender=type(self), task_result=result)
            close_old_connections()
        return returned


def _task(module_path: str) -> Any:
    task = import_string(module_path)
    if not isinstance(task, base.Task):
        raise TypeError(f"{module_path} is not a task")
    return task
