//! Writes dead letters in the transaction that closes the failed job, run or delivery, and emits their events.

use std::collections::BTreeSet;

use domain::limits::DEAD_LETTER_EVENT_ATTEMPTS;
use domain::triggers::trigger::Source;
use domain::{DeadLetterId, EventId, JobError, JobId, TenantId, TriggerId};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::codec::{error_to_json, to_json};
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::triggers::cache::listeners_of;
use crate::triggers::dead_letters::{FailedAttempt, attempts_to_json};
use crate::triggers::events::{Event, emit};

/// A dead letter to write.
#[derive(Clone, Debug)]
pub struct NewDeadLetter {
    pub tenant: TenantId,
    /// The original event.
    pub event: EventId,
    /// Source of the event: `job`, `kv`, `pubsub`, …
    pub source: String,
    pub op: String,
    pub trigger: Option<TriggerId>,
    pub script: Option<Uuid>,
    /// The failed job, or the job that the failed work refers to.
    pub job: Option<JobId>,
    /// Set only if the job itself failed.
    pub queue: Option<String>,
    pub kind: Option<String>,
    /// JSON, verbatim.
    pub payload: String,
    /// JSON: what a replay creates, except the payload. See `dead_letters::work`.
    pub work: Option<String>,
    pub depth: i32,
    /// Every failed attempt, oldest first. At least one.
    pub attempts: Vec<FailedAttempt>,
}

const INSERT: Sql = Sql::new(
    &["insert into dead_letters (id, tenant, event_id, source, op, trigger_id, script_id, job, queue, kind, error_code,
           payload, work, depth, attempts, attempt_count, first_attempt_at, last_attempt_at, last_error, created_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)"],
    "insert into dead_letters (id, tenant, event_id, source, op, trigger_id, script_id, job, queue, kind, error_code,
         payload, work, depth, attempts, attempt_count, first_attempt_at, last_attempt_at, last_error, created_at)
     select n.*, $20 from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::uuid[], $7::uuid[],
         $8::uuid[], $9::text[], $10::text[], $11::text[], $12::json[], $13::json[], $14::bigint[], $15::json[],
         $16::bigint[], $17::timestamptz[], $18::timestamptz[], $19::json[]) n",
);

/// Writes one dead letter. The caller closes the failed work in the same transaction.
pub async fn insert(tx: &mut Tx<'_>, letter: NewDeadLetter) -> Result<DeadLetterId, StoreError> {
    let ids = insert_all(tx, std::slice::from_ref(&letter)).await?;
    Ok(ids[0])
}

pub(crate) async fn insert_all(tx: &mut Tx<'_>, letters: &[NewDeadLetter]) -> Result<Vec<DeadLetterId>, StoreError> {
    let now = tx.now();
    let ids: Vec<Uuid> = letters.iter().map(|_| new_uuid(now)).collect();
    let attempts: Vec<String> = letters.iter().map(|letter| attempts_to_json(&letter.attempts)).collect();
    let last: Vec<Option<&FailedAttempt>> = letters.iter().map(|letter| letter.attempts.last()).collect();
    let errors: Vec<Option<String>> = last.iter().map(|last| last.map(|last| error_to_json(&last.error))).collect();
    let of = || letters.iter();
    let columns = [
        Column::uuids(ids.iter().copied()),
        Column::ints(of().map(|letter| letter.tenant.0)),
        Column::uuids(of().map(|letter| letter.event.uuid())),
        Column::texts(of().map(|letter| letter.source.as_str())),
        Column::texts(of().map(|letter| letter.op.as_str())),
        Column::Uuid(of().map(|letter| letter.trigger.map(TriggerId::uuid)).collect()),
        Column::Uuid(of().map(|letter| letter.script).collect()),
        Column::Uuid(of().map(|letter| letter.job.map(JobId::uuid)).collect()),
        Column::Text(of().map(|letter| letter.queue.as_deref()).collect()),
        Column::Text(of().map(|letter| letter.kind.as_deref()).collect()),
        Column::Text(last.iter().map(|last| last.map(|last| last.error.code.as_str())).collect()),
        Column::Json(of().map(|letter| Some(letter.payload.as_str())).collect()),
        Column::Json(of().map(|letter| letter.work.as_deref()).collect()),
        Column::ints(of().map(|letter| i64::from(letter.depth))),
        Column::Json(attempts.iter().map(|attempts| Some(attempts.as_str())).collect()),
        Column::ints(of().map(|letter| letter.attempts.len() as i64)),
        Column::Time(of().map(|letter| letter.attempts.first().map(|first| first.at)).collect()),
        Column::Time(last.iter().map(|last| last.map(|last| last.at)).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
    ];
    tx.execute_each(&INSERT, &columns, &[Param::Time(now)]).await?;
    let ids: Vec<DeadLetterId> = ids.into_iter().map(DeadLetterId::new).collect();
    emit_events(tx, letters, &ids).await?;
    Ok(ids)
}

/// The data of a dead letter's event, as handlers receive it.
#[derive(Serialize)]
struct DeadLetterEventData<'a> {
    id: Uuid,
    event_id: Uuid,
    source: &'a str,
    op: &'a str,
    trigger_id: Option<Uuid>,
    job_id: Option<Uuid>,
    queue: Option<&'a str>,
    kind: Option<&'a str>,
    payload: Option<&'a RawValue>,
    script_id: Option<Uuid>,
    /// The newest attempts with their times and errors, oldest first.
    attempts: &'a RawValue,
    attempt_count: usize,
    last_error: Option<&'a RawValue>,
}

