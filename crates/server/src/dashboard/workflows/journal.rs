//! The journal on the page of a job.

use axum::extract::State;
use domain::limits::JOURNAL_ROWS;
use domain::{JobId, Right};
use pages::workflows::journal::Journal;
use wire::{JobView, Timestamp};

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::{Params, PathJob};
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;

/// Returns the entries that the page of a job shows. `None` for a job without a journal.
pub(crate) async fn journal(
    state: &AppState,
    principal: &Principal,
    job: &JobView,
    cursor: Option<String>,
    now: Timestamp,
) -> Result<Option<Journal>, ApiError> {
    let is_later_page = cursor.is_some();
    let query = Params(PageQuery { limit: Some(JOURNAL_ROWS.to_string()), cursor });
    let path = PathJob(JobId::new(job.id));
    let view = v1::workflows::journal::journal(State(state.clone()), principal.clone(), path, query).await?.0;
    if view.entries == 0 {
        return Ok(None);
    }
    let rights = Right::ALL.into_iter().filter(|right| principal.has(*right)).map(Right::as_str).collect();
    Ok(Some(Journal {
        view,
        is_later_page,
        rights,
        from: job.started_at.map_or(job.created_at, |started_at| started_at.min(job.created_at)),
        until: job.finished_at.unwrap_or(now),
        job_is_live: job.finished_at.is_none(),
    }))
}
