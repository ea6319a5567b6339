//! A call of an inbound hook: events for its own trigger; a signed message is taken once (T1).

use std::fmt::Write;

use domain::limits::{DELIVERY_GIVE_UP_S, HOOK_TOLERANCE_S, MAINTENANCE_ROWS, SLOTS_KEEP_S};
use domain::{EventId, Time, TriggerId};
use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::events::{Event, Row, insert_rows, once};
use crate::hints::Topic;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    Taken(Vec<EventId>),
    /// The same signed message was taken before, or the same CloudEvents were, as these events.
    Before(Vec<EventId>),
    /// Another message was taken under this id.
    Replay,
    /// The trigger is off, or gone.
    NotFound,
}

/// A message as its sender signed it.
#[derive(Clone, Debug)]
pub struct Message {
    /// Visible ASCII.
    pub id: String,
    pub body_hash: [u8; 32],
}

impl Message {
    /// What the receipt of this body says. No id holds a line break.
    fn with_body(&self) -> String {
        let mut text = format!("{}\n", self.id);
        for byte in self.body_hash {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// The ids of its events, the same whenever it is asked: nothing but the receipt need be kept to tell them again.
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
    /// Without a signed message, or a CloudEvent, there is nothing to tell a replay by.
    pub async fn receive_hook(
        &self,
        trigger: TriggerId,
        events: Vec<Event>,
        message: Option<Message>,
    ) -> Result<Received, StoreError> {
        let received = self.write(Receive { trigger, events, message }).await?;
        if let Received::Taken(_) = received {
            self.hints().tell(Topic::Outbox);
        }
        Ok(received)
    }
}

struct Receive {
    trigger: TriggerId,
    events: Vec<Event>,
    message: Option<Message>,
}

const ENABLED: Sql =
    Sql::both(&["select id from triggers where id = $1 and tenant = $2 and source = 'http' and enabled = $3"]);
const RECEIPT: Sql = Sql::both(&["insert into hook_receipts (trigger_id, message, received_at) values ($1, $2, $3)
     on conflict do nothing"]);
const RECEIVED_AT: Sql = Sql::both(&["select received_at from hook_receipts where trigger_id = $1 and message = $2"]);

impl Receive {
    /// Writes down that the message was taken, under its id and with its body; or tells what became of it before.
    async fn taken_before(&self, tx: &mut Tx<'_>, message: &Message) -> Result<Option<Received>, StoreError> {
        let (id, now) = (Param::Uuid(self.trigger.uuid()), Param::Time(tx.now()));
        let with_body = message.with_body();
        if tx.execute(&RECEIPT, &[id, Param::Text(&message.id), now]).await? > 0 {
            tx.execute(&RECEIPT, &[id, Param::Text(&with_body), now]).await?;
            return Ok(None);
        }
        let Some(row) = tx.query_opt(&RECEIVED_AT, &[id, Param::Text(&with_body)]).await? else {
            return Ok(Some(Received::Replay));
        };
        Ok(Some(Received::Before(message.event_ids(self.trigger, row.time(0)?, self.events.len()))))
    }

    /// The events as they are written: those of a signed message have ids of its own.
    fn named(&self, now: Time) -> Vec<Event> {
        let mut events = self.events.clone();
        if let Some(message) = &self.message {
            let ids = message.event_ids(self.trigger, now, events.len());
            events.iter_mut().zip(ids).for_each(|(event, id)| event.id = id);
        }
        events
    }
}

impl Operation for Receive {
    type Output = Received;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Received, StoreError> {
        let id = Param::Uuid(self.trigger.uuid());
        let Some(first) = self.events.first() else { return Ok(Received::Taken(Vec::new())) };
        let enabled = [id, Param::Int(first.tenant.0), Param::Bool(true)];
        if tx.query_opt(&ENABLED, &enabled).await?.is_none() {
            return Ok(Received::NotFound);
        }
        if let Some(message) = &self.message
            && let Some(before) = self.taken_before(tx, message).await?
        {
            return Ok(before);
        }
        let events = self.named(tx.now());
        let Some(ids) = once::ids(tx, &events).await? else { return Ok(Received::Replay) };
        let fresh = once::fresh(&events, &ids);
        let rows: Vec<Row<'_>> = fresh.iter().map(|event| Row { trigger: self.trigger, event }).collect();
        insert_rows(tx, &rows).await?;
        Ok(if fresh.is_empty() { Received::Before(ids) } else { Received::Taken(ids) })
    }
}

// A sender signs each attempt anew, under the same id, until it gives up. Others try about as long as we do.
const RECEIPTS_KEEP_S: i64 = DELIVERY_GIVE_UP_S + 2 * HOOK_TOLERANCE_S;

impl Store {
    /// Forgets receipts of messages that nobody sends any more, and slots that no clock goes back to. One bounded round of
    /// each; gives how many went.
    pub async fn prune_events(&self) -> Result<u64, StoreError> {
        self.write(PruneEvents).await
    }
}

struct PruneEvents;

const OLD_RECEIPTS: Sql = Sql::both(&["delete from hook_receipts where (trigger_id, message) in (
         select trigger_id, message from hook_receipts where received_at < $1 order by received_at limit $2)"]);
const OLD_SLOTS: Sql = Sql::both(&["delete from cron_slots where (trigger_id, slot_at) in (
         select trigger_id, slot_at from cron_slots where fired_at < $1 order by fired_at limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for PruneEvents {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let receipts = forget(tx, &OLD_RECEIPTS, "hook_receipts", RECEIPTS_KEEP_S).await?;
        let slots = forget(tx, &OLD_SLOTS, "cron_slots", SLOTS_KEEP_S).await?;
        Ok(receipts + slots)
    }
}

async fn forget(tx: &mut Tx<'_>, old: &Sql, kind: &str, kept_s: i64) -> Result<u64, StoreError> {
    let now = tx.now();
    let params = [Param::Time(now.plus_s(-kept_s)), Param::Int(MAINTENANCE_ROWS as i64)];
    let pruned = tx.execute(old, &params).await?;
    if pruned > 0 {
        let why = format!("{kind} are kept {kept_s} s");
        let params = [Param::Time(now), Param::Text(kind), Param::Int(pruned as i64), Param::Text(&why)];
        tx.execute(&LOG, &params).await?;
    }
    Ok(pruned)
}
