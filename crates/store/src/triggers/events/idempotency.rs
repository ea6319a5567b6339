//! Idempotency of events. A sender that misses the response sends an event again. Within `IDEMPOTENCY_RETENTION_S` the
//! repetition is answered with the id of the first event and emits nothing.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use domain::limits::IDEMPOTENCY_RETENTION_S;
use domain::{EventId, TenantId};
use uuid::Uuid;

use crate::db::codec::{from_json, to_json};
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::triggers::events::Event;

// Events share the table of idempotency keys with jobs, and its retention. On PostgreSQL this statement waits for a
// concurrent transaction that inserts the same key.
const TAKE: Sql = Sql::new(
    &["insert into idempotency (tenant, key, body_hash, jobs, created_at) values ($4, $1, unhex($2), $3, $5)
       on conflict (tenant, key) do update
           set body_hash = excluded.body_hash, jobs = excluded.jobs, created_at = excluded.created_at
           where idempotency.created_at <= $6
       returning key"],
    "insert into idempotency (tenant, key, body_hash, jobs, created_at)
     select $4, n.key, decode(n.hash, 'hex'), n.events, $5
     from unnest($1::text[], $2::text[], $3::json[]) as n(key, hash, events)
     on conflict (tenant, key) do update
         set body_hash = excluded.body_hash, jobs = excluded.jobs, created_at = excluded.created_at
         where idempotency.created_at <= $6
     returning key",
);
const USED: Sql = Sql::new(
    &["select key, body_hash, jobs from idempotency where key = $1 and tenant = $2 and created_at > $3"],
    "select i.key, i.body_hash, i.jobs from unnest($1::text[]) as n(key)
     join idempotency i on i.tenant = $2 and i.key = n.key where i.created_at > $3",
);

/// The hash of the body that first used a key, and the id of its event.
type KeyUse = (Vec<u8>, EventId);

/// Claims the idempotency keys and returns the ids of a tenant's events. A repeated event gets the id of the first one.
/// Returns `None` if a key was used before with a different body.
pub(crate) async fn ids(tx: &mut Tx<'_>, events: &[Event]) -> Result<Option<Vec<EventId>>, StoreError> {
    let Some(tenant) = events.first().map(|event| event.tenant) else { return Ok(Some(Vec::new())) };
    // Claim the keys in sorted order, so that two nodes with the same keys cannot deadlock.
    let mut requested: BTreeMap<&str, KeyUse> = BTreeMap::new();
    for event in events {
        let Some(once) = &event.once else { continue };
        requested.entry(once.key.as_str()).or_insert_with(|| (once.body_hash.to_vec(), event.id));
    }
    let earlier = claim_keys(tx, tenant, &requested).await?;
    let id = |event: &Event| {
        let Some(once) = &event.once else { return Some(event.id) };
        let (hash, id) = earlier.get(&once.key).or_else(|| requested.get(once.key.as_str()))?;
        (hash[..] == once.body_hash[..]).then_some(*id)
    };
    Ok(events.iter().map(id).collect())
}

/// Claims the keys. Returns the keys that an earlier commit has claimed, with their use.
async fn claim_keys(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    requested: &BTreeMap<&str, KeyUse>,
) -> Result<HashMap<String, KeyUse>, StoreError> {
    let (tenant, now) = (Param::Int(tenant.0), tx.now());
    let expired_before = Param::Time(now.plus_s(-IDEMPOTENCY_RETENTION_S));
    let hashes: Vec<String> = requested.values().map(|(hash, _)| hex(hash)).collect();
    let events: Vec<String> = requested.values().map(|(_, id)| to_json(&[id.uuid()])).collect();
    let columns = [
        Column::texts(requested.keys().copied()),
        Column::texts(hashes.iter().map(String::as_str)),
        Column::Json(events.iter().map(|events| Some(events.as_str())).collect()),
    ];
    let rows = tx.query_each(&TAKE, &columns, &[tenant, Param::Time(now), expired_before]).await?;
    let claimed_keys: HashSet<String> = rows.iter().map(|row| row.text("key")).collect::<Result<_, _>>()?;
    let used_keys: Vec<&str> = requested.keys().copied().filter(|key| !claimed_keys.contains(*key)).collect();
    let mut earlier = HashMap::new();
    for row in tx.query_each(&USED, &[Column::texts(used_keys.iter().copied())], &[tenant, expired_before]).await? {
        let [event]: [Uuid; 1] = from_json(&row.text("jobs")?)?;
        earlier.insert(row.text("key")?, (row.opt_blob("body_hash")?.unwrap_or_default(), EventId::new(event)));
    }
    match earlier.len() == used_keys.len() {
        true => Ok(earlier),
        false => Err(StoreError::unavailable("an idempotency key was pruned during the request; retry")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_fresh((event, id): &(&Event, &EventId)) -> bool {
    event.id == **id
}

/// Returns the events that are new. The others were emitted before.
pub(crate) fn fresh<'e>(events: &'e [Event], ids: &[EventId]) -> Cow<'e, [Event]> {
    if events.iter().zip(ids).all(|pair| is_fresh(&pair)) {
        return Cow::Borrowed(events);
    }
    Cow::Owned(events.iter().zip(ids).filter(is_fresh).map(|(event, _)| event.clone()).collect())
}

/// Returns all events with the given ids.
pub(crate) fn with_ids<'e>(events: &'e [Event], ids: &[EventId]) -> Cow<'e, [Event]> {
    if events.iter().zip(ids).all(|pair| is_fresh(&pair)) {
        return Cow::Borrowed(events);
    }
    Cow::Owned(events.iter().zip(ids).map(|(event, id)| Event { id: *id, ..event.clone() }).collect())
}
