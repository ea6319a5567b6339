//! The journal: record, read and fork.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use domain::limits::{JOB_EVENT_BYTES, JOB_EVENTS, REASON_BYTES};
use domain::{JobId, Label, Right};
use sha2::{Digest, Sha256};
use store::StoreError;
use store::queue::enqueue::Idempotency;
use store::workflows::journal::approvals::{Answered, ApprovalAnswer};
use store::workflows::journal::events::{NewJobEvent, Sent};
use store::workflows::journal::fork::Forked;
use store::workflows::journal::read::JournalPage;
use store::workflows::journal::write::{JournalWrite, Journaled, OperationInput};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{
    ApprovalRequest, ApprovalView, ClaimedJournal, ForkRequest, JobAccepted, JournalRequest, JournalResult,
    JournalView, JournalWritten,
};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{AnyJson, JsonBody, JsonBytes, Params, PathJob, PathJobMember, PathWorker};
use crate::http::v1::queue::jobs::{builder, check_quota, idempotency};
use crate::http::v1::queue::workers::outcome_status;
use crate::state::AppState;
use crate::triggers::depth;
use crate::validate::FieldPath;
use crate::validate::query::{PageQuery, limit};
use crate::validate::workflows::journal::{OperationPath, writes};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(record))
        .routes(routes!(journal))
        .routes(routes!(fork))
        .routes(routes!(send_event))
        .routes(routes!(answer))
}

/// Record operations in the journals of claimed jobs.
///
/// The operations are durable when the response arrives. Idempotent by job and key. Each write has its own status:
/// `applied`, `claim_lost`, `already_ended` or `not_found`. Returns 409 or 422 if a journal refuses an operation; nothing
/// is recorded then.
#[utoipa::path(post, path = "/api/v1/workers/{id}/journal", tag = "workers", params(("id" = Uuid, Path)),
    request_body = JournalRequest, responses((status = 200, body = JournalWritten)))]
async fn record(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
    JsonBody(request): JsonBody<JournalRequest>,
) -> Result<Json<JournalWritten>, ApiError> {
    let writes = writes(&builder(&state, &principal, 0), request)?;
    state.check_worker(&principal, id).await?;
    for op in writes.iter().flat_map(|write| &write.ops) {
        if let OperationInput::Child { jobs, .. } = &op.input {
            jobs.iter().try_for_each(|job| principal.check_new_job(job))?;
            check_quota(&state, &principal, jobs).await?;
        }
    }
    let jobs: Vec<JobId> = writes.iter().map(|write| write.job).collect();
    let steps = steps(&state, &writes);
    let journaled = match principal.serves() {
        None => state.store.journal(principal.tenant, id, writes).await?,
        Some(serves) => state.store.journal_serving(principal.tenant, id, serves, writes).await?,
    };
    let results = match journaled {
        Journaled::Results(results) => results,
        Journaled::Refused { write, op, error } => {
            return Err(ApiError::journal_refused(OperationPath { write, op }.field("key"), &error));
        }
        Journaled::NoSuchWorker => return Err(ApiError::not_found("worker")),
    };
    if !steps.is_empty() {
        let now = view::time(state.store.clock().now());
        for step in steps {
            let recorded = results.get(step.write).and_then(|result| result.entries.get(step.op));
            if recorded.is_some_and(|recorded| !recorded.existing && recorded.entry.seq.is_some()) {
                state.spans.step_recorded(step.attempt, step.key.as_str(), step.duration_ms, now);
            }
        }
    }
    let result = |(job, result): (JobId, store::workflows::journal::write::JournalResult)| {
        let entries = result.entries.into_iter();
        let entries = entries.map(|recorded| view::workflows::entry(recorded.entry, Some(recorded.existing)));
        Ok(JournalResult {
            job_id: job.uuid(),
            status: outcome_status(result.status),
            entries: entries.collect::<Result<_, StoreError>>()?,
        })
    };
    let results = jobs.into_iter().zip(results).map(result).collect::<Result<_, StoreError>>()?;
    Ok(Json(JournalWritten { results }))
}

/// A step of a traced attempt, by its place in the request.
struct TracedStep {
    write: usize,
    op: usize,
    /// The job and the epoch.
    attempt: (uuid::Uuid, i64),
    key: Label,
    duration_ms: i64,
}

