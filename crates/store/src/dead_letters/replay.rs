//! Makes new work of a dead letter, with attempt 0 and links both ways; two clicks replay once (T7).

use domain::limits::REPLAY_LETTERS;
use domain::origin::Cause;
use domain::trigger::Source;
use domain::{DeadLetterId, DeliveryId, EventId, JobId, Origin, Resolution, TenantId, TriggerId};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::caller::Caller;
use crate::dead_letters::get::lock;
use crate::dead_letters::list::{DeadLetterFilter, ids};
use crate::dead_letters::resolve::set;
use crate::dead_letters::{DeadLetter, work};
use crate::deliveries::letters;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::{Event, Row, insert_rows};
use crate::hints::Topic;
use crate::jobs::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest};
use crate::one_form::one_form;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    Made(Work),
    /// It was replayed before, as this.
    Before(Work),
    /// It was replayed before, as this, and not with the payload that is given now.
    Otherwise(Work),
    /// It was dealt with otherwise.
    AlreadyResolved(Resolution),
    /// Nothing is kept of it that could be played again.
    NotReplayable,
    NotFound,
}

/// The new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Job(JobId),
    /// The trigger runs again, for this event.
    Event(EventId),
    /// A request that is sent once more.
    Delivery(DeliveryId),
}

impl Store {
    /// Plays one letter again, with its own payload or another.
    pub async fn replay_dead_letter(
        &self,
        tenant: TenantId,
        id: DeadLetterId,
        payload: Option<Box<str>>,
        by: impl Into<Caller>,
    ) -> Result<Replayed, StoreError> {
        let replayed = self.replay(tenant, id, payload.clone(), by.into()).await?;
        if let (Replayed::Before(work), Some(payload)) = (replayed, payload)
            && !self.was_replayed_with(tenant, work, &payload).await?
        {
            return Ok(Replayed::Otherwise(work));
        }
        Ok(replayed)
    }

    /// Whether work that was made of a letter has this payload. Nothing is kept of an event once its trigger has run.
    async fn was_replayed_with(&self, tenant: TenantId, work: Work, payload: &str) -> Result<bool, StoreError> {
        match work {
            Work::Job(job) => self.was_made_with(tenant, job, payload).await,
            Work::Delivery(delivery) => {
                let made = self.delivery(tenant, delivery).await?;
                Ok(made.is_some_and(|made| one_form(&made.body) == one_form(payload)))
            }
            Work::Event(_) => Ok(false),
        }
    }

    async fn replay(
        &self,
        tenant: TenantId,
        id: DeadLetterId,
        payload: Option<Box<str>>,
        by: Caller,
    ) -> Result<Replayed, StoreError> {
        let Some(letter) = self.dead_letter(tenant, id).await? else { return Ok(Replayed::NotFound) };
        let Some(stored) = &letter.work else {
            return self.replay_run(tenant, letter, payload, by).await;
        };
        if let Some(delivery) = letters::delivery_of(stored) {
            let body = payload.unwrap_or_else(|| letter.payload.clone().into());
            let replay = ReplayDelivery { tenant, id, by, delivery, body };
            let replayed = self.write(replay).await?;
            self.hints().deliveries_changed();
            return Ok(replayed);
        }
        let cause = Cause { event: letter.event, source: letter.source.clone(), op: letter.op.clone() };
        let origin = Origin::Replay { letter: id, cause };
        let payload = payload.unwrap_or_else(|| letter.payload.clone().into());
        // Whoever replays its own letters comes to an end (T5).
        let depth = letter.depth.max(by.depth);
        let job = work::to_job(stored, payload, &by.name, letter.job, origin.stored(), depth)?;
        let queue = job.queue.clone();
        let lanes = self.lane_ids(&[job.lane(tenant)]).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, vec![job], lanes));
        let replayed = self.write(Replay { tenant, id, by: by.name, enqueue }).await?;
        if let Replayed::Made(_) = replayed {
            self.announce(&Effects { ready: [(tenant, queue)].into(), ..Effects::default() });
        }
        Ok(replayed)
    }

    /// A run that never came to be: the trigger gets the event once more, as a new one.
    async fn replay_run(
        &self,
        tenant: TenantId,
        letter: DeadLetter,
        payload: Option<Box<str>>,
        by: Caller,
    ) -> Result<Replayed, StoreError> {
        let (Some(trigger), None) = (letter.trigger, letter.job) else { return Ok(Replayed::NotReplayable) };
        let payload = payload.unwrap_or_else(|| letter.payload.clone().into());
        let Ok(envelope) = serde_json::from_str::<Envelope<'_>>(&payload) else { return Ok(Replayed::NotReplayable) };
        let Some(source) = Source::parse(&letter.source) else { return Ok(Replayed::NotReplayable) };
        let data = envelope.data.map_or("null", RawValue::get).to_owned();
        let event = Event::new(self.clock().now(), tenant, source, &letter.op, letter.depth.max(by.depth), data)
            .with_those_of(&envelope.event);
        let replay = ReplayRun { tenant, id: letter.id, by: by.name, trigger, event };
        let replayed = self.write(replay).await?;
        if let Replayed::Made(_) = replayed {
            self.hints().tell(Topic::Outbox);
        }
        Ok(replayed)
    }

    /// The ids of unresolved letters that match, newest first, as many as one replay takes.
    pub async fn dead_letters_to_replay(
        &self,
        tenant: TenantId,
        filter: DeadLetterFilter,
    ) -> Result<Vec<DeadLetterId>, StoreError> {
        self.read(Matching { tenant, filter: DeadLetterFilter { resolved: Some(false), ..filter } }).await
    }
}

struct Matching {
    tenant: TenantId,
    filter: DeadLetterFilter,
}

