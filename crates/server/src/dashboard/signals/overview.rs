//! `/signals`: time to first signal, and ETA accuracy.

use axum::extract::State;
use axum::response::Response;
use domain::limits::PAGE_DEFAULT_ITEMS;
use domain::signals::eta::line::LEVELS;
use pages::DashboardPage;
use pages::signals::overview::{EtaAccuracy, Signals};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::render;
use crate::error::ApiError;
use crate::extract::Params;
use crate::http::v1;
use crate::http::v1::signals::ttfs::SummaryQuery;
use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Show time to first signal against its targets, and ETA accuracy.
#[utoipa::path(get, path = "/signals", tag = "pages", operation_id = "signals",
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(State(state): State<AppState>, viewer: Viewer) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let frame = viewer.frame(&state, DashboardPage::Signals).await?;
    let by_hour = Params(SummaryQuery { by: None });
    let summary = v1::signals::ttfs::summary(State(state.clone()), principal.clone(), by_hour).await?.0.items;
    let slo = v1::signals::ttfs::slo(State(state.clone()), principal.clone()).await?.0;
    let rows = state.store.calibrations(principal.tenant, PAGE_DEFAULT_ITEMS).await?;
    let calibration = rows.into_iter().map(|row| {
        let shares = row.calibration.shares();
        let held = row.calibration.held();
        EtaAccuracy {
            kind: row.kind,
            affinity: row.affinity,
            run_p50_s: row.run_p50_s,
            run_p95_s: row.run_p95_s,
            answers: row.calibration.answers,
            within_p50_pct: held.map(|(p50, _)| p50 * 100.0),
            within_p90_pct: held.map(|(_, p90)| p90 * 100.0),
            width_s: row.width_s,
            reliability: shares.map(|shares| LEVELS.into_iter().zip(shares).collect()).unwrap_or_default(),
        }
    });
    Ok(render(&Signals { frame, summary, slo, calibration: calibration.collect() }))
}
