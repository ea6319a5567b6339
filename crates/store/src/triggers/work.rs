//! Triggers that act as the worker of a queue. The engine lists them, claims jobs of their queues and enqueues one run of
//! the trigger per attempt.

use domain::triggers::trigger::Source;
use domain::{EventId, JobId, Name, TenantId, TriggerId};
use sha2::{Digest, Sha256};

use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::events::{Event, NewOutboxRow, insert_rows};

/// A trigger whose target processes the jobs of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueWorker {
    pub tenant: TenantId,
    pub trigger: TriggerId,
    pub queue: Name,
}

/// Returns the id of the event that stands for an attempt of a job. It is derived from the job and the attempt, so a claim
/// that was released and repeated (for example, after a server crash) does not run the attempt twice.
pub fn attempt_event_id(job: JobId, attempt: i32) -> EventId {
    let mut digest = Sha256::new();
    digest.update(job.uuid().as_bytes());
    digest.update(attempt.to_be_bytes());
    let hash = digest.finalize();
    EventId::new(uuid::Builder::from_custom_bytes(std::array::from_fn(|at| hash[at])).into_uuid())
}

impl Store {
    /// Returns the enabled queue workers of every tenant.
    pub async fn queue_workers(&self) -> Result<Vec<QueueWorker>, StoreError> {
        self.read(ListQueueWorkers { triggers: self.triggers_cache().clone() }).await
    }

    /// Writes an outbox row that runs the trigger for this event. Does nothing if the row exists or has already run.
    pub async fn enqueue_worker_run(&self, trigger: TriggerId, event: Event) -> Result<(), StoreError> {
        self.write(EnqueueWorkerRun { trigger, event }).await?;
        self.notifier().notify(Topic::Outbox);
        Ok(())
    }
}

struct ListQueueWorkers {
    triggers: TriggerCache,
}

impl Operation for ListQueueWorkers {
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

struct EnqueueWorkerRun {
    trigger: TriggerId,
    event: Event,
}

const RAN: Sql = Sql::both(&["select 1 from trigger_runs where event_id = $1 and trigger_id = $2 limit 1"]);

impl Operation for EnqueueWorkerRun {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.event.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let params = [Param::Uuid(self.event.id.uuid()), Param::Uuid(self.trigger.uuid())];
        if tx.query_opt(&RAN, &params).await?.is_some() {
            return Ok(());
        }
        insert_rows(tx, &[NewOutboxRow { trigger: self.trigger, event: &self.event }]).await
    }
}
