"""Exceptions: those that the client raises, and those that a handler raises to choose the outcome of its attempt."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from .duration import Duration, seconds, whole_seconds

if TYPE_CHECKING:
    from .views import JobView


class WindlassError(Exception):
    """Base class of the errors that the client raises."""


class ApiError(WindlassError):
    """The server answered a request with an error."""

    def __init__(self, status: int, code: str, detail: str, field: str | None = None, retry_after: float | None = None):
        super().__init__(f"{detail} ({status} {code})")
        #: The HTTP status.
        self.status = status
        #: The stable code of the problem, see the reference of error codes. Empty if a proxy answered.
        self.code = code
        #: The problem for people.
        self.detail = detail
        #: The member of the request at fault.
        self.field = field
        #: Seconds after which the request may be repeated.
        self.retry_after = retry_after

    @property
    def is_worker_gone(self) -> bool:
        """The worker's lease has expired, or the worker was removed."""
        return self.status == 410 or (self.status == 404 and self.code == "not_found")

    @property
    def is_unapplied(self) -> bool:
        """The server changed nothing, and the same request may succeed later."""
        return self.status in (408, 425, 429) or (self.status == 503 and self.code in ("unavailable", "shutting_down"))

    @property
    def is_refusal(self) -> bool:
        """The server rejected the request; the same request would be rejected again."""
        if self.is_unapplied or self.status >= 500:
            return False
        # A proxy answers 404 while the server is away, without a problem document.
        return self.code not in ("", "body_broken_off") or self.status == 413


class Unreachable(WindlassError):
    """The server did not answer. `sent` is false if the request did not reach it, so that nothing was changed."""

    def __init__(self, message: str, *, sent: bool):
        super().__init__(message)
        #: Whether the request was sent. If so, the server may have applied it.
        self.sent = sent


class WorkerRejected(WindlassError):
    """The server rejects this worker, for example because its token was revoked."""


class JobFailed(WindlassError):
    """The awaited job failed."""

    def __init__(self, job: JobView):
        error = job.error
        self.code = error.code if error else ""
        """The error code of the last attempt."""
        super().__init__(f"job {job.id} failed: {self.code}: {error.message if error else ''}")
        #: The job.
        self.job = job


class JobCanceled(WindlassError):
    """The awaited job was canceled."""

    def __init__(self, job: JobView):
        super().__init__(f"job {job.id} was canceled")
        #: The job.
        self.job = job


class HandlerExit(Exception):
    """Base class of the exceptions with which a handler chooses the outcome of its attempt."""


class Retry(HandlerExit):
    """Raised by a handler: the attempt failed, and another one may succeed. As the option `retry` of a job: the policy.

    Every exception that is not a `HandlerExit` also retries the job, with the name of its class as the code. The delay
    is `initial`, then `exponent` times longer after each failure, up to `maximum`. A random share of up to `jitter` is
    added. The server rounds delays up to whole seconds. A raised `Retry` does not change the policy of its job.
    """

    def __init__(
        self, message: str = "", *, code: str = "retry", initial: Duration = 5, maximum: Duration = 3_600, exponent:
        float = 2.0, jitter: float = 0.1, attempts: int = 3,
    ):  # fmt: skip
        super().__init__(message)
        #: Maximum number of attempts of a step of a workflow. Jobs have `max_attempts`.
        self.attempts = attempts
        #: The stable error code. Failures are grouped by it.
        self.code = code
        #: The policy as the API takes it.
        self.policy = {
            "initial_s": whole_seconds(initial), "maximum_s": whole_seconds(maximum), "exponent": exponent, "jitter":
            jitter,
        }  # fmt: skip
        self._delays = seconds(initial), seconds(maximum), exponent, jitter

    def delay(self, attempt: int) -> float:
        """Returns the delay after the attempt of this number, in seconds."""
        initial, maximum, exponent, jitter = self._delays
        delay = min(initial * exponent ** min(attempt - 1, 1_000), maximum)
        return delay * (1 + random.uniform(0, jitter))  # noqa: S311


class Fail(HandlerExit):
    """The job can never succeed; it fails without further attempts."""

    def __init__(self, message: str = "", *, code: str = "failed"):
        super().__init__(message)
        #: The stable error code. Failures are grouped by it.
        self.code = code


class StepFailed(Fail):
    """A step, a wait or a child of a workflow has failed for good. An uncaught one fails the workflow."""

    def __init__(self, key: str, error: dict[str, Any], job_id: str | None = None):
        super().__init__(error["message"], code=error["code"])
        #: The key in the journal.
        self.key = key
        #: The child.
        self.job_id = job_id


class WaitTimeout(StepFailed, TimeoutError):
    """No event arrived in time."""


class ContinueAs(HandlerExit):
    """The job ends and continues as a new one. Raised by `Workflow.continue_as`."""

    def __init__(self, payload: Any):
        super().__init__(payload)
        #: The payload of the new job.
        self.payload = payload


class Suspended(BaseException):
    """Ends the attempt of a workflow that waits for its journal."""


class Aborted(BaseException):
    """Ends the attempt of a workflow from within a step. The cause decides the outcome."""


class Snooze(HandlerExit):
    """The job runs again after a delay. The attempt does not count."""

    def __init__(self, delay: Duration):
        super().__init__(delay)
        #: The delay: seconds, a timedelta, or a text such as "2h".
        self.delay = delay


class Cancel(HandlerExit):
    """The job ends as canceled."""


class DecodeError(ValueError):
    """A JSON value does not match the type that the program declares for it."""

    def __init__(self, path: str, expected: str, value: Any):
        shown = repr(value)
        super().__init__(f"{path or 'value'}: expected {expected}, got {shown[:100]}")


def error_json(error: BaseException, *, retryable: bool) -> dict[str, Any]:
    """Describes an exception in the way that the server accepts: with its code, or the name of its class."""
    code = error.code if isinstance(error, (Fail, Retry)) else type(error).__qualname__
    code = _cut("".join(c if c.isprintable() else " " for c in code), 128)
    return {"code": code or "error", "message": _cut(str(error), 16 << 10), "retryable": retryable}


def _cut(text: str, size: int) -> str:
    return text.encode(errors="replace")[:size].decode(errors="ignore")
