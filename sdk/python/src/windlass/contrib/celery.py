"""Celery: the calls of an existing application enqueue jobs on Windlass, and its tasks run in a Windlass worker.

    app = Celery("shop")
    wl = install(app)          # windlass-worker shop.celery:wl --queue celery

`delay`, `apply_async`, `send_task`, `AsyncResult`, `revoke`, `self.request`, `self.retry`, `autoretry_for`,
`update_state`, `Ignore`, `Reject`, routes, time limits and Celery's signals work as before. Differences:

- The pause before a retry is the task's policy (`default_retry_delay`, or `retry_backoff`); `countdown` and
  `max_retries` of `self.retry` do not change it.
- A task runs again if its worker dies, as with `acks_late`.
- Chains, groups, chords, `link` and own task ids raise NotImplementedError.
"""

# Celery has no type annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportMissingImports=false
from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery, exceptions, states
from celery.app.trace import build_tracer
from celery.backends.base import BaseBackend
from kombu.utils.json import dumps, loads

from ..app import Windlass
from ..context import Context
from ..errors import ApiError, Cancel, Fail, JobCanceled, JobFailed, Retry
from ..job import JobOptions
from ..views import JobView

_UNSUPPORTED = ("link", "link_error", "chain", "chord", "group_id", "task_id")


def install(app: Celery, wl: Windlass | None = None) -> Windlass:
    """Connects a Celery application with Windlass, and returns the application that runs its tasks."""
    wl = wl or Windlass()
    backend = _Backend(app, wl)
    vars(app).update(send_task=backend.send_task, _get_backend=lambda: backend)
    app.control.revoke = backend.revoke
    wl.any_kind(backend.execute)
    return wl


