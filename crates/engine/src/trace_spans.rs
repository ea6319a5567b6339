//! Spans of traced jobs, for the collector that is configured with OTLP. Without one they are not recorded and cost nothing.

use domain::TraceContext;
use opentelemetry::trace::{Span, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry::{Context, global};

/// The name of the tracer of all spans.
const TRACER: &str = "windlass";

/// The tracer of the installed exporter.
pub fn tracer() -> global::BoxedTracer {
    global::tracer(TRACER)
}

/// The parent of spans that belong to the trace.
pub fn parent(context: &TraceContext) -> Context {
    let span = SpanContext::new(
        TraceId::from_hex(context.trace_id()).unwrap_or(TraceId::INVALID),
        SpanId::from_hex(context.parent_id()).unwrap_or(SpanId::INVALID),
        TraceFlags::new(u8::from_str_radix(context.flags(), 16).unwrap_or_default()),
        true,
        TraceState::default(),
    );
    Context::new().with_remote_span_context(span)
}

/// The context of a recorded span, to pass on. `None`: the span is not recorded.
pub fn context_of(span: &impl Span) -> Option<TraceContext> {
    let context = span.span_context();
    if !span.is_recording() {
        return None;
    }
    let (trace, id, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
    TraceContext::parse(&format!("00-{trace}-{id}-{flags:02x}"))
}
