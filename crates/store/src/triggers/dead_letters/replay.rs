//! Replays a dead letter: creates a new job, event or delivery with attempt 0 and links it with the letter. A second replay
//! returns the work of the first.

use domain::limits::REPLAY_DEAD_LETTERS;
use domain::queue::job_origin::Cause;
use domain::triggers::trigger::Source;
use domain::{DeadLetterId, DeliveryId, EventId, JobId, Origin, Resolution, TenantId, TriggerId};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::access::caller::Caller;
use crate::db::canonical_json::canonical_json;
use crate::db::effects::Effects;
use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest};
use crate::store::Store;
use crate::triggers::dead_letters::get::lock;
use crate::triggers::dead_letters::list::{DeadLetterFilter, ids};
use crate::triggers::dead_letters::resolve::set;
use crate::triggers::dead_letters::{DeadLetter, work};
use crate::triggers::deliveries::letters;
use crate::triggers::events::{Event, NewOutboxRow, insert_rows};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterReplay {
    Created(ReplayedWork),
    /// The letter was replayed before as this work.
    AlreadyReplayed(ReplayedWork),
    /// The letter was replayed before as this work, with a payload other than the requested one.
    OtherPayload(ReplayedWork),
    /// The letter was resolved in another way.
    AlreadyResolved(Resolution),
    /// The letter does not have enough data for a replay, or its trigger or delivery was deleted.
    NotReplayable,
    NotFound,
}

/// The work that a replay created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayedWork {
    Job(JobId),
    /// A new event, for which the trigger runs again.
    Event(EventId),
    /// A new delivery of the same request.
    Delivery(DeliveryId),
}

impl Store {
    /// Replays one letter, with its own payload or another one.
    pub async fn replay_dead_letter(
        &self,
        tenant: TenantId,
        id: DeadLetterId,
        payload: Option<Box<str>>,
        by: impl Into<Caller>,
    ) -> Result<DeadLetterReplay, StoreError> {
        let replayed = self.replay(tenant, id, payload.clone(), by.into()).await?;
        if let (DeadLetterReplay::AlreadyReplayed(work), Some(payload)) = (replayed, payload)
            && !self.was_replayed_with(tenant, work, &payload).await?
        {
            return Ok(DeadLetterReplay::OtherPayload(work));
        }
        Ok(replayed)
    }

    /// Returns true if the work of an earlier replay has this payload. The payload of an event is not retained after its
    /// trigger has run.
    async fn was_replayed_with(&self, tenant: TenantId, work: ReplayedWork, payload: &str) -> Result<bool, StoreError> {
        match work {
            ReplayedWork::Job(job) => self.has_payload(tenant, job, payload).await,
            ReplayedWork::Delivery(delivery) => {
                let created = self.delivery(tenant, delivery).await?;
                Ok(created.is_some_and(|created| canonical_json(&created.body) == canonical_json(payload)))
            }
            ReplayedWork::Event(_) => Ok(false),
        }
    }

