//! Whether the process lives, and whether it can serve.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::HealthView;

use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = HealthView)))]
async fn healthz() -> Json<HealthView> {
    Json(HealthView { status: "ok".into(), detail: None })
}

/// The database answers, takes what is written, and its schema is this program's.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, body = HealthView), (status = 503, body = HealthView)))]
async fn readyz(State(state): State<AppState>) -> (StatusCode, Json<HealthView>) {
    let trouble = if state.stopping.is_cancelled() {
        Some("the server is shutting down".to_owned())
    } else {
        match state.store.migration_status().await {
            Ok(migrations) => {
                let missing = migrations.iter().find(|migration| migration.applied_at.is_none());
                let missing = missing.map(|migration| format!("migration {} has not run", migration.version));
                missing.or_else(|| (!state.engine.beats()).then(|| "the database takes no writes".to_owned()))
            }
            // The log says more; whoever asks here may be a stranger.
            Err(error) if error.is_unavailable() => Some("the database is unavailable".to_owned()),
            Err(_) => Some("the database gives unexpected answers".to_owned()),
        }
    };
    match trouble {
        None => (StatusCode::OK, Json(HealthView { status: "ok".into(), detail: None })),
        detail => (StatusCode::SERVICE_UNAVAILABLE, Json(HealthView { status: "unavailable".into(), detail })),
    }
}