impl Operation for Matching {
    type Output = Vec<DeadLetterId>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<DeadLetterId>, StoreError> {
        ids(tx, self.tenant, &self.filter, None, REPLAY_LETTERS).await
    }
}

struct Replay {
    tenant: TenantId,
    id: DeadLetterId,
    by: String,
    enqueue: EnqueueBatch,
}

const LINK: Sql = Sql::both(&["update dead_letters set replayed_as = $2 where id = $1"]);
// A job that is still kept shows what it was retried as, whoever retried it.
const RETRIED_AS: Sql = Sql::both(&["update ended set retried_as = $2 where id = $1 and retried_as is null"]);

impl Operation for Replay {
    type Output = Replayed;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Replayed, StoreError> {
        let Some(letter) = lock(tx, self.tenant, self.id).await? else { return Ok(Replayed::NotFound) };
        if let Some(answer) = dealt_with(&letter) {
            return Ok(answer);
        }
        let made = match self.enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let made = made.ok_or_else(|| StoreError::unexpected("a replay made no job"))?;
        set(tx, self.tenant, self.id, Resolution::Replayed, &self.by, None).await?;
        tx.execute(&LINK, &[Param::Uuid(self.id.uuid()), Param::from(made.id)]).await?;
        if let Some(old) = letter.job {
            tx.execute(&RETRIED_AS, &[Param::from(old), Param::from(made.id)]).await?;
        }
        Ok(Replayed::Made(Work::Job(made.id)))
    }
}

/// What a run got.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    event: Value,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

struct ReplayRun {
    tenant: TenantId,
    id: DeadLetterId,
    by: String,
    trigger: TriggerId,
    event: Event,
}

const TRIGGER: Sql = Sql::both(&["select id from triggers where id = $1 and tenant = $2"]);

impl Operation for ReplayRun {
    type Output = Replayed;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Replayed, StoreError> {
        let Some(letter) = lock(tx, self.tenant, self.id).await? else { return Ok(Replayed::NotFound) };
        if let Some(answer) = dealt_with(&letter) {
            return Ok(answer);
        }
        let trigger = [Param::Uuid(self.trigger.uuid()), Param::Int(self.tenant.0)];
        if tx.query_opt(&TRIGGER, &trigger).await?.is_none() {
            return Ok(Replayed::NotReplayable);
        }
        insert_rows(tx, &[Row { trigger: self.trigger, event: &self.event }]).await?;
        set(tx, self.tenant, self.id, Resolution::Replayed, &self.by, None).await?;
        tx.execute(&LINK, &[Param::Uuid(self.id.uuid()), Param::Uuid(self.event.id.uuid())]).await?;
        Ok(Replayed::Made(Work::Event(self.event.id)))
    }
}

struct ReplayDelivery {
    tenant: TenantId,
    id: DeadLetterId,
    by: Caller,
    delivery: Uuid,
    body: Box<str>,
}

impl Operation for ReplayDelivery {
    type Output = Replayed;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Replayed, StoreError> {
        let Some(letter) = lock(tx, self.tenant, self.id).await? else { return Ok(Replayed::NotFound) };
        if let Some(answer) = dealt_with(&letter) {
            return Ok(answer);
        }
        let made = letters::again(tx, self.tenant, self.delivery, self.by.depth, &self.body).await?;
        let Some(made) = made else { return Ok(Replayed::NotReplayable) };
        set(tx, self.tenant, self.id, Resolution::Replayed, &self.by.name, None).await?;
        tx.execute(&LINK, &[Param::Uuid(self.id.uuid()), Param::Uuid(made)]).await?;
        Ok(Replayed::Made(Work::Delivery(DeliveryId::new(made))))
    }
}

/// What the letter is about was done again elsewhere, as this.
pub(crate) async fn replayed_as(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeadLetterId,
    again: Uuid,
    by: &str,
) -> Result<(), StoreError> {
    let Some(letter) = lock(tx, tenant, id).await? else { return Ok(()) };
    if dealt_with(&letter).is_none() {
        set(tx, tenant, id, Resolution::Replayed, by, None).await?;
        tx.execute(&LINK, &[Param::Uuid(id.uuid()), Param::Uuid(again)]).await?;
    }
    Ok(())
}

fn dealt_with(letter: &DeadLetter) -> Option<Replayed> {
    let resolved = letter.resolved.as_ref()?;
    match (resolved.resolution, resolved.replayed_as) {
        (Resolution::Replayed, Some(again)) if letter.job.is_some() => {
            Some(Replayed::Before(Work::Job(JobId::new(again))))
        }
        (Resolution::Replayed, Some(again)) if letter.work.is_some() => {
            Some(Replayed::Before(Work::Delivery(DeliveryId::new(again))))
        }
        (Resolution::Replayed, Some(again)) => Some(Replayed::Before(Work::Event(EventId::new(again)))),
        (resolution, _) if Resolution::may_be_replayed(Some(resolution)) => None,
        (resolution, _) => Some(Replayed::AlreadyResolved(resolution)),
    }
}

const REPLAYED_BY_RETRY: Sql = Sql::both(&["update dead_letters set resolved_at = $3, resolution = 'replayed',
         resolved_by = $4, replayed_as = $5
     where job = $1 and tenant = $2 and queue is not null and (resolved_at is null or resolution = 'handler_failed')"]);

/// A retry of the job is a replay of its letter.
pub(crate) async fn retried(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    old: JobId,
    again: JobId,
    by: &str,
) -> Result<(), StoreError> {
    let params = [Param::from(old), Param::Int(tenant.0), Param::Time(tx.now()), Param::Text(by), Param::from(again)];
    tx.execute(&REPLAYED_BY_RETRY, &params).await.map(|_| ())
}
