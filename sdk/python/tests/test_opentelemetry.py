"""OpenTelemetry: what the SDK of OpenTelemetry records."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from windlass import Windlass
from windlass.contrib.opentelemetry import instrument
from windlass.testing import fake


async def test_each_attempt_is_a_span_and_a_duration() -> None:
    wl = Windlass()
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(wl, tracers, MeterProvider([reader]))

    @wl.job(queue="mail", max_attempts=2)
    async def flaky(fail: bool) -> None:
        if fail:
            raise LookupError("no such user")

    with fake(wl) as jobs:
        await flaky.push(fail=False)
        await flaky.push(fail=True)
        await jobs.drain()
    spans = exporter.get_finished_spans()
    attributes: list[Any] = [dict(span.attributes or {}) for span in spans]
    assert [span.name for span in spans] == ["process flaky"] * 3
    assert attributes[0]["messaging.destination.name"] == "mail"
    assert attributes[0]["messaging.message.id"] == jobs.jobs[0].id
    assert [each["windlass.job.attempt"] for each in attributes] == [1, 1, 2]
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET, StatusCode.ERROR, StatusCode.ERROR]

    data: Any = reader.get_metrics_data()
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    counts = {point.attributes.get("error.type"): point.count for point in metric.data.data_points}
    assert (metric.name, counts) == ("messaging.process.duration", {None: 1, "LookupError": 2})