fn steps(state: &AppState, writes: &[JournalWrite]) -> Vec<TracedStep> {
    if state.spans.is_empty() {
        return Vec::new();
    }
    let mut steps = Vec::new();
    for (number, write) in writes.iter().enumerate() {
        for (place, op) in write.ops.iter().enumerate() {
            if let OperationInput::Step { duration_ms, .. } = &op.input {
                steps.push(TracedStep {
                    write: number,
                    op: place,
                    attempt: (write.job.uuid(), write.epoch.0),
                    key: op.key.clone(),
                    duration_ms: duration_ms.unwrap_or(0),
                });
            }
        }
    }
    steps
}

/// Read the journal of a job.
///
/// Returns one page. `next_cursor` leads to the next one. A job without a journal has an empty one. A page has at most 8
/// MiB. A worker that may claim the job reads all of it; others need the rights to read results and error messages.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/journal", tag = "jobs", params(("id" = Uuid, Path), PageQuery),
    responses((status = 200, body = JournalView)))]
pub(crate) async fn journal(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    Params(query): Params<PageQuery>,
) -> Result<Json<JournalView>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::journal(query.cursor.as_deref())?.unwrap_or(0);
    let tenant = state.tenant_of(&principal, id).await?;
    let job = state.store.job(tenant, id).await?.ok_or_else(|| ApiError::not_found("job"))?;
    let may_claim = principal.has(Right::Work) && principal.reaches(&job.lane.queue);
    if !may_claim && !principal.sees(&job) {
        return Err(ApiError::not_found("job"));
    }
    let results = may_claim || principal.reads(Right::ReadResults, &job);
    let messages = results || principal.reads(Right::ReadLogs, &job);
    let (head, page) = state.store.read_journal(tenant, id, after, limit).await?;
    let hidden = [(!results, "result"), (!messages, "error.message"), (!messages, "attempts.message")];
    let redacted =
        hidden.into_iter().filter(|(is_hidden, _)| *is_hidden).map(|(_, member)| member.to_owned()).collect();
    let next_cursor = page.next.map(cursor::after_journal);
    let items = page.entries.into_iter().map(|entry| {
        let entry = view::workflows::entry(entry, None)?;
        Ok(view::workflows::redacted(entry, results, messages))
    });
    Ok(Json(JournalView {
        items: items.collect::<Result<_, StoreError>>()?,
        next_cursor,
        entries: head.size.entries,
        resolved: head.resolved,
        bytes: head.size.bytes,
        warnings: head.warnings(),
        redacted,
    }))
}

/// The journal of a claimed job.
pub(crate) fn claimed(page: JournalPage) -> Result<ClaimedJournal, StoreError> {
    let next_cursor = page.next.map(cursor::after_journal);
    let entries = page.entries.into_iter().map(|entry| view::workflows::entry(entry, None));
    Ok(ClaimedJournal { entries: entries.collect::<Result<_, _>>()?, next_cursor })
}

/// Fork a job: create a new job that starts with the part of its journal before one entry.
///
/// Only resolved entries are copied. The events that they published are not published again. Idempotent with an
/// `Idempotency-Key`. Returns 422 if the journal has no entry with the key `from`, and 429 if a quota is exhausted.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/fork", tag = "jobs", request_body = ForkRequest,
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Repeating a request with the same key and body within 24 hours returns the same job.")),
    responses((status = 202, body = JobAccepted), (status = 200, body = JobAccepted, description = "The fork already exists")))]
async fn fork(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    headers: HeaderMap,
    JsonBytes { value, bytes }: JsonBytes<ForkRequest>,
) -> Result<(StatusCode, Json<JobAccepted>), ApiError> {
    let by = depth::caller(&principal, &headers)?;
    let idempotency = idempotency(&principal, &headers, &bytes)?;
    // Scope the key to the job, apart from the keys of new jobs.
    let idempotency = idempotency.map(|Idempotency { key, .. }| Idempotency {
        key: format!("fork\n{id}\n{key}"),
        body_hash: Sha256::digest(&bytes).into(),
    });
    let ForkRequest { from, payload } = value;
    let from = Label::new(&from).map_err(|error| ApiError::invalid_field("from", error))?;
    state.check_reached(&principal, id).await?;
    let payload = match payload {
        Some(payload) => Some(builder(&state, &principal, by.depth).payload(FieldPath::Body, Some(payload))?),
        None => None,
    };
    check_quota(&state, &principal, &[]).await?;
    match state.store.fork_job(principal.tenant, id, from, payload, by, idempotency).await? {
        Forked::Created(job) => {
            let status = if job.existing { StatusCode::OK } else { StatusCode::ACCEPTED };
            Ok((status, Json(view::accepted(job))))
        }
        Forked::NoSuchKey => Err(ApiError::invalid_field("from", "names no entry of the journal of this job")),
        Forked::KeyReused => Err(ApiError::idempotency_key_reused()),
        Forked::NotFound => Err(ApiError::not_found("job")),
    }
}

