//! Events. An event writes one outbox row per matching trigger, in the transaction of the change that it reports.

pub mod awaited_runs;
pub mod hook;
mod idempotency;
pub mod mail;
pub mod publish;
pub(crate) mod queues;

use std::fmt::Write;

use domain::triggers::trigger::Source;
use domain::{EventId, TenantId, Time, TriggerId};
use serde_json::Value;

use crate::db::clock::new_uuid;
use crate::db::codec::to_json;
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::Idempotency;
use crate::triggers::cache::{Listener, Listeners};
use crate::triggers::expression::{ExpressionError, Scope, is_true};

/// Names of event attributes. A replayed dead letter restores the attributes of its event by this list, so an attribute that
/// is missing here would be lost in a replay.
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

/// Something that happened and that triggers can match.
#[derive(Clone, Debug)]
pub struct Event {
    pub id: EventId,
    pub tenant: TenantId,
    pub source: Source,
    /// The operation: `set`, `publish`, `succeeded`, …
    pub op: String,
    pub at: Time,
    /// Trigger depth: the number of triggers in the chain that led to this event.
    pub depth: i32,
    /// Attributes that filters match besides the operation: `collection` and `key`, `topic`, `queue` and `kind`, …
    pub attributes: Vec<(&'static str, String)>,
    /// JSON, verbatim.
    pub data: String,
    /// Idempotency key of an event that the sender may send again.
    pub once: Option<Idempotency>,
}

impl Event {
    pub fn new(now: Time, tenant: TenantId, source: Source, op: &str, depth: i32, data: String) -> Self {
        let id = EventId::new(new_uuid(now));
        Self { id, tenant, source, op: op.into(), at: now, depth, attributes: Vec::new(), data, once: None }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        debug_assert!(ATTRIBUTES.contains(&name), "{name} is missing from ATTRIBUTES");
        self.attributes.push((name, value.into()));
        self
    }

    /// Sets the idempotency key. A second event with the same key within a day is a duplicate of this one.
    pub fn once(self, once: Option<Idempotency>) -> Self {
        Self { once, ..self }
    }

    /// Adds the attributes from the head of another event.
    pub(crate) fn with_those_of(self, head: &Value) -> Self {
        ATTRIBUTES.iter().fold(self, |event, name| match head.get(*name).and_then(Value::as_str) {
            Some(value) => event.with(name, value),
            None => event,
        })
    }

    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(attribute, _)| *attribute == name).map(|(_, value)| value.as_str())
    }

    /// Encodes the event without its data as JSON: `{id, source, op, at, depth, …}`.
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

/// Returns the default input of a run, used if the trigger has no mapping.
pub fn envelope(head: &str, data: &str) -> String {
    format!(r#"{{"event":{head},"data":{data}}}"#)
}

/// Writes one outbox row per matching trigger. Returns the number of rows.
pub(crate) async fn emit(tx: &mut Tx<'_>, listeners: &Listeners, events: &[Event]) -> Result<usize, StoreError> {
    let mut rows = Vec::new();
    for event in events {
        rows.extend(matching_listeners(listeners, event).map(|listener| (listener.id, event)));
    }
    let rows: Vec<NewOutboxRow<'_>> =
        rows.into_iter().map(|(trigger, event)| NewOutboxRow { trigger, event }).collect();
    insert_rows(tx, &rows).await?;
    Ok(rows.len())
}

/// Returns the triggers that match the event.
pub(crate) fn matching_listeners<'l>(listeners: &'l Listeners, event: &'l Event) -> impl Iterator<Item = &'l Listener> {
    let mut scope: Option<Result<Scope, ExpressionError>> = None;
    listeners.of(event.tenant, event.source).iter().filter(move |listener| {
        if !listener.filter.pattern.matches(&event.op, |name| event.attribute(name)) {
            return false;
        }
        let Some(when) = &listener.filter.when else { return true };
        let scope = scope.get_or_insert_with(|| Scope::new(&event.head(), &event.data));
        // A condition that fails to evaluate counts as a match. The run then fails, is retried and becomes a dead letter,
        // instead of being dropped silently.
        !matches!(scope.as_ref().map(|scope| is_true(when, scope)), Ok(Ok(false)))
    })
}

/// An outbox row to insert: one run of a trigger for an event.
pub(crate) struct NewOutboxRow<'e> {
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

/// Inserts outbox rows. A row for the same trigger and event that already exists is skipped.
pub(crate) async fn insert_rows(tx: &mut Tx<'_>, rows: &[NewOutboxRow<'_>]) -> Result<(), StoreError> {
    let now = tx.now();
    let heads: Vec<String> = rows.iter().map(|row| row.event.head()).collect();
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
        Column::ints(of().map(|event| i64::from(event.depth))),
        Column::Json(heads.iter().map(|head| Some(head.as_str())).collect()),
        Column::Json(of().map(|event| Some(event.data.as_str())).collect()),
    ];
    tx.execute_each(&INSERT, &columns, &[Param::Time(now)]).await.map(|_| ())
}
