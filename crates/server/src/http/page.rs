//! The page at `/`: what this is, where its documents are, how full its queues are. No scripts.

use std::fmt::Write;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use domain::limits::PAGE_ITEMS;
use store::queues::get::Queue;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Principal;
use crate::error::ApiError;
use crate::state::AppState;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    table{border-collapse:collapse}td,th{padding:.25rem .75rem;text-align:right;border-bottom:1px solid #ccc}\
    td:first-child,th:first-child{text-align:left}";
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(home))
}

/// The home page.
#[utoipa::path(get, path = "/", tag = "pages", responses((status = 200, content_type = "text/html", body = String)))]
async fn home(State(state): State<AppState>, principal: Principal) -> Result<Response, ApiError> {
    let queues = state.store.list_queues(principal.tenant, None, PAGE_ITEMS).await?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, html(&queues)).into_response())
}

fn html(queues: &[Queue]) -> String {
    let mut rows = String::new();
    for Queue { name, counts, paused, .. } in queues {
        let name = escaped(name.as_str());
        let paused = if paused.is_some() { " (paused)" } else { "" };
        let figures =
            [counts.scheduled, counts.queued, counts.running, counts.succeeded, counts.failed, counts.canceled];
        let _ = write!(rows, "<tr><td>{name}{paused}</td>");
        figures.iter().for_each(|figure| write!(rows, "<td>{figure}</td>").expect("a string takes everything"));
        rows.push_str("</tr>");
    }
    let table = if rows.is_empty() {
        "<p>No queue has had a job yet.</p>".to_owned()
    } else {
        format!(
            "<table><thead><tr><th>Queue</th><th>Scheduled</th><th>Queued</th><th>Running</th><th>Succeeded</th>\
             <th>Failed</th><th>Canceled</th></tr></thead><tbody>{rows}</tbody></table>"
        )
    };
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Windlass</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body><h1>Windlass</h1>\
         <p>Version {}. The routes are in <a href=\"/openapi.json\">/openapi.json</a>.</p>{table}</body></html>",
        env!("CARGO_PKG_VERSION")
    )
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn names_cannot_become_markup() {
        assert_eq!(escaped("<a href='x\">&"), "&lt;a href=&#39;x&quot;&gt;&amp;");
    }
}
