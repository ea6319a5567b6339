//! Receives calls of inbound hooks. A call becomes events for the trigger that owns the hook. A signed message is accepted
//! once.

use std::fmt::Write;

use domain::limits::{
    DELIVERY_GIVE_UP_S, HOOK_TOLERANCE_S, MAINTENANCE_ROWS, SCHEDULE_SLOT_RETENTION_S, SHARED_EVENT_RETENTION_S,
};
use domain::{EventId, Time, TriggerId};
use sha2::{Digest, Sha256};

use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::events::{Event, NewOutboxRow, idempotency, insert_rows};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    Accepted(Vec<EventId>),
    /// The same signed message or the same CloudEvents were accepted before, with these event ids.
    Duplicate(Vec<EventId>),
    /// A different message was accepted before under this message id.
    Replay,
    /// The trigger does not exist or is disabled.
    NotFound,
}

/// The identity of a signed message.
#[derive(Clone, Debug)]
pub struct SignedMessage {
    /// Visible ASCII.
    pub id: String,
    pub body_hash: [u8; 32],
}

impl SignedMessage {
    /// Returns the receipt that identifies the id together with the body. Message ids contain no line break.
    fn with_body(&self) -> String {
        let mut text = format!("{}\n", self.id);
        for byte in self.body_hash {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Returns the ids of the message's events. They are derived from the message, so a duplicate can be answered from the
    /// receipt alone.
    fn event_ids(&self, trigger: TriggerId, received_at: Time, count: usize) -> Vec<EventId> {
        let id = |number: usize| {
            let mut digest = Sha256::new();
            digest.update(trigger.uuid().as_bytes());
            digest.update(self.with_body());
            digest.update((number as u64).to_be_bytes());
            let digest: [u8; 32] = digest.finalize().into();
            let mut random = [0; 10];
            random.copy_from_slice(&digest[..10]);
            let millis = received_at.millis().max(0) as u64;
            EventId::new(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
        };
        (0..count).map(id).collect()
    }
}

impl Store {
    /// Receives the events of a hook call. Duplicates are detected only for signed messages and CloudEvents.
    pub async fn receive_hook(
        &self,
        trigger: TriggerId,
        events: Vec<Event>,
        message: Option<SignedMessage>,
    ) -> Result<Received, StoreError> {
        let received = self.write(ReceiveHook { trigger, events, message }).await?;
        if let Received::Accepted(_) = received {
            self.notifier().notify(Topic::Outbox);
        }
        Ok(received)
    }
}

struct ReceiveHook {
    trigger: TriggerId,
    events: Vec<Event>,
    message: Option<SignedMessage>,
}

const ENABLED: Sql =
    Sql::both(&["select id from triggers where id = $1 and tenant = $2 and source = 'http' and enabled = $3"]);
const RECEIPT: Sql = Sql::both(&["insert into hook_receipts (trigger_id, message, received_at) values ($1, $2, $3)
     on conflict do nothing"]);
const RECEIVED_AT: Sql = Sql::both(&["select received_at from hook_receipts where trigger_id = $1 and message = $2"]);

impl ReceiveHook {
    /// Writes receipts for the message id and for the id with its body. If the id already has a receipt, returns how the
    /// message was received before.
    async fn find_receipt(&self, tx: &mut Tx<'_>, message: &SignedMessage) -> Result<Option<Received>, StoreError> {
        let (id, now) = (Param::Uuid(self.trigger.uuid()), Param::Time(tx.now()));
        let with_body = message.with_body();
        if tx.execute(&RECEIPT, &[id, Param::Text(&message.id), now]).await? > 0 {
            tx.execute(&RECEIPT, &[id, Param::Text(&with_body), now]).await?;
            return Ok(None);
        }
        let Some(row) = tx.query_opt(&RECEIVED_AT, &[id, Param::Text(&with_body)]).await? else {
            return Ok(Some(Received::Replay));
        };
        Ok(Some(Received::Duplicate(message.event_ids(self.trigger, row.time("received_at")?, self.events.len()))))
    }

    /// Returns the events to write. Events of a signed message get ids derived from the message.
    fn events_with_ids(&self, now: Time) -> Vec<Event> {
        let mut events = self.events.clone();
        if let Some(message) = &self.message {
            let ids = message.event_ids(self.trigger, now, events.len());
            events.iter_mut().zip(ids).for_each(|(event, id)| event.id = id);
        }
        events
    }
}

impl Operation for ReceiveHook {
    type Output = Received;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Received, StoreError> {
        let id = Param::Uuid(self.trigger.uuid());
        let Some(first) = self.events.first() else { return Ok(Received::Accepted(Vec::new())) };
        let enabled = [id, Param::Int(first.tenant.0), Param::Bool(true)];
        if tx.query_opt(&ENABLED, &enabled).await?.is_none() {
            return Ok(Received::NotFound);
        }
        if let Some(message) = &self.message
            && let Some(before) = self.find_receipt(tx, message).await?
        {
            return Ok(before);
        }
        let events = self.events_with_ids(tx.now());
        let Some(ids) = idempotency::ids(tx, &events).await? else { return Ok(Received::Replay) };
        let fresh = idempotency::fresh(&events, &ids);
        let rows: Vec<NewOutboxRow<'_>> =
            fresh.iter().map(|event| NewOutboxRow { trigger: self.trigger, event }).collect();
        insert_rows(tx, &rows).await?;
        Ok(if fresh.is_empty() { Received::Duplicate(ids) } else { Received::Accepted(ids) })
    }
}

// A sender signs each attempt again under the same id until it gives up. Assume that others retry about as long as
// Windlass does.
const RECEIPTS_KEEP_S: i64 = DELIVERY_GIVE_UP_S + 2 * HOOK_TOLERANCE_S;

impl Store {
    /// Deletes receipts of messages that are no longer retried, cron slots older than any plausible clock step, and the data
    /// of events without further runs.
    ///
    /// Runs one bounded pass of each and returns the number of deleted rows.
    pub async fn prune_events(&self) -> Result<u64, StoreError> {
        self.write(PruneEvents).await
    }
}

struct PruneEvents;

const OLD_RECEIPTS: Sql = Sql::both(&["delete from hook_receipts where (trigger_id, message) in (
         select trigger_id, message from hook_receipts where received_at < $1 order by received_at limit $2)"]);
const OLD_SLOTS: Sql = Sql::both(&["delete from cron_slots where (trigger_id, slot_at) in (
         select trigger_id, slot_at from cron_slots where fired_at < $1 order by fired_at limit $2)"]);
const OLD_EVENTS: Sql = Sql::both(&["delete from outbox_events where id in (
         select e.id from outbox_events e
         where e.created_at < $1 and not exists (select 1 from outbox o where o.event_id = e.id and o.is_shared)
             and not exists (select 1 from outbox_fan_outs f where f.tenant = e.tenant)
         order by e.created_at limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for PruneEvents {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let receipts = prune(tx, &OLD_RECEIPTS, "hook_receipts", RECEIPTS_KEEP_S).await?;
        let slots = prune(tx, &OLD_SLOTS, "cron_slots", SCHEDULE_SLOT_RETENTION_S).await?;
        let before = tx.now().plus_s(-SHARED_EVENT_RETENTION_S);
        let events = tx.execute(&OLD_EVENTS, &[Param::Time(before), Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        Ok(receipts + slots + events)
    }
}

async fn prune(tx: &mut Tx<'_>, old: &Sql, kind: &str, retention_s: i64) -> Result<u64, StoreError> {
    let now = tx.now();
    let params = [Param::Time(now.plus_s(-retention_s)), Param::Int(MAINTENANCE_ROWS as i64)];
    let pruned = tx.execute(old, &params).await?;
    if pruned > 0 {
        let why = format!("{kind} are retained for {retention_s} s");
        let params = [Param::Time(now), Param::Text(kind), Param::Int(pruned as i64), Param::Text(&why)];
        tx.execute(&LOG, &params).await?;
    }
    Ok(pruned)
}