/// Send a signal event to a job.
///
/// The event resolves the first open operation of the job that waits for it, or is kept for a later one. Idempotent with an
/// `Idempotency-Key`. Returns 409 if the job has ended, or has 1,000 events that no operation has got.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/events/{name}", tag = "jobs", request_body = serde_json::Value,
    params(("id" = Uuid, Path), ("name" = String, Path, description = "The event's name."),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated request with the same key sends one event.")),
    responses((status = 202, description = "The event is durable"),
        (status = 200, description = "The event was already sent")))]
async fn send_event(
    State(state): State<AppState>,
    principal: Principal,
    PathJobMember { job, member: name }: PathJobMember,
    headers: HeaderMap,
    AnyJson(data): AnyJson,
) -> Result<StatusCode, ApiError> {
    if data.len() > JOB_EVENT_BYTES {
        return Err(ApiError::body_too_large(JOB_EVENT_BYTES as u64));
    }
    state.check_reached(&principal, job).await?;
    let idempotency_key = idempotency(&principal, &headers, data.as_bytes())?.map(|idempotency| idempotency.key);
    let event = NewJobEvent { job, name, data, idempotency_key, principal: principal.name.to_string() };
    match state.store.send_event(principal.tenant, event).await? {
        Sent::Accepted => Ok(StatusCode::ACCEPTED),
        Sent::Duplicate => Ok(StatusCode::OK),
        Sent::KeyReused => Err(ApiError::idempotency_key_reused()),
        Sent::AlreadyEnded(ended) => Err(ApiError::ended(ended)),
        Sent::TooManyEvents => {
            Err(ApiError::limit_reached(format_args!("the job has {JOB_EVENTS} events that it has not received")))
        }
        Sent::NotFound => Err(ApiError::not_found("job")),
    }
}

/// Approve or reject an approval of a job.
///
/// Requires the right that the approval names (default: `operate`). Idempotent: a repeated answer returns the recorded
/// one. Returns 409 if another answer or a timeout is recorded.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/approvals/{key}", tag = "jobs", request_body = ApprovalRequest,
    params(("id" = Uuid, Path), ("key" = String, Path, description = "The key of the approval in the journal.")),
    responses((status = 200, body = ApprovalView)))]
async fn answer(
    State(state): State<AppState>,
    principal: Principal,
    PathJobMember { job, member: key }: PathJobMember,
    JsonBody(request): JsonBody<ApprovalRequest>,
) -> Result<Json<ApprovalView>, ApiError> {
    let ApprovalRequest { approve, note } = request;
    let note = note.map(|note| FieldPath::Body.free_text("note", note, REASON_BYTES)).transpose()?;
    state.check_reached(&principal, job).await?;
    let right = state.store.approval_right(principal.tenant, job, key.clone()).await?;
    let right = right.ok_or_else(|| ApiError::not_found("approval"))?;
    if !Right::ALL.iter().any(|known| known.as_str() == right && principal.has(*known)) {
        return Err(ApiError::forbidden(format_args!("the approval requires the right {right}")));
    }
    let answer = ApprovalAnswer { job, key, approve, note, principal: principal.name.to_string() };
    match state.store.answer_approval(principal.tenant, answer).await? {
        Answered::Recorded(answer) => {
            let view = serde_json::from_str(&answer);
            Ok(Json(view.map_err(|error| StoreError::unexpected(error.to_string()))?))
        }
        Answered::AlreadyAnswered => Err(ApiError::already_answered()),
        Answered::AlreadyEnded(ended) => Err(ApiError::ended(ended)),
        Answered::NotFound => Err(ApiError::not_found("approval")),
    }
}
