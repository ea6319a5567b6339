//! Time to first signal: records events and serves their rollups.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use store::StoreError;
use store::access::tenants::quota::Admission;
use store::signals::ttfs::record::TtfsEvent as RecordedEvent;
use store::signals::ttfs::summary::{SloHour, Summary, SummaryPeriod};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, TtfsAccepted, TtfsAlert, TtfsEvent, TtfsEvents, TtfsSlo, TtfsSloHour, TtfsSummary};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::limit;
use crate::validate::signals::ttfs;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list, record)).routes(routes!(summary)).routes(routes!(slo))
}

/// List single events, newest first: those of a job, with an error code, or since a time.
///
/// Events are kept for 90 days. `error_message` and `metadata` require the right to read results or logs.
#[utoipa::path(get, path = "/api/v1/ttfs/events", tag = "ttfs", params(ttfs::EventsQuery),
    responses((status = 200, body = Page<TtfsEvent>)))]
async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<ttfs::EventsQuery>,
) -> Result<Json<Page<TtfsEvent>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::ttfs_event(query.cursor.as_deref())?;
    let events = state.store.list_ttfs(principal.tenant, query.filter()?, before, limit + 1).await?;
    let last = |event: &RecordedEvent| (event.at.unwrap_or_default(), event.id.unwrap_or_default());
    let events = page(events, limit, |event| cursor::after_ttfs_event(last(event)));
    let reads_messages = view::reads_messages(&principal);
    Ok(Json(events.try_map(|event| event_view(event, reads_messages))?))
}

fn event_view(event: RecordedEvent, reads_messages: bool) -> Result<TtfsEvent, StoreError> {
    Ok(TtfsEvent {
        event_id: event.id,
        at: event.at.map(view::time),
        job_id: event.job,
        surface: event.surface,
        event_type: event.event_type,
        ttfs_ms: event.ttfs_ms,
        cache_hit: Some(event.cache_hit),
        signal_source: event.signal_source,
        kind: event.kind,
        phase: event.phase,
        run: event.run,
        network_state: event.network_state,
        device: event.device,
        release: event.release,
        correlation_id: event.correlation_id,
        trace_id: event.trace_id,
        span_id: event.span_id,
        error_code: event.error_code,
        error_message: event.error_message.filter(|_| reads_messages),
        metadata: event.metadata.filter(|_| reads_messages).map(view::raw).transpose()?,
    })
}

/// Record time-to-first-signal events observed by users.
///
/// Returns 429 if the tenant's quota is exhausted.
#[utoipa::path(post, path = "/api/v1/ttfs/events", tag = "ttfs", request_body = TtfsEvents,
    responses((status = 202, body = TtfsAccepted)))]
async fn record(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<TtfsEvents>,
) -> Result<(StatusCode, Json<TtfsAccepted>), ApiError> {
    let events = ttfs::events(request, state.store.clock().now())?;
    if let Admission::Over { quota, limit, retry_s } =
        state.store.admit_ttfs_events(principal.tenant, events.len()).await?
    {
        return Err(ApiError::over_quota(quota, limit, Some(retry_s)));
    }
    for event in &events {
        if event.event_type == "signal.rendered" {
            let surface = event.surface.clone();
            metrics::histogram!("windlass_ttfs_seconds", "surface" => surface).record(event.ttfs_ms as f64 / 1_000.0);
        }
        let (surface, kind) = (event.surface.clone(), event.event_type.clone());
        metrics::counter!("windlass_ttfs_events_total", "surface" => surface, "event_type" => kind,
            "cache_hit" => if event.cache_hit { "true" } else { "false" })
        .increment(1);
    }
    let accepted = state.store.record_ttfs(principal.tenant, events).await?;
    Ok((StatusCode::ACCEPTED, Json(TtfsAccepted { accepted })))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SummaryQuery {
    /// `hour` (seven days, split by cache hit) or `day` (ninety days) (default: `hour`).
    pub(crate) by: Option<String>,
}

/// List the rollups, newest first.
///
/// Hourly rows are split by cache hit; daily rows are not.
#[utoipa::path(get, path = "/api/v1/ttfs/summary", tag = "ttfs", params(SummaryQuery),
    responses((status = 200, body = Page<TtfsSummary>)))]
pub(crate) async fn summary(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<SummaryQuery>,
) -> Result<Json<Page<TtfsSummary>>, ApiError> {
    let by = match query.by.as_deref() {
        None | Some("hour") => SummaryPeriod::Hour,
        Some("day") => SummaryPeriod::Day,
        Some(_) => return Err(ApiError::invalid_query("by", "by must be hour or day")),
    };
    let items = state.store.ttfs_summary(principal.tenant, by).await?.into_iter().map(summary_view).collect();
    Ok(Json(Page { items, next_cursor: None, partial: false }))
}

fn summary_view(summary: Summary) -> TtfsSummary {
    TtfsSummary {
        at: view::time(summary.at),
        surface: summary.surface,
        cache_hit: summary.cache_hit,
        event_count: summary.events,
        avg_ms: summary.avg_ms,
        p50_ms: summary.p50_ms,
        p95_ms: summary.p95_ms,
        p99_ms: summary.p99_ms,
        min_ms: summary.min_ms,
        max_ms: summary.max_ms,
        over_p50_slo: summary.over_2s,
        over_p95_slo: summary.over_5s,
        cache_hit_rate: summary.hit_rate,
        error_count: summary.errors,
    }
}

/// Get SLO compliance of the last 24 hours and the firing alerts.
///
/// The targets are a median of 2 s and a 95th percentile of 5 s.
#[utoipa::path(get, path = "/api/v1/ttfs/slo", tag = "ttfs", responses((status = 200, body = TtfsSlo)))]
pub(crate) async fn slo(State(state): State<AppState>, principal: Principal) -> Result<Json<TtfsSlo>, ApiError> {
    let item = |hour: SloHour| TtfsSloHour {
        at: view::time(hour.at),
        surface: hour.surface,
        total_signals: hour.total,
        p50_breaches: hour.p50_breaches,
        p95_breaches: hour.p95_breaches,
        p50_compliance_pct: hour.p50_compliance_pct,
        p95_compliance_pct: hour.p95_compliance_pct,
    };
    let items = state.store.ttfs_slo(principal.tenant).await?.into_iter().map(item).collect();
    let alert = |alert: store::signals::ttfs::alerts::Alert| TtfsAlert {
        surface: alert.surface,
        alert: alert.alert,
        since: view::time(alert.since),
        value: alert.value,
        detail: alert.detail,
    };
    let alerts = state.store.ttfs_alerts(principal.tenant).await?.into_iter().map(alert).collect();
    Ok(Json(TtfsSlo { items, next_cursor: None, alerts }))
}
