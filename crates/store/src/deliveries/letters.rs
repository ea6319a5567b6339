//! What could not be delivered leaves a dead letter; a delivery that handles one resolves it (T6–T8).

use std::collections::HashMap;

use domain::origin::leaves_a_dead_letter;
use domain::{DeadLetterId, EventId, JobError, Resolution, TenantId, TriggerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::new_uuid;
use crate::codec::to_json;
use crate::dead_letters::Attempt;
use crate::dead_letters::insert::{NewDeadLetter, insert};
use crate::dead_letters::resolve::resolve;
use crate::error::StoreError;
use crate::tx::{Column, Param, Sql, Tx};

/// What an error of a delivery is called in a letter.
const CODE: &str = "delivery_failed";

/// How a letter remembers the delivery it comes from, to play it again.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Work {
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
const LEFT: Sql = Sql::both(&["update deliveries set letter = $2 where id = $1"]);

/// For deliveries that have just failed for good.
pub(crate) async fn leave(tx: &mut Tx<'_>, failed: &[Uuid]) -> Result<(), StoreError> {
    let ids = [Column::uuids(failed.iter().copied())];
    let now = tx.now();
    let error = |message: String| JobError { code: CODE.into(), message, retryable: true };
    let mut attempts: HashMap<Uuid, Vec<Attempt>> = HashMap::new();
    for row in tx.query_each(&ATTEMPTS, &ids, &[]).await? {
        let attempt = Attempt { at: row.time(1)?, error: error(row.text(2)?) };
        attempts.entry(row.uuid(0)?).or_default().push(attempt);
    }
    for row in tx.query_each(&FAILED, &ids, &[]).await? {
        let (id, tenant) = (row.uuid(0)?, TenantId(row.int(1)?));
        let trigger = row.opt_uuid(4)?.map(TriggerId::new);
        if let Some(letter) = row.opt_uuid(6)? {
            // It was the handler of a letter: that one hears of it, and there is no second.
            end_handler(tx, tenant, letter, trigger, Resolution::HandlerFailed).await?;
            continue;
        }
        if !leaves_a_dead_letter(&row.text(2)?, &row.text(3)?) {
            continue;
        }
        let mut attempts = attempts.remove(&id).unwrap_or_default();
        if attempts.is_empty() {
            attempts.push(Attempt { at: now, error: error(row.opt_text(9)?.unwrap_or_default()) });
        }
        let letter = NewDeadLetter {
            tenant,
            event: EventId::new(row.opt_uuid(5)?.unwrap_or(id)),
            source: row.text(2)?,
            op: row.text(3)?,
            trigger,
            script: None,
            job: None,
            queue: None,
            kind: None,
            payload: row.text(7)?,
            work: Some(to_json(&Work { delivery: id })),
            depth: row.int(8)? as i32,
            attempts,
        };
        let letter = insert(tx, letter).await?;
        tx.execute(&LEFT, &[Param::Uuid(id), Param::Uuid(letter.uuid())]).await?;
    }
    Ok(())
}

const HANDLES: Sql = Sql::both(&["select tenant, dead_letter, trigger_id from deliveries where id = $1"]);

/// For a delivery that was delivered.
pub(crate) async fn delivered(tx: &mut Tx<'_>, id: Uuid) -> Result<(), StoreError> {
    let Some(row) = tx.query_opt(&HANDLES, &[Param::Uuid(id)]).await? else { return Ok(()) };
    let Some(letter) = row.opt_uuid(1)? else { return Ok(()) };
    let trigger = row.opt_uuid(2)?.map(TriggerId::new);
    end_handler(tx, TenantId(row.int(0)?), letter, trigger, Resolution::HandledByScript).await
}

async fn end_handler(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    letter: Uuid,
    trigger: Option<TriggerId>,
    resolution: Resolution,
) -> Result<(), StoreError> {
    let by = trigger.map_or_else(|| "delivery".to_owned(), |trigger| format!("trigger:{trigger}"));
    resolve(tx, tenant, DeadLetterId::new(letter), resolution, &by, None).await.map(|_| ())
}

/// The delivery that a letter comes from.
pub(crate) fn delivery_of(work: &str) -> Option<Uuid> {
    serde_json::from_str::<Work>(work).ok().map(|work| work.delivery)
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

/// The same request once more, as a delivery of its own; nothing when the old one is pruned.
pub(crate) async fn again(
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
