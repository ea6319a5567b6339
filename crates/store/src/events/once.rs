//! Events that somebody who did not hear the answer sends again: each is told once, and the same again is answered with
//! the first one's id for a day (T4).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use domain::limits::IDEMPOTENCY_KEEP_S;
use domain::{EventId, TenantId};
use uuid::Uuid;

use crate::codec::{from_json, to_json};
use crate::error::StoreError;
use crate::events::Event;
use crate::tx::{Column, Param, Sql, Tx};

// The keys of events stand beside those of jobs and are forgotten with them. PostgreSQL waits here for a transaction that
// uses the same key now.
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

/// The body that a key was first used for, as its hash, and the event that came of it.
type First = (Vec<u8>, EventId);

/// The ids that a tenant's events have: a repeated one that of the first. Nothing when a key was used for something else.
/// From here on the keys are taken.
pub(crate) async fn ids(tx: &mut Tx<'_>, events: &[Event]) -> Result<Option<Vec<EventId>>, StoreError> {
    let Some(tenant) = events.first().map(|event| event.tenant) else { return Ok(Some(Vec::new())) };
    // In the order of their keys, so that two nodes that use the same ones never wait for each other in a circle.
    let mut here: BTreeMap<&str, First> = BTreeMap::new();
    for event in events {
        let Some(once) = &event.once else { continue };
        here.entry(once.key.as_str()).or_insert_with(|| (once.body_hash.to_vec(), event.id));
    }
    let before = told_before(tx, tenant, &here).await?;
    let id = |event: &Event| {
        let Some(once) = &event.once else { return Some(event.id) };
        let (hash, id) = before.get(&once.key).or_else(|| here.get(once.key.as_str()))?;
        (hash[..] == once.body_hash[..]).then_some(*id)
    };
    Ok(events.iter().map(id).collect())
}

/// Takes the keys, and gives those that were taken in an earlier commit.
async fn told_before(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    here: &BTreeMap<&str, First>,
) -> Result<HashMap<String, First>, StoreError> {
    let (tenant, now) = (Param::Int(tenant.0), tx.now());
    let forgotten = Param::Time(now.plus_s(-IDEMPOTENCY_KEEP_S));
    let hashes: Vec<String> = here.values().map(|(hash, _)| hex(hash)).collect();
    let events: Vec<String> = here.values().map(|(_, id)| to_json(&[id.uuid()])).collect();
    let columns = [
        Column::texts(here.keys().copied()),
        Column::texts(hashes.iter().map(String::as_str)),
        Column::Json(events.iter().map(|events| Some(events.as_str())).collect()),
    ];
    let rows = tx.query_each(&TAKE, &columns, &[tenant, Param::Time(now), forgotten]).await?;
    let taken: HashSet<String> = rows.iter().map(|row| row.text(0)).collect::<Result<_, _>>()?;
    let used: Vec<&str> = here.keys().copied().filter(|key| !taken.contains(*key)).collect();
    let mut before = HashMap::new();
    for row in tx.query_each(&USED, &[Column::texts(used.iter().copied())], &[tenant, forgotten]).await? {
        let [event]: [Uuid; 1] = from_json(&row.text(2)?)?;
        before.insert(row.text(0)?, (row.opt_blob(1)?.unwrap_or_default(), EventId::new(event)));
    }
    match before.len() == used.len() {
        true => Ok(before),
        false => Err(StoreError::unavailable("an idempotency key was pruned in between")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_fresh((event, id): &(&Event, &EventId)) -> bool {
    event.id == **id
}

/// Those that are told now: the others were before.
pub(crate) fn fresh<'e>(events: &'e [Event], ids: &[EventId]) -> Cow<'e, [Event]> {
    if events.iter().zip(ids).all(|pair| is_fresh(&pair)) {
        return Cow::Borrowed(events);
    }
    Cow::Owned(events.iter().zip(ids).filter(is_fresh).map(|(event, _)| event.clone()).collect())
}

/// All of them, under the ids that they have.
pub(crate) fn named<'e>(events: &'e [Event], ids: &[EventId]) -> Cow<'e, [Event]> {
    if events.iter().zip(ids).all(|pair| is_fresh(&pair)) {
        return Cow::Borrowed(events);
    }
    Cow::Owned(events.iter().zip(ids).map(|(event, id)| Event { id: *id, ..event.clone() }).collect())
}
