"""OpenTelemetry: a span for each attempt, and a histogram of durations. `instrument(wl)` once at the start."""

from __future__ import annotations

import time
from typing import Any

from opentelemetry import metrics, trace

from ..app import CallNext, Windlass
from ..context import Context


def instrument(
    wl: Windlass,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Adds a middleware that records attempts, with the semantic conventions for messaging."""
    tracer = trace.get_tracer("windlass", tracer_provider=tracer_provider)
    meter = metrics.get_meter("windlass", meter_provider=meter_provider)
    duration = meter.create_histogram("messaging.process.duration", "s", "Duration of an attempt")

    async def record(ctx: Context, call_next: CallNext) -> Any:
        attributes: dict[str, str | int] = {
            "messaging.system": "windlass",
            "messaging.operation.type": "process",
            "messaging.destination.name": ctx.queue,
            "windlass.job.kind": ctx.kind,
        }
        own: dict[str, str | int] = {"messaging.message.id": ctx.id, "windlass.job.attempt": ctx.attempt}
        started = time.perf_counter()
        with tracer.start_as_current_span(
            f"process {ctx.kind}", kind=trace.SpanKind.CONSUMER, attributes={**attributes, **own}
        ):
            try:
                return await call_next(ctx)
            except BaseException as error:
                attributes["error.type"] = type(error).__qualname__
                raise
            finally:
                duration.record(time.perf_counter() - started, attributes)

    wl.middleware(record)
