//! `/jobs`: the job listing and its filters.

use axum::extract::State;
use axum::response::Response;
use domain::limits::PAGE_ITEMS;
use pages::DashboardPage;
use pages::queue::jobs::{JobFilter, Jobs};
use store::queue::queues::autocomplete::FilterSuggestions;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::JobQuery;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// List jobs, newest first.
#[utoipa::path(get, path = "/jobs", tag = "pages", operation_id = "jobs", params(JobQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<JobQuery>,
) -> Result<Response, ApiError> {
    let filter = filter(&query);
    let principal = &viewer.principal;
    let (frame, page) = viewer.listing(&state, DashboardPage::Jobs, v1::queue::jobs::list, query).await?;
    // Totals and suggestions cover the whole tenant.
    let (mut totals, mut suggestions) = (None, FilterSuggestions::default());
    if principal.sees_all() {
        totals = Some(view::counts(&state.store.totals(principal.tenant).await?));
        suggestions = state.store.filter_suggestions(principal.tenant, PAGE_ITEMS).await?;
    }
    let FilterSuggestions { queues, kinds, affinities, tags } = suggestions;
    let completions = vec![("queues", queues), ("kinds", kinds), ("affinities", affinities), ("tags", tags)];
    Ok(render(&Jobs { frame, filter, page, totals, completions }))
}

fn filter(query: &JobQuery) -> JobFilter {
    let text = |member: &Option<String>| member.clone().unwrap_or_default();
    JobFilter {
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
