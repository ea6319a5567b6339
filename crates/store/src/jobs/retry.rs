//! A person runs an ended job again: a new job, linked both ways (Q2). Two clicks retry once; what a second one would change
//! is refused.

use domain::{JobId, JobState, Label, Name, TenantId};

use crate::caller::Caller;
use crate::dead_letters;
use crate::deliveries::notices::QUEUES_OWN;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::jobs::enqueue::{Accepted, EnqueueBatch, EnqueueReply, EnqueueRequest, Extras, NewJob};
use crate::jobs::get::StoredJob;
use crate::one_form::one_form;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retried {
    Made(Accepted),
    /// It was retried before, as this job.
    Before(JobId),
    /// It was retried before, as this job, and not with the payload that is given now.
    Otherwise(JobId),
    NotEnded(JobState),
    NotFound,
}

impl Store {
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
        let again = again(&old, payload.clone(), &by);
        let lane = self.lane_ids(std::slice::from_ref(&old.lane)).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, vec![again], lane));
        let retried = self.write(Retry { tenant, old: job, by: by.name, enqueue }).await?;
        if let Retried::Made(made) = &retried {
            self.announce(&Effects { ready: [(tenant, made.queue.clone())].into(), ..Effects::default() });
        }
        if let (Retried::Before(before), Some(payload)) = (&retried, payload)
            && !self.was_made_with(tenant, *before, &payload).await?
        {
            return Ok(Retried::Otherwise(*before));
        }
        Ok(retried)
    }

    /// Whether a job was made with this payload. Of one that is forgotten nobody can say so.
    pub(crate) async fn was_made_with(&self, tenant: TenantId, job: JobId, payload: &str) -> Result<bool, StoreError> {
        let made = self.job(tenant, job).await?;
        Ok(made.is_some_and(|made| one_form(&made.payload) == one_form(payload)))
    }
}

fn again(old: &StoredJob, payload: Option<Box<str>>, by: &Caller) -> NewJob {
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
            webhook: old.webhook.clone().filter(|webhook| webhook != QUEUES_OWN),
            parent: Some(old.id),
            // Whoever retries its own jobs comes to an end (T5).
            depth: old.depth.max(by.depth),
            ..Extras::default()
        })),
    }
}

struct Retry {
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

impl Operation for Retry {
    type Output = Retried;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Retried, StoreError> {
        let params = [Param::from(self.old), Param::Int(self.tenant.0)];
        let Some(row) = tx.query_opt(&RETRIED_AS, &params).await? else { return Ok(Retried::NotFound) };
        if let Some(before) = row.opt_uuid(0)? {
            return Ok(Retried::Before(JobId::new(before)));
        }
        let made = match self.enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let made = made.ok_or_else(|| StoreError::unexpected("a retry made no job"))?;
        tx.execute(&LINK, &[params[0], Param::from(made.id)]).await?;
        dead_letters::replay::retried(tx, self.tenant, self.old, made.id, &self.by).await?;
        Ok(Retried::Made(made))
    }
}
