//! Fires a trigger manually, and fires the due slots of schedules.

use domain::limits::{CATCH_UP_SLOTS, MAINTENANCE_ROWS, MISSED_AFTER_MS};
use domain::triggers::trigger::{Missed, Source};
use domain::{EventId, TenantId, Time, TriggerId};

use crate::db::notifier::Topic;
use crate::db::skip_unreadable::skip_unreadable;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::events::{Event, NewOutboxRow, insert_rows};
use crate::triggers::fault::Fault;
use crate::triggers::filter::{self, Schedule};
use crate::triggers::schedule::Slots;

/// Result of one pass over the schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fired {
    pub slots: usize,
    pub skipped: usize,
    /// Time until the next slot. `None` if no schedule has one.
    pub next_in_ms: Option<i64>,
}

impl Store {
    /// Starts one run of a trigger regardless of its filter. Returns `None` if the trigger does not exist.
    pub async fn fire_trigger(
        &self,
        tenant: TenantId,
        trigger: TriggerId,
        event: Event,
    ) -> Result<Option<EventId>, StoreError> {
        let fired = self.write(FireTrigger { tenant, trigger, event }).await?;
        if fired.is_some() {
            self.notifier().notify(Topic::Outbox);
        }
        Ok(fired)
    }

    /// Fires due slots. Any number of nodes can call it concurrently: each slot fires at most once. An unreadable schedule
    /// does not block the others.
    pub async fn fire_schedules(&self) -> Result<Fired, StoreError> {
        let (mut fired, mut failed) = (Fired::default(), None);
        let (due, next) = self.read(FindDueSchedules).await?;
        for trigger in due {
            match self.write(FireSlots { trigger }).await {
                Ok((slots, skipped)) => {
                    fired.slots += slots;
                    fired.skipped += skipped;
                }
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if fired.slots > 0 {
            self.notifier().notify(Topic::Outbox);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(Fired { next_in_ms: next, ..fired }),
        }
    }
}

struct FireTrigger {
    tenant: TenantId,
    trigger: TriggerId,
    event: Event,
}

const EXISTS: Sql = Sql::both(&["select id from triggers where id = $1 and tenant = $2"]);

impl Operation for FireTrigger {
    type Output = Option<EventId>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<EventId>, StoreError> {
        let params = [Param::Uuid(self.trigger.uuid()), Param::Int(self.tenant.0)];
        if tx.query_opt(&EXISTS, &params).await?.is_none() {
            return Ok(None);
        }
        insert_rows(tx, &[NewOutboxRow { trigger: self.trigger, event: &self.event }]).await?;
        Ok(Some(self.event.id))
    }
}

struct FindDueSchedules;

const DUE: Sql = Sql::both(&["select id from triggers where next_at <= $1 order by next_at, id limit $2"]);
const NEXT: Sql = Sql::both(&["select next_at from triggers where next_at > $1 order by next_at limit 1"]);

impl Operation for FindDueSchedules {
    type Output = (Vec<TriggerId>, Option<i64>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let now = tx.now();
        let rows = tx.query(&DUE, &[Param::Time(now), Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        let due = rows.iter().map(|row| row.uuid("id").map(TriggerId::new)).collect::<Result<_, _>>()?;
        let next = tx.query_opt(&NEXT, &[Param::Time(now)]).await?.map(|row| row.time("next_at")).transpose()?;
        Ok((due, next.map(|next| next.ms_since(now).max(0) + 1)))
    }
}

struct FireSlots {
    trigger: TriggerId,
}

const LOCK: Sql = Sql::new(
    &["select tenant, filter, next_at, enabled from triggers where id = $1"],
    "select tenant, filter, next_at, enabled from triggers where id = $1 for update",
);
// The primary key makes each slot fire once, even if `next_at` of the trigger moves backwards.
const TAKE_SLOT: Sql = Sql::both(&["insert into cron_slots (trigger_id, slot_at, fired_at) values ($1, $2, $3)
     on conflict do nothing"]);
const ADVANCE: Sql = Sql::both(&["update triggers set next_at = $2, missed = missed + $3,
         last_missed_at = case when $3 > 0 then $4 else last_missed_at end
     where id = $1"]);

impl FireSlots {
    fn schedule(&self, filter: &str) -> Result<(Schedule, Slots), StoreError> {
        let fault = |fault: Fault| StoreError::unexpected(fault.to_string());
        let filter = filter::read(Source::Cron, self.trigger, filter).map_err(fault)?;
        let schedule = filter.schedule.ok_or_else(|| StoreError::unexpected("a cron filter without a schedule"))?;
        let slots = Slots::read(&schedule).map_err(fault)?;
        Ok((schedule, slots))
    }
}

impl Operation for FireSlots {
    type Output = (usize, usize);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(usize, usize), StoreError> {
        let now = tx.now();
        let id = Param::Uuid(self.trigger.uuid());
        let Some(row) = tx.query_opt(&LOCK, &[id]).await? else { return Ok((0, 0)) };
        let (tenant, next_at, enabled) = (TenantId(row.int("tenant")?), row.opt_time("next_at")?, row.bool("enabled")?);
        let Some(due) = next_at.filter(|next| enabled && *next <= now) else { return Ok((0, 0)) };
        let read = self.schedule(&row.text("filter")?);
        let Some((schedule, slots)) = skip_unreadable(read, || format!("the schedule of trigger {}", self.trigger))
        else {
            return Ok((0, 0));
        };
        let (firing, skipped) = due_slots(&slots, schedule.missed, due, now);
        let mut fired = 0;
        for slot in &firing {
            let inserted = tx.execute(&TAKE_SLOT, &[id, Param::Time(*slot), Param::Time(now)]).await?;
            if inserted == 0 {
                continue;
            }
            let slot_at = jiff::Timestamp::from_microsecond(slot.micros()).unwrap_or(jiff::Timestamp::MAX);
            let data = format!(r#"{{"slot":"{slot_at}"}}"#);
            let event = Event::new(now, tenant, Source::Cron, "slot", 0, data).with("slot", slot_at.to_string());
            insert_rows(tx, &[NewOutboxRow { trigger: self.trigger, event: &event }]).await?;
            fired += 1;
        }
        let next = Param::time(slots.after(now));
        tx.execute(&ADVANCE, &[id, next, Param::Int(skipped as i64), Param::Time(now)]).await?;
        Ok((fired, skipped))
    }
}

/// Returns the slots between `due` and `now` that fire, and how many are skipped. Only the last slot can be on time.
fn due_slots(slots: &Slots, missed: Missed, due: Time, now: Time) -> (Vec<Time>, usize) {
    let mut latest = slots.between(due, now, CATCH_UP_SLOTS);
    let on_time = latest.last().is_some_and(|last| now.ms_since(*last) <= MISSED_AFTER_MS);
    let found = latest.len();
    let firing = match missed {
        Missed::CatchUp => latest,
        Missed::Coalesce => latest.split_off(found.saturating_sub(1)),
        Missed::Skip if on_time => latest.split_off(found.saturating_sub(1)),
        Missed::Skip => Vec::new(),
    };
    let skipped = found - firing.len();
    (firing, skipped)
}
