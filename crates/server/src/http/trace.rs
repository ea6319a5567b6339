//! One tracing span per request, named by its route. Paths are not used, because they contain ids.

use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use tracing::field::Empty;
use tracing::{Span, info_span};

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

pub(crate) fn record_status(span: &Span, response: &Response) {
    span.record("http.response.status_code", response.status().as_u16());
}
