//! Signals: the current status of jobs. Derived from the job; its worker can refine it.

use axum::Json;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::SignalKind;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use store::CacheStatus;
use store::queue::list::JobFilter;
use store::signals::read::SignalRead;
use store::signals::refine::Signaled;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, SignalUpdate, SignalView};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathJob};
use crate::signals::view::{RenderedSignal, render};
use crate::state::AppState;
use crate::validate::query::{label, limit};
use crate::validate::signals::signal::change;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
const SIGNAL_SOURCE: HeaderName = HeaderName::from_static("x-signal-source");

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get, put)).routes(routes!(list))
}

/// Get the signal of a job: its current status.
///
/// Supports conditional requests with `ETag` and `If-None-Match`.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/signal", tag = "signals",
    params(("id" = Uuid, Path), ("If-None-Match" = Option<String>, Header, description = "ETag of an earlier response")),
    responses((status = 200, body = SignalView,
               headers(("ETag" = String), ("Cache-Status" = String),
                       ("X-Signal-Source" = String, description = "snapshot, cold_start or failure_index"))),
              (status = 204, description = "The job was pruned"),
              (status = 304, description = "The signal has not changed")))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    match state.store.signal_source(principal.tenant, id).await? {
        SignalRead::Found(source) if principal.sees(&source.job) => {
            Ok(response(render(&state.store, &principal, *source).await?, &headers))
        }
        SignalRead::Pruned if principal.sees_all() => Ok(StatusCode::NO_CONTENT.into_response()),
        _ => Err(ApiError::not_found("job")),
    }
}

fn response(rendered: RenderedSignal, headers: &HeaderMap) -> Response {
    let body = serde_json::to_vec(&rendered.view).expect("plain data has a JSON form");
    let hash = Sha256::digest(&body);
    let tag: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    let unchanged = headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|one| one.trim() == "*" || one.trim().trim_start_matches("W/") == tag);
    let cache = match rendered.freshness {
        CacheStatus::Hit => "windlass; hit",
        CacheStatus::Miss => "windlass; fwd=miss; stored",
    };
    let headers = [
        (ETAG, HeaderValue::from_str(&tag).expect("hexadecimal digits")),
        (CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
        (CACHE_STATUS, HeaderValue::from_static(cache)),
        (SIGNAL_SOURCE, HeaderValue::from_static(rendered.source.as_str())),
    ];
    if unchanged {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// Update the signal of a claimed job.
///
/// Returns 409 if `epoch` is stale, because the claim was lost.
#[utoipa::path(put, path = "/api/v1/jobs/{id}/signal", tag = "signals", params(("id" = Uuid, Path)),
    request_body = SignalUpdate, responses((status = 200, body = SignalView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    JsonBody(update): JsonBody<SignalUpdate>,
) -> Result<Json<SignalView>, ApiError> {
    state.check_reached(&principal, id).await?;
    let tenant = state.tenant_of(&principal, id).await?;
    match state.store.signal(tenant, id, change(update)?).await? {
        Signaled::Applied => {}
        Signaled::Refused(refusal) => return Err(ApiError::refused(refusal)),
        Signaled::UnknownPhase => {
            return Err(ApiError::invalid_field("phase", domain::queue::settings::phase_requirement()));
        }
        Signaled::NotFound => return Err(ApiError::not_found("job")),
    }
    let source = state.store.signal_source(tenant, id).await;
    match source.map_err(|error| ApiError::from(error).after_a_change())? {
        SignalRead::Found(source) => {
            let rendered = render(&state.store, &principal, *source).await;
            Ok(Json(rendered.map_err(|error| ApiError::from(error).after_a_change())?.view))
        }
        SignalRead::Pruned | SignalRead::NotFound => Err(ApiError::not_found("job")),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SignalQuery {
    /// `queued`, `started`, `phase`, `blocked`, `failed`, `succeeded`, `canceled` or `unavailable`.
    kind: Option<String>,
    /// Only signals of jobs of this run.
    run: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    limit: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// List signals, newest job first.
#[utoipa::path(get, path = "/api/v1/signals", tag = "signals", params(SignalQuery),
    responses((status = 200, body = Page<SignalView>)))]
async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<SignalQuery>,
) -> Result<Json<Page<SignalView>>, ApiError> {
    let kind = query.kind.as_deref().map(signal_kind).transpose()?;
    let run = label("run", &query.run)?;
    let filter = principal.narrow(JobFilter { run, without_content: true, ..JobFilter::default() });
    let before = cursor::signal(query.cursor.as_deref())?;
    let limit = limit(query.limit.as_deref())?;
    let page = state.store.list_signals(principal.tenant, kind, filter, before, limit).await?;
    let mut items = Vec::with_capacity(page.jobs.len());
    for source in state.store.signal_sources(principal.tenant, page.jobs).await? {
        let rendered = render(&state.store, &principal, source).await?;
        if kind.is_none_or(|kind| kind.as_str() == rendered.view.kind) {
            items.push(rendered.view);
        }
    }
    Ok(Json(Page { items, next_cursor: page.next.map(cursor::after_signal), partial: page.partial }))
}

fn signal_kind(text: &str) -> Result<SignalKind, ApiError> {
    SignalKind::parse(text).ok_or_else(|| {
        let all = SignalKind::ALL.map(SignalKind::as_str).join(", ");
        ApiError::invalid_query("kind", format_args!("kind must be one of {all}"))
    })
}
