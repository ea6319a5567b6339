//! Writes dead letters, in the transaction that closes what they come from (T6).

use domain::{DeadLetterId, EventId, JobId, TenantId, TriggerId};
use uuid::Uuid;

use crate::clock::new_uuid;
use crate::codec::error_to_json;
use crate::dead_letters::{Attempt, attempts_to_json};
use crate::error::StoreError;
use crate::tx::{Column, Param, Sql, Tx};

/// What failed for good.
#[derive(Clone, Debug)]
pub struct NewDeadLetter {
    pub tenant: TenantId,
    /// The event at the beginning.
    pub event: EventId,
    /// Where the event came from: `job`, `kv`, `pubsub`, …
    pub source: String,
    pub op: String,
    pub trigger: Option<TriggerId>,
    pub script: Option<Uuid>,
    /// The job that failed, or that the failed thing was about.
    pub job: Option<JobId>,
    /// Set when it is the job itself that failed, and only then.
    pub queue: Option<String>,
    pub kind: Option<String>,
    /// JSON, verbatim.
    pub payload: String,
    /// JSON: what a replay makes, beside the payload. See `dead_letters::work`.
    pub work: Option<String>,
    pub depth: i32,
    /// Every try with its error, oldest first; at least one.
    pub attempts: Vec<Attempt>,
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

/// Writes one dead letter. The caller closes what it comes from in the same transaction.
pub async fn insert(tx: &mut Tx<'_>, letter: NewDeadLetter) -> Result<DeadLetterId, StoreError> {
    let ids = insert_all(tx, std::slice::from_ref(&letter)).await?;
    Ok(ids[0])
}

pub(crate) async fn insert_all(tx: &mut Tx<'_>, letters: &[NewDeadLetter]) -> Result<Vec<DeadLetterId>, StoreError> {
    let now = tx.now();
    let ids: Vec<Uuid> = letters.iter().map(|_| new_uuid(now)).collect();
    let attempts: Vec<String> = letters.iter().map(|letter| attempts_to_json(&letter.attempts)).collect();
    let last: Vec<Option<&Attempt>> = letters.iter().map(|letter| letter.attempts.last()).collect();
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
    Ok(ids.into_iter().map(DeadLetterId::new).collect())
}