class _Backend(BaseBackend):
    """Sends tasks, runs them, and reads their results."""

    def __init__(self, app: Celery, wl: Windlass) -> None:
        super().__init__(app=app)
        self._wl = wl
        self._running: dict[str, Context] = {}

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Enqueues a job in place of `Celery.send_task`."""
        if given := [option for option in _UNSUPPORTED if options.get(option)]:
            raise NotImplementedError(f"Windlass does not support {', '.join(given)} of Celery")
        task = options.pop("task_type", None) or self.app.tasks.get(name)
        result_cls = options.pop("result_cls", None) or self.app.AsyncResult
        routed = self.app.amqp.router.route(options, name, args, kwargs, task)
        queue = routed.get("queue") or self.app.conf.task_default_queue
        job = _policy(task)
        job["queue"] = getattr(queue, "name", queue)
        if (priority := options.get("priority")) is not None:
            job["priority"] = priority
        if limit := options.get("time_limit") or options.get("soft_time_limit"):
            job["timeout"] = limit
        if start := _time(options.get("eta")) or _time(options.get("countdown")):
            job["run_at"] = start
        expires = _time(options.get("expires"))
        payload = {"args": list(args or ()), "kwargs": kwargs or {}, "expires": expires and expires.isoformat()}
        return result_cls(self._wl.push_sync(self._wl.request(name, json.loads(dumps(payload)), **job)).id)

    def execute(self, ctx: Context) -> Any:
        """Runs a task with Celery's own tracer, which handles signals, callbacks and automatic retries."""
        task = self.app.tasks.get(ctx.kind)
        if task is None:
            raise Retry(f"the task {ctx.kind} is not registered", code="not_registered")
        payload = loads(json.dumps(ctx.payload))
        if (expires := payload["expires"]) and datetime.fromisoformat(expires) < datetime.now(timezone.utc):
            raise Cancel
        request = {
            "id": ctx.id,
            "root_id": ctx.id,
            "task": ctx.kind,
            "args": payload["args"],
            "kwargs": payload["kwargs"],
            "retries": ctx.attempt - 1,
            # Celery would enqueue a retry itself otherwise.
            "is_eager": True,
            "delivery_info": {"routing_key": ctx.queue, "redelivered": ctx.epoch > 1},
        }
        self._running[ctx.id] = ctx
        try:
            trace = build_tracer(ctx.kind, task, eager=True, app=self.app)
            done = trace(ctx.id, payload["args"], payload["kwargs"], request)
        finally:
            del self._running[ctx.id]
        if done.info is None:
            return json.loads(dumps(done.retval))
        if done.info.state == states.IGNORED:
            return None
        is_retry = done.info.state == states.RETRY
        error = done.info.retval
        error = getattr(error, "exc", None) or error
        code = f"{type(error).__module__}.{type(error).__qualname__}"
        raise (Retry if is_retry else Fail)(str(error), code=code) from error

    def revoke(self, task_id: str | list[str], *_: Any, **__: Any) -> None:
        """Cancels jobs in place of `app.control.revoke`. Running tasks are notified, not killed."""
        for job in [task_id] if isinstance(task_id, str) else task_id:
            self._wl.handle(job).cancel_sync()

    def store_result(self, task_id: str, result: Any, state: str, *_: Any, **__: Any) -> Any:
        """Reports the state of `update_state`, which `AsyncResult.state` and `AsyncResult.info` return."""
        if (ctx := self._running.get(task_id)) is not None:
            ctx.details({"state": state, "meta": json.loads(dumps(result))})
        return result

    def wait_for(self, task_id: str, timeout: float | None = None, *_: Any, **__: Any) -> Any:
        """Waits for the end of a job."""
        try:
            self._wl.handle(task_id).wait_sync(timeout)
        except (JobFailed, JobCanceled):
            pass
        except TimeoutError as error:
            raise exceptions.TimeoutError("The operation timed out.") from error
        return self.get_task_meta(task_id)

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        handle = self._wl.handle(task_id)
        try:
            job = handle.job_sync()
        except ApiError as error:
            if error.status not in (404, 422):
                raise
            return {"task_id": task_id, "status": states.PENDING, "result": None}
        meta: dict[str, Any] = {"task_id": task_id, "name": job.kind, "children": [], "date_done": job.finished_at}
        meta.update(self._state(job))
        if job.state == "working" and (signal := handle.signal_sync()) and signal.raw.get("payload"):
            reported = signal.raw["payload"]
            meta.update(status=reported["state"], result=loads(json.dumps(reported["meta"])))
        return meta

    def _state(self, job: JobView) -> dict[str, Any]:
        if job.state == "canceled":
            return {"status": states.REVOKED, "result": exceptions.TaskRevokedError("revoked")}
        if job.state == "failed" and job.error:
            module, _, name = job.error.code.rpartition(".")
            error = {"exc_type": name, "exc_module": module or "celery", "exc_message": [job.error.message]}
            return {"status": states.FAILURE, "result": self.exception_to_python(error)}
        if job.state == "succeeded":
            return {"status": states.SUCCESS, "result": loads(json.dumps(job.result))}
        waiting = states.RETRY if job.attempt else states.PENDING
        return {"status": states.STARTED if job.state == "working" else waiting, "result": None}


def _policy(task: Any) -> JobOptions:
    if task is None:
        return {}
    retries = 999 if task.max_retries is None else min(task.max_retries, 999)
    if backoff := getattr(task, "retry_backoff", False):
        jitter = 1.0 if getattr(task, "retry_jitter", True) else 0.0
        retry = Retry(initial=int(backoff), maximum=getattr(task, "retry_backoff_max", 600), jitter=jitter)
    else:
        delay = task.default_retry_delay
        retry = Retry(initial=delay, maximum=delay, exponent=1, jitter=0)
    return {"max_attempts": retries + 1, "retry": retry}


def _time(value: Any) -> datetime | None:
    """Converts a countdown, a datetime or its text to a time."""
    if not value:
        return None
    if isinstance(value, (int, float)):
        return datetime.now(timezone.utc) + timedelta(seconds=value)
    time: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
