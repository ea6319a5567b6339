//! Dead letters of deliveries. A delivery that failed for good becomes a dead letter, unless it is the handler of one.

use std::collections::HashMap;

use domain::queue::job_origin::creates_dead_letter;
use domain::triggers::trigger::Source;
use domain::{DeadLetterId, EventId, JobError, TenantId, TriggerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::codec::to_json;
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::triggers::dead_letters::insert::{NewDeadLetter, insert};
use crate::triggers::dead_letters::{FailedAttempt, handlers};

/// Error code of a failed delivery in its dead letter.
const CODE: &str = "delivery_failed";

/// The delivery that a dead letter comes from, stored for a replay.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliveryReference {
    delivery: Uuid,
}

const FAILED: Sql = Sql::new(
    &[
        "select id, tenant, source, op, trigger_id, event_id, dead_letter, body, depth, error from deliveries where id = $1",
    ],
    "select id, tenant, source, op, trigger_id, event_id, dead_letter, body, depth, error from deliveries
     where id = any($1::uuid[]) order by seq",
);
const ATTEMPTS: Sql = Sql::new(
    &["select delivery, at, error from delivery_attempts where delivery = $1 and error is not null order by attempt"],
    "select delivery, at, error from delivery_attempts where delivery = any($1::uuid[]) and error is not null
     order by delivery, attempt",
);
const AWAITED: Sql = Sql::both(&["select delivery from trigger_runs where event_id = $1 and delivery = $2"]);
const LEFT: Sql = Sql::both(&["update deliveries set letter = $2 where id = $1"]);

/// Writes dead letters for deliveries that have just failed for good.
pub(crate) async fn insert_dead_letters(tx: &mut Tx<'_>, failed: &[Uuid]) -> Result<(), StoreError> {
    let ids = [Column::uuids(failed.iter().copied())];
    let now = tx.now();
    let error = |message: String| JobError { code: CODE.into(), message, retryable: true };
    let mut attempts: HashMap<Uuid, Vec<FailedAttempt>> = HashMap::new();
    for row in tx.query_each(&ATTEMPTS, &ids, &[]).await? {
        let attempt = FailedAttempt { at: row.time("at")?, error: error(row.text("error")?) };
        attempts.entry(row.uuid("delivery")?).or_default().push(attempt);
    }
    for row in tx.query_each(&FAILED, &ids, &[]).await? {
        let (id, tenant) = (row.uuid("id")?, TenantId(row.int("tenant")?));
        let trigger = row.opt_uuid("trigger_id")?.map(TriggerId::new);
        if let Some(letter) = row.opt_uuid("dead_letter")? {
            // The delivery was a handler: a second letter must not be written.
            let error = error(row.opt_text("error")?.unwrap_or_default());
            end_handler(tx, tenant, letter, trigger, Some(&error)).await?;
            continue;
        }
        if !creates_dead_letter(&row.text("source")?, &row.text("op")?) {
            continue;
        }
        // The caller of a `sync` hook gets the error.
        let event = Param::uuid(row.opt_uuid("event_id")?);
        let is_hook = row.text("source")? == Source::Http.as_str();
        if is_hook && tx.query_opt(&AWAITED, &[event, Param::Uuid(id)]).await?.is_some() {
            continue;
        }
        let mut attempts = attempts.remove(&id).unwrap_or_default();
        if attempts.is_empty() {
            attempts.push(FailedAttempt { at: now, error: error(row.opt_text("error")?.unwrap_or_default()) });
        }
        let letter = NewDeadLetter {
            tenant,
            event: EventId::new(row.opt_uuid("event_id")?.unwrap_or(id)),
            source: row.text("source")?,
            op: row.text("op")?,
            trigger,
            script: None,
            job: None,
            queue: None,
            kind: None,
            payload: row.text("body")?,
            work: Some(to_json(&DeliveryReference { delivery: id })),
            depth: row.int("depth")? as i32,
            attempts,
        };
        let letter = insert(tx, letter).await?;
        tx.execute(&LEFT, &[Param::Uuid(id), Param::Uuid(letter.uuid())]).await?;
    }
    Ok(())
}

const HANDLES: Sql = Sql::both(&["select tenant, dead_letter, trigger_id from deliveries where id = $1"]);

/// Records that a successful delivery was the handler of a letter. Does nothing for other deliveries.
pub(crate) async fn handler_delivered(tx: &mut Tx<'_>, id: Uuid) -> Result<(), StoreError> {
    let Some(row) = tx.query_opt(&HANDLES, &[Param::Uuid(id)]).await? else { return Ok(()) };
    let Some(letter) = row.opt_uuid("dead_letter")? else { return Ok(()) };
    let trigger = row.opt_uuid("trigger_id")?.map(TriggerId::new);
    end_handler(tx, TenantId(row.int("tenant")?), letter, trigger, None).await
}

async fn end_handler(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    letter: Uuid,
    trigger: Option<TriggerId>,
    error: Option<&JobError>,
) -> Result<(), StoreError> {
    let Some(trigger) = trigger else { return Ok(()) };
    handlers::ended(tx, tenant, DeadLetterId::new(letter), trigger, error).await
}

/// Returns the delivery that a letter comes from. `None` if it comes from other work.
pub(crate) fn delivery_of(work: &str) -> Option<Uuid> {
    serde_json::from_str::<DeliveryReference>(work).ok().map(|work| work.delivery)
}

const AGAIN: Sql = Sql::new(
    &["insert into deliveries (id, tenant, endpoint, source, op, job, trigger_id, event_id, principal, depth, url, method,
           headers, secrets, body, timeout_ms, retry, max_attempts, tries_left, state, created_at, due_at, give_up_at)
       select $3, tenant, endpoint, source, op, job, trigger_id, event_id, principal, max(depth, $7), url, method, headers,
           secrets, $4, timeout_ms, retry, max_attempts, max_attempts, 'pending', $5, $5, $6
       from deliveries where id = $1 and tenant = $2"],
    "insert into deliveries (id, tenant, endpoint, source, op, job, trigger_id, event_id, principal, depth, url, method,
         headers, secrets, body, timeout_ms, retry, max_attempts, tries_left, state, created_at, due_at, give_up_at)
     select $3::uuid, tenant, endpoint, source, op, job, trigger_id, event_id, principal, greatest(depth, $7::bigint),
         url, method, headers, secrets, $4::text, timeout_ms, retry, max_attempts, max_attempts, 'pending',
         $5::timestamptz, $5::timestamptz, $6::timestamptz
     from deliveries where id = $1 and tenant = $2",
);

/// Inserts a copy of a delivery with another body. Returns `None` if the original was pruned.
pub(crate) async fn insert_copy(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    old: Uuid,
    depth: i32,
    body: &str,
) -> Result<Option<Uuid>, StoreError> {
    let now = tx.now();
    let id = new_uuid(now);
    let give_up = now.plus_s(domain::limits::DELIVERY_GIVE_UP_S);
    let params = [
        Param::Uuid(old),
        Param::Int(tenant.0),
        Param::Uuid(id),
        Param::Text(body),
        Param::Time(now),
        Param::Time(give_up),
        Param::Int(i64::from(depth)),
    ];
    Ok((tx.execute(&AGAIN, &params).await? > 0).then_some(id))
}
