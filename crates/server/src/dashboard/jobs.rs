//! `/jobs`: the listing and its filters.

use axum::extract::State;
use axum::response::Response;
use domain::limits::PAGE_ITEMS;
use pages::Place;
use pages::jobs::{Filter, Jobs};
use store::queues::words::FilterWords;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::JobQuery;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Jobs, newest first.
#[utoipa::path(get, path = "/jobs", tag = "pages", operation_id = "jobs", params(JobQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<JobQuery>,
) -> Result<Response, ApiError> {
    let filter = filter(&query);
    let principal = &viewer.principal;
    let (frame, page) = viewer.listing(&state, Place::Jobs, v1::jobs::list, query).await?;
    // Figures and names are of the whole tenant.
    let (mut totals, mut words) = (None, FilterWords::default());
    if principal.sees_all() {
        totals = Some(view::counts(&state.store.totals(principal.tenant).await?));
        words = state.store.filter_words(principal.tenant, PAGE_ITEMS).await?;
    }
    let FilterWords { queues, kinds, affinities, tags } = words;
    let completions = vec![("queues", queues), ("kinds", kinds), ("affinities", affinities), ("tags", tags)];
    Ok(shown(&Jobs { frame, filter, page, totals, completions }))
}

fn filter(query: &JobQuery) -> Filter {
    let text = |member: &Option<String>| member.clone().unwrap_or_default();
    Filter {
        state: text(&query.state),
        queue: text(&query.queue),
        kind: text(&query.kind),
        affinity: text(&query.affinity),
        subject: text(&query.subject),
        run: text(&query.run),
        tag: text(&query.tag),
        since: text(&query.since),
        until: text(&query.until),
        text: text(&query.text),
        cursor: text(&query.cursor),
    }
}
