//! `/jobs/{id}`: one job with its signal, history and artifacts.

use std::collections::{BTreeSet, HashMap};

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use domain::limits::JOB_PAGE_WORKERS;
use domain::{Label, Origin, Right, WorkerId};
use pages::queue::job::{JobPage, Signal};
use pages::{Crumb, DashboardPage, segment, short};
use serde::Deserialize;
use store::CacheStatus;
use store::queue::get::StoredJob;
use store::signals::read::SignalRead;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::HistoryItem;

use crate::access::auth::Principal;
use crate::dashboard::frame::Viewer;
use crate::dashboard::workflows::journal::journal;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::extract::PathJob;
use crate::http::v1;
use crate::signals::view::render as render_signal;
use crate::state::AppState;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobPageQuery {
    /// `next_cursor` of the previous page of the journal.
    journal: Option<String>,
}

/// Show one job.
#[utoipa::path(get, path = "/jobs/{id}", tag = "pages", operation_id = "job", params(("id" = Uuid, Path), JobPageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PathJob(id): PathJob,
    PageParams(query): PageParams<JobPageQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let job = state.visible_job(principal, id).await?;
    let signal = match state.store.signal_source(principal.tenant, id).await? {
        SignalRead::Found(source) => {
            let rendered = render_signal(&state.store, principal, *source).await?;
            let from_cache = rendered.freshness == CacheStatus::Hit;
            Some(Signal { view: rendered.view, source: rendered.source.as_str(), from_cache })
        }
        _ => None,
    };
    let args = || (State(state.clone()), principal.clone(), PathJob(id));
    let is_waiting =
        matches!(job.state, domain::JobState::Waiting | domain::JobState::Scheduled | domain::JobState::Queued);
    let why = match is_waiting {
        true => {
            let (state, principal, id) = args();
            Some(v1::queue::jobs::why(state, principal, id).await?.0)
        }
        false => None,
    };
    let (state_arg, principal_arg, job_arg) = args();
    let history = v1::queue::jobs::history(state_arg, principal_arg, job_arg).await?.0.items;
    let artifacts = v1::queue::artifacts::artifacts_of(&state, principal, id).await?;
    let dead_letter = match job.state == domain::JobState::Failed && principal.has(Right::ReadPayloads) {
        true => state.store.dead_letter_of(principal.tenant, id).await?.map(|letter| letter.uuid()),
        false => None,
    };
    let trigger = trigger(&state, principal, &job).await?;
    let workers = workers(&state, principal, &history).await?;
    let has_subject_page = match &job.subject {
        Some(subject) => state.store.subject(principal.tenant, Label::stored(subject)).await?.is_some(),
        None => false,
    };
    let title = format!("{} {}", job.lane.kind, id);
    let (queue, kind) = (job.lane.queue.as_str(), job.lane.kind.as_str());
    let trail = vec![
        Crumb::link(queue, format!("jobs?queue={}", segment(queue))),
        Crumb::here(format!("{kind} {}", short(&id.uuid()))),
    ];
    let frame = viewer.frame_below(&state, DashboardPage::Jobs, &title, trail).await?;
    let job = view::job(job, principal)?;
    let journal = journal(&state, principal, &job, query.journal, frame.now).await?;
    Ok(render(&JobPage {
        frame,
        job,
        signal,
        why,
        history,
        artifacts,
        dead_letter,
        trigger,
        has_subject_page,
        journal,
        workers,
    }))
}

/// Returns the name of the trigger that created the job.
async fn trigger(state: &AppState, principal: &Principal, job: &StoredJob) -> Result<Option<String>, ApiError> {
    match Origin::parse(job.triggered_by.as_deref()) {
        Origin::Trigger { trigger, .. } | Origin::Script { trigger, .. }
            if principal.may(&Method::GET, "/api/v1/triggers/{id}") =>
        {
            Ok(state.store.trigger(principal.tenant, trigger).await?.map(|trigger| trigger.name))
        }
        _ => Ok(None),
    }
}

/// Returns the names of the newest workers in the job's history.
async fn workers(
    state: &AppState,
    principal: &Principal,
    history: &[HistoryItem],
) -> Result<HashMap<Uuid, String>, ApiError> {
    let mut names = HashMap::new();
    if principal.may(&Method::GET, "/api/v1/workers") {
        let ids: BTreeSet<Uuid> = history.iter().filter_map(|item| item.worker).collect();
        for id in ids.into_iter().rev().take(JOB_PAGE_WORKERS) {
            let found = state.store.worker(principal.tenant, WorkerId::new(id)).await?;
            names.extend(found.map(|worker| (id, worker.name)));
        }
    }
    Ok(names)
}
