//! `/signals`: time to first signal, and whether estimates held.

use axum::extract::State;
use axum::response::Response;
use domain::limits::PAGE_ITEMS_DEFAULT;
use pages::Place;
use pages::signals::{Calibrated, Signals};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::shown;
use crate::error::ApiError;
use crate::extract::Params;
use crate::http::v1;
use crate::http::v1::ttfs::SummaryQuery;
use crate::state::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// First signals against their targets.
#[utoipa::path(get, path = "/signals", tag = "pages", operation_id = "signals",
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(State(state): State<AppState>, viewer: Viewer) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let frame = viewer.frame(&state, Place::Signals).await?;
    let by_hour = Params(SummaryQuery { by: None });
    let summary = v1::ttfs::summary(State(state.clone()), principal.clone(), by_hour).await?.0.items;
    let slo = v1::ttfs::slo(State(state.clone()), principal.clone()).await?.0;
    let known = state.store.calibrations(principal.tenant, PAGE_ITEMS_DEFAULT).await?;
    let calibration = known.into_iter().map(|known| {
        let shares = known.calibration.shares();
        Calibrated {
            kind: known.kind,
            affinity: known.affinity,
            run_p50_s: known.run_p50_s,
            run_p95_s: known.run_p95_s,
            answers: known.calibration.answers,
            within_p50_pct: shares.map(|(p50, _)| p50 * 100.0),
            within_p90_pct: shares.map(|(_, p90)| p90 * 100.0),
        }
    });
    Ok(shown(&Signals { frame, summary, slo, calibration: calibration.collect() }))
}