    async fn replay(
        &self,
        tenant: TenantId,
        id: DeadLetterId,
        payload: Option<Box<str>>,
        by: Caller,
    ) -> Result<DeadLetterReplay, StoreError> {
        let Some(letter) = self.dead_letter(tenant, id).await? else { return Ok(DeadLetterReplay::NotFound) };
        let Some(stored) = &letter.work else {
            return self.replay_run(tenant, letter, payload, by).await;
        };
        if let Some(delivery) = letters::delivery_of(stored) {
            let body = payload.unwrap_or_else(|| letter.payload.clone().into());
            let replay = ReplayDelivery { tenant, id, by, delivery, body };
            let replayed = self.write(replay).await?;
            self.notifier().deliveries_changed();
            return Ok(replayed);
        }
        let cause = Cause { event: letter.event, source: letter.source.clone(), op: letter.op.clone() };
        let origin = Origin::Replay { letter: id, cause };
        let payload = payload.unwrap_or_else(|| letter.payload.clone().into());
        // Inherit the depth, so that a trigger that replays its own letters reaches the depth limit.
        let depth = letter.depth.max(by.depth);
        let job = work::to_job(stored, payload, &by.name, letter.job, origin.stored(), depth)?;
        let queue = job.queue.clone();
        let lanes = self.lane_ids(&[job.lane(tenant)]).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, vec![job], lanes));
        let replayed = self.write(ReplayJob { tenant, id, by: by.name, enqueue }).await?;
        if let DeadLetterReplay::Created(_) = replayed {
            self.announce(&Effects { ready: [(tenant, queue)].into(), ..Effects::default() });
        }
        Ok(replayed)
    }

    /// Replays a run that failed before it started anything: sends the event to the trigger again, under a new id.
    async fn replay_run(
        &self,
        tenant: TenantId,
        letter: DeadLetter,
        payload: Option<Box<str>>,
        by: Caller,
    ) -> Result<DeadLetterReplay, StoreError> {
        let (Some(trigger), None) = (letter.trigger, letter.job) else { return Ok(DeadLetterReplay::NotReplayable) };
        let payload = payload.unwrap_or_else(|| letter.payload.clone().into());
        let Ok(envelope) = serde_json::from_str::<Envelope<'_>>(&payload) else {
            return Ok(DeadLetterReplay::NotReplayable);
        };
        let Some(source) = Source::parse(&letter.source) else { return Ok(DeadLetterReplay::NotReplayable) };
        let data = envelope.data.map_or("null", RawValue::get).to_owned();
        let event = Event::new(self.clock().now(), tenant, source, &letter.op, letter.depth.max(by.depth), data)
            .with_those_of(&envelope.event);
        let replay = ReplayRun { tenant, id: letter.id, by: by.name, trigger, event };
        let replayed = self.write(replay).await?;
        if let DeadLetterReplay::Created(_) = replayed {
            self.notifier().notify(Topic::Outbox);
        }
        Ok(replayed)
    }

    /// Returns the ids of unresolved letters that match, newest first, at most `REPLAY_LETTERS`.
    pub async fn dead_letters_to_replay(
        &self,
        tenant: TenantId,
        filter: DeadLetterFilter,
    ) -> Result<Vec<DeadLetterId>, StoreError> {
        self.read(FindReplayable { tenant, filter: DeadLetterFilter { resolved: Some(false), ..filter } }).await
    }
}

struct FindReplayable {
    tenant: TenantId,
    filter: DeadLetterFilter,
}

impl Operation for FindReplayable {
    type Output = Vec<DeadLetterId>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<DeadLetterId>, StoreError> {
        ids(tx, self.tenant, &self.filter, None, REPLAY_DEAD_LETTERS).await
    }
}

struct ReplayJob {
    tenant: TenantId,
    id: DeadLetterId,
    by: String,
    enqueue: EnqueueBatch,
}

// If the failed job still exists, it shows the job that retried it.
const RETRIED_AS: Sql = Sql::both(&["update ended set retried_as = $2 where id = $1 and retried_as is null"]);

impl Operation for ReplayJob {
    type Output = DeadLetterReplay;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeadLetterReplay, StoreError> {
        let letter = match lock_replayable(tx, self.tenant, self.id).await? {
            Ok(letter) => letter,
            Err(answer) => return Ok(answer),
        };
        let created = match self.enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let created = created.ok_or_else(|| StoreError::unexpected("a replay created no job"))?;
        resolve_as(tx, self.tenant, self.id, created.id.uuid(), &self.by).await?;
        if let Some(job) = letter.job {
            tx.execute(&RETRIED_AS, &[Param::from(job), Param::from(created.id)]).await?;
        }
        Ok(DeadLetterReplay::Created(ReplayedWork::Job(created.id)))
    }
}

