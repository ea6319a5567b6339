//! Reads pages of the timeline, newest first. Called by the API and the dashboard.

use domain::{JobId, TenantId, Time, WorkerId};

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineItem {
    /// Position in the timeline: later items have larger ids.
    pub id: i64,
    pub at: Time,
    pub event: String,
    pub subject: Option<String>,
    pub runtime: Option<String>,
    pub process: Option<String>,
    pub job: Option<JobId>,
    pub attempt: Option<i32>,
    pub worker: Option<WorkerId>,
    pub actor: Option<String>,
    pub cause: Option<String>,
    /// JSON.
    pub detail: Option<String>,
}

/// Selects the items of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineOf {
    Everything,
    Subject(String),
    Runtime(String),
}

impl Store {
    /// Returns up to `limit` items with ids below `before`, newest first.
    pub async fn timeline(
        &self,
        tenant: TenantId,
        of: TimelineOf,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<TimelineItem>, StoreError> {
        self.read(ListTimeline { tenant, of, before: before.unwrap_or(i64::MAX), limit }).await
    }
}

struct ListTimeline {
    tenant: TenantId,
    of: TimelineOf,
    before: i64,
    limit: usize,
}

const OF_ALL: Sql =
    Sql::both(&["select id, at, event, subject, runtime, process, job, attempt, worker, actor, cause, detail
     from timeline where tenant = $1 and id < $2 order by id desc limit $3"]);
const OF_SUBJECT: Sql =
    Sql::both(&["select id, at, event, subject, runtime, process, job, attempt, worker, actor, cause, detail
     from timeline where tenant = $1 and id < $2 and subject = $4 order by id desc limit $3"]);
const OF_RUNTIME: Sql =
    Sql::both(&["select id, at, event, subject, runtime, process, job, attempt, worker, actor, cause, detail
     from timeline where tenant = $1 and id < $2 and runtime = $4 order by id desc limit $3"]);

impl Operation for ListTimeline {
    type Output = Vec<TimelineItem>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<TimelineItem>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Int(self.before), Param::Int(self.limit as i64)];
        let with = |name| [params[0], params[1], params[2], Param::Text(name)];
        let rows = match &self.of {
            TimelineOf::Everything => tx.query(&OF_ALL, &params).await?,
            TimelineOf::Subject(subject) => tx.query(&OF_SUBJECT, &with(subject)).await?,
            TimelineOf::Runtime(runtime) => tx.query(&OF_RUNTIME, &with(runtime)).await?,
        };
        rows.iter().map(item).collect()
    }
}

fn item(row: &Row) -> Result<TimelineItem, StoreError> {
    Ok(TimelineItem {
        id: row.int("id")?,
        at: row.time("at")?,
        event: row.text("event")?,
        subject: row.opt_text("subject")?,
        runtime: row.opt_text("runtime")?,
        process: row.opt_text("process")?,
        job: row.opt_uuid("job")?.map(JobId::new),
        attempt: row.opt_int("attempt")?.map(|attempt| attempt as i32),
        worker: row.opt_uuid("worker")?.map(WorkerId::new),
        actor: row.opt_text("actor")?,
        cause: row.opt_text("cause")?,
        detail: row.opt_text("detail")?,
    })
}
