//! Reads one subject with its facts, backoffs, unfinished jobs and its eligibility for each process. Called by the API,
//! the dashboard and the deletion of subjects.

use domain::{JobId, Label, TenantId, Time, WorkerId};

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::backoffs;
use crate::fleet::backoffs::StoredBackoff;
use crate::fleet::subjects::SubjectRow;
use crate::fleet::subjects::facts::FactEntry;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub id: String,
    pub kind: Option<String>,
    pub facts: Vec<FactEntry>,
    pub backoffs: Vec<StoredBackoff>,
    pub created_at: Time,
    pub updated_at: Time,
}

/// An unfinished job on a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveWork {
    pub job: JobId,
    /// The process, or the kind of a job that has none.
    pub process: String,
    pub state: String,
    pub worker: Option<WorkerId>,
    pub started_at: Option<Time>,
}

/// The eligibility of a subject for one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEligibility {
    pub process: String,
    /// Since when the subject has been eligible; `None` while it is not.
    pub since: Option<Time>,
    /// Earliest time of the next job.
    pub ready_at: Option<Time>,
    /// When the age of a fact may change the result.
    pub check_at: Option<Time>,
    pub job: Option<JobId>,
    /// True if the subject waits for the process's pace (`every_s`), not for a backoff.
    pub paced: bool,
}

/// A subject with its unfinished jobs and its eligibility.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectCard {
    pub subject: Subject,
    pub work: Vec<LiveWork>,
    pub eligibility: Vec<ProcessEligibility>,
}

impl Store {
    /// Returns a subject; `None` if it does not exist.
    pub async fn subject(&self, tenant: TenantId, id: Label) -> Result<Option<SubjectCard>, StoreError> {
        self.read(GetSubject { tenant, id }).await
    }
}

struct GetSubject {
    tenant: TenantId,
    id: Label,
}

const FIND: Sql =
    Sql::both(&["select id, kind, facts, created_at, updated_at from subjects where tenant = $1 and id = $2"]);
const WORK: Sql = Sql::both(&["select j.id, coalesce(j.process, l.kind) as process, j.state, j.worker, j.started_at
     from jobs j join lanes l on l.lane = j.lane where j.tenant = $1 and j.subject = $2 order by j.id limit $3"]);
const STANDINGS: Sql = Sql::both(&["select process, since, ready_at, check_at, job, pace_at from standings
     where tenant = $1 and subject = $2 order by process"]);

/// Maximum number of unfinished jobs in a card.
const MAX_LIVE_WORK: i64 = 100;

impl Operation for GetSubject {
    type Output = Option<SubjectCard>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<SubjectCard>, StoreError> {
        let id = [Param::Int(self.tenant.0), Param::Text(self.id.as_str())];
        let Some(row) = tx.query_opt(&FIND, &id).await? else { return Ok(None) };
        let backoffs = backoffs::of_subject(tx, self.tenant, self.id.as_str()).await?;
        let subject = Subject::of(SubjectRow::read(&row)?, backoffs);
        let work = live_work(tx, self.tenant, self.id.as_str()).await?;
        let rows = tx.query(&STANDINGS, &id).await?;
        let eligibility = rows.iter().map(ProcessEligibility::read).collect::<Result<_, _>>()?;
        Ok(Some(SubjectCard { subject, work, eligibility }))
    }
}

impl Subject {
    pub(crate) fn of(row: SubjectRow, backoffs: Vec<StoredBackoff>) -> Self {
        Self {
            id: row.id,
            kind: row.kind,
            facts: row.facts.into_entries(),
            backoffs,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl ProcessEligibility {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            process: row.text("process")?,
            since: row.opt_time("since")?,
            ready_at: row.opt_time("ready_at")?,
            check_at: row.opt_time("check_at")?,
            job: row.opt_uuid("job")?.map(JobId::new),
            paced: row
                .opt_time("pace_at")?
                .is_some_and(|pace_at| row.opt_time("ready_at").ok().flatten() == Some(pace_at)),
        })
    }
}

impl LiveWork {
    pub(super) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            job: row.job("id")?,
            process: row.text("process")?,
            state: row.text("state")?,
            worker: row.opt_uuid("worker")?.map(WorkerId::new),
            started_at: row.opt_time("started_at")?,
        })
    }
}

/// Returns the unfinished jobs of a subject, oldest first, at most [`MAX_LIVE_WORK`].
pub(crate) async fn live_work(tx: &mut Tx<'_>, tenant: TenantId, subject: &str) -> Result<Vec<LiveWork>, StoreError> {
    let rows = tx.query(&WORK, &[Param::Int(tenant.0), Param::Text(subject), Param::Int(MAX_LIVE_WORK)]).await?;
    rows.iter().map(LiveWork::read).collect()
}
