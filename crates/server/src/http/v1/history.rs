//! The tenant's history: who did what to subjects, runtimes, queues, triggers and tokens (X5).
//!
//! A job's own history is the job's (`/jobs/{id}/history`): it is read from there and not repeated here.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use store::timeline::list::TimelineOf;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, TimelineItem};

use crate::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::Params;
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{label, limit};
use crate::view::subject as view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryQuery {
    /// Only what was done to this subject.
    pub(crate) subject: Option<String>,
    /// Only what was done to this runtime.
    pub(crate) runtime: Option<String>,
    /// Items on a page: 1 to 500, 50 unless set.
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the page before.
    pub(crate) cursor: Option<String>,
}

impl HistoryQuery {
    fn of(&self) -> Result<TimelineOf, ApiError> {
        match (label("subject", &self.subject)?, label("runtime", &self.runtime)?) {
            (Some(_), Some(_)) => Err(ApiError::invalid_field("runtime", "cannot be asked for together with subject")),
            (Some(subject), None) => Ok(TimelineOf::Subject(subject)),
            (None, Some(runtime)) => Ok(TimelineOf::Runtime(runtime)),
            (None, None) => Ok(TimelineOf::Everything),
        }
    }
}

/// Lists what was done, and by whom, newest first.
#[utoipa::path(get, path = "/api/v1/history", tag = "history", params(HistoryQuery),
    responses((status = 200, body = Page<TimelineItem>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<HistoryQuery>,
) -> Result<Json<Page<TimelineItem>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::timeline(query.cursor.as_deref())?;
    let items = state.store.timeline(principal.tenant, query.of()?, before, limit + 1).await?;
    let items = page(items, limit, |last| cursor::after_timeline(last.id));
    Ok(Json(items.try_map(|item| view::timeline_item_for(item, &principal))?))
}
