//! Reads processes with their subject counts. The eligible count uses the same condition as the scan.

use domain::limits::PROCESS_COUNT_ROWS;
use domain::{Name, ProcessSettings, TenantId, Time};

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::processes::codec::settings_from_json;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub name: Name,
    pub settings: ProcessSettings,
    pub principal: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub counts: ProcessCounts,
}

/// How many subjects of a process are in each state. Each count stops at `PROCESS_COUNT_ROWS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Subjects for which a job may be made now.
    pub eligible: i64,
    /// Subjects with an unfinished job.
    pub active: i64,
    /// Subjects that would be eligible without a backoff.
    pub in_backoff: i64,
    /// Since when the longest-waiting eligible subject has been ready.
    pub oldest: Option<Time>,
}

impl Store {
    /// Returns one process; `None` if it is not declared.
    pub async fn process(&self, tenant: TenantId, name: &Name) -> Result<Option<Process>, StoreError> {
        Ok(self.read(ReadProcesses { tenant, name: Some(name.clone()), after: None, limit: 1 }).await?.pop())
    }

    /// Returns processes ordered by name, starting after `after`.
    pub async fn list_processes(
        &self,
        tenant: TenantId,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<Process>, StoreError> {
        self.read(ReadProcesses { tenant, name: None, after, limit }).await
    }
}

struct ReadProcesses {
    tenant: TenantId,
    name: Option<Name>,
    after: Option<Name>,
    limit: usize,
}

const ONE: Sql = Sql::both(&["select name, queue, kind, settings, principal, created_at, updated_at from processes
     where tenant = $1 and name = $2 and dropped_at is null"]);
const ALL: Sql = Sql::both(&["select name, queue, kind, settings, principal, created_at, updated_at from processes
     where tenant = $1 and name > $2 and dropped_at is null order by name limit $3"]);
// The condition must stay identical to that of `CANDIDATES` in `scan.rs`.
const ELIGIBLE: Sql = Sql::both(&["select count(*) as subjects, min(ready_at) as oldest from (
         select s.ready_at from processes p
             join standings s on s.tenant = p.tenant and s.process = p.name and s.job is null and s.ready_at <= $3
                 and (s.check_at is null or s.check_at > $3) and (p.swept_to is null or s.subject <= p.swept_to)
         where p.tenant = $1 and p.name = $2 and p.dropped_at is null
         order by s.ready_at limit $4) eligible"]);
const ACTIVE: Sql = Sql::both(&["select count(*) as subjects from (
         select 1 from standings where tenant = $1 and process = $2 and job is not null limit $3) active"]);
// A subject that waits only for its process's pace (`every_s`) is not in backoff.
const IN_BACKOFF: Sql = Sql::both(&["select count(*) as subjects from (
         select 1 from standings where tenant = $1 and process = $2 and job is null and ready_at > $3
             and (pace_at is null or ready_at > pace_at) limit $4) held_off"]);

impl Operation for ReadProcesses {
    type Output = Vec<Process>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Process>, StoreError> {
        let tenant = Param::Int(self.tenant.0);
        let rows = match &self.name {
            Some(name) => tx.query(&ONE, &[tenant, Param::Text(name.as_str())]).await?,
            None => {
                let after = self.after.as_ref().map_or("", Name::as_str);
                tx.query(&ALL, &[tenant, Param::Text(after), Param::Int(self.limit as i64)]).await?
            }
        };
        let mut processes = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut process = read(row)?;
            process.counts = counts(tx, self.tenant, &process.name).await?;
            processes.push(process);
        }
        Ok(processes)
    }
}

fn read(row: &Row) -> Result<Process, StoreError> {
    let (queue, kind) = (Name::stored(&row.text("queue")?), Name::stored(&row.text("kind")?));
    Ok(Process {
        name: Name::stored(&row.text("name")?),
        settings: settings_from_json(queue, kind, &row.text("settings")?)?,
        principal: row.text("principal")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        counts: ProcessCounts::default(),
    })
}

async fn counts(tx: &mut Tx<'_>, tenant: TenantId, name: &Name) -> Result<ProcessCounts, StoreError> {
    let (tenant, name) = (Param::Int(tenant.0), Param::Text(name.as_str()));
    let (now, max_rows) = (Param::Time(tx.now()), Param::Int(PROCESS_COUNT_ROWS as i64));
    let one = |row: Option<Row>| row.ok_or_else(|| StoreError::unexpected("a count query returned no row"));
    let eligible = one(tx.query_opt(&ELIGIBLE, &[tenant, name, now, max_rows]).await?)?;
    let active = one(tx.query_opt(&ACTIVE, &[tenant, name, max_rows]).await?)?;
    let in_backoff = one(tx.query_opt(&IN_BACKOFF, &[tenant, name, now, max_rows]).await?)?;
    Ok(ProcessCounts {
        eligible: eligible.int("subjects")?,
        oldest: eligible.opt_time("oldest")?,
        active: active.int("subjects")?,
        in_backoff: in_backoff.int("subjects")?,
    })
}
