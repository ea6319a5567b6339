//! Events. An event writes one outbox row per matching trigger, in the transaction of the change that it reports. Many rows
//! are written later, in bounded parts (`fan_out`).

pub mod awaited_runs;
mod fan_out;
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
use crate::db::tx::Tx;
use crate::error::StoreError;
use crate::queue::enqueue::Idempotency;
use crate::triggers::cache::{Listener, Listeners};
pub(crate) use fan_out::ExpandFanOut;

/// Names of event attributes. A replayed dead letter restores the attributes of its event by this list, so an attribute that
/// is missing here would be lost in a replay.
const ATTRIBUTES: &[&str] = &[
    "collection",
    "key",
    "topic",
    "queue",
    "kind",
    "run",
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

/// Writes one outbox row per trigger whose pattern matches, now or in bounded parts. Returns the number of rows.
pub(crate) async fn emit(tx: &mut Tx<'_>, listeners: &Listeners, events: &[Event]) -> Result<usize, StoreError> {
    let matches = events.iter().map(|event| fan_out::MatchedEvent {
        event,
        triggers: matching_listeners(listeners, event).map(|listener| listener.id).collect(),
    });
    fan_out::insert(tx, &matches.filter(|matched| !matched.triggers.is_empty()).collect::<Vec<_>>()).await
}

/// Returns the triggers whose pattern matches the event.
///
/// Conditions (`when`) are not evaluated here: the transaction may be the only writer of the database. The dispatcher
/// evaluates them and discards the rows of other events.
pub(crate) fn matching_listeners<'l>(listeners: &'l Listeners, event: &'l Event) -> impl Iterator<Item = &'l Listener> {
    let listeners = listeners.of(event.tenant, event.source).iter();
    listeners.filter(|listener| listener.filter.pattern.matches(&event.op, |name| event.attribute(name)))
}

/// An outbox row to insert: one run of a trigger for an event.
pub(crate) struct NewOutboxRow<'e> {
    pub(crate) trigger: TriggerId,
    pub(crate) event: &'e Event,
}

/// Inserts outbox rows with their data. A row for the same trigger and event that already exists is skipped.
pub(crate) async fn insert_rows(tx: &mut Tx<'_>, rows: &[NewOutboxRow<'_>]) -> Result<(), StoreError> {
    let events: Vec<fan_out::StoredEvent> = rows.iter().map(|row| fan_out::StoredEvent::of(row.event)).collect();
    let mut inserts = Vec::with_capacity(rows.len());
    for (row, event) in rows.iter().zip(&events) {
        inserts.push(fan_out::OutboxInsert { trigger: row.trigger, event, data: Some(&row.event.data) });
    }
    fan_out::insert_rows(tx, &inserts).await
}
