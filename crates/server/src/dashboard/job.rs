//! `/jobs/{id}`: one job.

use std::collections::{BTreeSet, HashMap};

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use domain::limits::JOB_PAGE_WORKERS;
use domain::{Label, Origin, Right, WorkerId};
use pages::Place;
use pages::job::{JobPage, Signal};
use store::Freshness;
use store::jobs::get::StoredJob;
use store::signals::read::SignalRead;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::HistoryItem;

use super::frame::Viewer;
use super::shown;
use crate::auth::Principal;
use crate::error::ApiError;
use crate::extract::PathJob;
use crate::http::v1;
use crate::signal::tell;
use crate::state::AppState;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// One job.
#[utoipa::path(get, path = "/jobs/{id}", tag = "pages", operation_id = "job", params(("id" = Uuid, Path)),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(State(state): State<AppState>, viewer: Viewer, PathJob(id): PathJob) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let job = state.visible_job(principal, id).await?;
    let signal = match state.store.signal_source(principal.tenant, id).await? {
        SignalRead::Found(source) => {
            let told = tell(&state.store, principal, *source).await?;
            let from_cache = told.freshness == Freshness::Kept;
            Some(Signal { view: told.view, source: told.source.as_str(), from_cache })
        }
        _ => None,
    };
    let asking = || (State(state.clone()), principal.clone(), PathJob(id));
    let waits = matches!(job.state, domain::JobState::Scheduled | domain::JobState::Queued);
    let why = match waits {
        true => {
            let (state, principal, id) = asking();
            Some(v1::jobs::why(state, principal, id).await?.0)
        }
        false => None,
    };
    let (of_state, who, of_job) = asking();
    let history = v1::jobs::history(of_state, who, of_job).await?.0.items;
    let (of_state, who, of_job) = asking();
    let artifacts = v1::artifacts::list(of_state, who, of_job).await?.0.items;
    let dead_letter = match job.state == domain::JobState::Failed && principal.has(Right::ReadPayloads) {
        true => state.store.dead_letter_of(principal.tenant, id).await?.map(|letter| letter.uuid()),
        false => None,
    };
    let trigger = trigger(&state, principal, &job).await?;
    let workers = workers(&state, principal, &history).await?;
    let knows_subject = match &job.subject {
        Some(subject) => state.store.subject(principal.tenant, Label::stored(subject)).await?.is_some(),
        None => false,
    };
    let title = format!("{} {}", job.lane.kind, id);
    let frame = viewer.frame_of(&state, Place::Jobs, &title).await?;
    let job = view::job(job, principal)?;
    Ok(shown(&JobPage { frame, job, signal, why, history, artifacts, dead_letter, trigger, knows_subject, workers }))
}

/// The name of the trigger that made it.
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

/// The names of the workers in its history, the newest of them.
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