/// The default input of a run.
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
    type Output = DeadLetterReplay;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeadLetterReplay, StoreError> {
        if let Err(answer) = lock_replayable(tx, self.tenant, self.id).await? {
            return Ok(answer);
        }
        let trigger = [Param::Uuid(self.trigger.uuid()), Param::Int(self.tenant.0)];
        if tx.query_opt(&TRIGGER, &trigger).await?.is_none() {
            return Ok(DeadLetterReplay::NotReplayable);
        }
        insert_rows(tx, &[NewOutboxRow { trigger: self.trigger, event: &self.event }]).await?;
        resolve_as(tx, self.tenant, self.id, self.event.id.uuid(), &self.by).await?;
        Ok(DeadLetterReplay::Created(ReplayedWork::Event(self.event.id)))
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
    type Output = DeadLetterReplay;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeadLetterReplay, StoreError> {
        if let Err(answer) = lock_replayable(tx, self.tenant, self.id).await? {
            return Ok(answer);
        }
        let created = letters::insert_copy(tx, self.tenant, self.delivery, self.by.depth, &self.body).await?;
        let Some(created) = created else { return Ok(DeadLetterReplay::NotReplayable) };
        resolve_as(tx, self.tenant, self.id, created, &self.by.name).await?;
        Ok(DeadLetterReplay::Created(ReplayedWork::Delivery(DeliveryId::new(created))))
    }
}

/// Marks a letter as replayed, if it is unresolved, after its work was repeated in another way.
pub(crate) async fn mark_replayed(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeadLetterId,
    replacement: Uuid,
    by: &str,
) -> Result<(), StoreError> {
    if lock_replayable(tx, tenant, id).await?.is_ok() {
        resolve_as(tx, tenant, id, replacement, by).await?;
    }
    Ok(())
}

/// Locks a letter that can be replayed. Otherwise returns the answer to the replay.
async fn lock_replayable(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeadLetterId,
) -> Result<Result<DeadLetter, DeadLetterReplay>, StoreError> {
    let Some(letter) = lock(tx, tenant, id).await? else { return Ok(Err(DeadLetterReplay::NotFound)) };
    Ok(match already_resolved(&letter) {
        Some(answer) => Err(answer),
        None => Ok(letter),
    })
}

const LINK: Sql = Sql::both(&["update dead_letters set replayed_as = $2 where id = $1"]);

/// Resolves a letter as replayed by this work.
async fn resolve_as(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeadLetterId,
    replacement: Uuid,
    by: &str,
) -> Result<(), StoreError> {
    set(tx, tenant, id, Resolution::Replayed, by, None).await?;
    tx.execute(&LINK, &[Param::Uuid(id.uuid()), Param::Uuid(replacement)]).await?;
    Ok(())
}

fn already_resolved(letter: &DeadLetter) -> Option<DeadLetterReplay> {
    let resolved = letter.resolved.as_ref()?;
    match (resolved.resolution, resolved.replayed_as) {
        (Resolution::Replayed, Some(replacement)) if letter.job.is_some() => {
            Some(DeadLetterReplay::AlreadyReplayed(ReplayedWork::Job(JobId::new(replacement))))
        }
        (Resolution::Replayed, Some(replacement)) if letter.work.is_some() => {
            Some(DeadLetterReplay::AlreadyReplayed(ReplayedWork::Delivery(DeliveryId::new(replacement))))
        }
        (Resolution::Replayed, Some(replacement)) => {
            Some(DeadLetterReplay::AlreadyReplayed(ReplayedWork::Event(EventId::new(replacement))))
        }
        (resolution, _) if Resolution::may_be_replayed(Some(resolution)) => None,
        (resolution, _) => Some(DeadLetterReplay::AlreadyResolved(resolution)),
    }
}

const REPLAYED_BY_RETRY: Sql = Sql::both(&["update dead_letters set resolved_at = $3, resolution = 'replayed',
         resolved_by = $4, replayed_as = $5
     where job = $1 and tenant = $2 and queue is not null and (resolved_at is null or resolution in ('handled_by_script', 'handler_failed'))"]);

/// Marks the letter of a retried job as replayed.
pub(crate) async fn mark_replayed_by_retry(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    job: JobId,
    replacement: JobId,
    by: &str,
) -> Result<(), StoreError> {
    let params =
        [Param::from(job), Param::Int(tenant.0), Param::Time(tx.now()), Param::Text(by), Param::from(replacement)];
    tx.execute(&REPLAYED_BY_RETRY, &params).await.map(|_| ())
}
