//! `/system`: database, background tasks and clock.

use axum::extract::State;
use axum::response::Response;
use domain::TenantId;
use pages::DashboardPage;
use pages::system::{Bloat, DatabaseState, System};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::render;
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Show the database, the background tasks of this node, and what was pruned.
#[utoipa::path(get, path = "/system", tag = "pages", operation_id = "system",
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(State(state): State<AppState>, viewer: Viewer) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let frame = viewer.frame(&state, DashboardPage::System).await?;
    let tasks = v1::tasks::list(State(state.clone()), principal.clone()).await?.0;
    // Tenants other than the default one must not see the size of the shared database.
    let sees_installation = matches!(principal.tenant, TenantId::SYSTEM | TenantId::DEFAULT);
    let database = if sees_installation { Some(database(&state).await?) } else { None };
    Ok(render(&System { frame, tasks, database }))
}

async fn database(state: &AppState) -> Result<DatabaseState, ApiError> {
    let store = &state.store;
    let size = store.size().await?;
    let (clock_skew_ms, oldest_transaction_s) = store.clock_skew_and_oldest_transaction().await?;
    let wal_bytes = store.sqlite_path().map(|path| {
        let mut wal = path.as_os_str().to_owned();
        wal.push("-wal");
        std::fs::metadata(wal).map_or(0, |file| file.len() as i64)
    });
    Ok(DatabaseState {
        engine: if store.is_postgres() { "PostgreSQL" } else { "SQLite" },
        bytes: size.bytes,
        bloat: if store.is_postgres() { Bloat::Rows(size.dead_rows) } else { Bloat::Bytes(size.free_bytes) },
        wal_bytes,
        schema: store::db::migrate::MIGRATIONS.len(),
        clock_skew_ms,
        oldest_transaction_s,
        largest: size.largest,
    })
}
