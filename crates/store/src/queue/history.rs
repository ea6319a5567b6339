//! The history of a job, oldest event first. The table `history` holds the attempts that did not end the job. The
//! current attempt and the job's end come from the job's own row, or from its last history row once the job is pruned.

use domain::{JobError, JobId, JobState, TenantId, Time, WorkerId};

use crate::db::codec::error_from_json;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::get::{StoredJob, find};
use crate::store::Store;
use crate::workflows::runs::end::NEEDS;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryItem {
    pub event: String,
    pub at: Time,
    pub attempt: i32,
    pub epoch: i64,
    pub worker: Option<WorkerId>,
    pub actor: Option<String>,
    pub cause: Option<String>,
    /// The message of the error.
    pub message: Option<String>,
}

impl Store {
    /// Returns the events of a job. `None` when the job never existed or its history is past its retention.
    pub async fn history(&self, tenant: TenantId, job: JobId) -> Result<Option<Vec<HistoryItem>>, StoreError> {
        self.read(ListHistory { tenant, job }).await
    }
}

struct ListHistory {
    tenant: TenantId,
    job: JobId,
}

const ROWS: Sql = Sql::both(&["select event, at, enqueued_at, started_at, attempt, epoch, worker, actor, cause,
         error, principal, triggered_by
     from history where job = $1 and tenant = $2 order by epoch, at, event"]);

const BEGUN: Sql =
    Sql::both(&["select begun_at from jobs where id = $1 union all select begun_at from ended where id = $1"]);

impl Operation for ListHistory {
    type Output = Option<Vec<HistoryItem>>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let job = find(tx, self.tenant, self.job).await?;
        let rows = tx.query(&ROWS, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
        let mut items: Vec<HistoryItem> = Vec::new();
        let mut enqueued_at = job.as_ref().map(|job| job.created_at);
        let mut principal = job.as_ref().map(|job| job.principal.clone());
        let mut origin = job.as_ref().and_then(|job| job.triggered_by.clone());
        for row in &rows {
            enqueued_at = Some(enqueued_at.unwrap_or(row.time("enqueued_at")?));
            // If the job is pruned, its last history row supplies both.
            principal = principal.or(row.opt_text("principal")?);
            origin = origin.or(row.opt_text("triggered_by")?);
            let end = HistoryItem {
                event: row.text("event")?,
                at: row.time("at")?,
                attempt: row.int("attempt")? as i32,
                epoch: row.int("epoch")?,
                worker: row.opt_uuid("worker")?.map(WorkerId::new),
                actor: row.opt_text("actor")?,
                cause: row.opt_text("cause")?,
                message: row.opt_text("error")?.map(|error| error_from_json(&error)).transpose()?.and_then(message_of),
            };
            if let Some(at) = row.opt_time("started_at")?.filter(|_| !has_start(&items, end.epoch)) {
                items.push(HistoryItem {
                    event: "started".into(),
                    at,
                    actor: None,
                    cause: None,
                    message: None,
                    ..end.clone()
                });
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
            actor: principal,
            cause: origin,
            message: None,
        };
        items.insert(0, enqueued);
        let Some(job) = job else { return Ok(Some(items)) };
        let row = tx.query_opt(&BEGUN, &[Param::from(self.job)]).await?;
        let begun_at = row.map(|row| row.opt_time("begun_at")).transpose()?.flatten();
        for item in items_of_row(&job, begun_at) {
            if item.event != "started" || !has_start(&items, item.epoch) {
                items.push(item);
            }
        }
        Ok(Some(items))
    }
}

/// The expiry of the last attempt and the end of the job are two rows with one start.
fn has_start(items: &[HistoryItem], epoch: i64) -> bool {
    items.iter().any(|item| item.event == "started" && item.epoch == epoch)
}

/// Returns the events that the job's own row records: the current attempt of a live job, or the last attempt of an
/// ended job and its end. `begun_at` is when the worker reported `working`: an attempt that loaded an affinity first has
/// the events `loading` and `working`.
fn items_of_row(job: &StoredJob, begun_at: Option<Time>) -> Vec<HistoryItem> {
    let item = |event: &str, at: Time| HistoryItem {
        event: event.into(),
        at,
        attempt: job.attempt,
        epoch: job.epoch.0,
        worker: job.worker,
        actor: None,
        cause: None,
        message: None,
    };
    let mut items: Vec<HistoryItem> = job.started_at.map(|at| item("started", at)).into_iter().collect();
    if let Some(at) = job.started_at.filter(|_| job.state == JobState::Loading || begun_at.is_some()) {
        items.push(item("loading", at));
        items.extend(begun_at.map(|at| item("working", at)));
    }
    if let Some(at) = job.finished_at {
        let error = job.error.as_ref().filter(|_| job.state == JobState::Failed);
        let message = error.cloned().and_then(message_of);
        let cause = job.error.as_ref().and_then(|error| match job.state {
            JobState::Failed => Some(error.code.clone()),
            // The need that kept the job from starting.
            JobState::Canceled if error.code == NEEDS => Some(format!("{NEEDS}: {}", error.message)),
            _ => None,
        });
        items.push(HistoryItem { actor: job.actor.clone(), cause, message, ..item(end_event(job.state), at) });
    }
    items
}

fn message_of(error: JobError) -> Option<String> {
    Some(error.message).filter(|message| !message.is_empty())
}

/// Returns the event name for the end of a job.
pub(crate) fn end_event(state: JobState) -> &'static str {
    match state {
        JobState::Succeeded => "finished",
        JobState::Canceled => "canceled",
        _ => "failed",
    }
}
