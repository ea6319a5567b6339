//! `/jobs`: the job listing and its filters.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use domain::limits::PAGE_ITEMS;
use pages::DashboardPage;
use pages::queue::is_system;
use pages::queue::jobs::{JobFilter, Jobs};
use pages::queue::push::PushForm;
use store::queue::queues::autocomplete::FilterSuggestions;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::Timestamp;

use crate::cursor;
use crate::dashboard::frame::Viewer;
use crate::dashboard::queue::queue::recent_jobs;
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
    let names_queue = query.queue.is_some();
    let (frame, mut page) = viewer.listing(&state, DashboardPage::Jobs, v1::queue::jobs::list, query).await?;
    let mut system: BTreeMap<String, usize> = BTreeMap::new();
    if !names_queue {
        page.items.retain(|job| {
            let is_own = is_system(&job.queue);
            if is_own {
                *system.entry(job.queue.clone()).or_default() += 1;
            }
            !is_own
        });
    }
    // A job's id begins with its creation time.
    let searched_to = page.next_cursor.as_deref().filter(|_| page.partial).map(|next| cursor::job(Some(next)));
    let searched_to = searched_to.transpose()?.flatten().and_then(|id| id.uuid().get_timestamp());
    let searched_to = searched_to.and_then(|at| Timestamp::from_second(at.to_unix().0 as i64).ok());
    // Totals and suggestions cover the whole tenant.
    let (mut totals, mut suggestions) = (None, FilterSuggestions::default());
    if principal.sees_all() {
        totals = Some(view::counts(&state.store.totals(principal.tenant).await?));
        suggestions = state.store.filter_suggestions(principal.tenant, PAGE_ITEMS).await?;
    }
    let FilterSuggestions { queues, kinds, affinities, tags } = suggestions;
    let can_push = frame.can.enqueue;
    let recent = match can_push {
        true => recent_jobs(&state, principal, None).await?,
        false => Vec::new(),
    };
    let push = PushForm::new(can_push, None, kinds.clone(), &recent);
    let completions = vec![("queues", queues), ("kinds", kinds), ("affinities", affinities), ("tags", tags)];
    Ok(render(&Jobs {
        frame,
        filter,
        page,
        system: system.into_iter().collect(),
        searched_to,
        totals,
        completions,
        push,
    }))
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
