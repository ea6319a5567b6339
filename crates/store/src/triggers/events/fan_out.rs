//! Fan-out of events to triggers. The data of a large event with several runs is stored once, and its outbox rows refer to
//! it.
//!
//! A transaction writes at most `FAN_OUT_ROWS` outbox rows. It stores the other runs as lists of events and triggers in
//! `outbox_fan_outs`, and the dispatcher writes their rows in parts of the same size.

use std::collections::{BTreeMap, HashMap};

use domain::limits::{FAN_OUT_ROWS, SHARED_EVENT_BYTES};
use domain::{EventId, TenantId, TriggerId};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::codec::{from_json, to_json};
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::triggers::events::Event;

/// An event and the triggers to run for it.
pub(super) struct MatchedEvent<'e> {
    pub(super) event: &'e Event,
    pub(super) triggers: Vec<TriggerId>,
}

/// The columns that an outbox row copies from its event.
pub(super) struct StoredEvent {
    id: EventId,
    tenant: TenantId,
    source: String,
    op: String,
    depth: i64,
    head: String,
    data_bytes: i64,
}

impl StoredEvent {
    pub(super) fn of(event: &Event) -> Self {
        Self {
            id: event.id,
            tenant: event.tenant,
            source: event.source.as_str().to_owned(),
            op: event.op.clone(),
            depth: i64::from(event.depth),
            head: event.head(),
            data_bytes: event.data.len() as i64,
        }
    }

    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: EventId::new(row.uuid("id")?),
            tenant: TenantId(row.int("tenant")?),
            source: row.text("source")?,
            op: row.text("op")?,
            depth: row.int("depth")?,
            head: row.text("event")?,
            data_bytes: row.int("data_bytes")?,
        })
    }
}

/// An outbox row to insert.
pub(super) struct OutboxInsert<'e> {
    pub(super) trigger: TriggerId,
    pub(super) event: &'e StoredEvent,
    /// `None`: the data is in `outbox_events`.
    pub(super) data: Option<&'e str>,
}

const INSERT: Sql = Sql::new(
    &["insert into outbox (id, tenant, trigger_id, event_id, source, op, depth, event, data, data_bytes, is_shared,
           created_at, due_at, attempts)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, '[]') on conflict (trigger_id, event_id) do nothing"],
    "insert into outbox (id, tenant, trigger_id, event_id, source, op, depth, event, data, data_bytes, is_shared,
         created_at, due_at, attempts)
     select n.id, n.tenant, n.trigger_id, n.event_id, n.source, n.op, n.depth, n.event, n.data, n.bytes, n.shared <> 0,
         $12, $12, '[]'
     from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::bigint[], $8::json[],
         $9::json[], $10::bigint[], $11::bigint[])
         as n(id, tenant, trigger_id, event_id, source, op, depth, event, data, bytes, shared)
     on conflict (trigger_id, event_id) do nothing",
);

/// Inserts outbox rows. A row for the same trigger and event that already exists is skipped.
pub(super) async fn insert_rows(tx: &mut Tx<'_>, rows: &[OutboxInsert<'_>]) -> Result<(), StoreError> {
    let now = tx.now();
    // Sort the ids, so that rows start in the order in which they were emitted.
    let mut ids: Vec<_> = rows.iter().map(|_| new_uuid(now)).collect();
    ids.sort_unstable();
    let of = || rows.iter().map(|row| row.event);
    let columns = [
        Column::uuids(ids),
        Column::ints(of().map(|event| event.tenant.0)),
        Column::uuids(rows.iter().map(|row| row.trigger.uuid())),
        Column::uuids(of().map(|event| event.id.uuid())),
        Column::texts(of().map(|event| event.source.as_str())),
        Column::texts(of().map(|event| event.op.as_str())),
        Column::ints(of().map(|event| event.depth)),
        Column::Json(of().map(|event| Some(event.head.as_str())).collect()),
        Column::Json(rows.iter().map(|row| Some(row.data.unwrap_or("null"))).collect()),
        Column::ints(of().map(|event| event.data_bytes)),
        Column::ints(rows.iter().map(|row| i64::from(row.data.is_none()))),
    ];
    tx.execute_each(&INSERT, &columns, &[Param::Time(now)]).await.map(|_| ())
}

