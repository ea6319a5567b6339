//! Retries an ended job by hand: creates a new job with the same settings and links the two. Idempotent: a second
//! retry returns the same new job, and is rejected if it brings another payload.

use domain::{JobId, JobState, Label, Name, TenantId};
use serde_json::json;

use crate::access::caller::Caller;
use crate::db::canonical_json::canonical_json;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::queue::enqueue::{Accepted, EnqueueBatch, EnqueueReply, EnqueueRequest, Extras, NewJob};
use crate::queue::get::StoredJob;
use crate::store::Store;
use crate::triggers::dead_letters;
use crate::triggers::job_events::QUEUE_WEBHOOK;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retried {
    Created(Accepted),
    /// An earlier retry created this job.
    AlreadyRetried(JobId),
    /// An earlier retry created this job with a different payload.
    OtherPayload(JobId),
    NotEnded(JobState),
    NotFound,
}

impl Store {
    /// Creates a copy of an ended job, with `payload` in place of the old one if given.
    pub async fn retry_job(
        &self,
        tenant: TenantId,
        job: JobId,
        payload: Option<Box<str>>,
        by: impl Into<Caller>,
    ) -> Result<Retried, StoreError> {
        let by = by.into();
        let Some(old) = self.job(tenant, job).await? else { return Ok(Retried::NotFound) };
        if !old.state.is_terminal() {
            return Ok(Retried::NotEnded(old.state));
        }
        let copy = copy(&old, payload.clone(), &by);
        let lane = self.lane_ids(std::slice::from_ref(&old.lane)).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, vec![copy], lane));
        let retried = self.write(RetryJob { tenant, old: job, by: by.name, enqueue }).await?;
        if let Retried::Created(created) = &retried {
            self.announce(&Effects { ready: [(tenant, created.queue.clone())].into(), ..Effects::default() });
        }
        if let (Retried::AlreadyRetried(earlier), Some(payload)) = (&retried, payload)
            && !self.has_payload(tenant, *earlier, &payload).await?
        {
            return Ok(Retried::OtherPayload(*earlier));
        }
        Ok(retried)
    }

    /// True if the job exists and has this payload. False once the job is pruned.
    pub(crate) async fn has_payload(&self, tenant: TenantId, job: JobId, payload: &str) -> Result<bool, StoreError> {
        let created = self.job(tenant, job).await?;
        Ok(created.is_some_and(|created| canonical_json(&created.payload) == canonical_json(payload)))
    }
}

/// A copy of an ended job, as a new job of the same run.
pub(crate) fn copy(old: &StoredJob, payload: Option<Box<str>>, by: &Caller) -> NewJob {
    NewJob {
        queue: old.lane.queue.clone(),
        kind: old.lane.kind.clone(),
        payload: payload.unwrap_or_else(|| old.payload.clone().into()),
        affinity: old.lane.affinity.clone(),
        priority: old.lane.priority,
        run_at: None,
        max_attempts: old.max_attempts,
        principal: by.name.as_str().into(),
        extras: Some(Box::new(Extras {
            subject: old.subject.as_deref().map(Label::stored),
            process: old.process.as_deref().map(Name::stored),
            run: old.run.as_deref().map(Label::stored),
            concurrency_key: old.concurrency_key.as_deref().map(Label::stored),
            retry: old.retry,
            timeout_s: old.timeout_s,
            tags: old.tags.iter().map(|tag| Label::stored(tag)).collect(),
            webhook: old.webhook.clone().filter(|webhook| webhook != QUEUE_WEBHOOK),
            parent: Some(old.id),
            deadline_s: old.deadline_s,
            traceparent: old.traceparent.clone(),
            // The depth never shrinks, so a job that retries itself reaches the depth limit.
            depth: old.depth.max(by.depth),
            ..Extras::default()
        })),
    }
}

struct RetryJob {
    tenant: TenantId,
    old: JobId,
    by: String,
    enqueue: EnqueueBatch,
}

const RETRIED_AS: Sql = Sql::new(
    &["select retried_as from ended where id = $1 and tenant = $2"],
    "select retried_as from ended where id = $1 and tenant = $2 for update",
);
const LINK: Sql = Sql::both(&["update ended set retried_as = $2 where id = $1"]);

impl Operation for RetryJob {
    type Output = Retried;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Retried, StoreError> {
        let params = [Param::from(self.old), Param::Int(self.tenant.0)];
        let Some(row) = tx.query_opt(&RETRIED_AS, &params).await? else { return Ok(Retried::NotFound) };
        if let Some(earlier) = row.opt_uuid("retried_as")? {
            return Ok(Retried::AlreadyRetried(JobId::new(earlier)));
        }
        let created = match self.enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let created = created.ok_or_else(|| StoreError::unexpected("a retry made no job"))?;
        tx.execute(&LINK, &[params[0], Param::from(created.id)]).await?;
        dead_letters::replay::mark_replayed_by_retry(tx, self.tenant, self.old, created.id, &self.by).await?;
        let detail = json!({"job": self.old.uuid(), "retried_as": created.id.uuid()}).to_string();
        let entry = Entry { job: Some(self.old), ..Entry::by(self.tenant, &self.by, "job_retried", detail) };
        timeline::write(tx, &[entry]).await?;
        Ok(Retried::Created(created))
    }
}
