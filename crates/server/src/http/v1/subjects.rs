//! Subjects: facts, backoffs, the timeline (W1, W5, W6), and what their own agents may say (W8).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::Label;
use store::backoffs::by_hand::Lockout;
use store::subjects::delete::SubjectDeleted;
use store::subjects::list::SubjectFilter;
use store::subjects::put::{SubjectChange, SubjectPut};
use store::timeline::list::TimelineOf;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{
    BackoffRequest, BackoffView, FactsReport, Page, SubjectCredential, SubjectRequest, SubjectView, TimelineItem,
};

use crate::agent::{SubjectAgent, new_credential};
use crate::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathBackoff, PathSubject};
use crate::page::page;
use crate::state::AppState;
use crate::validate::Place;
use crate::validate::query::{PageQuery, SubjectQuery, limit};
use crate::validate::subject as validate;
use crate::view::subject as view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, put, delete))
        .routes(routes!(history))
        .routes(routes!(lock_out, let_in))
        .routes(routes!(report))
        .routes(routes!(make_credential, end_credential))
}

/// Lists subjects by id.
#[utoipa::path(get, path = "/api/v1/subjects", tag = "subjects", params(SubjectQuery),
    responses((status = 200, body = Page<SubjectView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<SubjectQuery>,
) -> Result<Json<Page<SubjectView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::subject(query.cursor.as_deref())?;
    let filter: SubjectFilter = query.filter()?;
    let subjects = state.store.list_subjects(principal.tenant, filter, after, limit + 1).await?;
    Ok(Json(page(subjects, limit, |last| cursor::after_subject(&last.id)).try_map(view::subject)?))
}

/// One subject, with what is being done to it and how it stands with each process.
#[utoipa::path(get, path = "/api/v1/subjects/{id}", tag = "subjects", params(("id" = String, Path)),
    responses((status = 200, body = SubjectView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
) -> Result<Json<SubjectView>, ApiError> {
    answer(&state, &principal, id).await
}

/// Sets facts, and makes the subject if there is none. What is not named stays.
#[utoipa::path(put, path = "/api/v1/subjects/{id}", tag = "subjects", params(("id" = String, Path)),
    request_body = SubjectRequest, responses((status = 200, body = SubjectView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
    JsonBody(request): JsonBody<SubjectRequest>,
) -> Result<Json<SubjectView>, ApiError> {
    let change = SubjectChange {
        id: id.clone(),
        kind: validate::kind(request.kind.as_deref())?,
        facts: validate::facts(Place::Body, request.facts)?,
        actor: principal.name.to_string(),
    };
    match state.store.put_subject(principal.tenant, change).await? {
        SubjectPut::TooManyFacts => Err(too_many_facts()),
        SubjectPut::Done | SubjectPut::NotFound => {
            answer(&state, &principal, id).await.map_err(ApiError::after_a_change)
        }
    }
}

/// Deletes a subject with its facts and backoffs; its history stays. Refused while work on it is unfinished.
#[utoipa::path(delete, path = "/api/v1/subjects/{id}", tag = "subjects", params(("id" = String, Path)),
    responses((status = 204)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
) -> Result<StatusCode, ApiError> {
    match state.store.delete_subject(principal.tenant, id, principal.name.to_string()).await? {
        SubjectDeleted::Deleted => Ok(StatusCode::NO_CONTENT),
        SubjectDeleted::NotFound => Err(ApiError::not_found("subject")),
        SubjectDeleted::OfRuntime(runtime) => Err(ApiError::subject_busy(format_args!(
            "it is the subject of the runtime {runtime}; delete the runtime first"
        ))),
        SubjectDeleted::Busy(work) => {
            let named = work.iter().map(|work| format!("{} ({} job {})", work.process, work.state, work.job));
            let named = named.collect::<Vec<_>>().join(", ");
            Err(ApiError::subject_busy(format_args!(
                "work on it is unfinished: {named}; cancel it or wait for its end"
            )))
        }
    }
}

/// Everything done to a subject, newest first; also after its deletion.
#[utoipa::path(get, path = "/api/v1/subjects/{id}/history", tag = "subjects", params(("id" = String, Path), PageQuery),
    responses((status = 200, body = Page<TimelineItem>)))]
