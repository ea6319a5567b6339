//! One tracing span per request, named by its route. Paths are not used, because they contain ids.

use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use domain::TraceContext;
use tracing::field::Empty;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub(crate) fn span(request: &Request) -> Span {
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str);
    info_span!(
        "request",
        otel.name = %format_args!("{} {route}", request.method()),
        otel.kind = "server",
        http.request.method = %request.method(),
        http.route = route,
        http.response.status_code = Empty,
    )
}

/// Makes the span part of the trace that the header `traceparent` names.
pub(crate) fn set_parent(span: &Span, request: &Request) {
    let header = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    if let Some(context) = header.and_then(TraceContext::parse) {
        // Fails without an exporter.
        let _unset = span.set_parent(engine::trace_spans::parent(&context));
    }
}

pub(crate) fn record_status(span: &Span, response: &Response) {
    span.record("http.response.status_code", response.status().as_u16());
}
