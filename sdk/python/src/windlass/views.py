"""Objects that the server returns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

#: The states of a job. The last three are final.
State = Literal["scheduled", "queued", "loading", "working", "waiting", "succeeded", "failed", "canceled"]


def timestamp(text: str) -> datetime:
    """Parses an RFC 3339 time in UTC. Digits beyond microseconds are cut."""
    head, _, rest = text.partition(".")
    fraction = rest.rstrip("Z")[:6].ljust(6, "0")
    return datetime.fromisoformat(f"{head.rstrip('Z')}.{fraction}+00:00")


@dataclass(frozen=True)
class JobError:
    """The error of a failed attempt."""

    code: str
    message: str
    retryable: bool


@dataclass(frozen=True)
class JobView:
    """A job as the server reports it. `raw` has all members of the answer."""

    id: str
    queue: str
    kind: str
    state: State
    payload: Any
    result: Any
    error: JobError | None
    attempt: int
    max_attempts: int
    progress: float | None
    phase: str | None
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    raw: dict[str, Any] = field(repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.state in ("succeeded", "failed", "canceled")

    @staticmethod
    def of(raw: dict[str, Any]) -> JobView:
        """Reads the answer of the server."""
        members: dict[str, Any] = {part.name: raw.get(part.name) for part in fields(JobView)} | {"raw": raw}
        if error := raw["error"]:
            members["error"] = JobError(error["code"], error["message"], error["retryable"])
        for name in ("created_at", "run_at", "started_at", "finished_at"):
            members[name] = raw[name] and timestamp(raw[name])
        return JobView(**members)


@dataclass(frozen=True)
class SignalView:
    """The current status of a job for people. `raw` has all members of the answer."""

    kind: str
    phase: str
    summary: str
    progress: float | None
    #: The median estimate of the seconds until the job ends.
    eta_p50: float | None
    #: Nine of ten comparable jobs end within this many seconds.
    eta_p90: float | None
    raw: dict[str, Any] = field(repr=False)

    @staticmethod
    def of(raw: dict[str, Any]) -> SignalView:
        """Reads the answer of the server."""
        eta: dict[str, float] = raw["eta_seconds"] or {}
        p50, p90 = eta.get("p50"), eta.get("p90")
        return SignalView(raw["kind"], raw["phase"], raw["summary"], raw["progress"], p50, p90, raw)