pub(crate) async fn history(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<TimelineItem>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::timeline(query.cursor.as_deref())?;
    let of = TimelineOf::Subject(id.to_string());
    let items = state.store.timeline(principal.tenant, of, before, limit + 1).await?;
    if items.is_empty() && before.is_none() && state.store.subject(principal.tenant, id).await?.is_none() {
        return Err(ApiError::not_found("subject"));
    }
    let items = page(items, limit, |last| cursor::after_timeline(last.id));
    Ok(Json(items.try_map(|item| view::timeline_item_for(item, &principal))?))
}

/// Keeps a process, or with `*` every process, off a subject, in place of what did so before.
#[utoipa::path(put, path = "/api/v1/subjects/{id}/backoffs/{process}", tag = "subjects",
    params(("id" = String, Path), ("process" = String, Path)),
    request_body = BackoffRequest, responses((status = 200, body = BackoffView)))]
async fn lock_out(
    State(state): State<AppState>,
    principal: Principal,
    PathBackoff { subject, process }: PathBackoff,
    JsonBody(request): JsonBody<BackoffRequest>,
) -> Result<Json<BackoffView>, ApiError> {
    let lockout = Lockout {
        subject,
        process,
        until: validate::until(&request, state.store.clock().now())?,
        cause: validate::cause(request.cause)?,
        actor: principal.name.to_string(),
    };
    Ok(Json(view::backoff(state.store.lock_out(principal.tenant, lockout).await?)))
}

/// Lets a process in again.
#[utoipa::path(delete, path = "/api/v1/subjects/{id}/backoffs/{process}", tag = "subjects",
    params(("id" = String, Path), ("process" = String, Path)), responses((status = 204)))]
async fn let_in(
    State(state): State<AppState>,
    principal: Principal,
    PathBackoff { subject, process }: PathBackoff,
) -> Result<StatusCode, ApiError> {
    let actor = principal.name.to_string();
    match state.store.let_in(principal.tenant, subject, process, actor).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("backoff")),
    }
}

/// The subject's own agent says facts, with the subject's credential as bearer token.
#[utoipa::path(put, path = "/api/v1/subjects/{id}/facts", tag = "subjects", params(("id" = String, Path)),
    request_body = FactsReport, responses((status = 204)))]
async fn report(
    State(state): State<AppState>,
    agent: SubjectAgent,
    PathSubject(id): PathSubject,
    JsonBody(request): JsonBody<FactsReport>,
) -> Result<StatusCode, ApiError> {
    // Another subject answers exactly as one that does not exist.
    if id != agent.subject {
        return Err(ApiError::not_found("subject"));
    }
    let change = SubjectChange {
        facts: validate::facts(Place::Body, request.facts)?,
        kind: None,
        actor: format!("agent of {id}"),
        id,
    };
    match state.store.report_facts(agent.tenant, change).await? {
        SubjectPut::Done => Ok(StatusCode::NO_CONTENT),
        SubjectPut::TooManyFacts => Err(too_many_facts()),
        SubjectPut::NotFound => Err(ApiError::not_found("subject")),
    }
}

/// Makes the credential for a subject's own agent, which can set that subject's facts and nothing else. The one before
/// ends.
#[utoipa::path(post, path = "/api/v1/subjects/{id}/credential", tag = "subjects", params(("id" = String, Path)),
    responses((status = 201, body = SubjectCredential)))]
async fn make_credential(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
) -> Result<(StatusCode, Json<SubjectCredential>), ApiError> {
    let (token, hash) = new_credential();
    let actor = principal.name.to_string();
    match state.store.put_subject_credential(principal.tenant, id.clone(), hash, actor).await? {
        true => Ok((StatusCode::CREATED, Json(SubjectCredential { subject: id.to_string(), token }))),
        false => Err(ApiError::not_found("subject")),
    }
}

/// Ends the credential of a subject's agent.
#[utoipa::path(delete, path = "/api/v1/subjects/{id}/credential", tag = "subjects", params(("id" = String, Path)),
    responses((status = 204)))]
async fn end_credential(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
) -> Result<StatusCode, ApiError> {
    match state.store.remove_subject_credential(principal.tenant, id, principal.name.to_string()).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("subject")),
    }
}

fn too_many_facts() -> ApiError {
    let most = domain::limits::SUBJECT_FACTS;
    ApiError::limit_reached(format_args!("a subject has at most {most} facts; take some away first"))
}

async fn answer(state: &AppState, principal: &Principal, id: Label) -> Result<Json<SubjectView>, ApiError> {
    let card = state.store.subject(principal.tenant, id).await?;
    let now = state.store.clock().now();
    Ok(Json(view::card(card.ok_or_else(|| ApiError::not_found("subject"))?, now)?))
}
