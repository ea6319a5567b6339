//! The tenant's history: changes to subjects, runtimes, queues, triggers and tokens, with their actors.
//!
//! A job has its own history (`/jobs/{id}/history`), which is not repeated here.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use store::fleet::timeline::list::TimelineOf;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, TimelineItem};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::Params;
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{label, limit};
use crate::view::fleet as view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryQuery {
    /// Only items of this subject.
    pub(crate) subject: Option<String>,
    /// Only items of this runtime.
    pub(crate) runtime: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

impl HistoryQuery {
    fn of(&self) -> Result<TimelineOf, ApiError> {
        match (label("subject", &self.subject)?, label("runtime", &self.runtime)?) {
            (Some(_), Some(_)) => {
                Err(ApiError::invalid_field("runtime", "cannot be combined with subject; send one of them"))
            }
            (Some(subject), None) => Ok(TimelineOf::Subject(subject)),
            (None, Some(runtime)) => Ok(TimelineOf::Runtime(runtime)),
            (None, None) => Ok(TimelineOf::Everything),
        }
    }
}

/// List the history of the tenant, newest first.
///
/// Each item names the change and its actor.
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
