"""Python SDK of Windlass: enqueue jobs and run their handlers.

from windlass import Context, Windlass

wl = Windlass()

@wl.job(queue="mail")
async def welcome(ctx: Context, user_id: int) -> str:
    return f"sent to {user_id}"

handle = await welcome.push(user_id=7)
"""

from .app import CallNext, Middleware, Windlass
from .client import Client
from .context import Context
from .dependencies import Depends
from .duration import Duration

# isort: off
from .errors import (
    ApiError, Cancel, DecodeError, Fail, HandlerExit, JobCanceled, JobFailed, Retry, Snooze, StepFailed, Unreachable,
    WaitTimeout, WindlassError, WorkerRejected,
)  # fmt: skip

# isort: on
from .job import Handle, Job, JobOptions, JobRequest
from .runs import Node, Run, RunOptions, RunView
from .views import JobError, JobView, SignalView
from .worker import Statistics, Worker, WorkerOptions
from .workflow import Approval, Child, Operation, Workflow

__version__ = "0.2.0"

__all__ = [
    "ApiError", "Approval", "CallNext", "Cancel", "Child", "Client", "Context", "DecodeError", "Depends", "Duration",
    "Fail", "Handle", "HandlerExit", "Job", "JobCanceled", "JobError", "JobFailed", "JobOptions", "JobRequest",
    "JobView", "Middleware", "Node", "Operation", "Retry", "Run", "RunOptions", "RunView", "SignalView", "Snooze",
    "Statistics", "StepFailed", "Unreachable", "WaitTimeout", "Windlass", "WindlassError", "Worker", "WorkerOptions",
    "WorkerRejected", "Workflow",
]  # fmt: skip
