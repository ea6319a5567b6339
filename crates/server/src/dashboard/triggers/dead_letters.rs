//! `/dead-letters`: permanently failed work.

use axum::extract::State;
use axum::response::Response;
use pages::DashboardPage;
use pages::triggers::dead_letters::{DeadLetterFilters, DeadLetters, LetterGroup};
use store::triggers::dead_letters::groups::{DeadLetterGroup, DeadLetterGroups};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::triggers::dead_letter::DeadLetterQuery;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// List dead letters, newest first (default: unresolved only).
#[utoipa::path(get, path = "/dead-letters", tag = "pages", operation_id = "dead_letters", params(DeadLetterQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<DeadLetterQuery>,
) -> Result<Response, ApiError> {
    let text = |member: &Option<String>| member.clone().unwrap_or_default();
    let filter = DeadLetterFilters {
        resolved: text(&query.resolved),
        source: text(&query.source),
        queue: text(&query.queue),
        kind: text(&query.kind),
        error_code: text(&query.error_code),
        job_id: text(&query.job_id),
        trigger_id: text(&query.trigger_id),
        cursor: text(&query.cursor),
    };
    // A link to the dead letter of one job must show it even if it is resolved.
    let is_single_job = query.job_id.is_some();
    let resolved = query.resolved.clone().or_else(|| (!is_single_job).then(|| "false".to_owned()));
    let query = DeadLetterQuery { resolved, ..query };
    let (frame, page) =
        viewer.listing(&state, DashboardPage::DeadLetters, v1::triggers::dead_letters::list, query).await?;
    let shows_groups = filter.is_unfiltered() && page.items.len() > 1;
    let grouped = match shows_groups {
        true => state.store.group_dead_letters(viewer.principal.tenant).await?,
        false => DeadLetterGroups::default(),
    };
    let shows_message = view::reads_messages(&viewer.principal);
    let groups = grouped.groups.into_iter().map(|found| group(found, shows_message)).collect();
    Ok(render(&DeadLetters { frame, filter, page, groups, groups_are_partial: grouped.is_partial }))
}

/// Messages of jobs need a right of their own.
fn group(group: DeadLetterGroup, shows_message: bool) -> LetterGroup {
    let DeadLetterGroup { source, queue, kind, trigger, error_code, count, oldest_at, newest_at, last_error, .. } =
        group;
    let title = match (&kind, &queue) {
        (Some(kind), Some(queue)) => format!("{kind} in {queue}"),
        _ => source.clone(),
    };
    LetterGroup {
        title,
        error_code: error_code.clone(),
        message: if shows_message { last_error.message } else { String::new() },
        count: i64::try_from(count).unwrap_or(i64::MAX),
        oldest_at: view::time(oldest_at),
        newest_at: view::time(newest_at),
        filter: DeadLetterFilters {
            source,
            queue: queue.unwrap_or_default(),
            kind: kind.unwrap_or_default(),
            error_code,
            trigger_id: trigger.map(|trigger| trigger.uuid().to_string()).unwrap_or_default(),
            ..DeadLetterFilters::default()
        },
    }
}
