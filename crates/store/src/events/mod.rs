//! Events: things that happened. Each writes one outbox row per matching trigger, in its own transaction (T1, T4).

pub mod hook;
pub(crate) mod jobs;
pub mod mail;
mod once;
pub mod publish;
pub(crate) mod queues;
pub mod waited;

use std::fmt::Write;

use domain::trigger::Source;
use domain::{EventId, TenantId, Time, TriggerId};
use serde_json::Value;

use crate::clock::new_uuid;
use crate::codec::to_json;
use crate::error::StoreError;
use crate::expression::{ExpressionError, Scope, is_true};
use crate::jobs::enqueue::Idempotency;
use crate::triggers::cache::{Listener, Listeners};
use crate::tx::{Column, Param, Sql, Tx};

/// What an event may say of itself beside its operation. A replayed letter gives these back to its event: a name that is
/// missing here would be lost on the way.
const ATTRIBUTES: &[&str] = &[
    "collection",
    "key",
    "topic",
    "queue",
    "kind",
    "job_id",
    "attempt",
    "to",
    "name",
    "health",
    "source_of_letter",
    "trigger",
    "slot",
    "ce_id",
    "ce_source",
    "ce_subject",
    "ce_time",
];

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Event {
    pub id: EventId,
    pub tenant: TenantId,
    pub source: Source,
    /// What exactly: `set`, `publish`, `succeeded`, …
    pub op: String,
    pub at: Time,
    /// How many triggers led here.
    pub depth: i32,
    /// What filters look at, beside the operation: `collection` and `key`, `topic`, `queue` and `kind`, …
    pub attributes: Vec<(&'static str, String)>,
    /// JSON, verbatim.
    pub data: String,
    /// By what it is known again when it is sent once more.
    pub once: Option<Idempotency>,
}

impl Event {
    pub fn new(now: Time, tenant: TenantId, source: Source, op: &str, depth: i32, data: String) -> Self {
        let id = EventId::new(new_uuid(now));
        Self { id, tenant, source, op: op.into(), at: now, depth, attributes: Vec::new(), data, once: None }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        debug_assert!(ATTRIBUTES.contains(&name), "{name} is in no list of attributes");
        self.attributes.push((name, value.into()));
        self
    }

    /// The same again, within a day, is this event.
    pub fn once(self, once: Option<Idempotency>) -> Self {
        Self { once, ..self }
    }

    /// With the attributes of the event that had this head.
    pub(crate) fn with_those_of(self, head: &Value) -> Self {
        ATTRIBUTES.iter().fold(self, |event, name| match head.get(*name).and_then(Value::as_str) {
            Some(value) => event.with(name, value),
            None => event,
        })
    }

    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// The event without its data, as JSON: `{id, source, op, at, depth, …}`.
    pub fn head(&self) -> String {
        let at = jiff::Timestamp::from_microsecond(self.at.micros()).unwrap_or(jiff::Timestamp::MAX);
        let Self { id, source, op, depth, .. } = self;
        let mut head =
            format!(r#"{{"id":"{id}","source":"{source}","op":{},"at":"{at}","depth":{depth}"#, to_json(&op.as_str()));
        for (name, value) in &self.attributes {
            let _ = write!(head, r#","{name}":{}"#, to_json(&value.as_str()));
        }
        head.push('}');
        head
    }
}

/// What a run gets unless its trigger maps it.
pub fn envelope(head: &str, data: &str) -> String {
    format!(r#"{{"event":{head},"data":{data}}}"#)
}

/// Writes one outbox row for each trigger that matches. Gives how many.
pub(crate) async fn emit(tx: &mut Tx<'_>, listeners: &Listeners, events: &[Event]) -> Result<usize, StoreError> {
    let mut rows = Vec::new();
    for event in events {
        rows.extend(hearing(listeners, event).map(|listener| (listener.id, event)));
    }
    let rows: Vec<Row<'_>> = rows.into_iter().map(|(trigger, event)| Row { trigger, event }).collect();
    insert_rows(tx, &rows).await?;
    Ok(rows.len())
}

/// The triggers that hear the event.
pub(crate) fn hearing<'l>(listeners: &'l Listeners, event: &'l Event) -> impl Iterator<Item = &'l Listener> {
    let mut of_event: Option<Result<Scope, ExpressionError>> = None;
    listeners.of(event.tenant, event.source).iter().filter(move |listener| {
        if !listener.filter.pattern.matches(&event.op, |name| event.attribute(name)) {
            return false;
        }
        let Some(when) = &listener.filter.when else { return true };
        let scope = of_event.get_or_insert_with(|| Scope::new(&event.head(), &event.data));
        // What cannot be judged is not dropped: the run fails, is tried again, and ends as a dead letter.
        !matches!(scope.as_ref().map(|scope| is_true(when, scope)), Ok(Ok(false)))
    })
}

/// One run to be started.
pub(crate) struct Row<'e> {
    pub(crate) trigger: TriggerId,
    pub(crate) event: &'e Event,
}

const INSERT: Sql = Sql::new(
    &["insert into outbox (id, tenant, trigger_id, event_id, source, op, depth, event, data, created_at, due_at, attempts)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, '[]') on conflict (trigger_id, event_id) do nothing"],
    "insert into outbox (id, tenant, trigger_id, event_id, source, op, depth, event, data, created_at, due_at, attempts)
     select n.*, $10, $10, '[]' from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::uuid[], $5::text[], $6::text[],
         $7::bigint[], $8::json[], $9::json[]) n
     on conflict (trigger_id, event_id) do nothing",
);

pub(crate) async fn insert_rows(tx: &mut Tx<'_>, rows: &[Row<'_>]) -> Result<(), StoreError> {
    let now = tx.now();
    let heads: Vec<String> = rows.iter().map(|row| row.event.head()).collect();
    // In order, so that what was written first is started first.
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
        Column::ints(of().map(|event| i64::from(event.depth))),
        Column::Json(heads.iter().map(|head| Some(head.as_str())).collect()),
        Column::Json(of().map(|event| Some(event.data.as_str())).collect()),
    ];
    tx.execute_each(&INSERT, &columns, &[Param::Time(now)]).await.map(|_| ())
}
