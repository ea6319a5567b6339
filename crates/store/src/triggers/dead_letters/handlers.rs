//! Handlers of a dead letter: the runs of dead-letter triggers. The outcome of each handler is kept. A handler resolves its
//! letter only if its trigger declares `handles`, or if its script calls `resolve`. A handler that only notifies people
//! leaves the letter unresolved.

use std::collections::HashMap;

use domain::{DeadLetterId, JobError, Origin, Resolution, TenantId, Time, TriggerId};
use uuid::Uuid;

use crate::db::codec::{error_from_json, error_to_json};
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::triggers::dead_letters::DeadLetter;
use crate::triggers::dead_letters::get::lock;
use crate::triggers::dead_letters::resolve::set;

/// A dead-letter trigger that ran for the letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterHandler {
    pub trigger: TriggerId,
    pub outcome: HandlerOutcome,
    /// When it ended, or started.
    pub at: Time,
    pub error: Option<JobError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerOutcome {
    /// An operation on a runtime is in progress.
    Started,
    Succeeded,
    Failed,
}

impl HandlerOutcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Started, Self::Succeeded, Self::Failed].into_iter().find(|outcome| outcome.as_str() == text)
    }
}

// An event that was fired manually has the id of no letter.
const RECORD: Sql = Sql::new(
    &["insert into letter_handlers (letter, trigger_id, tenant, outcome, at, operation, error)
       select id, $2, tenant, $4, $5, $6, $7 from dead_letters where id = $1 and tenant = $3
       on conflict (letter, trigger_id) do update set outcome = excluded.outcome, at = excluded.at,
           operation = excluded.operation, error = excluded.error"],
    "insert into letter_handlers (letter, trigger_id, tenant, outcome, at, operation, error)
     select id, $2::uuid, tenant, $4::text, $5::timestamptz, $6::uuid, $7::json
     from dead_letters where id = $1 and tenant = $3
     on conflict (letter, trigger_id) do update set outcome = excluded.outcome, at = excluded.at,
         operation = excluded.operation, error = excluded.error",
);
const HANDLES: Sql = Sql::both(&["select handles from triggers where id = $1 and tenant = $2"]);
const BY_OPERATION: Sql = Sql::both(&["select trigger_id from letter_handlers where letter = $1 and operation = $2"]);

/// Records the end of a run or job. Does nothing if `origin` is not a handler of a dead letter. `error` is `None` for a
/// success.
pub(crate) async fn handler_ended(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    origin: &Origin,
    error: Option<&JobError>,
) -> Result<(), StoreError> {
    let (Some(letter), Origin::Trigger { trigger, .. }) = (origin.handles(), origin) else { return Ok(()) };
    ended(tx, tenant, letter, *trigger, error).await
}

/// Records the end of a handler, and resolves the letter if the handler's trigger declares it.
pub(crate) async fn ended(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    letter: DeadLetterId,
    trigger: TriggerId,
    error: Option<&JobError>,
) -> Result<(), StoreError> {
    let Some(found) = lock(tx, tenant, letter).await? else { return Ok(()) };
    let outcome = if error.is_none() { HandlerOutcome::Succeeded } else { HandlerOutcome::Failed };
    record(tx, tenant, letter, trigger, outcome, None, error).await?;
    let row = tx.query_opt(&HANDLES, &[Param::Uuid(trigger.uuid()), Param::Int(tenant.0)]).await?;
    if !row.map(|row| row.bool("handles")).transpose()?.unwrap_or(false) {
        return Ok(());
    }
    let resolution = match (outcome, found.resolved.map(|resolved| resolved.resolution)) {
        // One success counts, also after the failure of another handler.
        (HandlerOutcome::Succeeded, None | Some(Resolution::HandlerFailed)) => Resolution::HandledByScript,
        (HandlerOutcome::Failed, None) => Resolution::HandlerFailed,
        _ => return Ok(()),
    };
    set(tx, tenant, letter, resolution, &format!("trigger:{trigger}"), None).await
}

/// Records that a handler requested an operation. The operation's end finds the handler by it.
pub(crate) async fn operation_requested(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    origin: &Origin,
    operation: Uuid,
) -> Result<(), StoreError> {
    let (Some(letter), Origin::Trigger { trigger, .. }) = (origin.handles(), origin) else { return Ok(()) };
    record(tx, tenant, letter, *trigger, HandlerOutcome::Started, Some(operation), None).await
}

/// Records the end of an operation that a handler requested. Does nothing for other operations.
pub(crate) async fn operation_ended(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    letter: DeadLetterId,
    operation: Uuid,
    error: Option<&JobError>,
) -> Result<(), StoreError> {
    let row = tx.query_opt(&BY_OPERATION, &[Param::Uuid(letter.uuid()), Param::Uuid(operation)]).await?;
    let Some(trigger) = row.map(|row| row.uuid("trigger_id")).transpose()? else { return Ok(()) };
    ended(tx, tenant, letter, TriggerId::new(trigger), error).await
}

async fn record(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    letter: DeadLetterId,
    trigger: TriggerId,
    outcome: HandlerOutcome,
    operation: Option<Uuid>,
    error: Option<&JobError>,
) -> Result<(), StoreError> {
    let error = error.map(error_to_json);
    let params = [
        Param::Uuid(letter.uuid()),
        Param::Uuid(trigger.uuid()),
        Param::Int(tenant.0),
        Param::Text(outcome.as_str()),
        Param::Time(tx.now()),
        Param::uuid(operation),
        Param::json(error.as_deref()),
    ];
    tx.execute(&RECORD, &params).await.map(|_| ())
}

const OF_LETTERS: Sql = Sql::new(
    &["select letter, trigger_id, outcome, at, error from letter_handlers where letter = $1 order by at, trigger_id"],
    "select letter, trigger_id, outcome, at, error from letter_handlers where letter = any($1::uuid[])
     order by letter, at, trigger_id",
);

/// Reads the handlers of these letters.
pub(crate) async fn load(tx: &mut Tx<'_>, letters: &mut [DeadLetter]) -> Result<(), StoreError> {
    if letters.is_empty() {
        return Ok(());
    }
    let ids = [Column::uuids(letters.iter().map(|letter| letter.id.uuid()))];
    let mut handlers: HashMap<Uuid, Vec<LetterHandler>> = HashMap::new();
    for row in tx.query_each(&OF_LETTERS, &ids, &[]).await? {
        let outcome = row.text("outcome")?;
        handlers.entry(row.uuid("letter")?).or_default().push(LetterHandler {
            trigger: TriggerId::new(row.uuid("trigger_id")?),
            outcome: HandlerOutcome::parse(&outcome)
                .ok_or_else(|| StoreError::unexpected(format!("handler outcome {outcome}")))?,
            at: row.time("at")?,
            error: row.opt_text("error")?.map(|error| error_from_json(&error)).transpose()?,
        });
    }
    for letter in letters {
        letter.handlers = handlers.remove(&letter.id.uuid()).unwrap_or_default();
    }
    Ok(())
}