/// The attempts as handlers receive them: with times in RFC 3339.
fn attempts_for_handlers(attempts: &[FailedAttempt]) -> Result<Box<RawValue>, StoreError> {
    let attempt = |attempt: &FailedAttempt| {
        let JobError { code, message, retryable } = &attempt.error;
        let at = jiff::Timestamp::from_microsecond(attempt.at.micros()).map(|at| at.to_string()).unwrap_or_default();
        json!({"at": at, "error": {"code": code, "message": message, "retryable": retryable}})
    };
    let attempts: Vec<Value> = attempts.iter().map(attempt).collect();
    to_raw_value(&attempts).map_err(|error| StoreError::unexpected(error.to_string()))
}

/// Emits one event per letter for dead-letter triggers. The event's id is the letter's id: by it, the end of a handler finds
/// the letter to resolve.
async fn emit_events(tx: &mut Tx<'_>, letters: &[NewDeadLetter], ids: &[DeadLetterId]) -> Result<(), StoreError> {
    let tenants: BTreeSet<TenantId> = letters.iter().map(|letter| letter.tenant).collect();
    for tenant in tenants {
        let listeners = listeners_of(tx, tenant, Source::DeadLetter).await?;
        if !listeners.listen_to(Source::DeadLetter) {
            continue;
        }
        let mut events = Vec::new();
        for (letter, id) in letters.iter().zip(ids).filter(|(letter, _)| letter.tenant == tenant) {
            let error = letter.attempts.last().map(|last| error_to_json(&last.error));
            let older = letter.attempts.len().saturating_sub(DEAD_LETTER_EVENT_ATTEMPTS);
            let attempts = attempts_for_handlers(&letter.attempts[older..])?;
            let data = DeadLetterEventData {
                id: id.uuid(),
                event_id: letter.event.uuid(),
                source: &letter.source,
                op: &letter.op,
                trigger_id: letter.trigger.map(TriggerId::uuid),
                job_id: letter.job.map(JobId::uuid),
                queue: letter.queue.as_deref(),
                kind: letter.kind.as_deref(),
                payload: serde_json::from_str(&letter.payload).ok(),
                script_id: letter.script,
                attempts: &attempts,
                attempt_count: letter.attempts.len(),
                last_error: error.as_deref().and_then(|error| serde_json::from_str(error).ok()),
            };
            let event = Event::new(tx.now(), tenant, Source::DeadLetter, "created", letter.depth, to_json(&data));
            let event = Event { id: EventId::new(id.uuid()), ..event };
            events.push(event.with("source_of_letter", letter.source.as_str()));
        }
        emit(tx, &listeners, &events).await?;
    }
    Ok(())
}
