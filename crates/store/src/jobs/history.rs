//! What happened to a job, oldest first (X5). Attempts that did not end the job have rows; the current attempt and the
//! job's end are told by its own row, or, once it is pruned, by its last row of history.

use domain::{JobId, JobState, TenantId, Time, WorkerId};

use crate::error::StoreError;
use crate::jobs::get::{StoredJob, find};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryItem {
    pub event: String,
    pub at: Time,
    pub attempt: i32,
    pub epoch: i64,
    pub worker: Option<WorkerId>,
    pub actor: Option<String>,
    pub cause: Option<String>,
}

impl Store {
    /// `None` when there never was such a job, or its history is past its retention.
    pub async fn history(&self, tenant: TenantId, job: JobId) -> Result<Option<Vec<HistoryItem>>, StoreError> {
        self.read(History { tenant, job }).await
    }
}

struct History {
    tenant: TenantId,
    job: JobId,
}

const ROWS: Sql = Sql::both(&["select event, at, enqueued_at, started_at, attempt, epoch, worker, actor, cause,
         principal, triggered_by
     from history where job = $1 and tenant = $2 order by epoch, at"]);

impl Operation for History {
    type Output = Option<Vec<HistoryItem>>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let job = find(tx, self.tenant, self.job).await?;
        let rows = tx.query(&ROWS, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
        let mut items = Vec::new();
        let mut enqueued_at = job.as_ref().map(|job| job.created_at);
        let mut maker = job.as_ref().map(|job| job.principal.clone());
        let mut origin = job.as_ref().and_then(|job| job.triggered_by.clone());
        for row in &rows {
            enqueued_at = Some(enqueued_at.unwrap_or(row.time(2)?));
            // Of a job that was pruned, its last word says both.
            maker = maker.or(row.opt_text(9)?);
            origin = origin.or(row.opt_text(10)?);
            let end = HistoryItem {
                event: row.text(0)?,
                at: row.time(1)?,
                attempt: row.int(4)? as i32,
                epoch: row.int(5)?,
                worker: row.opt_uuid(6)?.map(WorkerId::new),
                actor: row.opt_text(7)?,
                cause: row.opt_text(8)?,
            };
            if let Some(at) = row.opt_time(3)? {
                items.push(HistoryItem { event: "started".into(), at, actor: None, cause: None, ..end.clone() });
            }
            items.push(end);
        }
        let Some(enqueued_at) = enqueued_at else { return Ok(None) };
        let enqueued = HistoryItem {
            event: "enqueued".into(),
            at: enqueued_at,
            attempt: 0,
            epoch: 0,
            worker: None,
            actor: maker,
            cause: origin,
        };
        items.insert(0, enqueued);
        items.extend(job.iter().flat_map(told_by_the_job));
        Ok(Some(items))
    }
}

/// The current attempt of a live job, or the last of an ended one.
fn told_by_the_job(job: &StoredJob) -> Vec<HistoryItem> {
    let item = |event: &str, at: Time| HistoryItem {
        event: event.into(),
        at,
        attempt: job.attempt,
        epoch: job.epoch.0,
        worker: job.worker,
        actor: None,
        cause: None,
    };
    let mut items: Vec<HistoryItem> = job.started_at.map(|at| item("started", at)).into_iter().collect();
    if let Some(at) = job.finished_at {
        let cause = job.error.as_ref().filter(|_| job.state == JobState::Failed).map(|error| error.code.clone());
        items.push(HistoryItem { actor: job.actor.clone(), cause, ..item(end_event(job.state), at) });
    }
    items
}

/// What history calls a job's end.
pub(crate) fn end_event(state: JobState) -> &'static str {
    match state {
        JobState::Succeeded => "finished",
        JobState::Canceled => "canceled",
        _ => "failed",
    }
}