const INSERT_EVENT: Sql = Sql::new(
    &["insert into outbox_events (id, tenant, source, op, depth, event, data, data_bytes, created_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (id) do nothing"],
    "insert into outbox_events (id, tenant, source, op, depth, event, data, data_bytes, created_at)
     select n.*, $9 from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::json[], $7::json[],
         $8::bigint[]) n
     on conflict (id) do nothing",
);
const INSERT_FAN_OUT: Sql = Sql::both(&["insert into outbox_fan_outs (id, tenant, triggers, events, created_at)
     values ($1, $2, $3, $4, $5)"]);

/// Writes the runs of events. Returns their number.
pub(super) async fn insert(tx: &mut Tx<'_>, matches: &[MatchedEvent<'_>]) -> Result<usize, StoreError> {
    let stored: Vec<StoredEvent> = matches.iter().map(|matched| StoredEvent::of(matched.event)).collect();
    let mut rows = Vec::new();
    let mut shared = Vec::new();
    let mut later: BTreeMap<(TenantId, &[TriggerId]), Vec<EventId>> = BTreeMap::new();
    for (matched, event) in matches.iter().zip(&stored) {
        let runs = matched.triggers.len();
        // From the first event without room on, all events wait, so that the events of a trigger keep their order.
        let has_room = later.is_empty() && rows.len() + runs <= FAN_OUT_ROWS;
        let is_shared = !has_room || runs > 1 && matched.event.data.len() > SHARED_EVENT_BYTES;
        if is_shared {
            shared.push((event, matched.event.data.as_str()));
        }
        if has_room {
            let data = (!is_shared).then_some(matched.event.data.as_str());
            rows.extend(matched.triggers.iter().map(|trigger| OutboxInsert { trigger: *trigger, event, data }));
        } else {
            later.entry((event.tenant, &matched.triggers)).or_default().push(event.id);
        }
    }
    let now = Param::Time(tx.now());
    let of = || shared.iter().map(|(event, _)| *event);
    let columns = [
        Column::uuids(shared.iter().map(|(event, _)| event.id.uuid())),
        Column::ints(of().map(|event| event.tenant.0)),
        Column::texts(of().map(|event| event.source.as_str())),
        Column::texts(of().map(|event| event.op.as_str())),
        Column::ints(of().map(|event| event.depth)),
        Column::Json(of().map(|event| Some(event.head.as_str())).collect()),
        Column::Json(shared.iter().map(|(_, data)| Some(*data)).collect()),
        Column::ints(of().map(|event| event.data_bytes)),
    ];
    tx.execute_each(&INSERT_EVENT, &columns, &[now]).await?;
    insert_rows(tx, &rows).await?;
    for ((tenant, triggers), events) in later {
        let triggers = to_json(&triggers.iter().map(|trigger| trigger.uuid()).collect::<Vec<Uuid>>());
        let events = to_json(&events.iter().map(|event| event.uuid()).collect::<Vec<Uuid>>());
        let id = Param::Uuid(new_uuid(tx.now()));
        let params = [id, Param::Int(tenant.0), Param::Json(&triggers), Param::Json(&events), now];
        tx.execute(&INSERT_FAN_OUT, &params).await?;
    }
    Ok(matches.iter().map(|matched| matched.triggers.len()).sum())
}

/// Writes the next rows of the oldest fan-out that no other node is writing. Returns true if it wrote rows.
pub(crate) struct ExpandFanOut;

const OLDEST: Sql = Sql::new(
    &["select id, triggers, events, written from outbox_fan_outs order by id limit 1"],
    "select id, triggers, events, written from outbox_fan_outs order by id limit 1 for update skip locked",
);
const EVENTS: Sql = Sql::new(
    &["select id, tenant, source, op, depth, event, data_bytes from outbox_events where id = $1"],
    "select id, tenant, source, op, depth, event, data_bytes from outbox_events where id = any($1::uuid[])",
);
const ADVANCE: Sql = Sql::both(&["update outbox_fan_outs set written = $2 where id = $1"]);
const REMOVE: Sql = Sql::both(&["delete from outbox_fan_outs where id = $1"]);

impl Operation for ExpandFanOut {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let Some(row) = tx.query_opt(&OLDEST, &[]).await? else { return Ok(false) };
        let (id, written) = (Param::Uuid(row.uuid("id")?), row.int("written")? as usize);
        let triggers: Vec<Uuid> = from_json(&row.text("triggers")?)?;
        let events: Vec<Uuid> = from_json(&row.text("events")?)?;
        let runs = triggers.len() * events.len();
        let end = runs.min(written + FAN_OUT_ROWS);
        let run = |number: usize| (events[number / triggers.len()], triggers[number % triggers.len()]);
        let part: Vec<(Uuid, Uuid)> = (written..end).map(run).collect();
        let mut of_part: Vec<Uuid> = part.iter().map(|(event, _)| *event).collect();
        of_part.dedup();
        let mut stored: HashMap<Uuid, StoredEvent> = HashMap::new();
        for row in tx.query_each(&EVENTS, &[Column::uuids(of_part)], &[]).await? {
            let event = StoredEvent::read(&row)?;
            stored.insert(event.id.uuid(), event);
        }
        let mut rows = Vec::with_capacity(part.len());
        for (event, trigger) in part {
            let event = stored.get(&event).ok_or_else(|| StoreError::unexpected("the event of a run is missing"))?;
            rows.push(OutboxInsert { trigger: TriggerId::new(trigger), event, data: None });
        }
        insert_rows(tx, &rows).await?;
        match end < runs {
            true => tx.execute(&ADVANCE, &[id, Param::Int(end as i64)]).await?,
            false => tx.execute(&REMOVE, &[id]).await?,
        };
        Ok(true)
    }
}
