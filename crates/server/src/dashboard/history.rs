//! `/history`: everything that was done.

use axum::extract::State;
use axum::response::Response;
use pages::Place;
use pages::history::History;
use store::timeline::list::TimelineOf;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::Page;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::cursor;
use crate::error::ApiError;
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Everything done to anything, newest first.
#[utoipa::path(get, path = "/history", tag = "pages", operation_id = "history", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let frame = viewer.frame(&state, Place::History).await?;
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::timeline(query.cursor.as_deref())?;
    let mut items = state.store.timeline(viewer.principal.tenant, TimelineOf::Everything, before, limit + 1).await?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next_cursor = items.last().filter(|_| more).map(|last| cursor::after_timeline(last.id));
    let items = items
        .into_iter()
        .map(|item| view::subject::timeline_item_for(item, &viewer.principal))
        .collect::<Result<_, _>>()?;
    Ok(shown(&History { frame, page: Page { items, next_cursor, partial: false } }))
}
