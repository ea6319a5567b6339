//! Triggers that are the worker of a queue's jobs: which there are, and how a job is handed to its trigger (T1).

use domain::trigger::Source;
use domain::{EventId, JobId, Name, TenantId, TriggerId};
use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::events::{Event, Row, insert_rows};
use crate::hints::Topic;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Param, Sql, Tx};

/// A trigger whose target works the jobs of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueWorker {
    pub tenant: TenantId,
    pub trigger: TriggerId,
    pub queue: Name,
}

/// The event that an attempt of a job is. The same attempt is the same event, also after it was given back and taken
/// again, so that a server that stops in the middle does not have it run twice.
pub fn event_of(job: JobId, attempt: i32) -> EventId {
    let mut digest = Sha256::new();
    digest.update(job.uuid().as_bytes());
    digest.update(attempt.to_be_bytes());
    let hash = digest.finalize();
    EventId::new(uuid::Builder::from_custom_bytes(std::array::from_fn(|at| hash[at])).into_uuid())
}

impl Store {
    /// Those that are enabled, of every tenant.
    pub async fn queue_workers(&self) -> Result<Vec<QueueWorker>, StoreError> {
        self.read(Working { triggers: self.triggers_cache().clone() }).await
    }

    /// Writes the row that runs the trigger for this event, unless it was written before.
    pub async fn hand_to_trigger(&self, trigger: TriggerId, event: Event) -> Result<(), StoreError> {
        self.write(HandOver { trigger, event }).await?;
        self.hints().tell(Topic::Outbox);
        Ok(())
    }
}

struct Working {
    triggers: TriggerCache,
}

impl Operation for Working {
    type Output = Vec<QueueWorker>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<QueueWorker>, StoreError> {
        let listeners = self.triggers.current(tx).await?;
        let working = listeners.of_all(Source::Queue).filter_map(|(tenant, listener)| {
            let queue = listener.filter.works.clone()?;
            Some(QueueWorker { tenant, trigger: listener.id, queue })
        });
        Ok(working.collect())
    }
}

struct HandOver {
    trigger: TriggerId,
    event: Event,
}

const RAN: Sql = Sql::both(&["select 1 from trigger_runs where event_id = $1 and trigger_id = $2 limit 1"]);

impl Operation for HandOver {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.event.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let params = [Param::Uuid(self.event.id.uuid()), Param::Uuid(self.trigger.uuid())];
        if tx.query_opt(&RAN, &params).await?.is_some() {
            return Ok(());
        }
        insert_rows(tx, &[Row { trigger: self.trigger, event: &self.event }]).await
    }
}
