//! Liveness (`/healthz`) and readiness (`/readyz`) probes.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::limits::READY_QUERY_MS;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::HealthView;

use crate::state::AppState;

const QUERY_TIMEOUT: Duration = Duration::from_millis(READY_QUERY_MS as u64);

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Check that the process is alive.
///
/// Does not use the database. For load balancers use `/readyz`.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = HealthView)))]
async fn healthz() -> Json<HealthView> {
    Json(HealthView { status: "ok".into(), detail: None })
}

/// Check readiness: the database answers, accepts writes and has this version's schema.
///
/// Returns 503 with a reason in `detail` otherwise, and during shutdown. When writes stop, for example because the disk is
/// full or another program holds a lock, the response is 503 within 5 s.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, body = HealthView), (status = 503, body = HealthView)))]
async fn readyz(State(state): State<AppState>) -> (StatusCode, Json<HealthView>) {
    match problem(&state).await {
        None => (StatusCode::OK, Json(HealthView { status: "ok".into(), detail: None })),
        detail => (StatusCode::SERVICE_UNAVAILABLE, Json(HealthView { status: "unavailable".into(), detail })),
    }
}

/// Returns why the server is not ready, if it is not.
async fn problem(state: &AppState) -> Option<String> {
    if state.stopping.is_cancelled() {
        return Some("the server is shutting down".into());
    }
    // Reads the result of the last heartbeat, so that probes cause no writes.
    let accepts_writes = state.engine.accepts_writes();
    let query = tokio::time::timeout(QUERY_TIMEOUT, state.store.migration_status()).await;
    match query {
        Ok(Ok(migrations)) => {
            let missing = migrations.iter().find(|migration| migration.applied_at.is_none());
            let missing = missing.map(|migration| format!("migration {} has not run", migration.version));
            missing.or_else(|| (!accepts_writes).then(|| "the database accepts no writes".into()))
        }
        // Unauthenticated callers get no details; the log has them.
        Ok(Err(error)) if error.is_unavailable() => Some("the database is unavailable".into()),
        Ok(Err(_)) => Some("the database returned an unexpected error".into()),
        Err(_) => Some("the database does not respond".into()),
    }
}
