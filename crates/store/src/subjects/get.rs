//! One subject as a maintenance card shows it: facts, backoffs, what is being done to it, and how it stands with each
//! process.

use domain::{JobId, Label, TenantId, Time, WorkerId};

use crate::backoffs::{self, StoredBackoff};
use crate::error::StoreError;
use crate::store::Store;
use crate::subjects::SubjectRow;
use crate::subjects::facts::ToldFact;
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub id: String,
    pub kind: Option<String>,
    pub facts: Vec<ToldFact>,
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

/// How a subject stands with a process that has to do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStanding {
    pub process: String,
    /// Since when it has been eligible, if it is.
    pub since: Option<Time>,
    /// From when a job may be made.
    pub ready_at: Option<Time>,
    /// When age alone may change the answer.
    pub check_at: Option<Time>,
    pub job: Option<JobId>,
    /// What it waits for is its next turn, not a backoff.
    pub paced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectCard {
    pub subject: Subject,
    pub work: Vec<LiveWork>,
    pub standings: Vec<ProcessStanding>,
}

impl Store {
    pub async fn subject(&self, tenant: TenantId, id: Label) -> Result<Option<SubjectCard>, StoreError> {
        self.read(Get { tenant, id }).await
    }
}

struct Get {
    tenant: TenantId,
    id: Label,
}

const FIND: Sql =
    Sql::both(&["select id, kind, facts, created_at, updated_at from subjects where tenant = $1 and id = $2"]);
const WORK: Sql = Sql::both(&["select j.id, coalesce(j.process, l.kind), j.state, j.worker, j.started_at
     from jobs j join lanes l on l.lane = j.lane where j.tenant = $1 and j.subject = $2 order by j.id limit $3"]);
const STANDINGS: Sql = Sql::both(&["select process, since, ready_at, check_at, job, pace_at from standings
     where tenant = $1 and subject = $2 order by process"]);

/// Unfinished jobs that an answer names.
const WORK_SHOWN: i64 = 100;

impl Operation for Get {
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
        let standings = rows.iter().map(ProcessStanding::read).collect::<Result<_, _>>()?;
        Ok(Some(SubjectCard { subject, work, standings }))
    }
}

impl Subject {
    pub(crate) fn of(row: SubjectRow, backoffs: Vec<StoredBackoff>) -> Self {
        Self {
            id: row.id,
            kind: row.kind,
            facts: row.facts.told(),
            backoffs,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

impl ProcessStanding {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            process: row.text(0)?,
            since: row.opt_time(1)?,
            ready_at: row.opt_time(2)?,
            check_at: row.opt_time(3)?,
            job: row.opt_uuid(4)?.map(JobId::new),
            paced: row.opt_time(5)?.is_some_and(|pace_at| row.opt_time(2).ok().flatten() == Some(pace_at)),
        })
    }
}

pub(crate) async fn live_work(tx: &mut Tx<'_>, tenant: TenantId, subject: &str) -> Result<Vec<LiveWork>, StoreError> {
    let rows = tx.query(&WORK, &[Param::Int(tenant.0), Param::Text(subject), Param::Int(WORK_SHOWN)]).await?;
    let read = |row: &Row| {
        Ok(LiveWork {
            job: row.job(0)?,
            process: row.text(1)?,
            state: row.text(2)?,
            worker: row.opt_uuid(3)?.map(WorkerId::new),
            started_at: row.opt_time(4)?,
        })
    };
    rows.iter().map(read).collect()
}
